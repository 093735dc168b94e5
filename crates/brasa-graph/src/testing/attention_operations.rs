//! Cases of attention with sinks, with values of another width than keys, and with values within keys.

use crate::op::{
    Attention, AttentionGradient, AttentionGradientTangent, AttentionTangent, CacheWrite, KvSource, Mask,
};
use crate::{CacheSpec, Op, ValueId, ValueWidth};

use super::{CaseBuilder, OperationCase, Tolerance};

/// Cases of attention with sinks, with values of another width than keys, and with values within keys.
pub const WIDE_ATTENTION: &[OperationCase] = &[
    OperationCase::new("sinks", Tolerance::F32, |b| {
        let (g, share, e) = (1 + b.random.below(3), 1 + b.random.below(7), 1 + b.random.below(40));
        let spec = |window| CacheSpec::new(g, e, window);
        to_all_sources(b, g * share, spec, true)
    }),
    OperationCase::new("widths", Tolerance::F32, |b| {
        let (g, share, e) = (1 + b.random.below(3), 1 + b.random.below(7), 1 + b.random.below(40));
        let value = ValueWidth::Own(1 + b.random.below(40));
        let spec = |window| CacheSpec { kv_heads: g, key_dim: e, value, window };
        let sinks = b.random.below(2) == 0;
        to_all_sources(b, g * share, spec, sinks)
    }),
    OperationCase::new("latent", Tolerance::F32, |b| {
        let (g, share, v) = (1 + b.random.below(2), 1 + b.random.below(20), 1 + b.random.below(40));
        let (key_dim, value) = (v + b.random.below(12), ValueWidth::PrefixOfKey(v));
        let spec = |window| CacheSpec { kv_heads: g, key_dim, value, window };
        let sinks = b.random.below(2) == 0;
        to_all_sources(b, g * share, spec, sinks)
    }),
    OperationCase::new("latent_576_512", Tolerance::F32, |b| {
        let heads = 1 + b.random.below(20);
        to_all_sources(b, heads, |window| CacheSpec::latent(576, 512, window), true)
    }),
];

/// Cases of derivatives of attention with sinks and with values of another width than keys.
pub const WIDE_ATTENTION_DERIVATIVES: &[OperationCase] = &[
    OperationCase::new("attention_tangent_sinks", Tolerance::F32, |b| {
        let operands = [values(b), values(b)].concat();
        attentions().map(|attention| b.graph.apply(AttentionTangent { attention }, &operands)).concat()
    }),
    OperationCase::new("attention_gradient_sinks", Tolerance::F32, |b| {
        let (values, dy) = (values(b), b.rows(&[4, 5]));
        let operands = [&values[..], &[dy]].concat();
        attentions().map(|attention| b.graph.apply(AttentionGradient { attention }, &operands)).concat()
    }),
    OperationCase::new("attention_gradient_widths", Tolerance::F32, |b| {
        let operands = [(4, 6), (2, 6), (2, 5), (4, 5)].map(|(heads, width)| b.rows(&[heads, width]));
        attentions().map(|attention| b.graph.apply(AttentionGradient { attention }, &operands)).concat()
    }),
];

/// Cases of second derivatives of attention with sinks. GPUs do not have them.
pub const WIDE_ATTENTION_SECOND_DERIVATIVES: &[OperationCase] =
    &[OperationCase::new("attention_gradient_tangent_sinks", Tolerance::F32, |b| {
        let operands = [values(b), vec![b.rows(&[4, 5])], values(b)].concat();
        attentions()
            .map(|attention| b.graph.apply(AttentionGradientTangent { attention }, &operands))
            .concat()
    })];

/// Random queries, keys, values and sinks of four query heads.
fn values(b: &mut CaseBuilder) -> Vec<ValueId> {
    let name = format!("sinks{}", b.random.below(1000));
    vec![b.rows(&[4, 6]), b.rows(&[2, 6]), b.rows(&[2, 5]), b.bias(&name, 4)]
}

fn attentions() -> [Attention; 3] {
    let [causal, both, alibi] = [Mask::Causal, Mask::Bidirectional, Mask::Alibi].map(KvSource::Step);
    [
        Attention { source: causal, scale: 0.4, window: Some(3), softcap: Some(4.0) },
        Attention { source: both, scale: 0.4, window: None, softcap: None },
        Attention { source: alibi, scale: 0.4, window: None, softcap: None },
    ]
}

/// Attention of `heads` heads to caches, with and without a window, and to the step under every mask.
fn to_all_sources(
    b: &mut CaseBuilder,
    heads: usize,
    spec: impl Fn(Option<usize>) -> CacheSpec,
    with_sinks: bool,
) -> Vec<ValueId> {
    let CacheSpec { kv_heads, key_dim, value, .. } = spec(None);
    let (q, k, v) =
        (b.rows(&[heads, key_dim]), b.rows(&[kv_heads, key_dim]), b.rows(&[kv_heads, value.dim()]));
    let sinks = if with_sinks { vec![b.bias("sinks", heads)] } else { Vec::new() };
    let scale = 0.3 * (20.0 / key_dim as f32).sqrt().min(1.0);
    let mut results = Vec::new();
    let mut attend = |b: &mut CaseBuilder, op: Attention, operands: &[ValueId]| {
        results.extend(b.graph.apply(op, &[operands, &sinks].concat()));
    };
    for (window, softcap) in [(None, None), (Some(2), Some(5.0))] {
        let cache = b.graph.cache(spec(window));
        let written = if value.is_prefix() { &[k][..] } else { &[k, v] };
        assert!(b.graph.apply(Op::from(CacheWrite { cache }), written).is_empty());
        let attention = |source| Attention { source, scale, window, softcap };
        attend(b, attention(KvSource::Cache(cache)), &[q]);
        for mask in [Mask::Causal, Mask::Bidirectional, Mask::Alibi] {
            attend(b, attention(KvSource::Step(mask)), &[q, k, v]);
        }
    }
    results
}
