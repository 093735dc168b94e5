//! Low-rank adaption beside stored weights: equal to merged weights, and as fused as before.

use std::collections::BTreeMap;

use crate::small_model::{Device, small_model, tokens};
use brasa_formats::{Bytes, Payload, StorageFormat, Tensor, codec};
use brasa_graph::device::KvType;
use brasa_graph::fuse::Pattern;
use brasa_graph::op::{Attention, Binary, Gating, KvSource, Rope, RopeLayout, RouterTopK, Unary};
use brasa_graph::pass::{DenseChange, LowRank, add_low_rank, add_low_rank_bank, prune, row_norms};
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{
    Case, CaseBuilder, Random, compare, f32_weight, merged, random_adapter, run_case, weight,
};
use brasa_graph::{Graph, Item, Op, Schedule, ValueId, Weight, WeightId, WeightPart};

/// Relative L2 and the worst element of every output of every step, both at most 1e-5 and not 0.
fn assert_close(case: &Case, adapters: &[LowRank]) {
    let with = |graph: Graph| run_case(&ReferenceBackend, &Case { graph, ..case.clone() }).unwrap();
    let (plain, expected) = (with(case.graph.clone()), with(merged(&case.graph, adapters)));
    let found = with(add_low_rank(&case.graph, adapters).unwrap());
    for ((plain, found), expected) in plain.iter().zip(&found).zip(&expected) {
        for ((plain, found), expected) in plain.iter().zip(found).zip(expected) {
            let comparison = compare(found, expected);
            let worst = (comparison.found - comparison.expected).abs() / comparison.max_magnitude;
            assert!(comparison.relative_l2 < 1e-5 && worst < 1e-5, "{}: {comparison}", case.name);
            assert!(compare(plain, expected).relative_l2 > 1e-2, "{}: the adapters do something", case.name);
        }
    }
}

fn adapter(
    case: &Case,
    name: &str,
    rows: std::ops::Range<usize>,
    rank: usize,
    scale: f32,
    seed: u64,
) -> LowRank {
    random_adapter(&case.graph, name, rows, rank, scale, &mut Random::new(seed))
}

/// One block of a decoder: stacked Q|K|V with norms and a bias, residuals, stacked gate|up.
fn block() -> Case {
    Case::new("block", 3, &f32_weight, |b| {
        let h = b.rows(&[32]);
        let norm = b.scales("attention_norm", 32);
        let x = b.graph.rms_norm(h, norm, 1e-5);
        let (w, bias) = (b.weight("qkv", &[64, 32]), b.bias("qkv_bias", 64));
        let qkv = b.graph.linear(x, w);
        let qkv = b.graph.add(qkv, bias);
        let o = attention(b, qkv);
        let w = b.weight("o", &[32, 32]);
        let o = b.graph.linear(o, w);
        let h = b.graph.add(h, o);
        let norm = b.scales("feed_forward_norm", 32);
        let x = b.graph.rms_norm(h, norm, 1e-5);
        let w = b.weight("gate_up", &[96, 32]);
        let y = b.graph.linear(x, w);
        let (gate, up) = (b.graph.slice(y, 0..48), b.graph.slice(y, 48..96));
        let gate = b.graph.unary(gate, Unary::Silu);
        let y = b.graph.mul(gate, up);
        let (w, bias) = (b.weight("down", &[32, 48]), b.bias("down_bias", 32));
        let y = b.graph.linear(y, w);
        let y = b.graph.add(y, bias);
        let h = b.graph.add(y, h);
        vec![b.graph.rms_norm_unscaled(h, 1e-5)]
    })
}

/// Two query heads and one KV head of 16.
fn attention(b: &mut CaseBuilder, qkv: ValueId) -> ValueId {
    let head = |b: &mut CaseBuilder, range: std::ops::Range<usize>| {
        let part = b.graph.slice(qkv, range.clone());
        b.graph.reshape(part, &[range.len() / 16, 16])
    };
    let (q, k, v) = (head(b, 0..32), head(b, 32..48), head(b, 48..64));
    let (positions, frequencies) = (b.positions(), b.frequencies(8));
    let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 16, magnitude: 1.0 };
    let (q, k) =
        (b.graph.rope(q, positions, frequencies, rope), b.graph.rope(k, positions, frequencies, rope));
    let cache = b.graph.cache(brasa_graph::CacheSpec::new(1, 16, None));
    b.graph.cache_write(k, v, cache);
    let y = b.graph.attention(
        &[q],
        Attention { source: KvSource::Cache(cache), scale: 0.25, window: None, softcap: None },
    );
    b.graph.reshape(y, &[32])
}

