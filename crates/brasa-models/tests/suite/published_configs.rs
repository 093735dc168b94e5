//! Configurations as published checkpoints write them, read strictly: every key must be known.

use brasa_formats::Container;
use brasa_graph::op::RopeLayout;
use brasa_models::{
    Activation, FfnSpec, Head, KvSpec, LayerSpec, LoadOptions, ModelSpec, Norms, RopeScaling, Source,
    ValueSource, read_spec, supported,
};
use serde_json::{Value, json};

const STRICT: LoadOptions = LoadOptions { context_length: None, strict: true };

fn spec(config: &Value) -> ModelSpec {
    let source = Source::hugging_face(config.to_string().as_bytes(), []).expect("a configuration");
    let (spec, warnings) = read_spec(&source, &STRICT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, Vec::<String>::new());
    spec
}

fn windows(spec: &ModelSpec) -> Vec<Option<usize>> {
    spec.layers.iter().map(|layer| layer.attention.window).collect()
}

fn dense_width(layer: &LayerSpec) -> usize {
    match &layer.ffn {
        FfnSpec::Dense(dense) | FfnSpec::DenseAndExperts(dense, _) => dense.width,
        other => panic!("{other:?}"),
    }
}

#[test]
fn llama_3_2_1b() {
    let spec = spec(&json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128_000, "eos_token_id": [128_001, 128_008, 128_009], "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131_072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500_000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128_256
    }));
    assert_eq!((spec.layers.len(), spec.head), (16, Head::Tied));
    let attention = &spec.layers[0].attention;
    assert_eq!((attention.num_heads, attention.num_kv_heads, attention.head_dim), (32, 8, 64));
    assert_eq!(attention.rope.layout, RopeLayout::SplitHalf);
    let frequencies = attention.rope.frequencies();
    assert_eq!(frequencies.len(), 32);
    assert!((frequencies[0] - 1.0).abs() < 1e-7, "short wavelengths are kept");
    let slowest = 500_000_f32.powf(-62.0 / 64.0) / 32.0;
    assert!((frequencies[31] / slowest - 1.0).abs() < 1e-5, "long ones are stretched");
}

#[test]
fn mistral_with_and_without_a_window() {
    let config = json!({
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000
    });
    assert_eq!(windows(&spec(&config)), vec![Some(4096); 32]);
    let mut later = config;
    later["sliding_window"] = Value::Null;
    later["head_dim"] = json!(160);
    let spec = spec(&later);
    assert_eq!(windows(&spec), vec![None; 32]);
    assert_eq!(spec.layers[0].attention.head_dim, 160);
}

#[test]
fn qwen2_5_7b_and_the_distillates_made_of_it() {
    let spec = spec(&json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151_643,
        "eos_token_id": 151_643, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
        "intermediate_size": 18944, "max_position_embeddings": 131_072, "max_window_layers": 28,
        "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 10000, "sliding_window": 4096,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.44.0",
        "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 152_064
    }));
    assert_eq!(windows(&spec), vec![None; 28], "the window is there, but switched off");
    assert_eq!(spec.layers[0].attention.head_dim, 128);
}

#[test]
fn qwen3_30b_a3b() {
    let spec = spec(&json!({
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151_643, "decoder_sparse_step": 1, "eos_token_id": 151_645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1_000_000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
        "use_cache": true, "use_sliding_window": false, "vocab_size": 151_936
    }));
    let FfnSpec::Experts(experts) = spec.layers[47].ffn else { panic!("{:?}", spec.layers[47].ffn) };
    assert_eq!((experts.num_experts, experts.experts_per_token, experts.expert.width), (128, 8, 768));
    assert!(spec.layers[0].attention.qk_norm);
}

