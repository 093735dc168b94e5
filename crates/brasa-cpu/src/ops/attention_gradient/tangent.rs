//! The change of attention along a direction, row by row.

use super::geometry::{Geometry, dot, part};
use super::scratch::GradientScratch;
use super::softmax::{Capped, Softmax};
use crate::context::{Context, Mine};
use crate::ops::operation::Operation;
use crate::ops::scratch::Scratch;
use crate::simd::{LANES, vectorize};
use crate::slot::{Operands, Out, Slot, Source};

/// The change of attention along a direction.
#[derive(Clone, Debug)]
pub(crate) struct AttentionTangentOp {
    pub geometry: Geometry,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub tq: Slot,
    pub tk: Slot,
    pub tv: Slot,
    /// Sinks and their tangents, both `[H]`; `None` for attention without sinks.
    pub sinks: Option<[Source; 2]>,
    pub out: Out,
}

impl Operation for AttentionTangentOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v);
        list.reads("tq", self.tq).reads("tk", self.tk).reads("tv", self.tv);
        if let Some([sinks, changes]) = self.sinks {
            list.reads("sinks", sinks).reads("tsinks", changes);
        }
        list.writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let step = cx.step;
        let [q, k, v, tq, tk, tv] =
            [self.q, self.k, self.v, self.tq, self.tk, self.tv].map(|slot| cx.rows::<f32>(&slot));
        let isa = cx.isa;
        let GradientScratch { scores, changes, slopes, .. } = &mut scratch.gradient;
        let Geometry { heads, kv_heads, sight, scoring, .. } = &self.geometry;
        let sinks = self.sinks.as_ref().map(|sinks| [0, 1].map(|place| cx.view(&sinks[place])));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let (_, segment) = step.segment_of(row);
            let seen = sight.of_row(segment, row);
            let seen = seen.start..seen.end.min(segment.rows.len());
            let size = seen.len().next_multiple_of(LANES);
            for head in 0..*heads {
                let (own, result) = (self.geometry.of_key(head), self.geometry.of_value(head));
                let group = head / (heads / kv_heads);
                let (key, value) = (self.geometry.of_key(group), self.geometry.of_value(group));
                let (q, tq) = (&q.row(row)[own.clone()], &tq.row(row)[own]);
                let at = |slot: usize| seen.start + slot;
                for list in [&mut *scores, changes, slopes] {
                    list.resize(size.max(list.len()), 0.0);
                }
                for slot in 0..seen.len() {
                    let [k, tk] = [&k, &tk].map(|rows| part(rows, segment, at(slot), &key));
                    scores[slot] = dot(q, k);
                    changes[slot] = dot(tq, k) + dot(q, tk);
                }
                let (scores, changes) = (&mut scores[..size], &mut changes[..size]);
                let distances = sight.distances(segment, row, (head, *heads), seen.start);
                vectorize(isa, Capped { scoring: *scoring, distances, scores, slopes });
                for slot in 0..size {
                    if slot >= seen.len() || !sight.sees(segment, row, seen.start + slot) {
                        (scores[slot], changes[slot]) = (f32::NEG_INFINITY, 0.0);
                    } else if scoring.softcap.is_some() {
                        changes[slot] *= slopes[slot];
                    }
                }
                // A sink's change is not scaled, so those of scores are before they meet it.
                let mut scale = scoring.scale;
                let sink = sinks.as_ref().map(|[sinks, t_sinks]| {
                    for change in changes.iter_mut() {
                        *change *= scale;
                    }
                    scale = 1.0;
                    (sinks.row(0)[head], t_sinks.row(0)[head])
                });
                vectorize(isa, Softmax { scale, scores, changes, slopes: None, sink });
                let out = &mut out.row(i)[result];
                out.fill(0.0);
                for slot in 0..seen.len() {
                    let [v, tv] = [&v, &tv].map(|rows| part(rows, segment, at(slot), &value));
                    for ((out, v), tv) in out.iter_mut().zip(v).zip(tv) {
                        *out += changes[slot] * v + scores[slot] * tv;
                    }
                }
            }
        }
    }
}
