//! Tensor names: from Hugging Face and MLX to GGUF.

use super::family::Family;

/// What one tensor of a checkpoint becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tensor of this name.
    Whole(String),
    /// Expert `expert` of the stacked tensor `name`.
    Expert { name: String, expert: usize },
    /// All experts of the two tensors `gate` and `up`, their rows one after the other in each expert.
    GateAndUp { gate: String, up: String },
    /// All experts of one half (0 gate, 1 up) of the tensor `name`.
    HalfOf { name: String, half: usize },
    /// Nothing that a GGUF file holds.
    Skipped,
    /// A tensor that the family should not have.
    Unknown,
}

/// Modules of other modalities, and buffers that are computed.
const SKIPPED: [&str; 9] = [
    "vision_tower.",
    "vision_model.",
    "audio_tower.",
    "multi_modal_projector.",
    "embed_vision.",
    "embed_audio.",
    "rotary_emb.inv_freq",
    ".attention.masked_bias",
    ".attention.bias",
];

/// Where the tensor `name` of a checkpoint of `family` goes.
pub fn place(family: Family, name: &str) -> Place {
    if SKIPPED.iter().any(|part| name.contains(part)) {
        return Place::Skipped;
    }
    let name = name.replace("language_model.", "");
    let inner = name.strip_prefix("model.").unwrap_or(&name);
    let (module, suffix) = split_suffix(inner);
    if let Some(rest) = module.strip_prefix("layers.") {
        let Some((layer, module)) = rest.split_once('.') else { return Place::Unknown };
        if layer.parse::<usize>().is_err() {
            return Place::Unknown;
        }
        return in_layer(family, layer, module, suffix);
    }
    let gguf = match module {
        "embed_tokens" => "token_embd",
        "norm" => "output_norm",
        "lm_head" => "output",
        "embed_tokens_per_layer" if family == Family::Gemma4 => "per_layer_token_embd",
        "per_layer_model_projection" if family == Family::Gemma4 => "per_layer_model_proj",
        "per_layer_projection_norm" if family == Family::Gemma4 => "per_layer_proj_norm",
        _ => return Place::Unknown,
    };
    Place::Whole(format!("{gguf}{suffix}"))
}

/// `module` and `.weight` or `.bias`; parameters without a suffix count as weights.
fn split_suffix(name: &str) -> (&str, &'static str) {
    if let Some(module) = name.strip_suffix(".weight") {
        (module, ".weight")
    } else if let Some(module) = name.strip_suffix(".bias") {
        (module, ".bias")
    } else {
        (name, ".weight")
    }
}

fn in_layer(family: Family, layer: &str, module: &str, suffix: &str) -> Place {
    let named = |gguf: &str| format!("blk.{layer}.{gguf}{suffix}");
    let gguf = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.qkv_proj" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" if family.has_post_norms() => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        "mlp.gate_proj" => "ffn_gate",
        // Phi-3 keeps gate and up in one matrix, in GGUF too.
        "mlp.up_proj" | "mlp.gate_up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        "mlp.gate" | "block_sparse_moe.gate" => "ffn_gate_inp",
        _ if family == Family::Gemma4 => return gemma4(layer, module, suffix),
        _ => return experts(layer, module),
    };
    Place::Whole(named(gguf))
}

/// What only Gemma 4 has: per-layer inputs, layer scalars, and experts beside the dense part.
fn gemma4(layer: &str, module: &str, suffix: &str) -> Place {
    let named = |gguf: &str| format!("blk.{layer}.{gguf}");
    let gguf = match module {
        "per_layer_input_gate" => "inp_gate",
        "per_layer_projection" => "proj",
        "post_per_layer_input_norm" => "post_norm",
        "layer_scalar" => "layer_output_scale",
        "post_feedforward_layernorm_1" => "post_ffw_norm_1",
        "post_feedforward_layernorm_2" => "post_ffw_norm_2",
        "pre_feedforward_layernorm_2" => "pre_ffw_norm_2",
        "router.proj" => "ffn_gate_inp",
        "router.scale" => return Place::Whole(named("ffn_gate_inp.scale")),
        "router.per_expert_scale" => return Place::Whole(named("ffn_down_exps.scale")),
        "experts.gate_up_proj" => "ffn_gate_up_exps",
        "experts.down_proj" | "experts.switch_glu.down_proj" => "ffn_down_exps",
        "experts.switch_glu.gate_proj" => {
            return Place::HalfOf { name: named("ffn_gate_up_exps.weight"), half: 0 };
        }
        "experts.switch_glu.up_proj" => {
            return Place::HalfOf { name: named("ffn_gate_up_exps.weight"), half: 1 };
        }
        _ => return Place::Unknown,
    };
    Place::Whole(named(gguf) + suffix)
}

