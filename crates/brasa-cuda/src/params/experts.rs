//! Structures of mixtures of experts.

#[cfg(test)]
use std::fmt::Write as _;

#[cfg(test)]
use super::Shared;
use super::{Fault, Ptr, Rows, StoredWeight};

params! {
    struct RouterTopKParams {
        logits: Rows,
        experts: Ptr<u32>,
        weights: Ptr<f32>,
        k: u32,
        of_chosen: u32,
    }
    /// A router with any gating. `bias` is null for a router without a selection bias, and `groups` is 0 for one
    /// without groups. The choice compares scores if `compares_scores`, else logits.
    struct RouterScoresParams {
        logits: Rows,
        bias: Ptr<f32>,
        experts: Ptr<u32>,
        weights: Ptr<f32>,
        k: u32,
        scores: u32,
        compares_scores: u32,
        groups: u32,
        kept: u32,
        top_two: u32,
        normalises: u32,
        eps: f32,
        scale: f32,
    }
    /// Products of rows with their experts' weights. `bias` has one row for each expert, or is null.
    struct ExpertLinearParams {
        x: Rows,
        w: StoredWeight,
        experts: Ptr<u32>,
        y: Ptr<f32>,
        bias: Ptr<f32>,
        fault: Ptr<Fault>,
        slots: u32,
        chosen: u32,
        own_rows: u32,
        experts_count: u32,
        outputs: u32,
    }
    /// How the results of a row's chosen experts are weighed: `factor · scales[expert] · weights[slot]`. `scales` may be null.
    struct ExpertShares {
        experts: Ptr<u32>,
        weights: Ptr<f32>,
        scales: Ptr<f32>,
        factor: f32,
        chosen: u32,
        experts_count: u32,
    }
    /// Gated products of each slot, an expert that a row has chosen. `weights` are those of gate and up, in tiles.
    /// `alpha` and `limit` belong to a clamped unit; `biases` of gate and up have one row for each expert, or are null.
    /// The kernels `expert_gates` read neither.
    struct ExpertGatesParams {
        x: Rows,
        experts: Ptr<u32>,
        y: Ptr<f32>,
        weights: [Ptr<u8>; 2],
        factors: [f32; 2],
        slots: u32,
        chosen: u32,
        inputs: u32,
        subs: u32,
        tiles: u32,
        function: u32,
        experts_count: u32,
        alpha: f32,
        limit: f32,
        biases: [Ptr<f32>; 2],
    }
    /// The weighted sum of the products of a row's slots. `bias` has one row for each expert, or is null; the kernels
    /// `expert_down` do not read it.
    struct ExpertDownParams {
        x: Ptr<f32>,
        weights: Ptr<u8>,
        shares: ExpertShares,
        residual: Rows,
        y: Ptr<f32>,
        factor: f32,
        rows: u32,
        inputs: u32,
        subs: u32,
        tiles: u32,
        bias: Ptr<f32>,
    }
    /// Slots sorted by their expert. Those of an expert take consecutive positions from a multiple of a number on, and blocks of so many
    /// rows: `places` holds the position of each slot, `slots` the slot at each position, and `blocks`, of which there are `count`, an
    /// expert, the block's first position and the one behind its last.
    struct ExpertPlan { count: Ptr<u32>, places: Ptr<u32>, slots: Ptr<u32>, blocks: Ptr<u32>, }
    struct ExpertPlanParams {
        experts: Ptr<u32>,
        plan: ExpertPlan,
        slots: u32,
        experts_count: u32,
        block_rows: u32,
        aligned: u32,
    }
    /// Rows to be rounded, each to the positions of its slots. Gated products with them, of `gated_width`, will go to the panels `gated` at the
    /// same positions, divided by `gated_scale`: `largest` holds the largest squared norms of rows of gates and of what they gate.
    struct ExpertPanelsParams {
        x: Rows,
        places: Ptr<u32>,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        gated: Ptr<u8>,
        gated_scale: Ptr<f32>,
        largest: [Ptr<f32>; 2],
        chosen: u32,
        inputs: u32,
        subs: u32,
        gated_width: u32,
        gated_subs: u32,
    }
    /// Products of sorted rows in panels with their experts' weights, which have `tiles` tiles each. Those with one weight go to `y`, by slots;
    /// those with gates and with what they gate, multiplied with each other, to the panels `gated`.
    struct ExpertGemmParams {
        weights: [Ptr<u8>; 2],
        raise: [f32; 2],
        scale: [f32; 2],
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        plan: ExpertPlan,
        y: Ptr<f32>,
        gated: Ptr<u8>,
        gated_scale: Ptr<f32>,
        tiles: u32,
        subs: u32,
        gated_subs: u32,
        function: u32,
    }
    /// A linear layer of each head: vector `r · heads + h` of `x` meets `outputs` rows of `w`, from row `h · outputs`
    /// on.
    struct HeadLinearParams { x: Rows, w: StoredWeight, y: Ptr<f32>, rows: u32, heads: u32, outputs: u32, }
    /// A linear layer of each head, over weights of `tiles` tiles. Each tile is multiplied by `warps` warps: 1, 2, 4 or
    /// 8.
    struct HeadTilesParams {
        x: Rows,
        weights: Ptr<u8>,
        y: Ptr<f32>,
        rows: u32,
        heads: u32,
        inputs: u32,
        subs: u32,
        tiles: u32,
        warps: u32,
        factor: f32,
    }
    /// Vectors that are rounded for a grouped product with the heads as experts. The plan's `places` is not used.
    struct HeadPanelsParams {
        x: Rows,
        panels: Ptr<u8>,
        row_scale: Ptr<f32>,
        plan: ExpertPlan,
        rows: u32,
        heads: u32,
        inputs: u32,
        subs: u32,
        block_rows: u32,
        aligned: u32,
    }
    struct ExpertSumParams { x: Ptr<f32>, shares: ExpertShares, residual: Rows, y: Ptr<f32>, rows: u32, width: u32, }
}
