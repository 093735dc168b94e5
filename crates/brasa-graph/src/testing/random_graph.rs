//! Random graphs: sound in shape, senseless in content.

use crate::op::{
    Argmax, Attention, Binary, Concat, Gating, KvSource, Mask, Rope, RopeLayout, RouterTopK, Unary,
};
use crate::{Builder, CacheSpec, Change, DType, Op, ValueId, rewrite};

use super::{Case, CaseBuilder, MakeWeight, Random};

/// A case with a random graph of about `operations` operations on activations of widths 32, 64 and 96.
///
/// Values are used again at random, near and far, through views and across caches, so that fusion, liveness and aliasing are
/// tested beyond what real models contain.
pub fn random_case(seed: u64, operations: usize, make_weight: &MakeWeight) -> Case {
    Case::new(format!("random graph of {operations}"), seed, make_weight, |b| {
        let mut values = vec![(b.rows(&[32]), 32), (b.rows(&[64]), 64)];
        for _ in 0..operations {
            let added = operation(b, &values);
            values.push(added);
        }
        let outputs = 1 + b.random.below(3);
        let late = |b: &mut CaseBuilder| values[values.len() - 1 - b.random.below(values.len().min(6))].0;
        let mut outputs: Vec<ValueId> = (0..outputs).map(|_| late(b)).collect();
        outputs.sort_unstable();
        outputs.dedup();
        outputs
    })
}

/// A case with the results of `case`, bit for bit, and a graph that was rewritten at random.
///
/// About every third node is built again, with a view, a copy or a factor of one after its results. A second rewrite replaces
/// some of the factors by their operands, so that values are redirected too.
///
/// # Panics
///
/// If the graph cannot be rewritten: a bug of this crate.
pub fn rewritten(case: &Case, seed: u64) -> Case {
    let mut random = Random::new(seed);
    let longer = rewrite(&case.graph, |builder, node, operands| {
        if random.below(3) > 0 {
            return Change::Keep;
        }
        let results = builder.apply(node.op.clone(), operands);
        Change::Replace(results.into_iter().map(|result| equal(builder, &mut random, result)).collect())
    });
    let graph = longer.and_then(|longer| {
        rewrite(&longer, |_, node, operands| match node.op {
            Op::Unary(Unary::Scale(1.0)) if random.below(2) == 0 => Change::Replace(operands.to_vec()),
            _ => Change::Keep,
        })
    });
    let graph = graph.unwrap_or_else(|error| panic!("{}, rewritten by seed {seed}: {error}", case.name));
    Case { name: format!("{}, rewritten by seed {seed}", case.name), graph, ..case.clone() }
}

/// A value equal to `x`: `x` itself, a view, a copy or a product.
fn equal(b: &mut Builder, random: &mut Random, x: ValueId) -> ValueId {
    let value = b.graph().value(x);
    let (is_f32, matrix_width) =
        (value.dtype == DType::F32, value.shape.width().filter(|_| value.shape.rank() == 2));
    match (random.below(4), matrix_width) {
        (1, Some(width)) => b.slice(x, 0..width),
        (2, Some(width)) if is_f32 && width > 1 => {
            let cut = 1 + random.below(width - 1);
            let (left, right) = (b.slice(x, 0..cut), b.slice(x, cut..width));
            b.apply(Concat { axis: 1 }, &[left, right])[0]
        }
        (3, _) if is_f32 => b.scale(x, 1.0),
        _ => x,
    }
}

type Wide = (ValueId, usize);

/// A random value of `values`; late ones are likelier than early ones.
fn pick(b: &mut CaseBuilder, values: &[Wide]) -> Wide {
    let reach = if b.random.below(3) == 0 { values.len() } else { values.len().min(4) };
    values[values.len() - 1 - b.random.below(reach)]
}

/// A value of the wanted width: an existing one, or a slice or projection of one.
fn of_width(b: &mut CaseBuilder, values: &[Wide], wanted: usize) -> ValueId {
    let (x, width) = pick(b, values);
    match width {
        _ if width == wanted => x,
        _ if width > wanted => {
            let start = 8 * b.random.below((width - wanted) / 8 + 1);
            b.graph.slice(x, start..start + wanted)
        }
        _ => linear(b, x, width, wanted),
    }
}

fn linear(b: &mut CaseBuilder, x: ValueId, inputs: usize, outputs: usize) -> ValueId {
    let w = b.weight("w", &[outputs, inputs]);
    b.graph.linear(x, w)
}

