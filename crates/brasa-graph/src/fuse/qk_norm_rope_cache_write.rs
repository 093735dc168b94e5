//! Everything between the Q, K, V projections and attention.

use super::{Finder, Match, Norm};
use crate::op::{Attention, CacheWrite, KvSource, Rope};
use crate::{CacheId, Node, NodeId, Op, ValueId};

/// `[rms_norm →] rope` of Q; `[rms_norm →] rope` of K; `[rms_norm]` of V; `cache_write(k, v)`.
///
/// Norms are per head. `q`, `k` and `v` usually are views of one stacked projection. The rotated keys and the normed values are
/// stored in the cache only.
#[derive(Clone, Debug, PartialEq)]
pub struct QkNormRopeCacheWrite {
    /// Queries, `[R, H, E]`.
    pub q: ValueId,
    /// Keys, `[R, G, E]`.
    pub k: ValueId,
    /// Values, `[R, G, E]`.
    pub v: ValueId,
    /// Norm of each query head.
    pub q_norm: Option<Norm>,
    /// Norm of each key head.
    pub k_norm: Option<Norm>,
    /// Norm of each value head (Gemma 4).
    pub v_norm: Option<Norm>,
    /// The rotation, of queries and keys alike.
    pub rope: Rope,
    /// Positions of the rows.
    pub positions: ValueId,
    /// The rotation's frequencies.
    pub frequencies: ValueId,
    /// Cache that keys and values are written to.
    pub cache: CacheId,
    /// Rotated queries, `[R, H, E]`.
    pub y: ValueId,
}

impl QkNormRopeCacheWrite {
    /// Finds the pattern from the cache write. The queries are those of the first attention to the cache.
    pub(super) fn find(finder: &Finder, anchor: NodeId) -> Option<Match> {
        let (Op::CacheWrite(CacheWrite { cache }), &[k, v]) =
            (&finder.node(anchor).op, &finder.node(anchor).inputs[..])
        else {
            return None;
        };
        // The fused kernels of devices have heads of one width.
        finder.graph().cache(*cache).head_dim()?;
        let reads = |node: &&Node| matches!(node.op, Op::Attention(Attention { source: KvSource::Cache(read), .. }) if read == *cache);
        let attention = finder.graph().nodes()[anchor.0 as usize..].iter().find(reads)?;
        let mut nodes = vec![anchor];
        let (q_rope, q_node) = finder.maker_behind_views(attention.inputs[0], &mut Vec::new())?;
        let (k_rope, k_node) = finder.maker_behind_views(k, &mut nodes)?;
        let (&Op::Rope(rope), &Op::Rope(of_k)) = (&q_node.op, &k_node.op) else { return None };
        if rope != of_k || q_node.inputs[1..] != k_node.inputs[1..] {
            return None;
        }
        nodes.extend([q_rope, k_rope]);
        let (q, q_norm) = head_norm(finder, q_node.inputs[0], &mut nodes);
        let (k, k_norm) = head_norm(finder, k_node.inputs[0], &mut nodes);
        let (v, v_norm) = head_norm(finder, v, &mut nodes);
        let y = q_node.outputs[0];
        let fusion = Self {
            q,
            k,
            v,
            q_norm,
            k_norm,
            v_norm,
            rope,
            positions: q_node.inputs[1],
            frequencies: q_node.inputs[2],
            cache: *cache,
            y,
        };
        Some(Match { fusion: fusion.into(), nodes, outputs: vec![y] })
    }
}

/// The norm of each head that makes `value`, if nothing else reads its result: the operand and the norm. Otherwise `value` itself
/// and `None`.
///
/// A norm over all heads at once works on `[R, H·E]` and is not matched.
fn head_norm(finder: &Finder, value: ValueId, nodes: &mut Vec<NodeId>) -> (ValueId, Option<Norm>) {
    match finder.rms_norm(value) {
        Some((id, x, norm))
            if finder.sole_user(value).is_some() && finder.graph().value(x).shape.rank() == 3 =>
        {
            nodes.push(id);
            (x, Some(norm))
        }
        _ => (value, None),
    }
}
