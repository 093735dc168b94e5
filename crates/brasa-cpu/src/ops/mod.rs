//! Operations with resolved operands: what a program's table consists of.

pub(crate) mod arrange;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod heads;
pub(crate) mod linear;
pub(crate) mod lookup;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod prepare;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod sequence;

use brasa_graph::Sizes;

use crate::Isa;
use crate::attention::{AttentionScratch, CacheAttention, StepAttention};
use crate::context::Context;
use crate::kv::SharedKv;
use crate::linear::PackedLinear;
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use experts::ExpertScratch;
use heads::HeadScratch;
use linear::UpScratch;
use prepare::{PreparedSize, PrivateRows};

/// An operation.
#[allow(
    clippy::large_enum_variant,
    reason = "a few hundred of them, walked in order: no detour through a pointer"
)]
#[derive(Debug)]
pub(crate) enum CompiledOp {
    Argmax(reduce::ArgmaxOp),
    Binary(elementwise::BinaryOp),
    Broadcast(arrange::BroadcastOp),
    CacheAttention(CacheAttention),
    CacheWrite(heads::CacheWriteOp),
    Cast(arrange::CastOp),
    Concat(arrange::ConcatOp),
    Conv1d(sequence::Conv1dOp),
    Copy(arrange::CopyOp),
    CrossEntropy(reduce::CrossEntropyOp),
    Embed(lookup::EmbedOp),
    ExpertLinear(experts::ExpertLinearOp),
    GateUp(linear::GateUpOp),
    Gather(lookup::GatherOp),
    Heads(heads::HeadsOp),
    IndexAdd(sequence::IndexAddOp),
    Linear(linear::LinearOp),
    LinearTransposed(matmul::LinearTransposedOp),
    Matmul(matmul::MatmulOp),
    MeanPool(sequence::MeanPoolOp),
    Mixture(experts::MixtureOp),
    Norm(norm::NormOp),
    Reduce(reduce::ReduceOp),
    Rope(rope::RopeOp),
    RopeTable(rope::RopeTable),
    Router(experts::RouterOp),
    SelectRows(lookup::SelectRowsOp),
    Softmax(reduce::SoftmaxOp),
    StepAttention(StepAttention),
    Transpose(arrange::TransposeOp),
    Unary(elementwise::UnaryOp),
    Where(elementwise::WhereOp),
}

/// A thread's own memory, made once per program.
#[derive(Debug)]
pub(crate) struct Scratch {
    attention: AttentionScratch,
    heads: HeadScratch,
    rows: PrivateRows,
    up: UpScratch,
    experts: ExpertScratch,
    decoded: Vec<f32>,
}

/// What the operations of a program need of a thread's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScratchSize {
    group_heads: usize,
    head_dim: usize,
    attention_rows: usize,
    up_rows: usize,
    k: usize,
    decoded: usize,
}

impl Scratch {
    pub(crate) fn new(size: &ScratchSize) -> Self {
        Self {
            attention: AttentionScratch::new(size.group_heads, size.head_dim, size.attention_rows),
            heads: HeadScratch::new(size.head_dim),
            rows: PrivateRows::new(size.k),
            up: UpScratch::new(size.up_rows),
            experts: ExpertScratch::default(),
            decoded: vec![0.0; size.decoded],
        }
    }
}

