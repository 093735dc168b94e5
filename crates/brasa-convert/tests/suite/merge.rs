//! Adapters merged into the weights: what the file computes is what base and adapter compute, by the golden logits of PEFT and MLX-LM.

use std::ops::ControlFlow;

use brasa_convert::{Event, Options, Recipe, convert};
use brasa_golden::{Golden, Runner, folder, load_strictly};
use brasa_graph::testing::{Tolerance, compare};

use crate::scratch;

/// Merges the adapter `form` of `name` into the base at `base`; returns what is said of the change, and the relative distance of logits.
fn merged(name: &str, base: &str, form: &str, recipe: &str, bound: f32) -> (usize, f64, f64) {
    let adapters = folder("random-adapters").join(name);
    let golden = Golden::read(&adapters.join("golden.safetensors"));
    let out = scratch().join(format!("brasa-merge-{}-{name}-{form}-{recipe}.gguf", std::process::id()));
    let adapter = vec![(adapters.join(form), 1.0)];
    let options = Options { adapters: adapter, ..Options::new(Recipe::parse(recipe).unwrap()) };
    let mut said = None;
    let result = convert(&folder(base).join(name), &out, &options, &mut |event| {
        if let Event::Merged { tensors, share, error } = event {
            said = Some((tensors, share, error));
        }
        ControlFlow::Continue(())
    });
    result.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut runner = Runner::new(load_strictly(&out, None));
    let oracle = if form == "mlx" { "mlx" } else { "peft" };
    let comparison = compare(&runner.logits(&golden.ids("ids")).concat(), &golden.floats(oracle));
    std::fs::remove_file(&out).unwrap();
    assert!(comparison.within(Tolerance(bound)), "{name} {form} as {recipe}: {comparison}");
    said.expect("adapters were merged")
}

#[test]
fn adapters_of_every_form_in_32_and_16_bits() {
    for (name, form, tensors) in
        [("llama31", "peft", 15), ("llama31", "mlx", 14), ("phi3", "peft", 8), ("gemma2", "peft", 4)]
    {
        let (found, share, error) = merged(name, "random", form, "F32", 1e-4);
        assert_eq!(found, tensors, "{name}");
        assert!((share - 1.0).abs() < 1e-5 && error < 1e-5, "{name}: {share}, {error}");
    }
    let (_, share, error) = merged("llama31", "random", "peft", "BF16", 3e-2);
    assert!((share - 1.0).abs() < 1e-3 && error > 1e-5 && error < 2e-2, "{share}, {error}");
}

#[test]
fn magnitudes_of_rows_and_experts() {
    let (_, share, error) = merged("gemma3", "random", "peft", "F32", 1e-4);
    assert!((share - 1.0).abs() < 1e-5 && error < 1e-5, "{share}, {error}");
    merged("mixtral", "random", "mlx", "F32", 1e-4);
}

#[test]
fn little_of_a_small_change_is_left_in_few_bits_and_that_is_said() {
    let (_, share, error) = merged("llama31", "random", "peft", "Q8_0", 1e-1);
    assert!(share > 0.9 && share < 1.1 && error > 1e-3 && error < 0.2, "{share}, {error}");
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let out = scratch().join(format!("brasa-merge-{}-refused.gguf", std::process::id()));
    let refuse = |name: &str, adapters: &[(&str, f32)]| {
        let path = |(name, scale): &(&str, f32)| (folder("random-adapters").join(name), *scale);
        let adapters = adapters.iter().map(path).collect();
        let options = Options { adapters, ..Options::new(Recipe::parse("F32").unwrap()) };
        let input = folder("random").join(name);
        convert(&input, &out, &options, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string()
    };
    let half = refuse("gemma3", &[("gemma3/peft", 0.5)]);
    assert!(half.contains("scale 0.5 of an adapter with DoRA's magnitudes, expected 1"), "{half}");
    let two = refuse("gemma3", &[("gemma3/peft", 1.0), ("gemma3/peft", 1.0)]);
    assert!(two.contains("DoRA's magnitudes are of the base alone, and there is another adapter"), "{two}");
    let other = refuse("qwen2", &[("llama31/mlx", 1.0)]);
    assert!(other.contains("a pair for a layer of [32, 32], but the base has [16, 32]"), "{other}");
    let missing = refuse("qwen2", &[("nowhere", 1.0)]);
    assert!(missing.contains("nowhere"), "{missing}");
    assert!(!out.exists());
}
