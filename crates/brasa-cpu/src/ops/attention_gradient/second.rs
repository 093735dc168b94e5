//! How the gradient of attention changes along a direction: second derivatives, query by query.
#![expect(unsafe_code, reason = "threads write disjoint heads of one result")]

use std::ops::Range;

use super::geometry::{Geometry, dot, part};
use super::scratch::{Bent, GradientScratch};
use super::sinks::SinkChanges;
use super::softmax::{Capped, Softened, Softmax};
use crate::arena::Region;
use crate::context::Context;
use crate::kv::SharedKv;
use crate::ops::operation::{Cost, Operation};
use crate::ops::scratch::Scratch;
use crate::simd::{LANES, vectorize};
use crate::slot::{Operands, Slot, Source};
use crate::step_state::{SegmentState, StepState};
use crate::weights::CpuWeights;

/// How the gradient of attention changes along a direction.
#[derive(Clone, Debug)]
pub(crate) struct AttentionGradientTangentOp {
    pub geometry: Geometry,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub dy: Slot,
    pub tq: Slot,
    pub tk: Slot,
    pub tv: Slot,
    pub of_q: Slot,
    pub of_k: Slot,
    pub of_v: Slot,
    pub sinks: Option<SinkChanges>,
    /// Tangents of sinks, `[H]`; `None` for attention without sinks.
    pub t_sinks: Option<Source>,
}

impl Operation for AttentionGradientTangentOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v).reads("dy", self.dy);
        list.reads("tq", self.tq).reads("tk", self.tk).reads("tv", self.tv);
        list.writes("of_q", self.of_q).writes("of_k", self.of_k).writes("of_v", self.of_v);
        if let Some(SinkChanges { sinks, terms, out }) = &self.sinks {
            list.reads("sinks", *sinks).writes("terms", *terms).writes("of_sinks", *out);
        }
        if let Some(t_sinks) = self.t_sinks {
            list.reads("tsinks", t_sinks);
        }
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let groups = self.geometry.kv_heads;
        loop {
            let unit = cx.take();
            let Some(segment) = cx.step.segments.get(unit / groups) else { break };
            self.group(cx, segment, unit % groups, &mut scratch.gradient);
        }
        if let Some(sinks) = &self.sinks {
            sinks.sum(cx);
        }
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, _: SharedKv<'_>) -> Cost {
        Cost { bytes: 0, flops: self.geometry.flops(step, [6, 4]) }
    }
}

