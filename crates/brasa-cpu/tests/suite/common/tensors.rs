//! Random weights of every storage format.

pub use brasa_graph::testing::{Noise, formats, random_tensor as tensor};
