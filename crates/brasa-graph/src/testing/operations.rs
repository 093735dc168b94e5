//! Cases of every operation on random shapes.

use crate::op::{
    Argmax, Attention, Binary, Broadcast, CacheWrite, Cast, Concat, CrossEntropy, Embed, Gating, HeadSharing,
    IndexAdd, KvSource, LayerNorm, LinearTransposed, Mask, Matmul, MeanPool, Reduce, ReduceFn, Rope,
    RopeLayout, RouterTopK, ScanRule, StateScan, Transpose, Unary, Unfold, Where,
};
use crate::{CacheSpec, DType, Dim, Op, Shape, ValueId};

use super::mixtures::MIXTURES;
use super::{Case, CaseBuilder, Tolerance, f32_weight};

/// Cases of one kind of operation: a small graph, and the tolerance for devices.
#[derive(Clone, Copy, Debug)]
pub struct OperationCase {
    /// Name of the kind.
    pub name: &'static str,
    /// The bound for devices that compute in f32.
    pub tolerance: Tolerance,
    build: fn(&mut CaseBuilder) -> Vec<ValueId>,
}

impl OperationCase {
    pub(super) const fn new(
        name: &'static str,
        tolerance: Tolerance,
        build: fn(&mut CaseBuilder) -> Vec<ValueId>,
    ) -> Self {
        Self { name, tolerance, build }
    }

    /// A case with random shapes. `seed` determines them.
    pub fn case(&self, seed: u64) -> Case {
        Case::new(self.name, seed, &f32_weight, self.build)
    }
}

/// Every operation, by kind.
pub const OPERATIONS: &[OperationCase] = &[
    OperationCase { name: "linear", tolerance: Tolerance::F32, build: linear_layers },
    OperationCase { name: "matmul", tolerance: Tolerance::F32, build: products_of_temporaries },
    OperationCase { name: "norms", tolerance: Tolerance::F32, build: norms },
    OperationCase { name: "unary", tolerance: Tolerance(2e-5), build: functions_of_each_element },
    OperationCase { name: "binary", tolerance: Tolerance::F32, build: functions_of_two_elements_broadcast },
    OperationCase { name: "lookups", tolerance: Tolerance::F32, build: lookups },
    OperationCase { name: "rope", tolerance: Tolerance::F32, build: rotations },
    OperationCase {
        name: "attention",
        tolerance: Tolerance::F32,
        build: attention_to_caches_and_to_the_step,
    },
    OperationCase { name: "experts", tolerance: Tolerance::F32, build: mixtures_of_experts },
    OperationCase { name: "heads", tolerance: Tolerance::F32, build: layers_of_heads },
    OperationCase { name: "reductions", tolerance: Tolerance::F32, build: reductions },
    OperationCase { name: "arrangements", tolerance: Tolerance::F32, build: arrangements },
    OperationCase { name: "views", tolerance: Tolerance::F32, build: views_of_views },
    OperationCase { name: "sequences", tolerance: Tolerance::F32, build: along_the_rows_of_a_sequence },
    MIXTURES[0],
    MIXTURES[1],
    MIXTURES[2],
    MIXTURES[3],
    MIXTURES[4],
];

/// A case of the operations with recurrent states. These operations have no derivatives.
pub const RECURRENCES: OperationCase = OperationCase::new("recurrences", Tolerance(2e-5), recurrences);

/// A case of attention with scores that fall with distance.
pub const ALIBI: OperationCase = OperationCase::new("alibi", Tolerance::F32, |b| {
    let (g, share, e) = (1 + b.random.below(3), 1 + b.random.below(4), 1 + b.random.below(40));
    let (q, k, v) = (b.rows(&[g * share, e]), b.rows(&[g, e]), b.rows(&[g, e]));
    let source = KvSource::Step(Mask::Alibi);
    let attention = |(window, softcap)| Attention { source, scale: 0.3, window, softcap };
    [(None, None), (Some(2), Some(5.0))].map(|with| apply(b, attention(with), &[q, k, v])).into()
});

fn apply(b: &mut CaseBuilder, op: impl Into<Op>, inputs: &[ValueId]) -> ValueId {
    b.graph.apply(op, inputs)[0]
}

/// A random width that is rarely a multiple of anything.
fn width(b: &mut CaseBuilder) -> usize {
    1 + b.random.below(150)
}

