//! Tests of training.

mod as_mlx;
mod batches;
mod cache;
mod data;
mod lora;
mod noise;
mod objectives;
mod optimizers;
mod parameters;
mod preferences;
mod random;
mod run;
mod setup;
mod stacks;
