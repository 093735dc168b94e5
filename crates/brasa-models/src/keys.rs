//! Configuration keys: what each is called in either container, and which of the rest do no harm.
//!
//! A key is *handled* where the family that was loaded read it, *harmless* where it is listed in [`HARMLESS`], or
//! *neutral* where it is listed in [`NEUTRAL`] and has a listed value. A neutral key with another value is an error: it
//! changes the mathematics in a way that is not built. A key in none of the three is reported by name.

use serde_json::{Value, json};

use brasa_formats::Container;

/// One quantity and its spellings. The first spelling present counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// In `config.json`.
    pub hf: &'static [&'static str],
    /// In GGUF, without the architecture's prefix; empty where GGUF has no such key.
    pub gguf: &'static [&'static str],
}

const fn key(hf: &'static [&'static str], gguf: &'static [&'static str]) -> Key {
    Key { hf, gguf }
}

pub(crate) const VOCAB_SIZE: Key = key(&["vocab_size"], &["vocab_size", "tokenizer.ggml.tokens.length"]);
pub(crate) const HIDDEN_SIZE: Key = key(&["hidden_size"], &["embedding_length"]);
pub(crate) const NUM_LAYERS: Key = key(&["num_hidden_layers"], &["block_count"]);
pub(crate) const CONTEXT_LENGTH: Key = key(&["max_position_embeddings"], &["context_length"]);
pub(crate) const NORM_EPS: Key = key(&["rms_norm_eps"], &["attention.layer_norm_rms_epsilon"]);
pub(crate) const TIED: Key = key(&["tie_word_embeddings"], &[]);
pub(crate) const ACTIVATION: Key = key(&["hidden_activation", "hidden_act"], &["hidden_activation"]);

pub(crate) const NUM_HEADS: Key = key(&["num_attention_heads"], &["attention.head_count"]);
pub(crate) const NUM_KV_HEADS: Key = key(&["num_key_value_heads"], &["attention.head_count_kv"]);
pub(crate) const HEAD_DIM: Key = key(&["head_dim"], &["attention.key_length"]);
pub(crate) const VALUE_DIM: Key = key(&[], &["attention.value_length"]);
pub(crate) const WINDOW: Key = key(&["sliding_window", "sliding_window_size"], &["attention.sliding_window"]);
pub(crate) const LAYER_TYPES: Key = key(&["layer_types"], &["attention.sliding_window_pattern"]);
pub(crate) const WINDOW_PATTERN: Key =
    key(&["sliding_window_pattern", "_sliding_window_pattern"], &["attention.sliding_window_pattern"]);
pub(crate) const ATTENTION_SOFTCAP: Key = key(&["attn_logit_softcapping"], &["attn_logit_softcapping"]);
pub(crate) const FINAL_SOFTCAP: Key = key(&["final_logit_softcapping"], &["final_logit_softcapping"]);
pub(crate) const QUERY_SCALAR: Key = key(&["query_pre_attn_scalar"], &[]);
pub(crate) const ATTENTION_SCALE: Key = key(&[], &["attention.scale"]);

pub(crate) const ROPE_THETA: Key = key(&["rope_theta"], &["rope.freq_base"]);
pub(crate) const ROPE_LOCAL_THETA: Key = key(&["rope_local_base_freq"], &["rope.freq_base_swa"]);
pub(crate) const ROPE_DIM: Key = key(&[], &["rope.dimension_count"]);
pub(crate) const ROPE_LOCAL_DIM: Key = key(&[], &["rope.dimension_count_swa"]);

pub(crate) const FFN_WIDTH: Key = key(&["intermediate_size"], &["feed_forward_length"]);
pub(crate) const NUM_EXPERTS: Key = key(&["num_local_experts", "num_experts"], &["expert_count"]);
pub(crate) const EXPERTS_PER_TOKEN: Key =
    key(&["num_experts_per_tok", "top_k_experts"], &["expert_used_count"]);
pub(crate) const EXPERT_WIDTH: Key =
    key(&["moe_intermediate_size", "expert_intermediate_size"], &["expert_feed_forward_length"]);
pub(crate) const NORM_TOPK: Key = key(&["norm_topk_prob"], &["expert_weights_norm"]);

/// Keys of `config.json` that say nothing about what a decoder computes: bookkeeping, training, generation defaults,
/// other modalities, how weights are stored (the tensors say that themselves), and what tensor presence decides.
const HARMLESS: &[&str] = &[
    // bookkeeping
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "auto_map",
    "cache_implementation",
    "dtype",
    "file_name",
    "flash_attn",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "model_type",
    "name_or_path",
    "quantization",
    "quantization_config",
    "return_dict",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "use_bfloat16",
    "use_flash_attn",
    // training
    "attention_dropout",
    "classifier_dropout",
    "embd_pdrop",
    "hidden_dropout",
    "initializer_range",
    "neftune_noise_alpha",
    "output_router_logits",
    "pretraining_tp",
    "resid_pdrop",
    "router_aux_loss_coef",
    "router_jitter_noise",
    // tokens, texts and what to return of them
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "sep_token_id",
    "decoder_start_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "typical_p",
    // decided by the presence of tensors
    "attention_bias",
    "mlp_bias",
    "qkv_bias",
    // other modalities
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "video_token_id",
    "vision_config",
    "vision_soft_tokens_per_image",
];

