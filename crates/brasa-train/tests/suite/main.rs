//! Tests of training.

mod batches;
mod data;
mod random;
