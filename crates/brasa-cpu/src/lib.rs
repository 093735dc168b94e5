//! The CPU device: kernels for every operation, chosen by the processor's instruction sets.
//!
//! [`CpuBackend`] implements the device contract of `brasa-graph`. A graph is compiled once into a flat table of
//! operations with resolved places in one arena; a step replays the table with all threads together, one barrier
//! an operation. On that path nothing allocates, hashes or branches on names.
//!
//! The modules that every operation stands on:
//! - [`isa`]: instruction sets, as values that prove that this processor has them;
//! - `tiles`: the matrix unit of processors that have one, or an emulation;
//! - [`team`]: threads that walk a program together, with a barrier between operations;
//! - [`quantize`]: rows of activations as blocks of int8;
//! - [`linear`]: weights repacked into the order in which kernels stream them, and their products;
//! - `matrix`: products of matrices that are no weights;
//! - [`probe`]: the speed at which this machine reads and multiplies at most, measured.
//!
//! This crate knows operations, never models, files or text.
#![allow(
    clippy::inline_always,
    reason = "a kernel must be inlined into the function that enables its instructions"
)]

mod arena;
mod attention;
mod backend;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod compile;
mod context;
mod error;
mod fault;
pub mod heap;
#[cfg(target_arch = "x86_64")]
mod int16;
pub mod isa;
mod kv;
pub mod linear;
mod matrix;
mod memory;
mod ops;
mod prefetch;
mod prepared;
pub mod probe;
mod program;
pub mod quantize;
pub mod rounded;
pub mod shared;
mod simd;
mod slot;
mod step_state;
pub mod team;
#[doc(hidden)]
pub mod testing;
mod tile_row;
#[cfg(target_arch = "x86_64")]
pub mod tiles;
mod waiting;
mod weights;

pub use backend::{CpuBackend, CpuOptions};
pub use error::Error;
pub use isa::Isa;
pub use kv::CpuKvPool;
pub use team::Team;