/// The same for GGUF, without the architecture's prefix.
const HARMLESS_GGUF: &[&str] =
    &["pooling_type", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"];

/// Whether a key that no family read may be passed over.
pub(crate) enum Verdict {
    /// It says nothing, or what it says changes nothing.
    Fine,
    /// Its value would change the mathematics; what would be neutral.
    Refused(String),
    /// Nobody knows it.
    Unknown,
}

/// Judges an unread key.
pub(crate) fn judge(container: Container, key: &str, value: &Value) -> Verdict {
    let (harmless, neutral) = match container {
        Container::HuggingFace => (HARMLESS, neutral_hf(key)),
        Container::Gguf => (HARMLESS_GGUF, neutral_gguf(key)),
    };
    if harmless.contains(&key) {
        return Verdict::Fine;
    }
    let Some(neutral) = neutral else { return Verdict::Unknown };
    let equal = |a: &Value, b: &Value| a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64());
    if neutral.iter().any(|neutral| equal(neutral, value)) {
        Verdict::Fine
    } else {
        let expected: Vec<String> = neutral.iter().map(ToString::to_string).collect();
        Verdict::Refused(expected.join(" or "))
    }
}

/// Keys of `config.json` that change the mathematics unless they have one of these values.
fn neutral_hf(key: &str) -> Option<Vec<Value>> {
    Some(match key {
        "add_cross_attention"
        | "alibi"
        | "attention_sink"
        | "attn_temperature_tuning"
        | "cross_attention_hidden_size"
        | "is_encoder_decoder"
        | "lm_head_bias"
        | "parallel_attn"
        | "qk_layernorm"
        | "rope_interleaved"
        | "tie_encoder_decoder"
        | "use_mrope"
        | "use_parallel_residual"
        | "use_qk_norm" => vec![json!(false), json!(null)],
        "is_causal" | "use_rms_norm" => vec![json!(true), json!(null)],
        // Text alone is causal in models that let image patches see each other.
        "use_bidirectional_attention" => vec![json!(null), json!(false), json!("vision")],
        "is_decoder" => vec![json!(false), json!(true), json!(null)],
        "attn_logit_softcapping"
        | "attention_chunk_size"
        | "clip_qkv"
        | "final_logit_softcapping"
        | "no_rope_layers"
        | "per_layer_config"
        | "rope_scaling"
        | "shared_expert_intermediate_size"
        | "sliding_window"
        | "sparse_attention_config" => vec![json!(null)],
        "attention_multiplier"
        | "embedding_multiplier"
        | "full_attn_mod"
        | "interpolate_factor"
        | "layer_norm_scale"
        | "logit_scale"
        | "logits_scaling"
        | "partial_rotary_factor"
        | "residual_multiplier"
        | "routed_scaling_factor"
        | "scale_emb" => vec![json!(1.0), json!(null)],
        "n_group" | "topk_group" => vec![json!(1), json!(0), json!(null)],
        "n_shared_experts" | "num_nextn_predict_layers" | "num_shared_experts" => {
            vec![json!(0), json!(null)]
        }
        "pruned_heads" => vec![json!({}), json!(null)],
        "mlp_only_layers" => vec![json!([]), json!(null)],
        _ => return None,
    })
}

/// The same for GGUF, without the architecture's prefix.
fn neutral_gguf(key: &str) -> Option<Vec<Value>> {
    Some(match key {
        "attention.causal" => vec![json!(true)],
        "use_parallel_residual" => vec![json!(false)],
        "attention.max_alibi_bias"
        | "attention.clamp_kqv"
        | "attn_logit_softcapping"
        | "final_logit_softcapping"
        | "attention.sliding_window"
        | "attention.shared_kv_layers"
        | "attention.temperature_scale"
        | "attention.temperature_length"
        | "embedding_length_per_layer_input"
        | "expert_shared_count"
        | "expert_shared_feed_forward_length"
        | "leading_dense_block_count"
        | "nextn_predict_layers"
        | "expert_count"
        | "expert_used_count"
        | "rope.scaling.yarn_log_multiplier" => vec![json!(0)],
        "expert_group_count" | "expert_group_used_count" => vec![json!(0), json!(1)],
        // The softmax of llama.cpp's gating functions.
        "expert_gating_func" => vec![json!(1)],
        // Here zero means unset.
        "attention.scale" | "expert_weights_scale" | "logit_scale" | "residual_scale" | "embedding_scale" => {
            vec![json!(0), json!(1)]
        }
        _ => return None,
    })
}
