//! Trained and random checkpoints on the CPU device against transformers, in every precision, within the bounds of
//! ARCHITECTURE.md; greedy text by the margin rule.

use std::path::Path;

use brasa_cpu::CpuBackend;
use brasa_golden::{Golden, Reference, Runner, check_greedy, folder, load_strictly, mean_nll};
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{Comparison, Tolerance, compare};

/// f32 activations and KV, weights decoded exactly.
const REFERENCE: Way = Way { precision: Precision::Reference, kv: KvType::F32, bound: Tolerance(1e-4) };
/// f32 activations on stored floats, f16 KV.
const FAST_FLOAT: Way = Way { precision: Precision::Fast, kv: KvType::F16, bound: Tolerance(1e-3) };

/// One way through the device.
#[derive(Clone, Copy)]
struct Way {
    precision: Precision,
    kv: KvType,
    bound: Tolerance,
}

impl Way {
    fn runner(self, path: &Path, context: Option<usize>) -> Runner {
        let device = CpuBackend::new(Some(2)).expect("this processor");
        Runner::on(&device, load_strictly(path, context), self.precision, self.kv)
    }
}

/// The difference at the worst element, which decides how far a greedy text can be relied on.
fn worst(comparison: &Comparison) -> f32 {
    (comparison.found - comparison.expected).abs()
}

fn trained(name: &str, way: Way) {
    let path = folder(name);
    let mut runner = way.runner(&path, None);
    for prompt in Reference::read(&path).prompts {
        let label = format!("{name} {} {:?}", prompt.name, way.precision);
        let logits = runner.logits(&prompt.ids);
        let last = compare(&logits[logits.len() - 1], &prompt.last);
        println!("{label}: {last}");
        assert!(last.within(way.bound), "{label}: {last}");
        if let Some(all) = &prompt.all {
            let all = compare(&logits.concat(), &all.concat());
            println!("{label}, all rows: {all}");
            assert!(all.within(way.bound), "{label}, all rows: {all}");
        }
        let nll = mean_nll(&logits, &prompt.ids);
        assert!((nll - prompt.mean_nll).abs() < 1e-3, "{label}: nll {nll}, expected {}", prompt.mean_nll);
        let (_, found) = runner.greedy(&prompt.ids, prompt.greedy_ids.len());
        check_greedy(&label, &found, &prompt.greedy_ids, &prompt.greedy_margins, worst(&last));
    }
}

macro_rules! trained {
    ($($reference:ident $fast:ident: $name:literal,)*) => { $(
        #[test]
        fn $reference() {
            trained($name, REFERENCE);
        }

        #[test]
        fn $fast() {
            trained($name, FAST_FLOAT);
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

/// Every family and variant, random weights, in both precisions.
#[test]
fn random_families() {
    for entry in std::fs::read_dir(folder("random")).expect("the folder of random checkpoints") {
        let path = entry.expect("an entry").path();
        let golden = Golden::read(&path.join("golden.safetensors"));
        for way in [REFERENCE, FAST_FLOAT] {
            for text in ["short", "long"] {
                let ids = golden.ids(&format!("{text}.ids"));
                let expected_ids = golden.ids(&format!("{text}.greedy_ids"));
                let mut runner = way.runner(&path, Some(ids.len() + expected_ids.len()));
                let logits = runner.logits(&ids);
                let comparison = if text == "short" {
                    compare(&logits.concat(), &golden.floats("short.logits"))
                } else {
                    compare(&logits[logits.len() - 1], &golden.floats("long.last"))
                };
                let label = format!("{} {text} {:?}", path.display(), way.precision);
                println!("{label}: {comparison}");
                assert!(comparison.within(way.bound), "{label}: {comparison}");
                let (_, found) = runner.greedy(&ids, expected_ids.len());
                let margins = golden.floats(&format!("{text}.greedy_margins"));
                check_greedy(&label, &found, &expected_ids, &margins, worst(&comparison));
            }
        }
    }
}
