//! Every family and variant against transformers, on tiny random checkpoints (`tools/golden/models/random_families.py`).

use std::path::Path;

use brasa_golden::{Golden, Runner, check_greedy, folder, load_strictly, mean_nll};
use brasa_graph::testing::{Comparison, Tolerance, compare};

/// The bound of reference precision.
const REFERENCE: Tolerance = Tolerance(1e-4);

fn check(name: &str) {
    check_files(name, &folder("random").join(name));
}

/// Compares the checkpoint at `path`, another form of the folder `name`, with that folder's golden values.
fn check_files(name: &str, path: &Path) {
    let golden = Golden::read(&folder("random").join(name).join("golden.safetensors"));
    for label in ["short", "long"] {
        let ids = golden.ids(&format!("{label}.ids"));
        let expected_ids = golden.ids(&format!("{label}.greedy_ids"));
        // LongRoPE's factors go by the length of the text.
        let context = ids.len() + expected_ids.len();
        let mut runner = Runner::new(load_strictly(path, Some(context)));
        let (logits, found_ids) = runner.greedy(&ids, expected_ids.len());
        let comparison = if label == "short" {
            compare(&logits.concat(), &golden.floats("short.logits"))
        } else {
            compare(&logits[logits.len() - 1], &golden.floats("long.last"))
        };
        println!("{name} {label}: {comparison}");
        assert!(comparison.within(REFERENCE), "{name} {label}: {comparison}");

        let (nll, expected_nll) = (mean_nll(&logits, &ids), golden.floats(&format!("{label}.nll"))[0]);
        assert!(
            (nll - f64::from(expected_nll)).abs() < 1e-3,
            "{name} {label}: nll {nll}, expected {expected_nll}"
        );

        let chunked = runner.chunked(&ids, 7);
        assert_eq!(chunked, logits[logits.len() - 1], "{name} {label}: chunked = whole, bit for bit");

        let margins = golden.floats(&format!("{label}.greedy_margins"));
        let compared = check_greedy(name, &found_ids, &expected_ids, &margins, worst(&comparison));
        // The seeds are chosen so that no margin is near the error.
        assert_eq!(compared, expected_ids.len(), "{name} {label}: greedy steps that were compared");
    }
}

fn worst(comparison: &Comparison) -> f32 {
    (comparison.found - comparison.expected).abs()
}

crate::families::each_family!(check);

/// No folder goes untested.
#[test]
fn every_random_checkpoint_is_listed_here() {
    let source = include_str!("families.rs");
    for entry in std::fs::read_dir(folder("random")).expect("the folder of random checkpoints") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        assert!(source.contains(&format!(": \"{name}\",")), "{name}");
    }
}

/// Such a file from llama.cpp's own converter (`tools/golden/models/random_gguf.py`): permuted rows of Q and K, norms
/// with their 1, frequencies and factors as tensors, experts as stacks.
#[test]
fn gguf_files_of_llama_cpp_give_the_same() {
    let mut count = 0;
    for entry in std::fs::read_dir(folder("random-gguf")).expect("the folder of GGUF files") {
        let path = entry.expect("an entry").path();
        check_files(path.file_stem().and_then(|name| name.to_str()).expect("UTF-8"), &path);
        count += 1;
    }
    assert!(count >= 15, "{count} files");
}

/// Quantised by MLX-LM (`tools/golden/models/mlx_quantised.py`): 3, 4, 6 and 8 bits, layers left as they were, stacks
/// of experts. The oracle is transformers on the decoded weights.
#[test]
fn mlx_directories_give_what_their_decoded_weights_give() {
    for name in ["k-ragged", "llama-biased-tied", "gemma2", "mixtral", "gemma4-keys-are-values"] {
        let path = folder("random-mlx").join(name);
        let golden = Golden::read(&path.join("golden.safetensors"));
        let logits = Runner::new(load_strictly(&path, None)).logits(&golden.ids("ids"));
        let comparison = compare(&logits.concat(), &golden.floats("logits"));
        println!("{name}: {comparison}");
        assert!(comparison.within(REFERENCE), "{name}: {comparison}");
    }
}
