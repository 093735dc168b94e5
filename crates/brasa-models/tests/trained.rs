//! The trained checkpoints against transformers: logits, likelihood of the prompts, greedy text.

mod common;

use brasa_graph::testing::{Tolerance, compare};
use common::{Runner, argmax, check_greedy, folder, load_strictly, mean_nll, npz};
use serde_json::Value;

/// The bound of reference precision.
const REFERENCE: Tolerance = Tolerance(1e-4);

fn check(name: &str) {
    let path = folder(name);
    let text = std::fs::read_to_string(path.join("reference.json")).expect("golden values");
    let reference: Value = serde_json::from_str(&text).expect("JSON");
    let arrays = npz::read(&path.join("reference_logits.npz"));
    let mut runner = Runner::new(load_strictly(&path, None));
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().expect("an array").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    for prompt in reference["prompts"].as_array().expect("prompts") {
        let label = format!("{name} {}", prompt["name"].as_str().expect("a name"));
        let ids: Vec<u32> = numbers(&prompt["input_ids"]).into_iter().map(|id| id as u32).collect();
        let logits = runner.logits(&ids);
        let golden =
            |kind: &str| arrays.get(&format!("{}:{kind}", prompt["name"].as_str().unwrap_or_default()));

        let last = compare(&logits[logits.len() - 1], &golden("last").expect("the last row")[0]);
        println!("{label}: {last}");
        assert!(last.within(REFERENCE), "{label}: {last}");
        if let Some(all) = golden("all") {
            let all = compare(&logits.concat(), &all.concat());
            assert!(all.within(REFERENCE), "{label}, all rows: {all}");
        }

        let (nll, expected) = (mean_nll(&logits, &ids), prompt["mean_nll"].as_f64().expect("a number"));
        assert!((nll - expected).abs() < 1e-3, "{label}: nll {nll}, expected {expected}");

        let top = &prompt["top8"][0];
        assert_eq!(u64::from(argmax(&logits[logits.len() - 1])), top[0].as_u64().expect("an id"), "{label}");

        let expected: Vec<u32> = numbers(&prompt["greedy_ids"]).into_iter().map(|id| id as u32).collect();
        let margins: Vec<f32> = numbers(&prompt["greedy_margins"]).into_iter().map(|x| x as f32).collect();
        let (_, found) = runner.greedy(&ids, expected.len());
        check_greedy(&label, &found, &expected, &margins, (last.found - last.expected).abs());
    }
}

#[test]
fn tiny_llama() {
    check("tiny-llama");
}

#[test]
fn tiny_qwen2() {
    check("tiny-qwen2");
}

#[test]
fn tiny_qwen3moe() {
    check("tiny-qwen3moe");
}

#[test]
fn tiny_gemma3() {
    check("tiny-gemma3");
}

#[test]
fn tiny_gemma4() {
    check("tiny-gemma4");
}

#[test]
fn tiny_gemma4moe() {
    check("tiny-gemma4moe");
}
