//! Attention weights and states inside a model, against transformers.

use brasa::engine::EngineError;
use brasa::{Error, GenerateOptions, KvType, LoadOptions, Model, Precision};
use brasa_golden::folder;
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
        let layers = model.look_inside(&ids, &[]).unwrap();
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
        let chosen = exact(name, 64).look_inside(&ids, &[last.layer, 0]).unwrap();
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
    let refused = model.look_inside(&[5], &[layers]).err().unwrap().to_string();
    assert!(refused.contains(&format!("layer {layers}")), "{refused}");
    assert!(matches!(model.look_inside(&[], &[]), Err(Error::Engine(EngineError::EmptyPrompt))));
    let unknown = model.look_inside(&[u32::MAX], &[]);
    assert!(matches!(unknown, Err(Error::Engine(EngineError::UnknownToken { .. }))));
    let long = vec![5; 1 << 26];
    assert!(matches!(model.look_inside(&long, &[]), Err(Error::Options(_))));
    // The model goes on as before, and a text beside a look is the text alone.
    let generate = || {
        let options = GenerateOptions { max_tokens: Some(20), ..GenerateOptions::default() };
        model.generate_ids(vec![5, 9, 17], &options).unwrap()
    };
    let alone = generate().into_text().unwrap();
    let beside = generate();
    assert_eq!(model.look_inside(&[5, 9, 17], &[0]).unwrap()[0].tokens(), 3);
    assert_eq!(beside.into_text().unwrap(), alone);
}
