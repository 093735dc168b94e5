//! Mixtral (Jiang et al. 2024, arXiv:2401.04088).

use brasa_graph::op::Gating;

use super::base::{Defaults, decoder};
use super::layers::window;
use super::llama::layout;
use crate::keys::{EXPERT_WIDTH, EXPERTS_PER_TOKEN, NUM_EXPERTS};
use crate::metadata::{Metadata, limits};
use crate::spec::{DenseSpec, ExpertsSpec, FfnSpec, ModelSpec, Router};
use crate::{ModelError, Result};

/// Mistral with a mixture of experts in place of every network; the shares of the chosen experts add up to one.
pub(super) fn mixtral(meta: &Metadata) -> Result<ModelSpec> {
    let defaults = Defaults {
        layout: layout(meta),
        theta: 1e6,
        norm_eps: 1e-5,
        context_length: 4096 * 32,
        num_kv_heads: Some(8),
        ..Defaults::new("mixtral")
    };
    let mut spec = decoder(meta, defaults)?;
    let window = window(meta, None)?;
    spec.attentions().for_each(|attention| attention.window = window);
    experts(meta, &mut spec)?;
    Ok(spec)
}

/// Replaces every dense network of `spec` by experts of the same width.
pub(super) fn experts(meta: &Metadata, spec: &mut ModelSpec) -> Result<()> {
    let (num_experts, experts_per_token) = expert_counts(meta)?;
    let width = meta.count(EXPERT_WIDTH, limits::FFN_WIDTH)?;
    for layer in &mut spec.layers {
        if let FfnSpec::Dense(dense) = layer.ffn {
            layer.ffn = FfnSpec::Experts(ExpertsSpec {
                num_experts,
                experts_per_token,
                expert: DenseSpec { width: width.unwrap_or(dense.width), ..dense },
                gating: Gating::SOFTMAX_CHOSEN,
                router: Router::Plain,
            });
        }
    }
    Ok(())
}

/// Number of all experts, and number of experts that each row is computed by.
pub(super) fn expert_counts(meta: &Metadata) -> Result<(usize, usize)> {
    let all = meta.require(NUM_EXPERTS, limits::EXPERTS)?;
    let chosen = meta.require(EXPERTS_PER_TOKEN, limits::EXPERTS)?;
    if chosen > all {
        return Err(ModelError::Dimensions {
            what: format!("{chosen} experts chosen of {all}"),
            expected: "at most all of them".into(),
        });
    }
    Ok((all, chosen))
}
