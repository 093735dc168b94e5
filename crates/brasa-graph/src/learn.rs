//! Learning on a device: gradients are summed and values updated in the device's memory. No gradient is copied to the host.

use std::ops::Range;
use std::sync::Arc;

use crate::Weight;
use crate::device::{DeviceError, KvPool};
use crate::step::Step;

/// A learned block of a weight. The weight's other elements stay.
#[derive(Clone, Debug)]
pub struct LearnedBlock {
    /// The weight, stored as f32.
    pub weight: Arc<Weight>,
    /// The program's output that is the gradient of the weight, `[rows, row_len]`.
    pub output: usize,
    /// Rows of the block.
    pub rows: Range<usize>,
    /// Elements of each row.
    pub columns: Range<usize>,
}

impl LearnedBlock {
    /// Values of the block.
    pub fn count(&self) -> usize {
        self.rows.len() * self.columns.len()
    }
}

/// One update by AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101). All factors that do not depend on an element are computed
/// beforehand.
///
/// For each element with value `v`, summed gradient `s`, mean `m` and mean square `q`, in f32 and in this order: `g = factor · s`, `v ← kept · v`,
/// `m ← m + new1 · (g − m)`, `q ← beta2 · q + new2 · g · g`, `v ← v − rate · m / (√q / root + eps)`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the formula above names them")]
pub struct AdamStep {
    pub factor: f32,
    pub kept: f32,
    pub new1: f32,
    pub beta2: f32,
    pub new2: f32,
    pub rate: f32,
    pub root: f32,
    pub eps: f32,
}

/// The values of a learned block, and the moments of their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedState {
    /// The block's values, row by row.
    pub values: Vec<f32>,
    /// The running mean of each value's gradient.
    pub means: Vec<f32>,
    /// The running mean of the square of each value's gradient.
    pub squares: Vec<f32>,
}

/// A program with a loss as its first output, `[1]`, that learns from the loss's gradients.
pub trait Learner {
    /// Allocates the moments of the blocks, which begin at 0. Returns false if this device leaves updates to the host; no other
    /// method may be called then.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`].
    fn prepare(&mut self, blocks: &[LearnedBlock]) -> Result<bool, DeviceError>;

    /// Runs a step, adds its gradients to the sums, and returns the loss. `is_first` is true for the first step of an update,
    /// which sets the sums to 0 beforehand.
    ///
    /// # Errors
    ///
    /// Errors of [`Program::run`](crate::device::Program::run).
    fn run_and_sum(&mut self, step: &Step, pool: &mut dyn KvPool, is_first: bool)
    -> Result<f32, DeviceError>;

    /// The Euclidean norm of the summed gradients of all blocks together, summed in f64.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`].
    fn norm(&mut self) -> Result<f64, DeviceError>;

    /// Updates the values by the summed gradients. Programs use the new values from their next step on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`].
    fn update(&mut self, step: &AdamStep) -> Result<(), DeviceError>;

    /// The values and moments of each block.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`].
    fn read(&mut self) -> Result<Vec<LearnedState>, DeviceError>;

    /// Sets the mean and the mean square of each value, by block. The values themselves are those of the weights.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`].
    ///
    /// # Panics
    ///
    /// If the arrays do not have the sizes of the blocks.
    fn write_means(&mut self, of_blocks: &[[&[f32]; 2]]) -> Result<(), DeviceError>;
}
