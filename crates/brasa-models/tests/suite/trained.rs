//! The trained checkpoints against transformers: logits, likelihood of the prompts, greedy text.

use brasa_golden::{Reference, Runner, argmax, check_greedy, folder, load_strictly, mean_nll};
use brasa_graph::testing::{Tolerance, compare};

/// The bound of reference precision.
const REFERENCE: Tolerance = Tolerance(1e-4);
/// The error is far below all margins of the prompts but for a few, which come after this many steps.
const LEAST_GREEDY_STEPS: usize = 15;

fn check(name: &str) {
    let path = folder(name);
    let mut runner = Runner::new(load_strictly(&path, None));
    for prompt in Reference::read(&path).prompts {
        let label = format!("{name} {}", prompt.name);
        let (logits, found) = runner.greedy(&prompt.ids, prompt.greedy_ids.len());
        let last = compare(&logits[logits.len() - 1], &prompt.last);
        println!("{label}: {last}");
        assert!(last.within(REFERENCE), "{label}: {last}");
        if let Some(all) = &prompt.all {
            let all = compare(&logits.concat(), &all.concat());
            assert!(all.within(REFERENCE), "{label}, all rows: {all}");
        }
        let nll = mean_nll(&logits, &prompt.ids);
        assert!((nll - prompt.mean_nll).abs() < 1e-3, "{label}: nll {nll}, expected {}", prompt.mean_nll);
        assert_eq!(argmax(&logits[logits.len() - 1]), prompt.best, "{label}");
        let worst = (last.found - last.expected).abs();
        let compared = check_greedy(&label, &found, &prompt.greedy_ids, &prompt.greedy_margins, worst);
        assert!(compared >= LEAST_GREEDY_STEPS, "{label}: only {compared} greedy steps were compared");
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
