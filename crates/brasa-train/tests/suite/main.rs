//! Tests of training.

mod batches;
mod data;
mod lora;
mod optimizers;
mod random;
mod setup;
mod stacks;
