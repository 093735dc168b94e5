//! The CPU device: kernels for every operation, chosen by what the processor can do.
//!
//! The floor of the crate, which every operation stands on:
//! - [`isa`]: what this processor can do, as values that prove it;
//! - [`team`]: threads that walk a program together, with a barrier between operations;
//! - [`quantize`]: rows of activations as blocks of int8;
//! - [`linear`]: weights repacked into the order in which kernels stream them, and their products.

mod error;
pub mod isa;
pub mod linear;
pub mod quantize;
pub mod shared;
pub mod team;

pub use error::Error;
pub use isa::Isa;
pub use team::Team;
