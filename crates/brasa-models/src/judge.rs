//! Keys that no family read: which of them may be ignored.
//!
//! A key is *handled* if the family that was loaded read it, *harmless* if it is listed in [`HARMLESS`], and *neutral* if
//! it is listed in [`NEUTRAL`] with the value that it has. A neutral key with another value is an error: it changes
//! the mathematics in a way that is not built. A key that is none of the three is reported by name.

use std::fmt;

use brasa_formats::Container;
use serde_json::Value;

/// Keys of `config.json` that do not change a decoder's computation: bookkeeping, training, generation defaults, other
/// modalities, storage of weights (which the tensors show), and features that the presence of tensors decides.
const HARMLESS: &[&str] = &[
    // bookkeeping
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    // transformers writes it beside `layer_types`, and never reads it
    "_sliding_window_pattern",
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
    // encoders: training, pre-training heads, and how a pass is computed
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "classifier_bias",
    "decoder_bias",
    "dense_seq_output",
    "directionality",
    "fused_bias_fc",
    "fused_dropout_add_ln",
    "gradient_checkpointing",
    "matryoshka_dimensions",
    "model_max_length",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "hidden_dropout_prob",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "num_labels",
    "output_past",
    "pack_qkv",
    "pad_vocab_size_multiple",
    "parallel_block_tied_norm",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "qkv_proj_bias",
    "reorder_and_upcast_attn",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "unpad_inputs",
    "use_memory_efficient_attention",
    "use_xentropy",
    // ModernBERT: training, how a pass is computed, and what the presence of tensors decides
    "classifier_activation",
    "classifier_pooling",
    "cls_token_id",
    "deterministic_flash_attn",
    "embedding_dropout",
    "initializer_cutoff_factor",
    "mlp_dropout",
    "norm_bias",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
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
    "forced_decoder_ids",
    "lang_ids",
    "median_filter_width",
    // training of models of speech, and their classifiers
    "activation_dropout",
    "apply_spec_augment",
    "classifier_proj_size",
    "decoder_layerdrop",
    "dropout",
    "encoder_layerdrop",
    "init_std",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "use_weighted_layer_sum",
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

/// Keys of GGUF that have no influence on a decoder's computation, without the architecture's prefix.
const HARMLESS_GGUF: &[&str] = &[
    "pooling_type",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
    // how a model of speech transcribes
    "begin_suppress_tokens",
    "decoder.alignment_heads",
    "suppress_tokens",
];

/// A value that makes a key have no effect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Neutral {
    Null,
    Bool(bool),
    Number(f64),
    Text(&'static str),
    EmptyList,
    EmptyObject,
}

use Neutral::{Bool, EmptyList, EmptyObject, Null, Number, Text};

/// Keys, and the values with which they have no effect.
type Table = [(&'static [&'static str], &'static [Neutral])];

/// Keys of `config.json` that change the computation unless they have one of these values.
const NEUTRAL: &Table = &[
    (
        &[
            "add_cross_attention",
            "logn_attention_clip1",
            "logn_attention_scale",
            "scale_attn_by_inverse_layer_idx",
            "alibi",
            "attention_sink",
            "attn_temperature_tuning",
            "cross_attention_hidden_size",
            "is_encoder_decoder",
            "lm_head_bias",
            "parallel_attn",
            "qk_layernorm",
            "rope_interleaved",
            "tie_encoder_decoder",
            "use_mrope",
            "use_parallel_residual",
            "use_qk_norm",
        ],
        &[Bool(false), Null],
    ),
    (&["is_causal", "scale_attn_weights", "use_rms_norm"], &[Bool(true), Null]),
    (&["layer_norm_type"], &[Text("layer_norm"), Null]),
    // Text alone is causal in models that let image patches see each other.
    (&["use_bidirectional_attention"], &[Null, Bool(false), Text("vision")]),
    (&["is_decoder"], &[Bool(false), Bool(true), Null]),
    (
        &[
            "attn_logit_softcapping",
            "attention_chunk_size",
            "clip_qkv",
            "rotary_emb_scale_base",
            "rotary_scaling_factor",
            "final_logit_softcapping",
            "no_rope_layers",
            "per_layer_config",
            "rope_scaling",
            "shared_expert_intermediate_size",
            "sliding_window",
            "sparse_attention_config",
        ],
        &[Null],
    ),
    (
        &[
            "attention_multiplier",
            "embedding_multiplier",
            "full_attn_mod",
            "interpolate_factor",
            "layer_norm_scale",
            "logit_scale",
            "logits_scaling",
            "partial_rotary_factor",
            "residual_multiplier",
            "routed_scaling_factor",
            "scale_emb",
        ],
        &[Number(1.0), Null],
    ),
    (&["n_group", "topk_group"], &[Number(1.0), Number(0.0), Null]),
    (&["n_shared_experts", "num_nextn_predict_layers", "num_shared_experts"], &[Number(0.0), Null]),
    (&["pruned_heads"], &[EmptyObject, Null]),
    (&["mlp_only_layers"], &[EmptyList, Null]),
];

/// Keys of GGUF that change the computation unless they have one of these values, without the architecture's prefix.
const NEUTRAL_GGUF: &Table = &[
    (&["attention.causal"], &[Bool(true)]),
    (&["use_parallel_residual"], &[Bool(false)]),
    (
        &[
            "attention.max_alibi_bias",
            "attention.clamp_kqv",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "attention.sliding_window",
            "attention.shared_kv_layers",
            "attention.temperature_scale",
            "attention.temperature_length",
            "embedding_length_per_layer_input",
            "expert_shared_count",
            "expert_shared_feed_forward_length",
            "leading_dense_block_count",
            "nextn_predict_layers",
            "expert_count",
            "expert_used_count",
            "rope.scaling.yarn_log_multiplier",
        ],
        &[Number(0.0)],
    ),
    (&["expert_group_count", "expert_group_used_count"], &[Number(0.0), Number(1.0)]),
    // The softmax of llama.cpp's gating functions.
    (&["expert_gating_func"], &[Number(1.0)]),
    // Zero means unset.
    (
        &["attention.scale", "expert_weights_scale", "logit_scale", "residual_scale", "embedding_scale"],
        &[Number(0.0), Number(1.0)],
    ),
];

/// The judgement on a key that no family read.
pub(crate) enum Verdict {
    /// The key may be ignored.
    Fine,
    /// The value would change the computation. The text lists the neutral values.
    Refused(String),
    /// The key is in no table.
    Unknown,
}

/// Judges an unread key.
pub(crate) fn judge(container: Container, key: &str, value: &Value) -> Verdict {
    let (harmless, table) = match container {
        Container::HuggingFace => (HARMLESS, NEUTRAL),
        Container::Gguf => (HARMLESS_GGUF, NEUTRAL_GGUF),
    };
    if harmless.contains(&key) {
        return Verdict::Fine;
    }
    let Some((_, neutral)) = table.iter().find(|(keys, _)| keys.contains(&key)) else {
        return Verdict::Unknown;
    };
    if neutral.iter().any(|neutral| neutral.is(value)) {
        return Verdict::Fine;
    }
    let expected: Vec<String> = neutral.iter().map(ToString::to_string).collect();
    Verdict::Refused(expected.join(" or "))
}

/// Every key of `config.json` that is refused unless its value is neutral.
pub(crate) fn neutral_keys() -> impl Iterator<Item = &'static str> {
    NEUTRAL.iter().flat_map(|(keys, _)| keys.iter().copied())
}

/// Keys of GGUF that are refused unless their values are neutral, and keys that may be ignored.
pub(crate) fn other_gguf_keys() -> impl Iterator<Item = &'static str> {
    let neutral = NEUTRAL_GGUF.iter().flat_map(|(keys, _)| keys.iter());
    neutral.chain(HARMLESS_GGUF).copied()
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Null => value.is_null(),
            Bool(x) => value.as_bool() == Some(x),
            Number(x) => value.as_f64() == Some(x),
            Text(text) => value.as_str() == Some(text),
            EmptyList => value.as_array().is_some_and(Vec::is_empty),
            EmptyObject => value.as_object().is_some_and(serde_json::Map::is_empty),
        }
    }
}

impl fmt::Display for Neutral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Null => f.write_str("null"),
            Bool(x) => write!(f, "{x}"),
            Number(x) => write!(f, "{x}"),
            Text(text) => write!(f, "{text:?}"),
            EmptyList => f.write_str("[]"),
            EmptyObject => f.write_str("{}"),
        }
    }
}