fn linear_layers(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (k, n) = (width(b), width(b));
    let (x, w) = (b.rows(&[k]), b.weight("w", &[n, k]));
    let heads = b.rows(&[3, k]);
    let rows = b.graph.slice(x, 0..k.div_ceil(2));
    let narrow = b.weight("narrow", &[n, k.div_ceil(2)]);
    let back = b.weight("back", &[n, k]);
    let y = b.graph.linear(x, w);
    vec![y, b.graph.linear(heads, w), b.graph.linear(rows, narrow), apply(b, LinearTransposed, &[y, back])]
}

fn products_of_temporaries(b: &mut CaseBuilder) -> Vec<ValueId> {
    let k = width(b);
    let (x, y) = (b.rows(&[k]), b.rows(&[k]));
    let scores = apply(b, Matmul { transpose_a: false, transpose_b: true }, &[x, y]);
    let mixed = apply(b, Matmul { transpose_a: false, transpose_b: false }, &[scores, y]);
    let outer = apply(b, Matmul { transpose_a: true, transpose_b: false }, &[x, y]);
    let swapped = apply(b, Matmul { transpose_a: true, transpose_b: true }, &[outer, x]);
    vec![scores, mixed, outer, swapped]
}

fn norms(b: &mut CaseBuilder) -> Vec<ValueId> {
    let d = width(b);
    let (x, heads) = (b.rows(&[d]), b.rows(&[2, d]));
    let (w, bias) = (b.scales("w", d), b.bias("b", d));
    vec![
        b.graph.rms_norm(x, w, 1e-5),
        b.graph.rms_norm_unscaled(heads, 1e-6),
        apply(b, LayerNorm { eps: 1e-5 }, &[x, w, bias]),
        apply(b, LayerNorm { eps: 1e-5 }, &[x, w]),
        apply(b, LayerNorm { eps: 1e-5 }, &[heads]),
    ]
}

fn functions_of_each_element(b: &mut CaseBuilder) -> Vec<ValueId> {
    let d = width(b);
    let x = b.rows(&[d]);
    let positive = b.graph.unary(x, Unary::Exp);
    let mut results = vec![b.graph.unary(positive, Unary::Log), b.graph.unary(positive, Unary::Rsqrt)];
    for function in [
        Unary::Scale(-1.5),
        Unary::Clamp { low: -0.5, high: 0.25 },
        Unary::Softcap(3.0),
        Unary::Exp,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Silu,
        Unary::GeluTanh,
        Unary::GeluErf,
        Unary::Softplus,
    ] {
        results.push(b.graph.unary(x, function));
    }
    let large = b.graph.unary(x, Unary::Scale(40.0));
    results.push(b.graph.unary(large, Unary::Softplus));
    results
}

fn functions_of_two_elements_broadcast(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (h, d) = (1 + b.random.below(5), width(b));
    let (x, y) = (b.rows(&[h, d]), b.rows(&[h, d]));
    let (bias, scalar, flat) = (b.bias("bias", d), b.bias("scalar", 1), b.rows(&[h]));
    let each_head = b.graph.reshape(flat, &[h, 1]);
    let each_row = b.rows(&[1, 1]);
    let table = b.weight("table", &[h, d]);
    let mut results = Vec::new();
    let functions = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Maximum];
    for (other, function) in [y, bias, scalar, each_head, each_row].into_iter().zip(functions) {
        results.push(apply(b, function, &[x, other]));
        results.push(apply(b, Binary::Mul, &[x, other]));
    }
    results.push(apply(b, Binary::Sub, &[x, table]));
    let choice = b.graph.unary(y, Unary::Clamp { low: 0.0, high: 1.0 });
    results.push(apply(b, Where, &[choice, x, y]));
    results
}

fn lookups(b: &mut CaseBuilder) -> Vec<ValueId> {
    let d = width(b);
    let (table, scalars) = (b.weight("table", &[97, d]), b.bias("scalars", 97));
    let ids = b.token_ids();
    let x = apply(b, Embed, &[ids, table]);
    let tied = b.graph.linear(x, table);
    let rows = b.graph.input(crate::Input::OutRows);
    let logits = b.rows(&[97]);
    let (experts, _) = b.graph.router_topk(logits, RouterTopK { k: 3, gating: Gating::SOFTMAX_ALL });
    vec![x, tied, b.graph.select_rows(x, rows), b.graph.gather(scalars, experts), experts]
}

