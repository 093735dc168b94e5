//! Orders of samplers and their rules against llama.cpp's (`tools/golden/sampler_orders.py`, `tools/golden/sampler_rules.py`).

use brasa_graph::sampling::{
    Distribution, DrawRules, Dry, DryBreakers, Logprobs, Row, Sampler, SamplingOrder, SamplingParams,
};
use serde_json::Value;

#[test]
fn orders_leave_what_llama_cpp_leaves() {
    let golden = include_str!("../golden/sampler_orders.json");
    let groups: Vec<Value> = serde_json::from_str(golden).unwrap();
    let mut checked = 0;
    for group in &groups {
        let given = &group["params"];
        let number = |name: &str| given[name].as_f64().unwrap() as f32;
        let logits: Vec<f32> = serde_json::from_value(given["logits"].clone()).unwrap();
        let history: Vec<u32> = serde_json::from_value(given["history"].clone()).unwrap();
        let results: Vec<(String, Vec<(u32, f64)>)> =
            serde_json::from_value(group["results"].clone()).unwrap();
        for (order, expected) in results {
            let params = SamplingParams {
                temperature: number("temperature"),
                top_k: number("top_k") as usize,
                top_p: number("top_p"),
                min_p: number("min_p"),
                repeat_penalty: number("repeat_penalty"),
                frequency_penalty: number("frequency_penalty"),
                presence_penalty: number("presence_penalty"),
                repeat_last_n: usize::try_from(given["repeat_last_n"].as_i64().unwrap()).ok(),
                order: SamplingOrder::from_names(order.split(';').filter(|name| !name.is_empty())).unwrap(),
                logprobs: Some(Logprobs { top: usize::MAX, of: Distribution::Final }),
                ..SamplingParams::default()
            };
            let rules = DrawRules::new(params).unwrap();
            let draw = Sampler::default().draw(&rules, &Row::new(&logits, 3, &history)).unwrap();
            let ids = |tokens: &[(u32, f64)]| tokens.iter().map(|&(id, _)| id).collect::<Vec<_>>();
            let found: Vec<(u32, f64)> =
                draw.top.iter().map(|&(id, logprob)| (id, f64::from(logprob).exp())).collect();
            assert_eq!(ids(&found), ids(&expected), "{order}: {found:?}, not {expected:?}");
            for ((id, found), (_, expected)) in found.iter().zip(&expected) {
                let difference = (found - expected).abs();
                assert!(difference < 1e-5 * (0.1 + expected), "{order}: token {id}: {found}, not {expected}");
            }
            checked += 1;
        }
    }
    assert!(checked > 400, "{checked} checked");
}

/// Ties are told apart by us alone, so tokens are compared by their logits.
#[test]
fn rules_leave_what_llama_cpp_leaves() {
    let golden = include_str!("../golden/sampler_rules.json");
    let cases: Vec<Value> = serde_json::from_str(golden).unwrap();
    for (place, case) in cases.iter().enumerate() {
        let given = &case["params"];
        let number = |name: &str| given[name].as_f64().unwrap() as f32;
        let count = |name: &str| given[name].as_u64().unwrap() as usize;
        let logits: Vec<f32> = serde_json::from_value(given["logits"].clone()).unwrap();
        let history: Vec<u32> = serde_json::from_value(given["history"].clone()).unwrap();
        let breakers: Vec<Vec<u32>> = serde_json::from_value(given["dry_breakers"].clone()).unwrap();
        let order = case["order"].as_str().unwrap();
        let params = SamplingParams {
            temperature: number("temperature"),
            dynatemp_range: number("dynatemp_range"),
            dynatemp_exponent: number("dynatemp_exponent"),
            top_k: count("top_k"),
            top_p: number("top_p"),
            min_p: number("min_p"),
            typical_p: number("typ_p"),
            top_n_sigma: number("top_n_sigma"),
            xtc_probability: 1.0,
            xtc_threshold: number("xtc_threshold"),
            dry: Dry {
                multiplier: number("dry_multiplier"),
                base: number("dry_base"),
                allowed_length: count("dry_allowed_length"),
                last_n: Some(count("dry_penalty_last_n")),
                breakers: DryBreakers::new(breakers.iter().map(Vec::as_slice)),
            },
            repeat_penalty: number("repeat_penalty"),
            frequency_penalty: number("frequency_penalty"),
            presence_penalty: number("presence_penalty"),
            repeat_last_n: Some(count("repeat_last_n")),
            order: SamplingOrder::from_names(order.split(';')).unwrap(),
            logprobs: Some(Logprobs { top: usize::MAX, of: Distribution::Final }),
            ..SamplingParams::default()
        };
        let rules = DrawRules::new(params).unwrap();
        let draw = Sampler::default().draw(&rules, &Row::new(&logits, 3, &history)).unwrap();
        let expected: Vec<(u32, f64)> = serde_json::from_value(case["left"].clone()).unwrap();
        // The script leaves out what is smaller.
        let found: Vec<(u32, f64)> = (draw.top.iter())
            .map(|&(id, logprob)| (id, f64::from(logprob).exp()))
            .filter(|&(_, p)| p > 1e-30)
            .collect();
        assert_eq!(found.len(), expected.len(), "{place}, {order}: {found:?}, not {expected:?}");
        for (&(id, found), &(other, expected)) in found.iter().zip(&expected) {
            let difference = (found - expected).abs();
            assert!(
                difference < 2e-5 * (0.1 + expected),
                "{place}, {order}: token {id}: {found}, not {expected} of {other}"
            );
        }
    }
    assert!(cases.len() >= 300);
}
