//! Attention weights and states inside a model, against transformers.

use brasa::engine::EngineError;
use brasa::{Error, GenerateOptions, KvType, LayerInside, LoadOptions, Model, Precision, RequestOptions};
use brasa_golden::folder;
use brasa_graph::op::{Gating, RouterTopK};
use brasa_graph::testing::{Tolerance, compare};
use serde_json::Value;

/// Made by `tools/golden/models/attention.py`.
const GOLDEN: &str = include_str!("../golden/attention.json");

/// Five digits of the golden file, and f32 in another order.
const SAME: Tolerance = Tolerance(1e-4);

fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn exact(name: &str, chunk: usize) -> Model {
    let options = LoadOptions {
        chunk: Some(chunk),
        precision: Precision::Reference,
        kv_type: Some(KvType::F32),
        ..LoadOptions::default()
    };
    Model::load(folder(name), &options).unwrap()
}

#[test]
fn attention_and_states_are_those_of_transformers() {
    for case in serde_json::from_str::<Vec<Value>>(GOLDEN).unwrap() {
        let name = case["model"].as_str().unwrap();
        let ids: Vec<u32> = floats(&case["ids"]).iter().map(|&id| id as u32).collect();
        let model = exact(name, 7);
        let layers = model.look_inside(&ids, &[], &RequestOptions::DEFAULT).unwrap();
        assert_eq!(layers.len(), model.info().num_layers.unwrap());
        let (first, last) = (&layers[0], &layers[layers.len() - 1]);
        for (layer, head, expected) in [(first, 0, &case["first"]), (last, last.heads - 1, &case["last"])] {
            let weights = layer.weights(head);
            assert_eq!(weights.len(), ids.len() * ids.len());
            for (row, entropy) in weights.chunks_exact(ids.len()).zip(layer.entropy(head)) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                assert!((0.0..=(ids.len() as f32).ln()).contains(&entropy), "{entropy}");
            }
            let expected = floats(expected);
            let comparison = compare(&weights[weights.len() - expected.len()..], &expected);
            assert!(comparison.within(SAME), "{name}, layer {}: {comparison}", layer.layer);
        }
        let expected = floats(&case["states"]);
        let comparison = compare(&first.states[first.states.len() - expected.len()..], &expected);
        assert!(comparison.within(SAME), "{name}, states: {comparison}");
        // A choice of layers is a part of all of them, whatever the chunks are; each value has the same bits.
        let chosen = exact(name, 64).look_inside(&ids, &[last.layer, 0], &RequestOptions::DEFAULT).unwrap();
        for (chosen, whole) in chosen.iter().zip([last, first]) {
            let comparison = compare(&chosen.keys, &whole.keys);
            assert!(comparison.within(SAME), "{name}: {comparison}");
            assert_eq!((chosen.layer, chosen.states.len()), (whole.layer, whole.states.len()));
        }
    }
}

#[test]
fn a_look_that_cannot_be_had_is_refused() {
    let model = exact("tiny-llama", 16);
    let layers = model.info().num_layers.unwrap();
    let refused = model.look_inside(&[5], &[layers], &RequestOptions::DEFAULT).err().unwrap().to_string();
    assert!(refused.contains(&format!("layer {layers}")), "{refused}");
    assert!(matches!(
        model.look_inside(&[], &[], &RequestOptions::DEFAULT),
        Err(Error::Engine(EngineError::EmptyPrompt))
    ));
    let unknown = model.look_inside(&[u32::MAX], &[], &RequestOptions::DEFAULT);
    assert!(matches!(unknown, Err(Error::Engine(EngineError::UnknownToken { .. }))));
    let long = vec![5; 1 << 26];
    assert!(matches!(model.look_inside(&long, &[], &RequestOptions::DEFAULT), Err(Error::Options(_))));
    // The model goes on as before, and a text beside a look is the text alone.
    let generate = || {
        let options = GenerateOptions { max_tokens: Some(20), ..GenerateOptions::default() };
        model.generate_ids(vec![5, 9, 17], &options).unwrap()
    };
    let alone = generate().into_text().unwrap();
    let beside = generate();
    assert_eq!(model.look_inside(&[5, 9, 17], &[0], &RequestOptions::DEFAULT).unwrap()[0].tokens(), 3);
    assert_eq!(beside.into_text().unwrap(), alone);
}