impl AttentionGradientTangentOp {
    /// One KV head of a segment, query by query: second derivatives are too rare for products of blocks.
    fn group(&self, cx: &Context<'_>, segment: &SegmentState, group: usize, scratch: &mut GradientScratch) {
        let count = segment.rows.len();
        let [q, k, v, dy] = [self.q, self.k, self.v, self.dy].map(|slot| cx.rows::<f32>(&slot));
        let [tq, tk, tv] = [self.tq, self.tk, self.tv].map(|slot| cx.rows::<f32>(&slot));
        let (key_columns, value_columns) = (self.geometry.of_key(group), self.geometry.of_value(group));
        let region = |slot: &Slot, columns: &Range<usize>| -> Region {
            cx.region(slot).of_rows(segment.rows.clone()).of_columns(columns.clone())
        };
        // SAFETY: this head of these rows is this thread's, and the two views are of different results.
        let write = |slot, columns| unsafe { cx.write::<f32>(slot, region(slot, columns)) };
        let (mut of_k, mut of_v) = (write(&self.of_k, &key_columns), write(&self.of_v, &value_columns));
        for row in 0..count {
            of_k.row(row).fill(0.0);
            of_v.row(row).fill(0.0);
        }
        let Geometry { heads, sight, scoring, .. } = &self.geometry;
        let GradientScratch { scores, changes, slopes, bent, .. } = scratch;
        for head in self.geometry.of_group(group) {
            let (columns, result) = (self.geometry.of_key(head), self.geometry.of_value(head));
            let sink =
                self.sinks.as_ref().zip(self.t_sinks.as_ref()).map(|(sinks, changes)| {
                    [&sinks.sinks, changes].map(|source| cx.view(source).row(0)[head])
                });
            // SAFETY: the query heads of a group are this thread's, and the view is gone before the next.
            let mut of_q = unsafe { cx.write::<f32>(&self.of_q, region(&self.of_q, &columns)) };
            for row in 0..count {
                let [q, tq] = [&q, &tq].map(|rows| part(rows, segment, row, &columns));
                let dy = part(&dy, segment, row, &result);
                let in_step = segment.rows.start + row;
                let seen = sight.of_row(segment, in_step);
                let seen = seen.start..seen.end.min(count);
                let size = seen.len().next_multiple_of(LANES);
                for list in [&mut *scores, changes, slopes] {
                    list.clear();
                    list.resize(size, 0.0);
                }
                bent.clear();
                for (slot, key) in seen.clone().enumerate() {
                    let of = |rows| part(rows, segment, key, &key_columns);
                    let of_value = |rows| part(rows, segment, key, &value_columns);
                    scores[slot] = dot(q, of(&k));
                    bent.push(Bent {
                        score: scoring.scale * scores[slot],
                        by_score: scoring.scale * (dot(tq, of(&k)) + dot(q, of(&tk))),
                        turn: 0.0,
                        pull: dot(dy, of_value(&v)),
                        by_pull: dot(dy, of_value(&tv)),
                    });
                }
                let distances = sight.distances(segment, in_step, (head, *heads), seen.start);
                let (scoring, list) = (*scoring, &mut *scores);
                vectorize(cx.isa, Capped { scoring, distances, scores: list, slopes: &mut *slopes });
                if scoring.softcap.is_none() {
                    slopes.fill(1.0);
                }
                for (slot, score) in scores.iter_mut().enumerate() {
                    if slot >= seen.len() || !sight.sees(segment, in_step, seen.start + slot) {
                        *score = f32::NEG_INFINITY;
                    }
                }
                let list = &mut *scores;
                let of_sink = sink.map(|[sink, _]| (sink, 0.0));
                let changes = &mut *changes;
                let softmax = Softmax { scale: 1.0, scores: list, changes, slopes: None, sink: of_sink };
                let Softened { sink: of_sink, .. } = vectorize(cx.isa, softmax);

                let mean = |bent: &[Bent], of: &dyn Fn(&Bent, f32) -> f32| -> f32 {
                    let each = bent.iter().zip(&*slopes).zip(&*scores);
                    each.map(|((each, &slope), &p)| p * of(each, slope)).sum()
                };
                let t_sink = sink.map_or(0.0, |[_, t_sink]| t_sink);
                let by_score = mean(bent, &|each, slope| slope * each.by_score) + of_sink * t_sink;
                for (each, &slope) in bent.iter_mut().zip(&*slopes) {
                    each.turn = slope * each.by_score - by_score;
                }
                let pull = mean(bent, &|each, _| each.pull);
                let by_pull = mean(bent, &|each, _| each.turn * each.pull + each.by_pull);
                if let Some(sinks) = &self.sinks {
                    let term = -of_sink * ((t_sink - by_score) * pull + by_pull);
                    // SAFETY: this head of these rows is this thread's.
                    unsafe { sinks.put(cx, in_step, head, term) };
                }
                let of_q = of_q.row(row);
                of_q.fill(0.0);
                for (slot, key) in seen.enumerate() {
                    let (p, slope, each) = (scores[slot], slopes[slot], &bent[slot]);
                    // The cotangent of the capped score, and how it changes along the direction.
                    let change = p * (each.pull - pull);
                    let by_change = each.turn * change + p * (each.by_pull - by_pull);
                    let first = scoring.scale * slope * change;
                    let bend =
                        scoring.softcap.map_or(0.0, |cap| -2.0 * (each.score / cap).tanh() * slope / cap);
                    let second = scoring.scale * (bend * each.by_score * change + slope * by_change);
                    add_scaled(of_q, second, part(&k, segment, key, &key_columns));
                    add_scaled(of_q, first, part(&tk, segment, key, &key_columns));
                    let of_key = of_k.row(key);
                    add_scaled(of_key, second, q);
                    add_scaled(of_key, first, tq);
                    add_scaled(of_v.row(key), p * each.turn, dy);
                }
            }
        }
    }
}

fn add_scaled(to: &mut [f32], factor: f32, x: &[f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += factor * x;
    }
}