/// How often each pattern is found, and how many nodes are alone.
fn groups(graph: &Graph) -> (BTreeMap<&'static str, usize>, Vec<&'static str>) {
    let (mut fused, mut alone) = (BTreeMap::new(), Vec::new());
    for item in Schedule::new(graph, Pattern::ALL).items() {
        match item {
            Item::Fused(item) => *fused.entry(item.fusion.pattern().name()).or_default() += 1,
            Item::Single(node) if !graph.node(*node).op.is_view() => alone.push(graph.node(*node).op.name()),
            Item::Single(_) => {}
        }
    }
    (fused, alone)
}

#[test]
fn adapted_layers_equal_merged_weights() {
    let case = block();
    let one = |name, rows, rank, scale| adapter(&case, name, rows, rank, scale, 40 + rank as u64);
    // Every layer, alone and together; parts of stacks, equal and different scales, two adapters of one weight.
    let all = [
        one("qkv", 0..32, 4, 0.5),
        one("qkv", 32..48, 3, 0.5),
        one("qkv", 48..64, 1, 0.5),
        one("o", 0..32, 8, 1.0),
        one("gate_up", 0..48, 2, 0.7),
        one("gate_up", 48..96, 5, -0.3),
        one("down", 0..32, 6, 2.0),
        one("down", 0..32, 7, 0.1),
    ];
    assert_close(&case, &all);
    for chosen in [0..1, 0..3, 3..4, 4..5, 4..6, 6..7, 6..8] {
        assert_close(&case, &all[chosen]);
    }
    assert!(add_low_rank(&case.graph, &[]).is_ok_and(|same| same.nodes() == case.graph.nodes()));
}

#[test]
fn a_model_with_adapted_projections_equals_merged_weights() {
    let graph = small_model();
    let mut random = Random::new(5);
    let mut adapters = Vec::new();
    for (number, weight) in graph.weights().iter().enumerate().filter(|(_, weight)| weight.name == "qkv") {
        for (rows, rank) in [(0..24, 4), (24..32, 2), (32..40, 2)] {
            let of = random_adapter(&graph, "qkv", rows, rank, 0.8, &mut random);
            adapters.push(LowRank { weight: WeightId(number as u32), ..of });
        }
        assert_eq!(weight.shape, [40, 24]);
    }
    assert_eq!(adapters.len(), 6);
    let runs = |graph: Graph| {
        let mut device = Device::of(graph, KvType::F32);
        let (a, b) = (tokens(40, 1), tokens(3, 2));
        [device.run(&[(1, &a), (2, &b)]), device.run(&[(1, &b)])].concat()
    };
    let comparison =
        compare(&runs(add_low_rank(&graph, &adapters).unwrap()), &runs(merged(&graph, &adapters)));
    let worst = (comparison.found - comparison.expected).abs() / comparison.max_magnitude;
    assert!(comparison.relative_l2 < 1e-5 && worst < 1e-5, "{comparison}");
}

