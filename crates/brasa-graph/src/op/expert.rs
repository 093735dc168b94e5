//! Mixture of experts: choosing experts, and linear layers of the chosen ones.

use super::{Operation, Type, constant_dims, operands, require, width};
use crate::{CacheSpec, DType, Shape, Value};

/// How router logits become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts; the chosen ones keep their share.
    SoftmaxAll,
    /// Softmax over the chosen experts alone (equal to renormalised shares).
    SoftmaxChosen,
}

/// Chooses `k` experts per row, largest logit first, ties to the lowest expert.
///
/// `experts[r]` = the `k` largest of `logits[r]`; `weights[r]` as [`Gating`] says.
///
/// Shapes: `logits` `[R, X]` → `experts` `[R, k]` u32, `weights` `[R, k]`.
/// Shazeer et al. 2017, arXiv:1701.06538.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterTopK {
    /// Experts per row.
    pub k: usize,
    /// How logits become weights.
    pub gating: Gating,
}

impl Operation for RouterTopK {
    fn name(&self) -> &'static str {
        "router_topk"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [logits] = operands(given)?;
        let experts = width(logits)?;
        require((1..=experts).contains(&self.k), || format!("k = {} of {experts} experts", self.k))?;
        let shape = Shape::rows(logits.shape.outer(), &[self.k]);
        Ok(vec![(DType::U32, shape.clone()), (DType::F32, shape)])
    }
}

/// A linear layer of each row's chosen experts: `y[r,j,n] = Σ_k x[r,(j),k] · w[experts[r,j],n,k]`.
///
/// Shapes: `x` `[R, K]` (shared by the experts) or `[R, k, K]`, `experts` `[R, k]` u32, `w` a weight `[X, N, K]`
/// → `[R, k, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinear;

impl Operation for ExpertLinear {
    fn name(&self) -> &'static str {
        "expert_linear"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, experts, w] = operands(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[2] == width(x)?, || "w must be [X, N, K] for x [.., K]".into())?;
        require(experts.dtype == DType::U32 && experts.shape.rank() == 2, || {
            "experts must be u32 [R, k]".into()
        })?;
        let chosen = width(experts)?;
        let fits = match x.shape.rank() {
            2 => true,
            3 => x.shape.0[1].constant() == Some(chosen),
            _ => false,
        };
        require(fits && x.shape.outer() == experts.shape.outer(), || "x must be [R, K] or [R, k, K]".into())?;
        Ok(vec![(DType::F32, Shape::rows(x.shape.outer(), &[chosen, dims[1]]))])
    }
}
