//! Random weights, and devices to run them on.

pub mod packed;
pub mod running;
pub mod sets;
pub mod tensors;
