//! Orders of samplers against llama.cpp's chains (`tools/golden/sampler_orders.py`).

use brasa_graph::sampling::{Distribution, DrawRules, Logprobs, Row, Sampler, SamplingOrder, SamplingParams};
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
