//! Cases of every fused operation on random shapes.

use crate::device::Backend;
use crate::fuse::Pattern;
use crate::op::{Attention, Broadcast, Gating, KvSource, Rope, RopeLayout, RouterTopK, Unary, Where};
use crate::{CacheSpec, Dim, Item, Schedule, Shape, ValueId};

use super::mixtures::{choose, expert_bias, unit};
use super::{Case, CaseBuilder, MakeWeight, Tolerance, check};

/// A case with one instance of `pattern`, its shapes and variants drawn from `seed`.
///
/// Inner widths are multiples of 32, so that block formats fit; 256 in every fourth case, for super-blocks.
///
/// # Panics
///
/// If the pattern is not found in the case: a bug of this crate.
pub fn pattern_case(pattern: Pattern, seed: u64, make_weight: &MakeWeight) -> Case {
    let case = Case::new(pattern.name(), seed, make_weight, |b| match pattern {
        Pattern::NormLinear => norm_linear(b),
        Pattern::QkNormRopeCacheWrite => qk_norm_rope_cache_write(b),
        Pattern::LinearResidual => linear_residual(b),
        Pattern::GateUpActivation => gate_up_activation(b),
        Pattern::RouterExperts => router_experts(b),
        Pattern::LowRankRows => {
            let (inputs, outputs) = (width(b), 1 + b.random.below(100));
            let (x, residual) = (b.rows(&[inputs]), b.rows(&[outputs]));
            vec![low_rank_rows(b, x, residual)]
        }
        Pattern::LinearLowRankRows => vec![linear_low_rank_rows(b)],
        Pattern::GateUpLowRankRows => gate_up_low_rank_rows(b),
        Pattern::LinearActivation => linear_activation(b),
    });
    let schedule = Schedule::new(&case.graph, &[pattern]);
    let fused = |item: &&Item| matches!(item, Item::Fused(fused) if fused.fusion.pattern() == pattern);
    assert_eq!(schedule.items().iter().filter(fused).count(), 1, "{pattern:?} in its case, seed {seed}");
    case
}

/// Runs `pattern` on `device` and compares it with its definition, for each of `seeds`.
///
/// `adjust` sets the other properties of a case: precision, type of keys and values, steps.
///
/// # Panics
///
/// If [`check`] does.
pub fn check_pattern(
    device: &dyn Backend,
    pattern: Pattern,
    seeds: std::ops::Range<u64>,
    make_weight: &MakeWeight,
    tolerance: Tolerance,
    adjust: impl Fn(&mut Case),
) {
    for seed in seeds {
        let mut case = pattern_case(pattern, seed, make_weight);
        adjust(&mut case);
        check(device, &case, tolerance);
    }
}

fn width(b: &mut CaseBuilder) -> usize {
    if b.random.below(4) == 0 { 256 } else { 32 * (1 + b.random.below(5)) }
}

fn flip(b: &mut CaseBuilder) -> bool {
    b.random.below(2) == 0
}

fn activation(b: &mut CaseBuilder) -> Unary {
    [Unary::Silu, Unary::GeluTanh, Unary::GeluErf][b.random.below(3)]
}

fn norm(b: &mut CaseBuilder, x: ValueId, width: usize) -> ValueId {
    let eps = if flip(b) { 1e-6 } else { 1e-5 };
    if flip(b) {
        let w = b.scales("norm", width);
        b.graph.rms_norm(x, w, eps)
    } else {
        b.graph.rms_norm_unscaled(x, eps)
    }
}

fn linear(b: &mut CaseBuilder, x: ValueId, outputs: usize, inputs: usize) -> ValueId {
    let w = b.weight("linear", &[outputs, inputs]);
    let y = b.graph.linear(x, w);
    if flip(b) {
        let bias = b.bias("bias", outputs);
        b.graph.add(y, bias)
    } else {
        y
    }
}

fn norm_linear(b: &mut CaseBuilder) -> Vec<ValueId> {
    let inputs = width(b);
    let x = b.rows(&[inputs]);
    let x = norm(b, x, inputs);
    let layers = 1 + b.random.below(3);
    let layer = |b: &mut CaseBuilder| {
        let outputs = 1 + b.random.below(100);
        linear(b, x, outputs, inputs)
    };
    (0..layers).map(|_| layer(b)).collect()
}

