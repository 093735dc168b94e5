//! Attention with sinks and latent attention against transformers (`tools/golden/attention.py`).

use brasa_graph::Op;
use brasa_graph::op::{Attention, KvSource, Mask};
use brasa_graph::reference::{Array, SegmentRows, apply};
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

fn cases(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../golden/attention.json")).unwrap();
    all[name].as_array().unwrap().clone()
}

fn array(value: &Value) -> Array {
    let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    Array::f32(shape, serde_json::from_value(value["f32"].clone()).unwrap())
}

/// Attention to the rows of one text.
fn attend(case: &Value, operands: &[&Array]) -> Vec<f32> {
    let op = Op::from(Attention {
        source: KvSource::Step(Mask::Causal),
        scale: case["scale"].as_f64().unwrap() as f32,
        window: case["window"].as_u64().map(|window| window as usize),
        softcap: None,
    });
    let rows = SegmentRows::text(0..operands[0].outer(), 0);
    apply(&op, operands, &[rows]).unwrap()[0].floats().to_vec()
}

#[test]
fn sinks_are_those_of_gpt_oss() {
    for case in cases("sinks") {
        let [q, k, v, sinks, y] = ["q", "k", "v", "sinks", "y"].map(|name| array(&case[name]));
        let comparison = compare(&attend(&case, &[&q, &k, &v, &sinks]), y.floats());
        assert!(comparison.within(Tolerance::F32), "window {}: {comparison}", case["window"]);
    }
}

/// The sums of latents, multiplied by each head's matrix, equal attention to expanded keys and values.
#[test]
fn absorbed_latent_attention_is_the_expanded_one_of_deepseek_v3() {
    for case in cases("latent") {
        let [q, k, up, y] = ["q", "k", "up", "y"].map(|name| array(&case[name]));
        let width = case["value"].as_u64().unwrap() as usize;
        let values: Vec<f32> =
            k.floats().chunks_exact(k.width()).flat_map(|key| key[..width].to_vec()).collect();
        let values = Array::f32(vec![k.outer(), 1, width], values);
        let latents = attend(&case, &[&q, &k, &values]);
        let (heads, value_dim) = (q.row_elements() / q.width(), up.width());
        let mut found = Vec::new();
        for (number, latent) in latents.chunks_exact(width).enumerate() {
            let matrix = &up.floats()[number % heads * width * value_dim..][..width * value_dim];
            found.extend((0..value_dim).map(|column| {
                latent.iter().zip(matrix.chunks_exact(value_dim)).map(|(x, row)| x * row[column]).sum::<f32>()
            }));
        }
        let comparison = compare(&found, y.floats());
        assert!(comparison.within(Tolerance(2e-6)), "{comparison}");
    }
}
