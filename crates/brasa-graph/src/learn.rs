//! Learning on a device: gradients are summed and values updated in the device's memory, so that no gradient comes to the host.

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

/// One update by AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), with everything that does not depend on an element computed.
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

/// The learned values of a block of a weight, and their moments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedState {
    /// Values of the parameter, row by row.
    pub values: Vec<f32>,
    /// The mean of the gradient of each value.
    pub means: Vec<f32>,
    /// The mean of its square.
    pub squares: Vec<f32>,
}

/// A program with a loss as its first output, `[1]`, that learns from the loss's gradients.
pub trait Learner {
    /// Makes room for the blocks; means are 0. False where this device leaves their updates to the host: other calls are then errors of the caller.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`].
    fn prepare(&mut self, blocks: &[LearnedBlock]) -> Result<bool, DeviceError>;

    /// Runs a step, adds its gradients to the sums, which begin with the first step of an update, and returns the loss.
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

    /// Changes the values. Programs see them from their next step on.
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

    /// Takes over means and mean squares of each block. Values are those of the weights.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`].
    ///
    /// # Panics
    ///
    /// If arrays have other sizes.
    fn write_means(&mut self, of_blocks: &[[&[f32]; 2]]) -> Result<(), DeviceError>;
}