fn linear_residual(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (inputs, outputs) = (width(b), 1 + b.random.below(100));
    let (x, residual) = (b.rows(&[inputs]), b.rows(&[outputs]));
    let y = linear(b, x, outputs, inputs);
    vec![if flip(b) { b.graph.add(residual, y) } else { b.graph.add(y, residual) }]
}

fn linear_activation(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (inputs, outputs) = (width(b), 1 + b.random.below(100));
    let (x, w) = (b.rows(&[inputs]), b.weight("linear", &[outputs, inputs]));
    let mut y = b.graph.linear(x, w);
    let parts = 1 + b.random.below(3);
    if parts & 1 > 0 {
        let bias = b.bias("bias", outputs);
        y = b.graph.add(y, bias);
    }
    if parts & 2 > 0 {
        let activation = activation(b);
        y = b.graph.unary(y, activation);
    }
    vec![y]
}

/// A low-rank product of a bank. Ranks come in groups of four; a row uses half of the groups.
fn low_rank_rows(b: &mut CaseBuilder, x: ValueId, residual: ValueId) -> ValueId {
    let [inputs, outputs] =
        [x, residual].map(|value| b.graph.graph().value(value).shape.row_elements().expect("a matrix"));
    // Some banks are wide.
    let ranks = if b.random.below(4) == 0 { 640 } else { width(b) };
    let scales = b.rows(&[ranks / 4, 1]);
    let scales = b.graph.unary(scales, Unary::Clamp { low: 0.0, high: 9.0 });
    let shape = Shape::rows(Dim::ROWS, &[ranks / 4, 4]);
    let factors = b.graph.apply(Broadcast { shape }, &[scales])[0];
    let factors = b.graph.reshape(factors, &[ranks]);
    let (a, w) = (b.weight("a", &[ranks, inputs]), b.weight("b", &[outputs, ranks]));
    let narrow = b.graph.linear(x, a);
    let scaled = b.graph.mul(narrow, factors);
    let chosen = b.graph.apply(Where, &[factors, scaled, factors])[0];
    let y = b.graph.linear(chosen, w);
    if flip(b) { b.graph.add(residual, y) } else { b.graph.add(y, residual) }
}

/// Two low-rank products that are added to each other, or to a residual.
fn linear_low_rank_rows(b: &mut CaseBuilder) -> ValueId {
    if flip(b) {
        let outputs = 1 + b.random.below(100);
        return layer_and_low_rank_rows(b, outputs);
    }
    let (inputs, outputs) = (width(b), 1 + b.random.below(100));
    let (x, residual) = (b.rows(&[inputs]), b.rows(&[outputs]));
    let product = linear(b, x, outputs, inputs);
    let sum = low_rank_rows(b, x, residual);
    if flip(b) { b.graph.add(sum, product) } else { b.graph.add(product, sum) }
}

fn layer_and_low_rank_rows(b: &mut CaseBuilder, outputs: usize) -> ValueId {
    // Some rows are so long that devices cut them.
    let inputs = if b.random.below(4) == 0 { 6400 } else { width(b) };
    let x = b.rows(&[inputs]);
    let product = linear(b, x, outputs, inputs);
    low_rank_rows(b, x, product)
}

fn gate_up_low_rank_rows(b: &mut CaseBuilder) -> Vec<ValueId> {
    let outputs = if flip(b) { 8 * (1 + b.random.below(10)) } else { 1 + b.random.below(70) };
    let sum = layer_and_low_rank_rows(b, 2 * outputs);
    let [first, second] = [0..outputs, outputs..2 * outputs].map(|half| b.graph.slice(sum, half));
    let (gate, up) = if flip(b) { (first, second) } else { (second, first) };
    let activation = activation(b);
    let gate = b.graph.unary(gate, activation);
    vec![if flip(b) { b.graph.mul(gate, up) } else { b.graph.mul(up, gate) }]
}

