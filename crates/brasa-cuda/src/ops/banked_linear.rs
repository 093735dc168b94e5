//! A product with the low-rank product of a bank of adapters beside it.

use super::low_rank_rows::{LowRankRowsOp, MOST_ADDED_ROWS};
use crate::driver::DriverError;
use crate::ops::gemm::MOST_ROWS_WITHOUT_TAIL;
use crate::ops::{FEWEST_ROWS, GatedOp, Launch, LinearOp, Rounding};
use crate::params::{LowRankRowsParams, Norm};
use crate::run::Run;

/// `y = [residual +] x·Wᵀ [+ bias] + (factors ∘ x·Aᵀ)·Bᵀ`, or the gated product of its halves.
///
/// The low-rank product of at most [`MOST_ADDED_ROWS`] rows, and of more than [`MOST_ROWS_WITHOUT_TAIL`], is added within the other one, so that one kernel
/// computes what follows too.
#[derive(Debug)]
pub(crate) struct BankedLinearOp {
    /// The product of few and of many rows, with the low-rank one.
    pub together: LinearOp,
    /// The products of other rows. The low-rank one is the first where both are added to a residual.
    pub alone: LinearOp,
    pub low: LowRankRowsOp,
    pub low_first: bool,
    /// The gates behind, and the rounding of what they make, where `together` rounds it.
    pub gated: Option<(GatedOp, Option<Rounding>)>,
}

impl Launch for BankedLinearOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.together.x).rows();
        if (FEWEST_ROWS..=MOST_ADDED_ROWS).contains(&rows) {
            // One of them rounds for all.
            self.alone.round(run, x, rows)?;
            self.low.first.round(run, x, rows)?;
            let addend = self.low.few.addend_of_next(run, rows);
            self.low.make_ranks(run, &LowRankRowsParams { addend, ..self.low.few_params(run, (x, rows)) })?;
            return self.together.multiply(run, x, rows);
        }
        if let Some(gemm) = self.together.gemm.as_ref().filter(|_| rows > MOST_ROWS_WITHOUT_TAIL) {
            self.alone.round(run, x, rows)?;
            self.low.make_tail(run, (x, rows), gemm.panels.row_scale)?;
            return self.together.multiply(run, x, rows);
        }
        if self.low_first {
            self.low.launch(run)?;
            self.alone.multiply(run, x, rows)?;
        } else {
            self.alone.multiply(run, x, rows)?;
            self.low.launch(run)?;
        }
        if let Some((gated, rounding)) = &self.gated {
            gated.launch(run)?;
            if let Some(rounding) = rounding.as_ref().filter(|_| rows >= FEWEST_ROWS) {
                let y = run.tensor(&self.together.out).rows().0;
                rounding.launch(run, y, Norm::NONE, rows, y.width)?;
            }
        }
        if rows >= FEWEST_ROWS { self.together.round_result(run, rows) } else { Ok(()) }
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (alone, low) = (self.alone.cost(run), self.low.cost(run));
        (alone.0 + low.0, alone.1 + low.1)
    }
}