#[test]
fn gemma_2_27b() {
    let spec = spec(&json!({
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
        "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 128,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 4608,
        "initializer_range": 0.02, "intermediate_size": 36864, "max_position_embeddings": 8192,
        "model_type": "gemma2", "num_attention_heads": 32, "num_hidden_layers": 46,
        "num_key_value_heads": 16, "pad_token_id": 0, "query_pre_attn_scalar": 144, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
        "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true,
        "vocab_size": 256_000, "_attn_implementation": "eager"
    }));
    assert_eq!(windows(&spec)[..3], [Some(4096), None, Some(4096)]);
    let layer = &spec.layers[1];
    assert!((layer.attention.scale - 1.0 / 12.0).abs() < 1e-7);
    assert_eq!((layer.attention.softcap, spec.final_softcap), (Some(50.0), Some(30.0)));
    assert_eq!((layer.norms, spec.norm_offset), (Norms::PreAndPost, 1.0));
    assert_eq!(spec.embedding_scale, Some(4608_f32.sqrt()));
}

/// The multimodal checkpoints say little and mean the defaults of their class.
#[test]
fn gemma_3_4b_nested() {
    let spec = spec(&json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255_999,
        "eoi_token_index": 256_000, "eos_token_id": [1, 106], "image_token_index": 262_144,
        "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024, "vocab_size": 262_208},
        "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"}
    }));
    assert_eq!(windows(&spec)[3..7], [Some(1024), Some(1024), None, Some(1024)]);
    let (local, global) = (&spec.layers[0].attention, &spec.layers[5].attention);
    assert_eq!((local.num_heads, local.num_kv_heads, local.head_dim), (8, 4, 256));
    assert_eq!((local.rope.theta, local.rope.scaling), (1e4, RopeScaling::None));
    assert_eq!((global.rope.theta, global.rope.scaling), (1e6, RopeScaling::Linear { factor: 8.0 }));
    assert!((global.scale - 1.0 / 16.0).abs() < 1e-7);
}

#[test]
fn gemma_4_small_and_large() {
    let rope = json!({
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}
    });
    let small = spec(&json!({
        "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {}, "audio_token_id": 258_881,
        "boa_token_id": 256_000, "boi_token_id": 255_999, "dtype": "bfloat16", "eoa_token_index": 258_883,
        "eoi_token_id": 258_882, "eos_token_id": [1, 106], "image_token_id": 258_880, "initializer_range": 0.02,
        "model_type": "gemma4", "tie_word_embeddings": true, "video_token_id": 258_884, "vision_config": {},
        "text_config": {"attention_bias": false, "attention_k_eq_v": false, "enable_moe_block": false,
            "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536,
            "hidden_size_per_layer_input": 256, "intermediate_size": 6144, "max_position_embeddings": 131_072,
            "model_type": "gemma4_text", "num_attention_heads": 8, "num_experts": null,
            "num_global_key_value_heads": null, "num_hidden_layers": 35, "num_key_value_heads": 1,
            "num_kv_shared_layers": 20, "rms_norm_eps": 1e-06, "rope_parameters": rope,
            "sliding_window": 512, "top_k_experts": null, "use_bidirectional_attention": null,
            "use_double_wide_mlp": true, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
            "layer_types": (0..35).map(|i| if (i + 1) % 5 == 0 { "full_attention" } else { "sliding_attention" }).collect::<Vec<_>>()}
    }));
    assert_eq!(small.per_layer_inputs.map(|inputs| inputs.width), Some(256));
    assert_eq!(
        small.layers[14].attention.kv,
        KvSpec::Own { value: ValueSource::Projection, value_norm: true }
    );
    assert_eq!(small.layers[15].attention.kv, KvSpec::Shared { layer: 13 });
    assert_eq!(small.layers[19].attention.kv, KvSpec::Shared { layer: 14 });
    assert_eq!([14, 15].map(|layer| dense_width(&small.layers[layer])), [6144, 12288]);
    let global = &small.layers[4].attention;
    assert_eq!((global.head_dim, global.rope.rotary_dim), (512, 512));
    assert_eq!(global.rope.scaling, RopeScaling::Proportional { rotated: 64, factor: 1.0 });
    assert!((global.scale - 1.0).abs() < f32::EPSILON);

    let large = spec(&json!({
        "model_type": "gemma4_text", "attention_k_eq_v": true, "enable_moe_block": true,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112,
        "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_hidden_layers": 30,
        "num_key_value_heads": 8, "num_kv_shared_layers": 0, "rope_parameters": rope, "sliding_window": 1024,
        "top_k_experts": 8, "use_bidirectional_attention": "vision", "use_double_wide_mlp": false,
        "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144,
        "per_layer_config": (0..30).filter(|i| (i + 1) % 6 == 0)
            .map(|i: usize| (i.to_string(), json!({"head_dim": 512, "num_key_value_heads": 2})))
            .collect::<serde_json::Map<_, _>>()
    }));
    let (local, global) = (&large.layers[0].attention, &large.layers[5].attention);
    assert_eq!((local.num_kv_heads, local.head_dim, local.window), (8, 256, Some(1024)));
    assert_eq!((global.num_kv_heads, global.head_dim, global.window), (2, 512, None));
    assert_eq!(global.kv, KvSpec::Own { value: ValueSource::Key, value_norm: true });
    let FfnSpec::DenseAndExperts(dense, experts) = large.layers[0].ffn else {
        panic!("{:?}", large.layers[0])
    };
    assert_eq!((dense.width, experts.expert.width, experts.num_experts), (2112, 704, 128));
    assert_eq!(dense.activation, Activation::GeluTanh);
}

