//! Tests of the CPU device: products, operations, graphs, decoders.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod common;
mod contract;
mod decoder;
mod derivatives;
mod draft_tree;
mod embeddings;
mod graphs;
mod head_linear;
mod latent;
mod linear;
mod linear_bits;
mod low_rank;
mod memory;
mod not_numbers;
mod ops;
mod program;
mod recurrent;
mod scaling;
mod sets;
mod shift;