#[test]
fn what_was_fused_stays_fused() {
    let case = block();
    let (plain, plain_alone) = groups(&case.graph);
    let expected = BTreeMap::from([
        ("gate_up_activation", 1),
        ("linear_residual", 2),
        ("norm_linear", 1),
        ("qk_norm_rope_cache_write", 1),
    ]);
    assert_eq!((&plain, &plain_alone[..]), (&expected, &["embed", "attention", "rms_norm", "rms_norm"][..]));
    let adapted = |names: &[(&str, std::ops::Range<usize>)]| {
        let adapters: Vec<LowRank> = (names.iter().zip(1..))
            .map(|((name, rows), seed)| adapter(&case, name, rows.clone(), 4, 0.5, seed))
            .collect();
        let graph = add_low_rank(&case.graph, &adapters).unwrap();
        let linears = graph.nodes().iter().filter(|node| matches!(node.op, Op::Linear(_))).count();
        let (fused, alone) = groups(&graph);
        (fused, alone, linears)
    };
    // All groups of before, and one more `linear_residual` for each product with B.
    let with_sums = |sums: usize| {
        let mut all = expected.clone();
        all.insert("linear_residual", 2 + sums);
        all
    };
    let qkv = [("qkv", 0..32), ("qkv", 32..48), ("qkv", 48..64)];
    let (fused, alone, linears) = adapted(&qkv);
    assert_eq!((fused, linears), (with_sums(1), 4 + 2));
    assert_eq!(alone, ["embed", "scale", "attention", "rms_norm", "rms_norm"]);
    let (fused, alone, linears) = adapted(&[("o", 0..32), ("down", 0..32)]);
    assert_eq!((fused, linears), (with_sums(2), 4 + 4));
    assert_eq!(alone, ["embed", "attention", "linear", "scale", "rms_norm", "linear", "scale", "rms_norm"]);
    // The activation of gate and up needs their sums: the stacked product stays one, beside A behind one norm, and the
    // activation follows.
    let (fused, alone, linears) = adapted(&[("gate_up", 0..48), ("gate_up", 48..96)]);
    let mut apart = with_sums(1);
    apart.remove("gate_up_activation");
    apart.insert("norm_linear", 2);
    assert_eq!((fused, linears), (apart, 4 + 2));
    assert_eq!(alone, ["embed", "attention", "scale", "silu", "mul", "rms_norm"]);
}

/// An adapter of a whole weight is used as it is stored; blocks of halves stay halves.
#[test]
fn adapters_keep_their_storage() {
    use StorageFormat::{BF16, F16, F32, Q8_0};
    let case = block();
    let stored = |format: StorageFormat, weight: &Weight| {
        let row_bytes = format.row_bytes(weight.row_len()).unwrap();
        let mut bytes = vec![0; row_bytes * weight.rows()];
        let floats = decode_weight(weight).unwrap();
        for (row, bytes) in floats.rows().zip(bytes.chunks_exact_mut(row_bytes)) {
            codec::encode_row(format, row, None, bytes).unwrap();
        }
        let payload = Payload::Blocks(Bytes::from(bytes));
        let tensor = Tensor { name: weight.name.clone(), shape: weight.shape.clone(), format, payload };
        Weight::new(weight.name.clone(), &weight.shape, vec![WeightPart::whole(tensor)]).unwrap()
    };
    let of = |name, rows: std::ops::Range<usize>, a, b| {
        let adapter = adapter(&case, name, rows, 4, 1.0, 9);
        LowRank { a: stored(a, &adapter.a), b: stored(b, &adapter.b), ..adapter }
    };
    let formats = |adapters: &[LowRank]| {
        let graph = add_low_rank(&case.graph, adapters).unwrap();
        assert_close(&case, adapters);
        let added = &graph.weights()[case.graph.weights().len()..];
        let formats = |weight: &Weight| weight.parts.iter().map(WeightPart::format).collect::<Vec<_>>();
        added.iter().map(|weight| (weight.name.clone(), formats(weight))).collect::<Vec<_>>()
    };
    let named =
        |a: Vec<StorageFormat>, b| vec![("qkv.low_rank_a".to_owned(), a), ("qkv.low_rank_b".into(), vec![b])];
    assert_eq!(formats(&[of("qkv", 0..64, Q8_0, BF16)]), named(vec![Q8_0], BF16));
    assert_eq!(formats(&[of("qkv", 8..64, F16, F16)]), named(vec![F16], F16));
    assert_eq!(
        formats(&[of("qkv", 0..32, F16, F16), of("qkv", 32..48, BF16, F16)]),
        named(vec![F16, BF16], F16)
    );
    assert_eq!(
        formats(&[of("qkv", 0..32, F16, F16), of("qkv", 32..48, F16, BF16)]),
        named(vec![F16, F16], F32)
    );
}