fn rotations(b: &mut CaseBuilder) -> Vec<ValueId> {
    let half = 2 * (1 + b.random.below(20));
    let rotary_dim = 2 * (1 + b.random.below(half));
    let x = b.rows(&[3, 2 * half]);
    let (positions, frequencies) = (b.positions(), b.frequencies(rotary_dim / 2));
    [(RopeLayout::Interleaved, 1.0), (RopeLayout::SplitHalf, 1.2)]
        .map(|(layout, magnitude)| {
            b.graph.rope(x, positions, frequencies, Rope { layout, rotary_dim, magnitude })
        })
        .into()
}

fn attention_to_caches_and_to_the_step(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (g, share, e) = (1 + b.random.below(3), 1 + b.random.below(7), 1 + b.random.below(40));
    let (q, k, v) = (b.rows(&[g * share, e]), b.rows(&[g, e]), b.rows(&[g, e]));
    let mut results = Vec::new();
    for (window, softcap) in [(None, None), (Some(2), Some(5.0))] {
        let cache = b.graph.cache(CacheSpec::new(g, e, window));
        apply_nothing(b, CacheWrite { cache }, &[k, v]);
        let attention = |source| Attention { source, scale: 0.3, window, softcap };
        results.push(apply(b, attention(KvSource::Cache(cache)), &[q]));
        for mask in [Mask::Causal, Mask::Bidirectional] {
            results.push(apply(b, attention(KvSource::Step(mask)), &[q, k, v]));
        }
    }
    results
}

fn mixtures_of_experts(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (count, n, k) = (2 + b.random.below(6), width(b), width(b));
    let chosen = 1 + b.random.below(count);
    let (logits, x) = (b.rows(&[count]), b.rows(&[k]));
    let own = b.rows(&[chosen, k]);
    let w = b.weight("w", &[count, n, k]);
    let gatings = [Gating::SOFTMAX_ALL, Gating::SOFTMAX_CHOSEN];
    let (experts, weights) =
        b.graph.router_topk(logits, RouterTopK { k: chosen, gating: gatings[b.random.below(2)] });
    vec![weights, b.graph.expert_linear(x, experts, w), b.graph.expert_linear(own, experts, w)]
}

/// Linear layers of a few heads, of one head, and of as many heads as a large model has. Some inputs are a part of a
/// value's rows.
fn layers_of_heads(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (heads, n, k) = (2 + b.random.below(7), width(b), width(b));
    let (x, w) = (b.rows(&[heads, k]), b.weight("w", &[heads, n, k]));
    let (one, of_one) = (b.rows(&[1, k]), b.weight("one", &[1, n, k]));
    let (many, of_many) = (b.rows(&[128, 8]), b.weight("many", &[128, 3, 8]));
    let wide = b.rows(&[heads * k + 5]);
    let part = b.graph.slice(wide, 3..heads * k + 3);
    let part = b.graph.reshape(part, &[heads, k]);
    let pairs = [(x, w), (one, of_one), (many, of_many), (part, w)];
    let mut results = pairs.map(|(x, w)| b.graph.head_linear(x, w)).to_vec();
    // Tiles of sixteen outputs and pieces of 64 inputs, as models have them.
    let (even, of_even) = (b.rows(&[4, 128]), b.weight("even", &[4, 32, 128]));
    let y = b.graph.head_linear(even, of_even);
    results.push(b.graph.unary(y, Unary::Silu));
    results
}

fn reductions(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (h, d) = (1 + b.random.below(5), width(b));
    let x = b.rows(&[h, d]);
    let flat = b.rows(&[97]);
    let (ids, softened) = (b.token_ids(), b.graph.softmax(x));
    let mut results = vec![softened, apply(b, Argmax, &[flat]), apply(b, CrossEntropy, &[flat, ids])];
    for function in [ReduceFn::Sum, ReduceFn::Mean, ReduceFn::Max, ReduceFn::LogSumExp] {
        for axis in 0..3 {
            results.push(apply(b, Reduce { function, axis }, &[x]));
        }
    }
    results
}

