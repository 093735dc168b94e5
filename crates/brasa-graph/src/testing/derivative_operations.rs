//! Cases of operations that only derivatives use.

use crate::op::{
    Attention, AttentionGradient, AttentionGradientTangent, AttentionTangent, ExpertLinearGradient,
    ExpertLinearTransposed, Fold, Gating, Head, KvSource, LinearCrossEntropy, LinearCrossEntropyGradient,
    LinearGradient, Mask, MeanPool, MeanPoolTransposed, Narrow, NormGradient, NormKind, Pick, Place,
    RouterTopK, Unary, UnaryGradient, Unfold,
};
use crate::{Dim, Op, ValueId};

use super::{CaseBuilder, OperationCase, Tolerance};

/// Operations that only derivatives use, by name. Each graph has one of them.
pub const DERIVATIVE_OPERATIONS: &[OperationCase] = &[
    OperationCase::new("linear_gradient", Tolerance::F32, |b| {
        let (dy, x) = (b.rows(&[3, 7]), b.rows(&[3, 5]));
        apply(b, LinearGradient, &[dy, x])
    }),
    OperationCase::new("expert_linear_transposed", Tolerance::F32, |b| {
        let (y, w) = (b.rows(&[2, 7]), b.weight("w", &[4, 7, 5]));
        let experts = chosen(b);
        apply(b, ExpertLinearTransposed, &[y, experts, w])
    }),
    OperationCase::new("expert_linear_gradient", Tolerance::F32, |b| {
        let (dy, x) = (b.rows(&[2, 7]), b.rows(&[5]));
        let experts = chosen(b);
        apply(b, ExpertLinearGradient { experts: 4 }, &[dy, experts, x])
    }),
    OperationCase::new("unary_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[9]), b.rows(&[9]));
        apply(b, UnaryGradient { function: Unary::Silu }, &[x, t])
    }),
    OperationCase::new("squared_relu_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[9]), b.rows(&[9]));
        apply(b, UnaryGradient { function: Unary::SquaredRelu }, &[x, t])
    }),
    OperationCase::new("clamp_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[9]), b.rows(&[9]));
        let function = Unary::Clamp { low: f32::NEG_INFINITY, high: 0.5 };
        apply(b, UnaryGradient { function }, &[x, t])
    }),
    OperationCase::new("softplus_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[9]), b.rows(&[9]));
        apply(b, UnaryGradient { function: Unary::Softplus }, &[x, t])
    }),
    OperationCase::new("rms_norm_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[9]), b.rows(&[9]));
        apply(b, NormGradient { kind: NormKind::Rms, eps: 1e-5 }, &[x, t])
    }),
    OperationCase::new("layer_norm_gradient", Tolerance::F32, |b| {
        let (x, t) = (b.rows(&[2, 9]), b.rows(&[2, 9]));
        apply(b, NormGradient { kind: NormKind::Layer, eps: 1e-5 }, &[x, t])
    }),
    OperationCase::new("attention_tangent", Tolerance::F32, |b| {
        let operands = [4, 2, 2, 4, 2, 2].map(|heads| b.rows(&[heads, 6]));
        attentions().map(|attention| apply(b, AttentionTangent { attention }, &operands)).concat()
    }),
    OperationCase::new("attention_gradient", Tolerance::F32, |b| {
        let operands = [4, 2, 2, 4].map(|heads| b.rows(&[heads, 6]));
        attentions().map(|attention| apply(b, AttentionGradient { attention }, &operands)).concat()
    }),
    OperationCase::new("linear_cross_entropy", Tolerance::F32, |b| {
        let (x, w, targets) = (b.rows(&[9]), b.weight("w", &[97, 9]), b.token_ids());
        apply(b, LinearCrossEntropy { softcap: Some(5.0) }, &[x, w, targets])
    }),
    OperationCase::new("linear_cross_entropy_gradient", Tolerance::F32, |b| {
        let (x, w, targets) = (b.rows(&[9]), b.weight("w", &[97, 9]), b.token_ids());
        let d = b.rows(&[]);
        let gradient = LinearCrossEntropyGradient { softcap: None, head: Head::Varying };
        apply(b, gradient, &[x, w, targets, d])
    }),
    OperationCase::new("pick", Tolerance::EXACT, |b| {
        let (x, ids) = (b.rows(&[97]), b.token_ids());
        apply(b, Pick, &[x, ids])
    }),
    OperationCase::new("place", Tolerance::F32, |b| {
        let x = b.rows(&[2]);
        let experts = chosen(b);
        apply(b, Place { width: 4 }, &[x, experts])
    }),
    OperationCase::new("narrow", Tolerance::EXACT, |b| {
        let x = b.rows(&[3, 8]);
        apply(b, Narrow { axis: 1, start: 1.into(), len: 2.into() }, &[x])
    }),
    OperationCase::new("fold", Tolerance::F32, |b| {
        let y = b.rows(&[12]);
        apply(b, Fold { unfold: Unfold { taps: 3, stride: 2, padding: 1 } }, &[y])
    }),
    OperationCase::new("mean_pool_transposed", Tolerance::F32, |b| {
        let x = b.rows(&[9]);
        let pooled = apply(b, MeanPool, &[x])[0];
        apply(b, MeanPoolTransposed { rows: Dim::ROWS }, &[pooled])
    }),
];

/// Operations that only second derivatives use, which GPUs lack, by name. Each graph has one of them.
pub const SECOND_DERIVATIVE_OPERATIONS: &[OperationCase] =
    &[OperationCase::new("attention_gradient_tangent", Tolerance::F32, |b| {
        let operands = [4, 2, 2, 4, 4, 2, 2].map(|heads| b.rows(&[heads, 6]));
        attentions().map(|attention| apply(b, AttentionGradientTangent { attention }, &operands)).concat()
    })];

fn apply(b: &mut CaseBuilder, op: impl Into<Op>, inputs: &[ValueId]) -> Vec<ValueId> {
    b.graph.apply(op, inputs)
}

/// The choice of two of four experts for each row.
fn chosen(b: &mut CaseBuilder) -> ValueId {
    let logits = b.rows(&[4]);
    b.graph.router_topk(logits, RouterTopK { k: 2, gating: Gating::SOFTMAX_CHOSEN }).0
}

fn attentions() -> [Attention; 2] {
    let [causal, alibi] = [Mask::Causal, Mask::Alibi].map(KvSource::Step);
    [
        Attention { source: causal, scale: 0.4, window: Some(3), softcap: Some(4.0) },
        Attention { source: alibi, scale: 0.4, window: None, softcap: None },
    ]
}