/// Experts of Mixtral and Qwen: one tensor each, all in one, or stacked by MLX.
fn experts(layer: &str, module: &str) -> Place {
    let of = |kind: &str| {
        let gguf = match kind {
            "gate_proj" | "w1" => "ffn_gate_exps",
            "down_proj" | "w2" => "ffn_down_exps",
            "up_proj" | "w3" => "ffn_up_exps",
            _ => return None,
        };
        Some(format!("blk.{layer}.{gguf}.weight"))
    };
    let Some((_, inner)) =
        module.split_once('.').filter(|(outer, _)| matches!(*outer, "mlp" | "block_sparse_moe"))
    else {
        return Place::Unknown;
    };
    if let Some(kind) = inner.strip_prefix("switch_mlp.") {
        return of(kind).map_or(Place::Unknown, Place::Whole);
    }
    let Some(inner) = inner.strip_prefix("experts.") else { return Place::Unknown };
    match inner.split_once('.') {
        Some((expert, kind)) => match (expert.parse(), of(kind)) {
            (Ok(expert), Some(name)) => Place::Expert { name, expert },
            _ => Place::Unknown,
        },
        None if inner == "gate_up_proj" => Place::GateAndUp {
            gate: format!("blk.{layer}.ffn_gate_exps.weight"),
            up: format!("blk.{layer}.ffn_up_exps.weight"),
        },
        None => of(inner).map_or(Place::Unknown, Place::Whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(name: &str) -> Place {
        Place::Whole(name.to_owned())
    }

    #[test]
    fn prefixes_of_multimodal_checkpoints_do_not_matter() {
        for name in [
            "model.layers.3.self_attn.q_proj.weight",
            "language_model.model.layers.3.self_attn.q_proj.weight",
            "model.language_model.layers.3.self_attn.q_proj.weight",
            "layers.3.self_attn.q_proj.weight",
        ] {
            assert_eq!(place(Family::Gemma3, name), whole("blk.3.attn_q.weight"), "{name}");
        }
        assert_eq!(place(Family::Gemma3, "vision_tower.encoder.layers.0.fc1.weight"), Place::Skipped);
        assert_eq!(place(Family::Llama, "model.layers.0.self_attn.rotary_emb.inv_freq"), Place::Skipped);
        assert_eq!(place(Family::Llama, "model.layers.0.self_attn.sinks"), Place::Unknown);
    }

    #[test]
    fn the_norm_after_attention_means_two_things() {
        let name = "model.layers.0.post_attention_layernorm.weight";
        assert_eq!(place(Family::Qwen3, name), whole("blk.0.ffn_norm.weight"));
        assert_eq!(place(Family::Gemma, name), whole("blk.0.ffn_norm.weight"));
        assert_eq!(place(Family::Gemma2, name), whole("blk.0.post_attention_norm.weight"));
    }

    #[test]
    fn experts_in_four_forms() {
        let gate = "blk.1.ffn_gate_exps.weight".to_owned();
        let expert = Place::Expert { name: gate.clone(), expert: 7 };
        assert_eq!(place(Family::Qwen3Moe, "model.layers.1.mlp.experts.7.gate_proj.weight"), expert);
        assert_eq!(place(Family::Llama, "model.layers.1.block_sparse_moe.experts.7.w1.weight"), expert);
        assert_eq!(
            place(Family::Qwen3Moe, "model.layers.1.mlp.switch_mlp.gate_proj.weight"),
            Place::Whole(gate.clone())
        );
        let up = "blk.1.ffn_up_exps.weight".to_owned();
        assert_eq!(
            place(Family::Qwen3Moe, "model.layers.1.mlp.experts.gate_up_proj"),
            Place::GateAndUp { gate, up }
        );
    }
}
