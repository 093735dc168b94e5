//! Mixtures of experts against the modules of transformers (`tools/golden/mixtures.py`).

use std::sync::Arc;

use brasa_formats::Tensor;
use brasa_graph::Op;
use brasa_graph::op::{
    ClampedUnit, ExpertLinear, Gating, GroupScore, Groups, PositionScale, RouterTopK, Scores,
};
use brasa_graph::reference::{Array, apply, decode_weight};
use brasa_graph::testing::{Tolerance, compare};
use brasa_graph::{RowStride, Weight, WeightPart};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/mixtures.json")).unwrap()
}

fn shape(value: &Value) -> Vec<usize> {
    serde_json::from_value(value["shape"].clone()).unwrap()
}

fn floats(value: &Value) -> Array {
    Array::f32(shape(value), serde_json::from_value(value["f32"].clone()).unwrap())
}

fn integers(value: &Value) -> Vec<u32> {
    serde_json::from_value(value["u32"].clone()).unwrap()
}

fn router(params: &Value) -> RouterTopK {
    let number = |key: &str| params[key].as_u64().map(|x| x as usize);
    let scores = match params["scores"].as_str().unwrap() {
        "softmax_all" => Scores::SoftmaxAll,
        "softmax_chosen" => Scores::SoftmaxChosen,
        _ => Scores::Sigmoid,
    };
    let score = if params["group_score"] == "max" { GroupScore::Max } else { GroupScore::TopTwo };
    let groups = number("groups").map(|count| Groups { count, kept: number("kept").unwrap(), score });
    let norm_eps = params["norm_eps"].as_f64().map(|eps| eps as f32);
    let scale = params["scale"].as_f64().unwrap() as f32;
    RouterTopK { k: number("k").unwrap(), gating: Gating { scores, groups, norm_eps, scale } }
}

#[test]
fn routers_choose_and_weigh_like_transformers() {
    let golden = golden();
    let routers = golden["routers"].as_array().unwrap();
    assert_eq!(routers.len(), 5);
    for case in routers {
        let router = router(&case["params"]);
        let logits = floats(&case["logits"]);
        let bias = case.get("bias").map(floats);
        let (experts, weights) = (integers(&case["experts"]), floats(&case["weights"]));
        let expected = experts.chunks(router.k).zip(weights.rows());
        for (logits, (experts, weights)) in logits.rows().zip(expected) {
            let mut found = router.choose(logits, bias.as_ref().map(Array::floats));
            found.sort_by_key(|&(expert, _)| expert);
            let (found, shares): (Vec<u32>, Vec<f32>) = found.into_iter().unzip();
            assert_eq!(found, experts, "{}", case["name"]);
            let comparison = compare(&shares, weights);
            assert!(comparison.within(Tolerance(1e-6)), "{}: {comparison}", case["name"]);
        }
    }
}

/// The experts of gpt-oss: gates and ups are the even and the odd rows of one tensor.
#[test]
fn experts_with_biases_and_clamps_compute_like_transformers() {
    let golden = golden();
    let case = &golden["gpt_oss_experts"];
    let run = |op: Op, operands: &[&Array]| apply(&op, operands, &[]).unwrap().remove(0);
    let (gate_up, biases) = (floats(&case["gate_up"]), floats(&case["gate_up_bias"]));
    let [experts, both, inputs] = gate_up.shape[..] else { panic!("{:?}", gate_up.shape) };
    let half = |first| {
        let tensor = Tensor::of_floats("gate_up", gate_up.shape.clone(), gate_up.floats());
        let part = WeightPart::of_stride(tensor, RowStride { first, step: 2 });
        let weight = Weight::new("half", &[experts, both / 2, inputs], vec![part]).unwrap();
        let tensor = Tensor::of_floats("bias", vec![experts * both, 1], biases.floats());
        let part = WeightPart::of_stride(tensor, RowStride { first, step: 2 });
        let bias = Arc::new(Weight::new("bias", &[experts, both / 2, 1], vec![part]).unwrap());
        let bias = Array::f32([experts, both / 2], bias.decode("test").unwrap());
        (decode_weight(&weight).unwrap(), bias)
    };
    let chosen = Array::u32(shape(&case["experts"]), integers(&case["experts"]));
    let x = floats(&case["x"]);
    let [gate, up] = [0, 1].map(|first| {
        let (w, bias) = half(first);
        run(ExpertLinear.into(), &[&x, &chosen, &w, &bias])
    });
    let number = |key: &str| case[key].as_f64().unwrap() as f32;
    let unit = ClampedUnit { alpha: number("alpha"), limit: number("limit") };
    let beyond = |x: &Array| x.floats().iter().any(|x| x.abs() > unit.limit);
    assert!(beyond(&gate) && beyond(&up), "both are clamped somewhere");
    let h = run(unit.into(), &[&gate, &up]);
    let y = run(ExpertLinear.into(), &[&h, &chosen, &floats(&case["down"]), &floats(&case["down_bias"])]);
    let (shares, width) = (floats(&case["weights"]), y.width());
    let sums = y.floats().chunks(width * chosen.width()).zip(shares.rows()).flat_map(|(rows, shares)| {
        (0..width).map(move |n| rows.chunks(width).zip(shares).map(|(row, share)| row[n] * share).sum())
    });
    let found: Vec<f32> = sums.collect();
    let expected = floats(&case["y"]);
    let comparison = compare(&found, expected.floats());
    assert!(comparison.within(Tolerance(2e-6)), "{comparison}");
}

#[test]
fn positions_scale_queries_like_transformers() {
    let golden = golden();
    let case = &golden["position_scale"];
    let scale = PositionScale {
        beta: case["beta"].as_f64().unwrap() as f32,
        positions: case["positions"].as_u64().unwrap() as u32,
    };
    let found: Vec<f32> = integers(&case["at"]).into_iter().map(|at| scale.factor(at)).collect();
    let comparison = compare(&found, floats(&case["factors"]).floats());
    assert!(comparison.within(Tolerance(2e-7)), "{comparison}");
}