fn arrangements(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (h, d) = (1 + b.random.below(5), width(b));
    let (x, y) = (b.rows(&[h, d]), b.rows(&[h, d]));
    let one = b.rows(&[1, d]);
    let swapped = apply(b, Transpose { axes: vec![0, 2, 1] }, &[x]);
    let outward = apply(b, Transpose { axes: vec![2, 0, 1] }, &[x]);
    let halves = apply(b, Cast { dtype: DType::F16 }, &[x]);
    let brain = apply(b, Cast { dtype: DType::BF16 }, &[x]);
    let whole = apply(b, Cast { dtype: DType::U32 }, &[x]);
    let back = apply(b, Cast { dtype: DType::F32 }, &[whole]);
    vec![
        swapped,
        outward,
        apply(b, Transpose { axes: vec![1, 2, 0] }, &[outward]),
        apply(b, Concat { axis: 0 }, &[x, y]),
        apply(b, Concat { axis: 1 }, &[x, one]),
        apply(b, Concat { axis: 2 }, &[x, y]),
        apply(b, Broadcast { shape: Shape::rows(Dim::ROWS, &[h, d]) }, &[one]),
        halves,
        brain,
        b.graph.unary(halves, Unary::Scale(2.0)),
        whole,
        back,
    ]
}

fn views_of_views(b: &mut CaseBuilder) -> Vec<ValueId> {
    let x = b.rows(&[96]);
    let part = b.graph.slice(x, 16..80);
    let heads = b.graph.reshape(part, &[4, 16]);
    let w = b.weight("w", &[24, 16]);
    let normed = b.graph.rms_norm_unscaled(heads, 1e-5);
    let flat = b.graph.reshape(normed, &[64]);
    let inner = b.graph.slice(flat, 3..50);
    vec![b.graph.linear(heads, w), inner, part, b.graph.softmax(heads)]
}

fn along_the_rows_of_a_sequence(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (c, n, taps) = (1 + b.random.below(20), 1 + b.random.below(20), 1 + b.random.below(4));
    let x = b.rows(&[c]);
    let w = b.weight("w", &[n, c * taps]);
    let pairs = b.rows(&[2, c]);
    let doubled = apply(b, Concat { axis: 0 }, &[x, x]);
    let halved = apply(b, Unfold { taps, stride: 2, padding: 1 }, &[doubled]);
    let ids = b.token_ids();
    let base = b.weight("base", &[97, c]);
    let _ = pairs;
    vec![
        apply(b, Unfold { taps, stride: 1, padding: taps / 2 }, &[x]),
        b.graph.linear(halved, w),
        apply(b, MeanPool, &[x]),
        apply(b, IndexAdd, &[base, ids, x]),
    ]
}

fn apply_nothing(b: &mut CaseBuilder, op: impl Into<Op>, inputs: &[ValueId]) {
    assert!(b.graph.apply(op, inputs).is_empty());
}

fn recurrences(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (channels, taps) = (width(b), 2 + b.random.below(4));
    let (x, w) = (b.rows(&[channels]), b.weight("taps", &[channels, taps]));
    let state = b.graph.state(channels * (taps - 1));
    let mut results = vec![b.graph.short_conv(x, w, state)];
    for sharing in [HeadSharing::Grouped, HeadSharing::Tiled] {
        let (key_heads, share) = (1 + b.random.below(3), 1 + b.random.below(3));
        let (heads, key_dim, value_dim) = (key_heads * share, 1 + b.random.below(70), 1 + b.random.below(70));
        let (q, k) = (b.rows(&[key_heads, key_dim]), b.rows(&[key_heads, key_dim]));
        let (q, k) = (b.graph.rms_norm_unscaled(q, 1e-6), b.graph.rms_norm_unscaled(k, 1e-6));
        let k = b.graph.unary(k, Unary::Scale((key_dim as f32).sqrt().recip()));
        let v = b.rows(&[heads, value_dim]);
        let (decay, beta) = (b.rows(&[heads]), b.rows(&[heads]));
        let (decay, beta) = (b.graph.unary(decay, Unary::Sigmoid), b.graph.unary(beta, Unary::Sigmoid));
        for (rule, inputs) in
            [(ScanRule::Add, &[q, k, v, decay][..]), (ScanRule::Delta, &[q, k, v, decay, beta])]
        {
            for kept in [true, false] {
                let state = kept.then(|| b.graph.state(heads * key_dim * value_dim));
                results.push(b.graph.state_scan(inputs, StateScan { state, rule, sharing }));
            }
        }
    }
    results
}
