//! Arrays that are computed lazily on a device, and derivatives of closures over them.
//!
//! Operations on an [`Array`] record expressions; a [`Runner`] makes one graph of an expression, compiles it for its device as a
//! model's graph is compiled, and keeps the program for expressions of the same form. [`grad`] differentiates closures by the
//! graph's own passes: gradients are arrays too.
//!
//! This crate handles expressions. It contains nothing about models, files and tokens, and opens no device: the caller passes
//! one.
//!
//! ```
//! use std::sync::Arc;
//!
//! use brasa_array::{Array, Runner, grad};
//! use brasa_cpu::{CpuBackend, CpuOptions};
//!
//! let mut runner = Runner::new(Arc::new(CpuBackend::new(CpuOptions::default())?))?;
//! let x = Array::new([1.0, 2.0, 3.0], &[3]);
//! let (value, gradients) = grad::value_and_grad(|x| Ok((x[0].square() * 0.5).sum_all()))(&[x])?;
//! assert_eq!(runner.item(&value)?, 7.0);
//! assert_eq!(runner.read(&gradients[0])?, [1.0, 2.0, 3.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;
mod error;
pub mod grad;
pub mod loss;
mod lower;
mod ops;
mod order;
mod random;
mod runner;

pub use array::{Array, MOST_AXES};
pub use error::{ArrayError, Result};
pub use runner::{Runner, graph};
