//! Operations against torch and transformers (`tools/golden/operations.py`).

use std::collections::BTreeSet;

use brasa_graph::Op;
use brasa_graph::op::{
    Argmax, Attention, Binary, CrossEntropy, ExpertLinear, Gating, IndexAdd, KvSource, LayerNorm, Linear,
    LinearTransposed, Mask, Matmul, Reduce, ReduceFn, RmsNorm, Rope, RopeLayout, RouterTopK, Softmax, Unary,
    Unfold,
};
use brasa_graph::reference::{Array, Data, SegmentRows, apply};
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

fn array(value: &Value) -> Array {
    let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    match value.get("u32") {
        Some(data) => Array::u32(shape, serde_json::from_value(data.clone()).unwrap()),
        None => Array::f32(shape, serde_json::from_value(value["f32"].clone()).unwrap()),
    }
}

fn operation(name: &str, params: &Value) -> Op {
    let float = |key: &str| params[key].as_f64().map(|x| x as f32);
    let number = |key: &str| params[key].as_u64().unwrap() as usize;
    let flag = |key: &str| params[key].as_bool().unwrap();
    let reduce = |function| Reduce { function, axis: number("axis") }.into();
    match name {
        "gelu_erf" => Unary::GeluErf.into(),
        "gelu_tanh" => Unary::GeluTanh.into(),
        "silu" => Unary::Silu.into(),
        "sigmoid" => Unary::Sigmoid.into(),
        "tanh" => Unary::Tanh.into(),
        "exp" => Unary::Exp.into(),
        "log" => Unary::Log.into(),
        "rsqrt" => Unary::Rsqrt.into(),
        "softcap" => Unary::Softcap(float("cap").unwrap()).into(),
        "clamp" => Unary::Clamp { low: float("low").unwrap(), high: float("high").unwrap() }.into(),
        "rms_norm" => RmsNorm { eps: float("eps").unwrap() }.into(),
        "layer_norm" => LayerNorm { eps: float("eps").unwrap() }.into(),
        "linear" => Linear.into(),
        "linear_transposed" => LinearTransposed.into(),
        "matmul" => Matmul { transpose_a: flag("transpose_a"), transpose_b: flag("transpose_b") }.into(),
        "softmax" => Softmax.into(),
        "logsumexp" => reduce(ReduceFn::LogSumExp),
        "mean" => reduce(ReduceFn::Mean),
        "cross_entropy" => CrossEntropy.into(),
        "argmax" => Argmax.into(),
        "rope" => Rope {
            layout: match params["layout"].as_str() {
                Some("interleaved") => RopeLayout::Interleaved,
                _ => RopeLayout::SplitHalf,
            },
            rotary_dim: number("rotary_dim"),
            magnitude: float("magnitude").unwrap(),
        }
        .into(),
        "attention" => Attention {
            source: KvSource::Step(match params["mask"].as_str() {
                Some("causal") => Mask::Causal,
                _ => Mask::Bidirectional,
            }),
            scale: float("scale").unwrap(),
            window: params["window"].as_u64().map(|w| w as usize),
            softcap: float("softcap"),
        }
        .into(),
        "router_topk" => RouterTopK {
            k: number("k"),
            gating: match params["gating"].as_str() {
                Some("softmax_all") => Gating::SOFTMAX_ALL,
                _ => Gating::SOFTMAX_CHOSEN,
            },
        }
        .into(),
        "expert_linear" => ExpertLinear.into(),
        "conv1d" => Unfold { taps: 3, stride: number("stride"), padding: number("padding") }.into(),
        "index_add" => IndexAdd.into(),
        _ => panic!("no operation {name}"),
    }
}

#[test]
fn operations_agree_with_torch() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../golden/operations.json")).unwrap();
    let mut names = BTreeSet::new();
    for case in &cases {
        let op = operation(case["op"].as_str().unwrap(), &case["params"]);
        let operands: Vec<Array> = case["operands"].as_array().unwrap().iter().map(array).collect();
        let ends: &[usize] = if op.name() == "attention" { &[3, 8] } else { &[operands[0].outer()] };
        let mut start = 0;
        let segment = |&end: &usize| {
            let rows = start..end;
            start = end;
            SegmentRows::text(rows, 0)
        };
        let segments: Vec<SegmentRows> = ends.iter().map(segment).collect();
        let found = match &operands[..] {
            [x, w, b] if op.name() == "unfold" => {
                let unfolded = apply(&op, &[x], &segments).unwrap().remove(0);
                let w = w.reshaped([w.shape[0], unfolded.width()]);
                let y = apply(&Linear.into(), &[&unfolded, &w], &segments).unwrap().remove(0);
                apply(&Binary::Add.into(), &[&y, b], &segments).unwrap()
            }
            _ => apply(&op, &operands.iter().collect::<Vec<_>>(), &segments).unwrap(),
        };
        let expected: Vec<Array> = case["results"].as_array().unwrap().iter().map(array).collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.shape, expected.shape, "{} {}", op.name(), case["params"]);
            if let (Data::U32(found), Data::U32(expected)) = (&found.data, &expected.data) {
                assert_eq!(found, expected, "{}", op.name());
                continue;
            }
            let comparison = compare(found.floats(), expected.floats());
            // An angle of 100,000 radians is known to 1/128 of one: both sides round alike, their cosines may not.
            let bound = if op.name() == "rope" { Tolerance(1e-5) } else { Tolerance(2e-6) };
            assert!(comparison.within(bound), "{} {}: {comparison}", op.name(), case["params"]);
        }
        names.insert(op.name());
    }
    assert_eq!(names.len(), 26, "{names:?}");
}
