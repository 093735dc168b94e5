//! Mixtures of experts.

use brasa_graph::op::{Gating, GroupScore, RouterTopK, Scores};

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{self, ExpertLinearParams, Ptr, RouterScoresParams, RouterTopKParams, StoredWeight};
use crate::run::{Run, Slot};

/// Outputs of a block: a warp each.
const OUTPUTS_PER_BLOCK: u32 = 4;

/// The `k` largest logits of each row, and their shares.
#[derive(Debug)]
pub(crate) struct RouterTopKOp {
    pub kernel: Kernel,
    pub logits: Slot,
    pub router: RouterTopK,
    /// The selection bias, one number for each expert; `None` for a router without one.
    pub bias: Option<Slot>,
    pub experts: Slot,
    pub weights: Slot,
}

/// The name of the kernel of a router. A plain softmax has a kernel of its own, and all other gatings share one.
pub(crate) fn router_kernel(router: &RouterTopK, has_bias: bool) -> &'static str {
    if router.gating.is_plain_softmax() && !has_bias { "router_topk" } else { "router_scores" }
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
    /// Biases, one row for each expert; `None` for experts without biases.
    pub bias: Option<Slot>,
    pub out: Slot,
}

impl Launch for RouterTopKOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (logits, rows) = run.tensor(&self.logits).rows();
        let RouterTopK { k, gating } = self.router;
        let experts = run.tensor(&self.experts).integers();
        let weights = run.tensor(&self.weights).floats();
        if gating.is_plain_softmax() && self.bias.is_none() {
            let of_chosen = u32::from(gating == Gating::SOFTMAX_CHOSEN);
            let params = RouterTopKParams { logits, experts, weights, k: k as u32, of_chosen };
            return run.launch(&self.kernel, rows, 1, 32, 0, &params);
        }
        let compares_scores =
            gating.scores == Scores::Sigmoid || self.bias.is_some() || gating.groups.is_some();
        let params = RouterScoresParams {
            logits,
            bias: self.bias.as_ref().map_or(Ptr::NONE, |bias| run.tensor(bias).floats()),
            experts,
            weights,
            k: k as u32,
            scores: match gating.scores {
                Scores::SoftmaxAll => params::SCORES_SOFTMAX_ALL,
                Scores::SoftmaxChosen => params::SCORES_SOFTMAX_CHOSEN,
                Scores::Sigmoid => params::SCORES_SIGMOID,
            },
            compares_scores: u32::from(compares_scores),
            groups: gating.groups.map_or(0, |groups| groups.count as u32),
            kept: gating.groups.map_or(0, |groups| groups.kept as u32),
            top_two: u32::from(gating.groups.is_some_and(|groups| groups.score == GroupScore::TopTwo)),
            normalises: u32::from(gating.norm_eps.is_some()),
            eps: gating.norm_eps.unwrap_or(0.0),
            scale: gating.scale,
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
            bias: self.bias.as_ref().map_or(Ptr::NONE, |bias| run.tensor(bias).floats()),
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
