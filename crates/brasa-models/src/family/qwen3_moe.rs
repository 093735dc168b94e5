//! Qwen3 mixture of experts (Qwen Team 2025, arXiv:2505.09388).

use brasa_graph::op::Gating;

use super::base::{Defaults, decoder};
use super::layers::window;
use super::mixtral::expert_counts;
use crate::keys::{DENSE_LAYERS, EXPERT_WIDTH, FULL_LAYERS, NORM_TOPK, SPARSE_STEP, USE_WINDOW};
use crate::metadata::{Metadata, limits};
use crate::spec::{DenseSpec, ExpertsSpec, FfnSpec, ModelSpec, Router};
use crate::{ModelError, Result};

/// Qwen3 with experts in all layers but those listed.
pub(super) fn qwen3_moe(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults { context_length: 32_768, num_kv_heads: Some(4), ..Defaults::new("qwen3_moe") };
    let mut spec = decoder(meta, defaults)?;
    spec.attentions().for_each(|attention| attention.qk_norm = true);
    // Unlike in the dense model, all layers have it. llama.cpp has no windows in this family; a GGUF file that carries
    // one means it.
    let class = (!meta.is_gguf()).then_some(4096);
    let used = meta.bool(USE_WINDOW)?.unwrap_or(meta.is_gguf());
    let window = window(meta, class)?.filter(|_| used);
    spec.attentions().for_each(|attention| attention.window = window);
    meta.count_or_zero(FULL_LAYERS, limits::LAYERS)?;

    let (num_experts, experts_per_token) = expert_counts(meta)?;
    let width = meta.require(EXPERT_WIDTH, limits::FFN_WIDTH)?;
    // llama.cpp makes the shares add up to one whatever the model says; its converter drops the key.
    let normed = meta.bool(NORM_TOPK)?.unwrap_or(meta.is_gguf());
    let gating = if normed { Gating::SOFTMAX_CHOSEN } else { Gating::SOFTMAX_ALL };
    let dense_layers = dense_layers(meta, spec.layers.len())?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if let FfnSpec::Dense(dense) = layer.ffn
            && !dense_layers.contains(&index)
        {
            layer.ffn = FfnSpec::Experts(ExpertsSpec {
                num_experts,
                experts_per_token,
                expert: DenseSpec { width, ..dense },
                gating,
                router: Router::Plain,
            });
        }
    }
    Ok(spec)
}

/// Layers that keep a dense network.
fn dense_layers(meta: &Metadata, layers: usize) -> Result<Vec<usize>> {
    let listed = meta.array(DENSE_LAYERS)?.unwrap_or_default();
    let mut dense: Vec<usize> = listed
        .iter()
        .map(|one| one.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n < layers))
        .collect::<Option<_>>()
        .ok_or_else(|| ModelError::Dimensions {
            what: format!("mlp_only_layers {listed:?}"),
            expected: format!("layers below {layers}"),
        })?;
    let step = meta.count(SPARSE_STEP, limits::LAYERS)?.unwrap_or(1);
    dense.extend((0..layers).filter(|layer| !(layer + 1).is_multiple_of(step)));
    Ok(dense)
}
