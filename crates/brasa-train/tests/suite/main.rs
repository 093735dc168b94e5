//! Tests of training.

mod batches;
mod data;
mod optimizers;
mod random;