fn layer() -> LayerInside {
    LayerInside {
        layer: 0,
        heads: 2,
        kv_heads: 1,
        head_dim: 1,
        window: Some(2),
        queries: vec![0.0, 1.0, 0.0, 2.0, 0.0, 3.0],
        keys: vec![1.0, 2.0, 4.0],
        states: Vec::new(),
        router_logits: Vec::new(),
        router: None,
        selection_bias: Vec::new(),
        scale: 0.5,
        softcap: Some(2.0),
        sinks: Vec::new(),
    }
}

/// A sink of the largest score takes its share of every row.
#[test]
fn sinks_take_a_share() {
    let layer = LayerInside { sinks: vec![0.0, f32::NEG_INFINITY], ..layer() };
    let third = 1.0 / 3.0;
    let expected = [0.5, 0.0, 0.0, third, third, 0.0, 0.0, third, third];
    assert!(layer.weights(0).iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
    assert_eq!(layer.weights(1)[..1], [1.0]);
}

/// Two query heads on one key head, a window of two positions, and a soft-cap: by hand.
#[test]
fn scores_are_scaled_capped_and_windowed() {
    let layer = layer();
    assert_eq!(layer.weights(0), [1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.5, 0.5]);
    let capped = |score: f64| (2.0 * (score / 2.0).tanh()).exp();
    let (a, b) = (capped(3.0), capped(6.0));
    let (c, d) = (capped(1.0), capped(2.0));
    let expected = [1.0, 0.0, 0.0, c / (c + d), d / (c + d), 0.0, 0.0, a / (a + b), b / (a + b)];
    for (found, expected) in layer.weights(1).iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
    }
    let entropy = layer.entropy(0);
    assert!(entropy[0].abs() < 1e-6 && (entropy[1] - std::f32::consts::LN_2).abs() < 1e-6);
}

#[test]
fn states_and_routers_are_summed_up() {
    let states = vec![3.0, 4.0, 0.0, 0.0, 1.0, 0.0];
    let router = Some(RouterTopK { k: 2, gating: Gating::SOFTMAX_CHOSEN });
    let router_logits = vec![1.0, 3.0, 3.0, 5.0, 0.0, 5.0, 0.0, 0.0, 0.0];
    let early = LayerInside { states, router, router_logits, ..layer() };
    let later = LayerInside { states: vec![6.0, 8.0, 1.0, 0.0, 0.0, -2.0], ..layer() };
    assert_eq!(early.residual_norms(), [5.0, 0.0, 1.0]);
    assert_eq!(early.coherence(&later), [1.0, 0.0, 0.0]);
    let half = |a, b| vec![(a, 0.5), (b, 0.5)];
    assert_eq!(early.experts(), [half(1, 2), half(0, 2), half(0, 1)]);
    assert!(later.experts().is_empty());
}

/// Every layer of a mixture of experts chooses as many experts of as many as its configuration says; what passes a layer stays much as it
/// was.
#[test]
fn routers_and_residual_streams_are_seen() {
    let model = exact("tiny-qwen3moe", 16);
    let info = model.info();
    let (experts, each) = (info.num_experts.unwrap(), info.experts_per_token.unwrap());
    let ids: Vec<u32> = (5..25).collect();
    let layers = model.look_inside(&ids, &[], &RequestOptions::DEFAULT).unwrap();
    for layer in &layers {
        assert_eq!(layer.router_logits.len(), ids.len() * experts);
        let chosen = layer.experts();
        assert_eq!(chosen.len(), ids.len());
        for (chosen, logits) in chosen.iter().zip(layer.router_logits.chunks_exact(experts)) {
            assert_eq!(chosen.len(), each);
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(logits[chosen[0].0 as usize].to_bits(), largest.to_bits());
            assert!(chosen.is_sorted_by(|a, b| a.1 >= b.1), "{chosen:?}");
        }
        assert!(layer.residual_norms().iter().all(|norm| norm.is_finite() && *norm > 0.0));
    }
    assert!(layers[0].coherence(&layers[1]).iter().all(|cosine| (-1.0..=1.0001).contains(cosine)));
    assert!(layers[0].coherence(&layers[0]).iter().all(|cosine| (cosine - 1.0).abs() < 1e-6));
    assert!(
        exact("tiny-llama", 16).look_inside(&ids, &[0], &RequestOptions::DEFAULT).unwrap()[0]
            .experts()
            .is_empty()
    );
}