impl CompiledOp {
    /// This thread's share. All threads wait equally often, if at all.
    pub(crate) fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        match self {
            Self::Argmax(op) => op.run(cx),
            Self::Binary(op) => op.run(cx),
            Self::Broadcast(op) => op.run(cx),
            Self::CacheAttention(op) => op.run(cx, &mut scratch.attention),
            Self::CacheWrite(op) => op.run(cx),
            Self::Cast(op) => op.run(cx),
            Self::Concat(op) => op.run(cx),
            Self::Conv1d(op) => op.run(cx),
            Self::Copy(op) => op.run(cx),
            Self::CrossEntropy(op) => op.run(cx),
            Self::Embed(op) => op.run(cx),
            Self::ExpertLinear(op) => op.run(cx, &mut scratch.rows, &mut scratch.experts),
            Self::GateUp(op) => op.run(cx, &mut scratch.rows, &mut scratch.up),
            Self::Gather(op) => op.run(cx),
            Self::Heads(op) => op.run(cx, &mut scratch.heads),
            Self::IndexAdd(op) => op.run(cx),
            Self::Linear(op) => op.run(cx, &mut scratch.rows),
            Self::LinearTransposed(op) => op.run(cx, &mut scratch.decoded),
            Self::Matmul(op) => op.run(cx),
            Self::MeanPool(op) => op.run(cx),
            Self::Mixture(op) => op.run(cx, &mut scratch.rows, &mut scratch.experts),
            Self::Norm(op) => op.run(cx),
            Self::Reduce(op) => op.run(cx),
            Self::Rope(op) => op.run(cx),
            Self::RopeTable(op) => op.run(cx),
            Self::Router(op) => op.run(cx, &mut scratch.experts),
            Self::SelectRows(op) => op.run(cx),
            Self::Softmax(op) => op.run(cx),
            Self::StepAttention(op) => op.run(cx, &mut scratch.attention),
            Self::Transpose(op) => op.run(cx),
            Self::Unary(op) => op.run(cx),
            Self::Where(op) => op.run(cx),
        }
    }

    /// Asks for what this operation reads first, so that it is on its way while threads wait for each other.
    pub(crate) fn warm(&self, cx: &Context<'_>) {
        match self {
            Self::Linear(op) => op.warm(cx),
            Self::GateUp(op) => op.warm(cx),
            _ => {}
        }
    }

    /// Enlarges `size` to what this operation needs for steps of `sizes`.
    pub(crate) fn scratch(&self, sizes: &Sizes, size: &mut ScratchSize) {
        let mut heads = |heads: usize, kv_heads: usize, head_dim: usize| {
            size.group_heads = size.group_heads.max(heads / kv_heads);
            size.head_dim = size.head_dim.max(head_dim);
        };
        match self {
            Self::CacheAttention(op) => heads(op.heads, op.kv_heads, op.head_dim),
            Self::StepAttention(op) => {
                heads(op.heads, op.kv_heads, op.head_dim);
                size.attention_rows = size.attention_rows.max(sizes.rows);
            }
            Self::Heads(op) => heads(op.heads, op.target.kv_heads, op.target.head_dim),
            Self::Linear(op) => size.k = size.k.max(op.activations.k),
            Self::GateUp(op) => {
                size.k = size.k.max(op.activations.k);
                size.up_rows = size.up_rows.max(op.out.outer.resolve(sizes));
            }
            Self::LinearTransposed(op) => size.decoded = size.decoded.max(op.k),
            _ => {}
        }
    }

    /// Memory for activations that this operation shares between threads, for steps of `sizes`.
    pub(crate) fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        match self {
            Self::Linear(op) => op.activations.size(isa, op.rows.outer.resolve(sizes)),
            Self::GateUp(op) => op.activations.size(isa, op.out.outer.resolve(sizes)),
            Self::ExpertLinear(op) => op.activations.size(isa, op.out.outer.resolve(sizes)),
            Self::Mixture(op) => {
                let rows = op.out.outer.resolve(sizes);
                op.activations.size(isa, rows).max(op.hidden.size(isa, rows))
            }
            _ => PreparedSize::default(),
        }
    }

    /// Bytes of weights, as they are stored, and of caches that `step` reads, and its multiplications and additions.
    pub(crate) fn cost(&self, step: &StepState, weights: &CpuWeights, kv: SharedKv<'_>) -> (u64, u64) {
        let linear = |weight: usize, rows: usize| {
            let linear = weights.linear(weight);
            // A step that asks for no logits does not read the last weight.
            let bytes = if rows > 0 { linear.stored_bytes() } else { 0 };
            (bytes as u64, (2 * rows * linear.n() * linear.k()) as u64)
        };
        let experts = |weight: usize, pairs: usize| {
            let experts = weights.experts(weight).experts();
            let bytes: usize = experts.iter().map(PackedLinear::stored_bytes).sum();
            // Each pair reads one expert, at most all of them are read.
            let bytes = bytes * pairs.min(experts.len()) / experts.len();
            (bytes as u64, (2 * pairs * experts[0].n() * experts[0].k()) as u64)
        };
        let add =
            |costs: &[(u64, u64)]| costs.iter().fold((0, 0), |sum, cost| (sum.0 + cost.0, sum.1 + cost.1));
        let sizes = &step.sizes;
        match self {
            Self::Linear(op) => {
                let rows = op.rows.outer.resolve(sizes) * op.activations.per_row;
                op.layers
                    .iter()
                    .map(|layer| linear(layer.weight, rows))
                    .fold((0, 0), |sum, cost| add(&[sum, cost]))
            }
            Self::GateUp(op) => {
                let rows = op.out.outer.resolve(sizes);
                let (gate, up) = (linear(op.gate.weight, rows), linear(op.up.weight, rows));
                if op.gate.weight == op.up.weight { gate } else { add(&[gate, up]) }
            }
            Self::ExpertLinear(op) => experts(op.weight, op.out.outer.resolve(sizes) * op.chosen),
            Self::Mixture(op) => {
                let pairs = op.out.outer.resolve(sizes) * op.router.router.k;
                add(&[op.gate, op.up, op.down].map(|weight| experts(weight, pairs)))
            }
            Self::CacheAttention(op) => (op.read_bytes(step, kv.position_bytes(op.group)), op.flops(step)),
            _ => (0, 0),
        }
    }
}
