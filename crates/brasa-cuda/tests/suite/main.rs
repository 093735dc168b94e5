//! Tests of the CUDA device, on the GPU of this machine or on an emulated one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod contract;
mod device;
mod draft_tree;
mod draw;
mod embeddings;
mod engine;
mod few_rows;
mod formats;
mod gradient_operations;
mod gradients;
mod graphs;
mod head_linear;
mod interpreter;
mod latent;
mod lost;
mod memory;
mod mixtures;
mod models;
mod not_numbers;
mod operands;
mod ops;
mod recurrent;
mod running;
mod shift;
mod training;
mod weights;
