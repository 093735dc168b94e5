//! Mixtures of experts.

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{ExpertLinearParams, RouterTopKParams, StoredWeight};
use crate::run::{Run, Slot};

/// Outputs of a block: a warp each.
const OUTPUTS_PER_BLOCK: u32 = 4;

/// The `k` largest logits of each row, and their shares.
#[derive(Debug)]
pub(crate) struct RouterTopKOp {
    pub kernel: Kernel,
    pub logits: Slot,
    pub k: usize,
    /// True if shares are of the chosen experts alone.
    pub of_chosen: bool,
    pub experts: Slot,
    pub weights: Slot,
}

/// A linear layer of each row's chosen experts.
#[derive(Debug)]
pub(crate) struct ExpertLinearOp {
    /// One for each format that some rows of the weight have.
    pub kernels: Vec<Kernel>,
    pub x: Slot,
    pub experts: Slot,
    pub w: StoredWeight,
    /// The weight's number.
    pub number: usize,
    /// Experts that there are.
    pub count: usize,
    /// True if each chosen expert has a row of `x` of its own.
    pub own_rows: bool,
    pub out: Slot,
}

impl Launch for RouterTopKOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (logits, rows) = run.tensor(&self.logits).rows();
        let params = RouterTopKParams {
            logits,
            experts: run.tensor(&self.experts).integers(),
            weights: run.tensor(&self.weights).floats(),
            k: self.k as u32,
            of_chosen: u32::from(self.of_chosen),
        };
        run.launch(&self.kernel, rows, 1, 32, 0, &params)
    }
}

impl Launch for ExpertLinearOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, _) = run.tensor(&self.x).rows();
        let experts = run.tensor(&self.experts);
        let outputs = self.w.rows / self.count as u32;
        let params = ExpertLinearParams {
            x,
            w: self.w,
            experts: experts.integers(),
            y: run.tensor(&self.out).floats(),
            fault: run.fault,
            slots: experts.count() as u32,
            chosen: experts.dim_from_end(0),
            own_rows: u32::from(self.own_rows),
            experts_count: self.count as u32,
            outputs,
        };
        for kernel in &self.kernels {
            let blocks = outputs.div_ceil(OUTPUTS_PER_BLOCK);
            run.launch(kernel, blocks, experts.count() as usize, OUTPUTS_PER_BLOCK * 32, 0, &params)?;
        }
        Ok(())
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let slots = run.tensor(&self.experts).count();
        let count = self.count as u64;
        let (bytes, elements) = (run.weights.stored_bytes(self.number), run.weights.elements(self.number));
        (bytes / count * slots.min(count), 2 * elements / count * slots)
    }
}
