//! A model without caches: its rows attend to the rows of the step.

use std::collections::BTreeMap;

use crate::op::{Attention, Binary, KvSource, Mask, Narrow, Reduce, ReduceFn, ShortConv, StateScan, Unfold};
use crate::{Builder, CacheId, Change, Graph, GraphError, Op, ValueId, rewrite};

/// Makes a graph whose attention reads keys and values from the rows of the step instead of from caches. This form can
/// be differentiated, unless it has a recurrence ([`StateScan`]).
///
/// A segment is a whole text: its rows see each other, causally, and no rows of earlier steps. So a step packs any
/// number of documents without padding. Short convolutions and recurrences begin with zeros in each segment. Layers
/// that share a cache share its keys and values. All values keep their ids. Caches that nothing uses any more are
/// removed; steps of a graph without caches bring no pages.
///
/// # Errors
///
/// [`GraphError::Rewrite`] if a cache is read that no earlier node writes.
pub fn attend_to_rows(graph: &Graph) -> Result<Graph, GraphError> {
    let mut written: BTreeMap<CacheId, (ValueId, ValueId)> = BTreeMap::new();
    let mut unwritten = None;
    let rewritten = rewrite(graph, |builder, node, operands| match (&node.op, operands) {
        (Op::CacheWrite(write), &[k, v]) => {
            written.insert(write.cache, (k, v));
            Change::Remove
        }
        (Op::CacheWrite(write), &[k]) => {
            let len = graph.cache(write.cache).value_dim().into();
            let narrow = Narrow { axis: 2, start: 0.into(), len };
            written.extend(builder.apply(narrow, &[k]).first().map(|&v| (write.cache, (k, v))));
            Change::Remove
        }
        (
            &Op::Attention(Attention { source: KvSource::Cache(cache), scale, window, softcap }),
            &[q, ref sinks @ ..],
        ) => {
            let Some(&(k, v)) = written.get(&cache) else {
                unwritten = Some(cache);
                return Change::Keep;
            };
            let source = KvSource::Step(Mask::Causal);
            let attention = Attention { source, scale, window, softcap };
            Change::Replace(vec![builder.attention(&[&[q, k, v], sinks].concat(), attention)])
        }
        (Op::ShortConv(ShortConv { .. }), &[x, w]) => convolution(builder, x, w),
        (&Op::StateScan(StateScan { rule, sharing, .. }), operands) => {
            Change::Replace(builder.apply(StateScan { state: None, rule, sharing }, operands))
        }
        _ => Change::Keep,
    })?;
    if let Some(cache) = unwritten {
        let what = format!("attention reads cache {}, which no node before it writes", cache.0);
        return Err(GraphError::Rewrite { what });
    }
    let caches = if rewritten.memories.is_empty() { Vec::new() } else { rewritten.caches.clone() };
    Ok(Graph { caches, states: Vec::new(), ..rewritten })
}

/// Builds a short convolution over the rows of each segment from operations that have derivatives.
fn convolution(builder: &mut Builder, x: ValueId, w: ValueId) -> Change {
    let taps = builder.shape(w).and_then(super::super::value::Shape::width);
    let channels = builder.shape(x).and_then(super::super::value::Shape::width);
    let (Some(taps), Some(channels)) = (taps, channels) else { return Change::Keep };
    let unfold = Unfold { taps, stride: 1, padding: taps - 1 };
    let seen = builder.apply(unfold, &[x])[0];
    let seen = builder.reshape(seen, &[channels, taps]);
    let products = builder.apply(Binary::Mul, &[seen, w])[0];
    Change::Replace(builder.apply(Reduce { function: ReduceFn::Sum, axis: 2 }, &[products]))
}
