//! Trained and random checkpoints on the CPU device, stored as floats, against transformers.
//!
//! In reference precision the logits are transformers' within 1e-4. In fast precision keys and values are rounded to
//! f16, which alone moves logits by up to 1.6e-3 on these small models, whoever computes them. So the fast path is held
//! to the interpreter with the same rounding, closely, and to transformers as far as the rounding allows.

use std::path::Path;

use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_golden::{Golden, Prompt, Reference, Runner, check_greedy, folder, load_strictly, mean_nll};
use brasa_graph::device::{KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Comparison, Tolerance, compare};

/// f32 activations and KV, weights decoded exactly.
const REFERENCE: Tolerance = Tolerance(1e-4);
/// The same arithmetic in another order, K and V rounded to f16: now and then a rounding goes the other way.
const SAME_ROUNDING: Tolerance = Tolerance(1e-3);
/// What rounding K and V to f16 does.
const F16_KV: Tolerance = Tolerance(2e-3);
/// Difference of the mean −ln p: absolute in reference precision, relative where K and V are rounded.
const NLL: f64 = 1e-3;
/// Rows of a mixture of experts that may have chosen other experts than the oracle's.
const OTHER_EXPERTS: f64 = 0.02;

fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(2), ..CpuOptions::default() }).expect("this processor")
}

/// The difference at the worst element, which decides how far a greedy text can be relied on.
fn worst(comparison: &Comparison) -> f32 {
    (comparison.found - comparison.expected).abs()
}

/// Last row, all rows, likelihood and greedy text of one prompt.
fn check_prompt(label: &str, runner: &mut Runner, prompt: &Prompt, bound: Tolerance) {
    let logits = runner.logits(&prompt.ids);
    let last = compare(&logits[logits.len() - 1], &prompt.last);
    println!("{label}: {last}");
    assert!(last.within(bound), "{label}: {last}");
    let mut error = worst(&last);
    if let Some(all) = &prompt.all {
        let all = compare(&logits.concat(), &all.concat());
        assert!(all.within(bound), "{label}, all rows: {all}");
        error = error.max(worst(&all));
    }
    let nll = mean_nll(&logits, &prompt.ids);
    let bound = NLL * if bound.0 > REFERENCE.0 { prompt.mean_nll } else { 1.0 };
    assert!((nll - prompt.mean_nll).abs() < bound, "{label}: nll {nll}, expected {}", prompt.mean_nll);
    let (_, found) = runner.greedy(&prompt.ids, prompt.greedy_ids.len());
    check_greedy(label, &found, &prompt.greedy_ids, &prompt.greedy_margins, error);
}

fn reference(name: &str) {
    let path = folder(name);
    let mut runner = Runner::on(&cpu(), load_strictly(&path, None), Precision::Reference, KvType::F32);
    for prompt in Reference::read(&path).prompts {
        check_prompt(&format!("{name} {}", prompt.name), &mut runner, &prompt, REFERENCE);
    }
}

/// The fast path against the interpreter with the same rounding: every prompt as a whole, or, in a mixture of experts,
/// every row that chose the same experts.
fn fast_rows(name: &str) {
    let path = folder(name);
    let mut found = Runner::on(&cpu(), load_strictly(&path, None), Precision::Fast, KvType::F16);
    let mut expected =
        Runner::on(&ReferenceBackend, load_strictly(&path, None), Precision::Reference, KvType::F16);
    let is_mixture = name.ends_with("moe");
    let (mut rows, mut other) = (0, 0);
    for prompt in Reference::read(&path).prompts {
        let (found, expected) = (found.logits(&prompt.ids), expected.logits(&prompt.ids));
        if is_mixture {
            rows += found.len();
            let differs =
                |(found, expected): &(&Vec<f32>, &Vec<f32>)| !compare(found, expected).within(F16_KV);
            other += found.iter().zip(&expected).filter(differs).count();
        } else {
            let comparison = compare(&found.concat(), &expected.concat());
            assert!(comparison.within(SAME_ROUNDING), "{name} {}: {comparison}", prompt.name);
        }
    }
    println!("{name}: {other} of {rows} rows left out");
    assert!(other as f64 <= OTHER_EXPERTS * rows as f64, "{name}: {other} of {rows} rows");
}

fn fast(name: &str) {
    fast_rows(name);
    if name.ends_with("moe") {
        // Another expert in one early row changes what every later row attends to: texts part for good reason.
        return;
    }
    let path = folder(name);
    let mut runner = Runner::on(&cpu(), load_strictly(&path, None), Precision::Fast, KvType::F16);
    for prompt in Reference::read(&path).prompts {
        check_prompt(&format!("{name} {} fast", prompt.name), &mut runner, &prompt, F16_KV);
    }
}

macro_rules! trained {
    ($($reference:ident $fast:ident: $name:literal,)*) => { $(
        #[test]
        fn $reference() {
            reference($name);
        }

        #[test]
        fn $fast() {
            fast($name);
        }
    )* };
}

trained! {
    tiny_llama_reference tiny_llama_fast: "tiny-llama",
    tiny_qwen2_reference tiny_qwen2_fast: "tiny-qwen2",
    tiny_qwen3moe_reference tiny_qwen3moe_fast: "tiny-qwen3moe",
    tiny_gemma3_reference tiny_gemma3_fast: "tiny-gemma3",
    tiny_gemma4_reference tiny_gemma4_fast: "tiny-gemma4",
    tiny_gemma4moe_reference tiny_gemma4moe_fast: "tiny-gemma4moe",
}

/// Every family and variant with random weights, in reference precision.
#[test]
fn random_families() {
    for entry in std::fs::read_dir(folder("random")).expect("the folder of random checkpoints") {
        check_random(&entry.expect("an entry").path());
    }
}

fn check_random(path: &Path) {
    let golden = Golden::read(&path.join("golden.safetensors"));
    for text in ["short", "long"] {
        let ids = golden.ids(&format!("{text}.ids"));
        let expected_ids = golden.ids(&format!("{text}.greedy_ids"));
        let model = load_strictly(path, Some(ids.len() + expected_ids.len()));
        let mut runner = Runner::on(&cpu(), model, Precision::Reference, KvType::F32);
        let logits = runner.logits(&ids);
        let comparison = if text == "short" {
            compare(&logits.concat(), &golden.floats("short.logits"))
        } else {
            compare(&logits[logits.len() - 1], &golden.floats("long.last"))
        };
        let label = format!("{} {text}", path.display());
        assert!(comparison.within(REFERENCE), "{label}: {comparison}");
        let (_, found) = runner.greedy(&ids, expected_ids.len());
        let margins = golden.floats(&format!("{text}.greedy_margins"));
        check_greedy(&label, &found, &expected_ids, &margins, worst(&comparison));
    }
}
