//! Tests of conversions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// Defines a test for each checkpoint of `models/random` whose keys are changed; the test runs the closure with its name.
macro_rules! for_each_base {
    (|$name:ident| $check:expr) => {
        for_each_base! { @ $name, $check,
            llama: "llama31",
            llama_with_biases: "llama-biased-tied",
            llama_yarn: "llama-yarn",
            mistral: "mistral-window",
            mixtral: "mixtral",
            qwen2: "qwen2-window",
            qwen3: "qwen3",
            qwen3_moe: "qwen3moe",
            gemma: "gemma",
            gemma2: "gemma2",
            gemma3: "gemma3-linear",
            gemma4: "gemma4",
            gemma4_keys_are_values: "gemma4-keys-are-values",
            gemma4_moe: "gemma4-moe",
            phi3: "phi3-window",
            phi3_longrope: "phi3-longrope",
        }
    };
    (@ $name:ident, $check:expr, $($test:ident: $base:literal,)*) => { $(
        #[test]
        fn $test() {
            let $name = $base;
            $check;
        }
    )* };
}
use for_each_base;

mod convert;
mod encoders;
mod gguf_keys;
mod merge;
mod same_specification;
mod space_prefixes;
mod speech;

/// A folder in memory where the system has one: thousands of files are written and made durable.
fn scratch() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
