//! Rounding of rows to panels of halves, which products on tensor cores read.

use crate::driver::{DriverError, Kernel};
use crate::ops::HeadNorm;
use crate::params::{Gates, GemmSumParams, GemmSumsPanelsParams, Norm, PanelsParams, Ptr, Rows};
use crate::run::{BufferId, Run, Slot, THREADS};

use super::PANEL_ROWS;

/// Buffers that rows are rounded to: halves in panels, and the power of two of each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels {
    pub data: BufferId,
    pub row_scale: BufferId,
    /// Pieces of 64 inputs.
    pub subs: usize,
}

/// The rounding of rows by a launch of its own.
#[derive(Clone, Debug)]
pub(crate) struct Rounding {
    /// `gemm_panels`.
    pub kernel: Kernel,
    pub panels: Panels,
    /// Gates that follow the product of these rows, if their results are rounded too.
    pub gates: Option<GatesBehind>,
    /// More of each row, which becomes the last piece of its panels.
    pub tail: Option<Slot>,
}

/// A weight that gates products, which are rounded for the product behind.
#[derive(Clone, Debug)]
pub(crate) struct GatesBehind {
    /// The largest squared norm of its rows.
    pub row_norm: Ptr<f32>,
    /// The buffer of the powers of two of rows of products.
    pub row_scale: BufferId,
    /// The bank's product beside it: the largest squared norms of rows of A and of B, and the rows' factors.
    pub bank: Option<([Ptr<f32>; 2], Slot)>,
}

/// Rounding of a result for the product behind, which an operation does at its end.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub rounding: Rounding,
    /// The norm between the result and the product.
    pub norm: Option<HeadNorm>,
    /// `gemm_sums_panels`, which adds sums of parts, norms and rounds.
    pub joined: Kernel,
}

/// Threads that round a row: eight inputs each, and for prompts, which have a block of threads for each of many rows, no more than 256.
pub(crate) fn panel_threads(rows: u32, inputs: u32) -> u32 {
    let most = if rows as usize <= PANEL_ROWS { 1024 } else { THREADS };
    inputs.div_ceil(8).next_multiple_of(32).clamp(32, most)
}

impl Rounding {
    /// Queues the conversion of `x`, normed where there is a norm, to panels.
    pub(crate) fn launch(
        &self,
        run: &Run<'_>,
        x: Rows,
        norm: Norm,
        rows: u32,
        inputs: u32,
    ) -> Result<(), DriverError> {
        let Panels { data, row_scale, subs } = self.panels;
        let params = PanelsParams {
            tail: self.tail.as_ref().map_or(Rows::NONE, |tail| run.tensor(tail).rows().0),
            x,
            norm,
            gates: self.gates(run),
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            rows,
            inputs,
            subs: subs as u32,
        };
        run.launch(&self.kernel, rows, 1, panel_threads(rows, inputs), 0, &params)
    }
}

impl Rounding {
    fn gates(&self, run: &Run<'_>) -> Gates {
        let Some(GatesBehind { row_norm, row_scale, bank }) = &self.gates else { return Gates::NONE };
        let of_bank =
            |([of_a, of_b], factors): &([Ptr<f32>; 2], Slot)| (*of_a, *of_b, run.tensor(factors).rows().0);
        let (of_a, of_b, factors) = bank.as_ref().map_or((Ptr::NONE, Ptr::NONE, Rows::NONE), of_bank);
        Gates { largest: *row_norm, row_scale: Ptr::new(run.buffer(*row_scale)), of_a, of_b, factors }
    }
}

impl Ahead {
    /// Queues the rounding of `x` by a launch of its own.
    pub(crate) fn round(&self, run: &Run<'_>, x: Rows, rows: u32) -> Result<(), DriverError> {
        self.rounding.launch(run, x, HeadNorm::params(self.norm.as_ref(), run), rows, x.width)
    }

    /// Queues the launch that adds sums of parts and rounds the results.
    pub(super) fn join(&self, run: &Run<'_>, sums: GemmSumParams) -> Result<(), DriverError> {
        let Panels { data, row_scale, subs } = self.rounding.panels;
        let params = GemmSumsPanelsParams {
            sums,
            norm: HeadNorm::params(self.norm.as_ref(), run),
            gates: self.rounding.gates(run),
            panels: Ptr::new(run.buffer(data)),
            row_scale: Ptr::new(run.buffer(row_scale)),
            subs: subs as u32,
        };
        let threads = panel_threads(sums.rows, sums.out.count);
        run.launch(&self.joined, sums.rows, 1, threads, 0, &params)
    }
}

/// Most outputs of a row whose sums of parts are added, normed and rounded by one block.
pub(crate) const WIDEST_JOINED: usize = 16 * 1024;
/// Outputs of a thread of that launch.
const JOINED_OUTPUTS: u32 = 16;

/// True if one launch adds parts of that many rows, and rounds them.
pub(crate) fn joins(rows: u32, outputs: u32) -> bool {
    outputs <= JOINED_OUTPUTS * panel_threads(rows, outputs)
}