fn gate_up_activation(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (inputs, outputs) = (width(b), 1 + b.random.below(70));
    let x = b.rows(&[inputs]);
    let (gate, up) = if flip(b) {
        let stacked = linear(b, x, 2 * outputs, inputs);
        let halves = [0..outputs, outputs..2 * outputs].map(|half| b.graph.slice(stacked, half));
        if flip(b) { (halves[0], halves[1]) } else { (halves[1], halves[0]) }
    } else {
        (linear(b, x, outputs, inputs), linear(b, x, outputs, inputs))
    };
    vec![gated(b, gate, up)]
}

/// A gated unit, its product in either order.
fn gated(b: &mut CaseBuilder, gate: ValueId, up: ValueId) -> ValueId {
    let unit = unit(b);
    match unit.activation() {
        Some(activation) if flip(b) => {
            let gate = b.graph.unary(gate, activation);
            b.graph.mul(up, gate)
        }
        _ => b.graph.gated_unit(gate, up, unit),
    }
}

fn qk_norm_rope_cache_write(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (kv_heads, group, width) =
        (1 + b.random.below(3), 1 + b.random.below(3), [8, 32, 64][b.random.below(3)]);
    let heads = kv_heads * group;
    let window = flip(b).then_some(4);
    let cache = b.graph.cache(CacheSpec::new(kv_heads, width, window));
    let stacked = b.rows(&[(heads + 2 * kv_heads) * width]);
    let mut start = 0;
    let mut part = |b: &mut CaseBuilder, heads: usize| {
        let part = b.graph.slice(stacked, start..start + heads * width);
        start += heads * width;
        b.graph.reshape(part, &[heads, width])
    };
    let (mut q, mut k, mut v) = (part(b, heads), part(b, kv_heads), part(b, kv_heads));
    if flip(b) {
        (q, k) = (norm(b, q, width), norm(b, k, width));
        if flip(b) {
            v = b.graph.rms_norm_unscaled(v, 1e-6);
        }
    }
    let layout = if flip(b) { RopeLayout::SplitHalf } else { RopeLayout::Interleaved };
    let rotary_dim = if flip(b) { width } else { width / 2 };
    let rope = Rope { layout, rotary_dim, magnitude: if flip(b) { 1.0 } else { 1.2 } };
    let (positions, frequencies) = (b.positions(), b.frequencies(rotary_dim / 2));
    q = b.graph.rope(q, positions, frequencies, rope);
    k = b.graph.rope(k, positions, frequencies, rope);
    b.graph.cache_write(k, v, cache);
    let scale = 1.0 / (width as f32).sqrt();
    let softcap = flip(b).then_some(20.0);
    vec![b.graph.attention(&[q], Attention { source: KvSource::Cache(cache), scale, window, softcap })]
}

fn router_experts(b: &mut CaseBuilder) -> Vec<ValueId> {
    let (inputs, inner, experts) = (width(b), width(b), 2 + b.random.below(6));
    let (x, logits) = (b.rows(&[inputs]), b.rows(&[experts]));
    let (chosen, mut weights, k) = if flip(b) {
        let k = 1 + b.random.below(experts);
        let gating = if flip(b) { Gating::SOFTMAX_ALL } else { Gating::SOFTMAX_CHOSEN };
        let (chosen, weights) = b.graph.router_topk(logits, RouterTopK { k, gating });
        (chosen, weights, k)
    } else {
        choose(b, logits, experts)
    };
    if flip(b) {
        let table = b.scales("expert scales", experts);
        let scales = b.graph.gather(table, chosen);
        weights = b.graph.mul(weights, scales);
    }
    if flip(b) {
        weights = b.graph.scale(weights, 2.5);
    }
    let gate = b.weight("gate", &[experts, inner, inputs]);
    let up = b.weight("up", &[experts, inner, inputs]);
    let down = b.weight("down", &[experts, inputs, inner]);
    let biased = flip(b);
    let layer = |b: &mut CaseBuilder, x, w, outputs| {
        if biased {
            let bias = expert_bias(b, experts, outputs);
            b.graph.expert_linear_biased(x, chosen, w, bias)
        } else {
            b.graph.expert_linear(x, chosen, w)
        }
    };
    let (gate, up) = (layer(b, x, gate, inner), layer(b, x, up, inner));
    let h = gated(b, gate, up);
    let y = layer(b, h, down, inputs);
    let weights = b.graph.reshape(weights, &[k, 1]);
    let y = b.graph.mul(y, weights);
    vec![b.graph.sum(y, 1)]
}
