//! Events of a conversion while it runs, and the figures of the written file.

use std::ops::ControlFlow;

use brasa_formats::StorageFormat;

use crate::{ConvertError, Result};

/// A step of a conversion, for the caller to show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Everything is decided and writing starts.
    Planned {
        /// Tensors of the output.
        tensors: usize,
        /// Elements of all tensors.
        elements: u64,
        /// Bytes of tensor data to be written.
        bytes: u64,
    },
    /// A tensor cannot be stored as the recipe wants, because its rows are no whole number of blocks.
    Fallback {
        /// The tensor.
        tensor: &'a str,
        /// Elements of a row.
        row_len: usize,
        /// The format that the recipe wanted.
        wanted: StorageFormat,
        /// The format that is used instead.
        used: StorageFormat,
    },
    /// A fact about the input that users should know: a setting that may be unintended, or that llama.cpp will not read from the
    /// output.
    Warning(String),
    /// A tensor begins.
    Tensor {
        /// The tensor's name.
        name: &'a str,
        /// The tensor's dimensions, outermost first.
        shape: &'a [usize],
        /// The storage format in the input.
        from: StorageFormat,
        /// The storage format in the output.
        to: StorageFormat,
    },
    /// Adapters were merged. The fields measure the part of their change that is left after rounding, against the same file
    /// without adapters.
    Merged {
        /// Number of tensors that the adapters changed.
        tensors: usize,
        /// The share of the adapters' change that was written: `Σ Δ·Δ' / Σ Δ²`, Δ' the written change; 1 if all of it was.
        share: f64,
        /// The length of the rounding error of the change, divided by the length of the change.
        error: f64,
    },
    /// Part of a tensor is written.
    Progress {
        /// Elements written so far.
        done: u64,
        /// Elements of all tensors.
        elements: u64,
    },
}

/// Figures of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Tensors.
    pub tensors: usize,
    /// Elements of all tensors.
    pub elements: u64,
    /// Bytes of tensor data.
    pub bytes: u64,
    /// Tensors stored otherwise than the recipe wanted.
    pub fallbacks: usize,
}

impl Summary {
    /// Bits per element over all tensors.
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.elements.max(1) as f64
    }
}

/// Receives events; [`ControlFlow::Break`] cancels the conversion.
pub type Observer<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Tells the observer of an event.
///
/// # Errors
///
/// [`ConvertError::Cancelled`] if the observer cancels.
pub fn tell(observer: &mut Observer<'_>, event: Event<'_>) -> Result<()> {
    match observer(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ConvertError::Cancelled),
    }
}
