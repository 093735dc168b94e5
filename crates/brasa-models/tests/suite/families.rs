//! The random checkpoints of decoder families, each of which is a test wherever all of them are checked.

/// A test of each checkpoint, named like it, that calls `$check` with the name of its folder.
macro_rules! each_family {
    ($check:ident) => {
        crate::families::each_family! { $check,
            gemma: "gemma",
            gemma2: "gemma2",
            gemma3: "gemma3",
            gemma3_linear: "gemma3-linear",
            gemma4: "gemma4",
            gemma4_keys_are_values: "gemma4-keys-are-values",
            gemma4_moe: "gemma4-moe",
            k_ragged: "k-ragged",
            k256: "k256",
            llama_biased_tied: "llama-biased-tied",
            llama_linear: "llama-linear",
            llama_rope_parameters: "llama-rope-parameters",
            llama_wide_heads: "llama-wide-heads",
            llama_yarn: "llama-yarn",
            llama_yarn_explicit: "llama-yarn-explicit",
            llama_yarn_mscale: "llama-yarn-mscale",
            llama2: "llama2",
            llama2_tied: "llama2-tied",
            llama31: "llama31",
            llama32_tied: "llama32-tied",
            mistral: "mistral",
            mistral_window: "mistral-window",
            mixtral: "mixtral",
            phi3: "phi3",
            phi3_longrope: "phi3-longrope",
            phi3_window: "phi3-window",
            phi4_mini: "phi4-mini",
            qwen2: "qwen2",
            qwen2_untied: "qwen2-untied",
            qwen2_window: "qwen2-window",
            qwen2_yarn: "qwen2-yarn",
            qwen3: "qwen3",
            qwen3_untied: "qwen3-untied",
            qwen3moe: "qwen3moe",
            qwen3moe_mlp_only: "qwen3moe-mlp-only",
            qwen3moe_raw_sparse_step: "qwen3moe-raw-sparse-step",
        }
    };
    ($check:ident, $($test:ident: $name:literal,)*) => { $(
        #[test]
        fn $test() {
            $check($name);
        }
    )* };
}
pub(crate) use each_family;