#[test]
fn several_layers_of_one_weight_share_the_adapter() {
    let case = Case::new("shared", 3, &f32_weight, |b| {
        let x = b.rows(&[32]);
        let w = b.weight("w", &[32, 32]);
        let y = b.graph.linear(x, w);
        let z = b.graph.linear(y, w);
        // Both operands are adapted, and one product is read twice.
        let sum = b.graph.add(y, z);
        let other = b.weight("other", &[32, 32]);
        let (first, second) = (b.graph.linear(sum, other), b.graph.linear(z, other));
        let both = b.graph.add(first, second);
        let twice = b.graph.linear(both, w);
        vec![both, b.graph.apply(Binary::Add, &[twice, twice])[0]]
    });
    let adapters = [adapter(&case, "w", 0..32, 3, 0.9, 1), adapter(&case, "other", 5..20, 2, 0.9, 2)];
    assert_close(&case, &adapters);
    let adapted = add_low_rank(&case.graph, &adapters).unwrap();
    assert_eq!(adapted.weights().len(), case.graph.weights().len() + 4);
}

/// Adapters of experts, alone and several of one stack.
#[test]
fn adapted_experts_equal_merged_weights() {
    let case = Case::new("experts", 5, &f32_weight, |b| {
        let x = b.rows(&[16]);
        let router = b.weight("router", &[4, 16]);
        let logits = b.graph.linear(x, router);
        let (chosen, _) = b.graph.router_topk(logits, RouterTopK { k: 2, gating: Gating::SOFTMAX_CHOSEN });
        let (up, down) = (b.weight("up", &[4, 24, 16]), b.weight("down", &[4, 16, 24]));
        let y = b.graph.expert_linear(x, chosen, up);
        let y = b.graph.expert_linear(y, chosen, down);
        vec![b.graph.sum(y, 1)]
    });
    let all = [
        adapter(&case, "up", 0..24, 3, 0.9, 1),
        adapter(&case, "down", 0..16, 2, 0.7, 2),
        adapter(&case, "up", 0..24, 2, -0.4, 3),
    ];
    for chosen in [0..1, 0..2, 0..3] {
        assert_close(&case, &all[chosen]);
    }
    let part = LowRank { rows: 0..12, ..all[0].clone() };
    assert_eq!(
        add_low_rank(&case.graph, &[part]).unwrap_err().to_string(),
        "adapter of up: rows 0..12, expected all 24 of every expert"
    );
}

#[test]
fn adapters_that_do_not_fit_are_refused() {
    let case = block();
    let good = adapter(&case, "qkv", 32..48, 4, 0.5, 1);
    let refuse = |change: &dyn Fn(&mut LowRank)| {
        let mut bad = good.clone();
        change(&mut bad);
        add_low_rank(&case.graph, &[good.clone(), bad]).unwrap_err().to_string()
    };
    let w = |shape: &[usize]| weight("w", shape, &vec![0.0; shape.iter().product()]);
    assert_eq!(refuse(&|bad| bad.rows = 60..76), "adapter of qkv: rows 60..76, the weight has 64");
    assert_eq!(refuse(&|bad| bad.rows = 5..5), "adapter of qkv: rows 5..5, the weight has 64");
    assert_eq!(refuse(&|bad| bad.rows = 32..49), "adapter of qkv: B has shape [16, 4], expected [17, 4]");
    assert_eq!(refuse(&|bad| bad.a = w(&[4, 31])), "adapter of qkv: A has shape [4, 31], expected [r, 32]");
    assert_eq!(refuse(&|bad| bad.a = w(&[0, 32])), "adapter of qkv: A has shape [0, 32], expected [r, 32]");
    assert_eq!(refuse(&|bad| bad.a = w(&[3, 32])), "adapter of qkv: B has shape [16, 4], expected [16, 3]");
    assert_eq!(refuse(&|bad| bad.scale = f32::NAN), "adapter of qkv: scale NaN, expected a finite number");
    assert_eq!(refuse(&|bad| bad.weight = WeightId(99)), "adapter of weight 99: the graph has 10 weights");
    // Rows of a bank's other adapters are multiplied by zeros of this one.
    let bank = |value: f32| {
        let mut bad = good.clone();
        let mut values = vec![0.5; 16 * 4];
        values[5 * 4 + 1] = value;
        bad.b = weight("b", &[16, 4], &values);
        add_low_rank_bank(&case.graph, &[vec![good.clone()], vec![bad]]).map(drop)
    };
    assert_eq!(bank(1e38), Ok(()));
    for value in [f32::NAN, f32::INFINITY] {
        let expected = format!("adapter of qkv: B holds {value} in row 5");
        assert_eq!(bank(value).unwrap_err().to_string(), expected);
    }
    let of = |name: &str, shape: [usize; 2]| {
        let id = case.graph.weights().iter().position(|weight| weight.name == name).unwrap();
        let (a, b) = (w(&[2, shape[1]]), w(&[shape[0], 2]));
        let adapter =
            LowRank { weight: WeightId(id as u32), rows: 0..shape[0], a, b, scale: 1.0, gain: None };
        add_low_rank(&case.graph, &[adapter]).unwrap_err().to_string()
    };
    assert_eq!(
        of("activations", [97, 32]),
        "adapter of activations: embed reads it, only linear layers can be adapted"
    );
    assert_eq!(of("qkv_bias", [64, 1]), "adapter of qkv_bias: shape [64], expected a matrix");
    // Nothing reads what stands behind the first block's residual.
    let unread = prune(&case.graph.clone().returning(&[ValueId(2)]));
    let down = adapter(&case, "down", 0..32, 2, 1.0, 1);
    assert_eq!(
        add_low_rank(&unread, &[down]).unwrap_err().to_string(),
        "adapter of down: no linear layer reads it"
    );
}