fn operation(b: &mut CaseBuilder, values: &[Wide]) -> Wide {
    let (x, width) = pick(b, values);
    let other_width = 32 * (1 + b.random.below(3));
    match b.random.below(13) {
        0 | 1 => (linear(b, x, width, other_width), other_width),
        2 => (b.graph.rms_norm_unscaled(x, 1e-5), width),
        3 => {
            let w = b.scales("norm", width);
            let x = b.graph.rms_norm(x, w, 1e-5);
            (linear(b, x, width, other_width), other_width)
        }
        4 | 5 => {
            let y = of_width(b, values, width);
            let function = [Binary::Add, Binary::Mul, Binary::Sub, Binary::Maximum][b.random.below(4)];
            let bounded = b.graph.unary(x, Unary::Tanh);
            (b.graph.apply(function, &[bounded, y])[0], width)
        }
        6 => {
            let y = linear(b, x, width, other_width);
            let residual = of_width(b, values, other_width);
            (b.graph.add(y, residual), other_width)
        }
        7 => {
            let functions =
                [Unary::Silu, Unary::GeluTanh, Unary::Sigmoid, Unary::Scale(0.5), Unary::Softcap(5.0)];
            let function = functions[b.random.below(functions.len())];
            (b.graph.unary(x, function), width)
        }
        8 => {
            let stacked = linear(b, x, width, 2 * other_width);
            let gate = b.graph.slice(stacked, 0..other_width);
            let up = b.graph.slice(stacked, other_width..2 * other_width);
            let gate = b.graph.unary(gate, Unary::Silu);
            (b.graph.mul(gate, up), other_width)
        }
        9 => (attention(b, x, width), 32),
        10 => {
            let heads = b.graph.reshape(x, &[width / 8, 8]);
            let heads = b.graph.rms_norm_unscaled(heads, 1e-5);
            (b.graph.reshape(heads, &[width]), width)
        }
        11 if width > 32 => (b.graph.slice(x, 8..40), 32),
        11 => {
            let y = of_width(b, values, 64);
            (b.graph.apply(Concat { axis: 1 }, &[x, y])[0], width + 64)
        }
        _ => {
            // Integers in between: rows chosen by the largest element.
            let logits = of_width(b, values, 32);
            let (experts, weights) =
                b.graph.router_topk(logits, RouterTopK { k: 2, gating: Gating::SOFTMAX_CHOSEN });
            let w = b.weight("experts", &[32, 32, width]);
            let y = b.graph.expert_linear(x, experts, w);
            let weights = b.graph.reshape(weights, &[2, 1]);
            let y = b.graph.mul(y, weights);
            let y = b.graph.sum(y, 1);
            let best = b.graph.apply(Argmax, &[y])[0];
            let table = b.weight("table", &[32, 32]);
            let looked_up = b.graph.embed(best, table);
            (b.graph.add(looked_up, y), 32)
        }
    }
}

/// Attention over a cache or over the step itself, with one KV head of 16 elements and two query heads.
fn attention(b: &mut CaseBuilder, x: ValueId, width: usize) -> ValueId {
    let qkv = linear(b, x, width, 64);
    let part = |b: &mut CaseBuilder, range: std::ops::Range<usize>| {
        let heads = range.len() / 16;
        let part = b.graph.slice(qkv, range);
        b.graph.reshape(part, &[heads, 16])
    };
    let (mut q, mut k, v) = (part(b, 0..32), part(b, 32..48), part(b, 48..64));
    if b.random.below(2) == 0 {
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 16, magnitude: 1.0 };
        let (positions, frequencies) = (b.positions(), b.frequencies(8));
        q = b.graph.rope(q, positions, frequencies, rope);
        k = b.graph.rope(k, positions, frequencies, rope);
    }
    let window = [None, Some(3)][b.random.below(2)];
    let y = if b.random.below(4) == 0 {
        let source = KvSource::Step([Mask::Causal, Mask::Bidirectional][b.random.below(2)]);
        b.graph.attention(&[q, k, v], Attention { source, scale: 0.25, window, softcap: None })
    } else {
        let cache = b.graph.cache(CacheSpec::new(1, 16, window));
        b.graph.cache_write(k, v, cache);
        let source = KvSource::Cache(cache);
        b.graph.attention(&[q], Attention { source, scale: 0.25, window, softcap: Some(10.0) })
    };
    b.graph.reshape(y, &[32])
}
