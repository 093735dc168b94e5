//! Configuration keys: one table of the names of each quantity in both containers, for reading and for writing.

/// A setting and its names in both containers. The first name that is present is read, and the first name is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// Names in `config.json`.
    pub hf: &'static [&'static str],
    /// Names in GGUF, without the architecture's prefix; empty if GGUF has no such key.
    pub gguf: &'static [&'static str],
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident: [$($hf:literal),*], [$($gguf:literal),*];)*) => {
        $($(#[$doc])* pub(crate) const $name: Key = Key { hf: &[$($hf),*], gguf: &[$($gguf),*] };)*

        /// Every key that some family reads.
        pub(crate) const ALL: &[Key] = &[$($name),*];
    };
}

keys! {
    VOCAB_SIZE: ["vocab_size"], ["vocab_size", "tokenizer.ggml.tokens.length"];
    HIDDEN_SIZE: ["hidden_size"], ["embedding_length"];
    NUM_LAYERS: ["num_hidden_layers"], ["block_count"];
    CONTEXT_LENGTH: ["max_position_embeddings"], ["context_length"];
    NORM_EPS: ["rms_norm_eps"], ["attention.layer_norm_rms_epsilon"];
    TIED: ["tie_word_embeddings"], [];
    ACTIVATION: ["hidden_activation", "hidden_act"], ["hidden_activation"];
    /// The older of the two keys of the activation. The first Gemma releases have `gelu` there and mean its tanh form.
    LEGACY_ACTIVATION: ["hidden_act"], [];

    NUM_HEADS: ["num_attention_heads"], ["attention.head_count"];
    NUM_KV_HEADS: ["num_key_value_heads"], ["attention.head_count_kv"];
    HEAD_DIM: ["head_dim"], ["attention.key_length"];
    VALUE_DIM: [], ["attention.value_length"];
    WINDOW: ["sliding_window", "sliding_window_size"], ["attention.sliding_window"];
    USE_WINDOW: ["use_sliding_window"], [];
    /// Number of first layers without a window (Qwen).
    FULL_LAYERS: ["max_window_layers"], [];
    LAYER_TYPES: ["layer_types"], ["attention.sliding_window_pattern"];
    WINDOW_PATTERN: ["sliding_window_pattern"], ["attention.sliding_window_pattern"];
    ATTENTION_SOFTCAP: ["attn_logit_softcapping"], ["attn_logit_softcapping"];
    FINAL_SOFTCAP: ["final_logit_softcapping"], ["final_logit_softcapping"];
    QUERY_SCALAR: ["query_pre_attn_scalar"], [];
    ATTENTION_SCALE: [], ["attention.scale"];

    // Gemma 4: sliding layers have a geometry of their own, and `key_length` is the full layers'.
    LOCAL_HEAD_DIM: ["head_dim"], ["attention.key_length_swa"];
    LOCAL_VALUE_DIM: [], ["attention.value_length_swa"];
    GLOBAL_HEAD_DIM: ["global_head_dim"], ["attention.key_length"];
    GLOBAL_KV_HEADS: ["num_global_key_value_heads"], [];
    PER_LAYER_CONFIG: ["per_layer_config"], [];
    KEY_IS_VALUE: ["attention_k_eq_v"], [];
    SHARED_KV: ["num_kv_shared_layers"], ["attention.shared_kv_layers"];
    DOUBLE_WIDE: ["use_double_wide_mlp"], [];
    HAS_EXPERTS: ["enable_moe_block"], [];
    PER_LAYER_WIDTH: ["hidden_size_per_layer_input"], ["embedding_length_per_layer_input"];
    PER_LAYER_VOCAB: ["vocab_size_per_layer_input"], [];

    /// The object of RoPE's parameters. transformers takes the first of the two names whose object is not empty.
    ROPE_PARAMETERS: ["rope_scaling", "rope_parameters"], [];
    ROPE_THETA: ["rope_theta"], ["rope.freq_base"];
    ROPE_LOCAL_THETA: ["rope_local_base_freq"], ["rope.freq_base_swa"];
    ROPE_PARTIAL: ["partial_rotary_factor"], [];
    ROPE_DIM: [], ["rope.dimension_count"];
    ROPE_LOCAL_DIM: [], ["rope.dimension_count_swa"];
    ROPE_ORIGINAL: ["original_max_position_embeddings"], ["rope.scaling.original_context_length"];
    ROPE_SCALING_TYPE: [], ["rope.scaling.type"];
    ROPE_SCALING_FACTOR: [], ["rope.scaling.factor", "rope.scale_linear"];
    ROPE_ATTENTION_FACTOR: [], ["rope.scaling.attn_factor"];
    YARN_ATTENTION_FACTOR: [], ["rope.scaling.yarn_attn_factor"];
    YARN_EXTRAPOLATION: [], ["rope.scaling.yarn_ext_factor"];
    YARN_BETA_FAST: [], ["rope.scaling.yarn_beta_fast"];
    YARN_BETA_SLOW: [], ["rope.scaling.yarn_beta_slow"];

    FFN_WIDTH: ["intermediate_size"], ["feed_forward_length"];
    NUM_EXPERTS: ["num_local_experts", "num_experts"], ["expert_count"];
    EXPERTS_PER_TOKEN: ["num_experts_per_tok", "top_k_experts"], ["expert_used_count"];
    /// transformers reads the first spelling; early exports of Gemma 4 have the second.
    EXPERT_WIDTH: ["moe_intermediate_size", "expert_intermediate_size"], ["expert_feed_forward_length"];
    NORM_TOPK: ["norm_topk_prob"], ["expert_weights_norm"];
    /// Layers that have a dense network in a mixture of experts.
    DENSE_LAYERS: ["mlp_only_layers"], [];
    SPARSE_STEP: ["decoder_sparse_step"], [];
    /// Distance between an encoder's layers with experts, in layers.
    MOE_EVERY: ["moe_every_n_layers"], ["moe_every_n_layers"];

    // Whisper: a stack for sound and a stack for text.
    SPEECH_IS_ENCODER_DECODER: ["is_encoder_decoder"], [];
    MODEL_WIDTH: ["d_model"], ["encoder.embedding_length"];
    MEL_BINS: ["num_mel_bins"], ["encoder.mels_count"];
    AUDIO_LAYERS: ["encoder_layers", "num_hidden_layers"], ["encoder.block_count"];
    AUDIO_HEADS: ["encoder_attention_heads"], ["encoder.attention.head_count"];
    AUDIO_FFN_WIDTH: ["encoder_ffn_dim"], ["encoder.feed_forward_length"];
    AUDIO_CONTEXT: ["max_source_positions"], ["encoder.context_length"];
    TEXT_LAYERS: ["decoder_layers"], ["decoder.block_count"];
    TEXT_HEADS: ["decoder_attention_heads"], ["decoder.attention.head_count"];
    TEXT_FFN_WIDTH: ["decoder_ffn_dim"], ["decoder.feed_forward_length"];
    /// Width of the text decoder; must be the width of the encoder too.
    TEXT_WIDTH: [], ["decoder.embedding_length"];
    TEXT_CONTEXT: ["max_target_positions"], ["decoder.context_length"];
    ACTIVATION_FUNCTION: ["activation_function"], [];
    SCALE_EMBEDDING: ["scale_embedding"], [];
    // Encoders. The second spellings are those of GPT-2, which Nomic BERT has.
    ENCODER_HIDDEN_SIZE: ["hidden_size", "n_embd"], ["embedding_length"];
    ENCODER_LAYERS: ["num_hidden_layers", "n_layer"], ["block_count"];
    ENCODER_HEADS: ["num_attention_heads", "n_head"], ["attention.head_count"];
    ENCODER_FFN_WIDTH: ["intermediate_size", "n_inner"], ["feed_forward_length"];
    ENCODER_CONTEXT_LENGTH: ["max_position_embeddings", "n_positions"], ["context_length"];
    ENCODER_ACTIVATION: ["hidden_act", "hidden_activation", "activation_function"], ["hidden_activation"];
    ENCODER_CAUSAL: ["is_causal", "causal"], ["attention.causal"];
    IS_DECODER: ["is_decoder"], [];
    LAYER_NORM_EPS: ["layer_norm_eps", "layer_norm_epsilon", "norm_eps"], ["attention.layer_norm_epsilon"];
    TOKEN_TYPES: ["type_vocab_size"], [];
    PAD_TOKEN: ["pad_token_id"], [];
    POSITION_TYPE: ["position_embedding_type"], [];
    FEED_FORWARD_TYPE: ["feed_forward_type"], [];
    EMBEDDING_POOLER: ["emb_pooler"], [];
    MAX_ALIBI_BIAS: [], ["attention.max_alibi_bias"];
    PRE_NORM: ["prenorm"], [];
    PARALLEL_BLOCK: ["parallel_block"], [];
    ROTARY_BASE: ["rotary_emb_base"], ["rope.freq_base"];
    ROTARY_FRACTION: ["rotary_emb_fraction"], [];
    USE_RMS_NORM: ["use_rms_norm"], [];
    ROTARY_INTERLEAVED: ["rotary_emb_interleaved"], [];
    /// True if each row attends to all rows (EmbeddingGemma).
    BIDIRECTIONAL: ["use_bidirectional_attention"], [];
    // ModernBERT.
    LOCAL_ATTENTION: ["local_attention"], ["attention.sliding_window"];
    GLOBAL_EVERY: ["global_attn_every_n_layers"], ["attention.sliding_window_pattern"];
    ENCODER_GLOBAL_THETA: ["global_rope_theta"], [];
    ENCODER_LOCAL_THETA: ["local_rope_theta"], [];
    CLASSIFIER_POOLING: ["classifier_pooling"], ["classifier.pooling_type"];
    CLASSIFIER_ACTIVATION: ["classifier_activation"], [];
}