/// `gain ∘ (W + scale·B·A)`, of whole weights and of parts of a stack, with a bias and a residual behind it.
#[test]
fn gains_multiply_the_sum_before_bias_and_residual() {
    let case = block();
    let gained = |name, rows: std::ops::Range<usize>, seed| {
        let mut random = Random::new(seed);
        let adapter = adapter(&case, name, rows.clone(), 3, 0.5, seed);
        LowRank { gain: Some(random.weight("gain", &[rows.len()])), ..adapter }
    };
    let all = [
        gained("qkv", 0..32, 1),
        adapter(&case, "qkv", 32..48, 2, 0.5, 2),
        gained("qkv", 48..64, 3),
        gained("o", 0..32, 4),
        gained("down", 0..32, 5),
    ];
    for chosen in [0..3, 3..4, 4..5, 0..5] {
        assert_close(&case, &all[chosen]);
    }
    let refused = |adapters: &[LowRank]| add_low_rank(&case.graph, adapters).unwrap_err().to_string();
    let second = adapter(&case, "qkv", 16..32, 2, 0.5, 6);
    assert_eq!(
        refused(&[all[0].clone(), second]),
        "adapter of qkv: rows 0..32 have gains (DoRA) and a second adapter"
    );
    let short = LowRank { gain: all[4].gain.clone(), ..all[2].clone() };
    assert_eq!(refused(&[short]), "adapter of qkv: gains of shape [32], expected [16]");
    let bank = add_low_rank_bank(&case.graph, &[vec![all[3].clone()]]).unwrap_err().to_string();
    assert_eq!(bank, "adapter of o: rows of a bank's adapters have no gains of their own (DoRA)");
}

#[test]
fn norms_of_rows_are_those_of_the_merged_weight() {
    let case = block();
    let of = adapter(&case, "qkv", 30..50, 3, 0.5, 9);
    let weight = case.graph.weight(of.weight);
    let [a, b] = [&of.a, &of.b].map(|weight| decode_weight(weight).unwrap().floats().to_vec());
    let found = row_norms(weight, 30..50, Some(DenseChange { a: &a, b: &b, scale: 0.5 })).unwrap();
    let merged = merged(&case.graph, std::slice::from_ref(&of));
    let merged = merged.weights().iter().rfind(|weight| weight.name == "qkv").unwrap();
    for (row, found) in (30..50).zip(&found) {
        let mut values = vec![0.0; 32];
        merged.decode_rows(row..row + 1, &mut values).unwrap();
        let expected = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt() as f32;
        assert!((found - expected).abs() <= 1e-6 * expected, "row {row}: {found}, expected {expected}");
    }
}
