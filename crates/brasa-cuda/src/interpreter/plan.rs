//! A decoder as the interpreter walks it: what each instruction does, and with which weights.

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
pub(super) const BUFFERS: usize = 4;

/// Values that pass from one instruction to a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buffer {
    /// The residual stream.
    Hidden,
    /// Queries, keys and values before norms and rotation.
    Projected,
    /// The heads' outputs.
    Attended,
    /// `act(gate) · up`.
    Gated,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PlannedOp {
    /// A row of a table, scaled.
    Embed { table: usize, scale: Option<f32> },
    /// A linear layer with what is fused to it.
    Linear(PlannedLinear),
    /// Attention, from projections to the heads' outputs.
    Attention(PlannedAttention),
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