#[test]
fn phi_4_mini() {
    let factors = |factor: f32| vec![factor; 48];
    let config = json!({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199_999,
        "embd_pdrop": 0.0, "eos_token_id": 199_999, "full_attn_mod": 1, "hidden_act": "silu",
        "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1,
        "lm_head_bias": false, "max_position_embeddings": 131_072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199_999, "partial_rotary_factor": 0.75,
        "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": {"long_factor": factors(2.0),
        "short_factor": factors(1.0), "type": "longrope"}, "rope_theta": 10000.0, "sliding_window": 262_144,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.45.0",
        "use_cache": true, "vocab_size": 200_064
    });
    let long = spec(&config);
    let rope = &long.layers[0].attention.rope;
    assert_eq!(rope.rotary_dim, 96);
    assert_eq!(rope.divisors.as_deref(), Some(&factors(2.0)[..]), "all of the context is wanted");
    let expected = (1.0 + 32_f32.ln() / 4096_f32.ln()).sqrt();
    assert!((rope.magnitude - expected).abs() < 1e-6);

    let source = Source::hugging_face(config.to_string().as_bytes(), []).expect("a configuration");
    let options = LoadOptions { context_length: Some(4096), strict: true };
    let (short, _) = read_spec(&source, &options).expect("a specification");
    assert_eq!(short.layers[0].attention.rope.divisors.as_deref(), Some(&factors(1.0)[..]));
}

#[test]
fn mixtral_8x7b() {
    let spec = spec(&json!({
        "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1_000_000.0,
        "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000
    }));
    let FfnSpec::Experts(experts) = spec.layers[0].ffn else { panic!("{:?}", spec.layers[0].ffn) };
    assert_eq!((experts.num_experts, experts.experts_per_token, experts.expert.width), (8, 2, 14336));
}

#[test]
fn every_family_is_known_by_its_names() {
    let hf =
        "llama mistral mixtral qwen2 qwen3 qwen3_moe gemma gemma2 gemma3_text gemma3 gemma4_text gemma4 phi3";
    assert_eq!(supported(Container::HuggingFace).join(" "), hf);
    let gguf = "llama qwen2 qwen3 qwen3moe gemma gemma2 gemma3 gemma4 phi3";
    assert_eq!(supported(Container::Gguf).join(" "), gguf);
}
