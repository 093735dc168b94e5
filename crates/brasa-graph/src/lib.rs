//! Typed graph of a model, its reference interpreter, and the contract that devices implement
