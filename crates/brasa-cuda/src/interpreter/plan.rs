//! The interpreter's plan of a decoder: the work of each instruction, and its weights.

use brasa_graph::CacheSpec;

/// The instructions of one token, in order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub ops: Vec<PlannedOp>,
    /// The weight of rotary frequencies that all layers share.
    pub frequencies: usize,
    /// Elements of a head that turn.
    pub rotary_dim: u32,
    /// Elements of each buffer, in order of [`Buffer`].
    pub widths: [usize; BUFFERS],
    /// Heads and their width, at most: the largest partial results of attention.
    pub heads: usize,
    pub head_dim: usize,
    /// Cache groups of the graph.
    pub groups: usize,
    pub vocab_size: usize,
}

/// Number of [`Buffer`]s.
pub(super) const BUFFERS: usize = 5;

/// Values that pass from one instruction to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    /// The residual stream.
    Hidden,
    /// Queries, keys and values before norms and rotation.
    Projected,
    /// The heads' outputs.
    Attended,
    /// `act(gate) · up`; of a mixture, times its expert's share, expert by expert.
    Gated,
    /// Logits of a router.
    Routed,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PlannedOp {
    /// A row of a table, scaled.
    Embed { table: usize, scale: Option<f32> },
    /// A linear layer, with the operations that are fused to it.
    Linear(PlannedLinear),
    /// Attention, from projections to the heads' outputs.
    Attention(PlannedAttention),
    /// Experts, from a router's logits to the residual stream.
    Mixture(PlannedMixture),
}

/// `y = act(norm(x) · Wᵀ + bias) + residual`, or logits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedLinear {
    pub weight: Rows,
    pub x: Buffer,
    pub norm: Option<PlannedNorm>,
    /// A weight, decoded to f32.
    pub bias: Option<usize>,
    pub end: End,
}

/// Which rows of which weights a linear layer multiplies with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rows {
    /// All rows of a weight.
    Whole(usize),
    /// Gate rows and up rows, side by side.
    Paired(Part, Part),
}

/// Rows of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub weight: usize,
    pub rows: std::ops::Range<usize>,
}

/// How a linear layer ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    /// Writes projections.
    Projected,
    /// Writes the logits of a router.
    Routed,
    /// Adds to the residual stream.
    Residual,
    /// Activates the gate and multiplies.
    Gated(Gate),
    /// Logits, of which the largest is drawn.
    Logits { softcap: Option<f32> },
}

/// The activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Silu,
    GeluTanh,
}

/// An RMS norm of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlannedNorm {
    /// A weight, decoded to f32; `None` for a norm without one.
    pub weight: Option<usize>,
    pub eps: f32,
}

/// `h += Σ_j share_j · down_j(act(gate_j · norm(h)) · (up_j · norm(h)))` over the experts that a row chooses; shares are a softmax of their
/// logits.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedMixture {
    pub norm: PlannedNorm,
    /// Weights of all experts, one expert's rows behind another's.
    pub gate: usize,
    pub up: usize,
    pub down: usize,
    pub activation: Gate,
    /// Experts that there are, and how many of them a row chooses.
    pub experts: usize,
    pub chosen: usize,
}

/// Attention over one cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedAttention {
    /// First elements of queries and keys in the projections; values follow the keys.
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub cache: CacheSpec,
    pub group: usize,
    /// The cache's place within the group's pages.
    pub place: usize,
    pub q_norm: Option<usize>,
    pub k_norm: Option<usize>,
    pub eps: f32,
    pub interleaved: bool,
    pub rotary_dim: usize,
    pub magnitude: f32,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Positions seen; `None` for all.
    pub window: Option<usize>,
}
