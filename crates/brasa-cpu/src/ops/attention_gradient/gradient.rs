//! The gradient of attention, for blocks of queries.
#![expect(unsafe_code, reason = "threads write disjoint heads of one result")]

use std::ops::Range;

use super::geometry::{Geometry, part};
use super::scratch::GradientScratch;
use super::sinks::SinkChanges;
use super::softmax::{Capped, Softened, Softmax};
use crate::Isa;
use crate::arena::Region;
use crate::attention::{Distances, Scoring};
use crate::context::Context;
use crate::kv::SharedKv;
use crate::matrix::{Arithmetic, Factor, Found, INNER, Part, Store, Strided};
use crate::ops::operation::{Cost, Operation};
use crate::ops::scratch::Scratch;
use crate::simd::{LANES, vectorize};
use crate::slot::{Operands, Slot};
use crate::step_state::{SegmentState, StepState};
use crate::weights::CpuWeights;

/// Queries whose scores exist at the same time.
const QUERIES: usize = 64;

/// The gradient of attention.
#[derive(Clone, Debug)]
pub(crate) struct AttentionGradientOp {
    pub geometry: Geometry,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub dy: Slot,
    pub dq: Slot,
    pub dk: Slot,
    pub dv: Slot,
    pub sinks: Option<SinkChanges>,
    /// True if the factors of products may be rounded.
    pub rounds: bool,
}

impl Operation for AttentionGradientOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v).reads("dy", self.dy);
        list.writes("dq", self.dq).writes("dk", self.dk).writes("dv", self.dv);
        if let Some(SinkChanges { sinks, terms, out }) = &self.sinks {
            list.reads("sinks", *sinks).writes("terms", *terms).writes("dsinks", *out);
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
        Cost { bytes: 0, flops: self.geometry.flops(step, [3, 2]) }
    }
}

impl AttentionGradientOp {
    /// One KV head of a segment.
    fn group(&self, cx: &Context<'_>, segment: &SegmentState, group: usize, scratch: &mut GradientScratch) {
        let (isa, count) = (cx.isa, segment.rows.len());
        let Geometry { key_dim, value_dim, .. } = self.geometry;
        let how = Arithmetic { isa, rounds: self.rounds };
        let [q, k, v, dy] = [self.q, self.k, self.v, self.dy].map(|slot| cx.rows::<f32>(&slot));
        let (key_of_group, value_of_group) = (self.geometry.of_key(group), self.geometry.of_value(group));
        let keys = Found::new(|row| part(&k, segment, row, &key_of_group));
        let values = Found::new(|row| part(&v, segment, row, &value_of_group));
        scratch.keys_across.pack(how, Factor::Summed(&keys), count, key_dim);
        scratch.values_across.pack(how, Factor::Summed(&values), count, value_dim);
        scratch.keys.pack(how, Factor::Across(&keys), key_dim, count);

        let region = |slot: &Slot, rows: Range<usize>, columns: &Range<usize>| -> Region {
            let rows = segment.rows.start + rows.start..segment.rows.start + rows.end;
            cx.region(slot).of_rows(rows).of_columns(columns.clone())
        };
        for (slot, columns) in [(&self.dk, &key_of_group), (&self.dv, &value_of_group)] {
            // SAFETY: this head of these rows is this thread's, and the view is gone before the next.
            let mut rows = unsafe { cx.write::<f32>(slot, region(slot, 0..count, columns)) };
            (0..count).for_each(|row| rows.row(row).fill(0.0));
        }
        let stride = count.next_multiple_of(LANES);
        scratch.scores.resize(QUERIES * stride, 0.0);
        scratch.changes.resize(QUERIES * stride, 0.0);
        scratch.slopes.resize(stride, 0.0);
        let GradientScratch {
            keys_across, values_across, keys, queries, scores, changes, slopes, rows, ..
        } = scratch;
        for head in self.geometry.of_group(group) {
            let (query, result) = (self.geometry.of_key(head), self.geometry.of_value(head));
            let sink = self.sinks.as_ref().map(|sinks| cx.view(&sinks.sinks).row(0)[head]);
            for first in (0..count).step_by(QUERIES) {
                let block = first..count.min(first + QUERIES);
                let seen = self.seen(segment, &block);
                let q = Found::new(|row| part(&q, segment, first + row, &query));
                let dy = Found::new(|row| part(&dy, segment, first + row, &result));
                let part = Part { rows: 0..block.len(), columns: seen.clone(), inner: 0..key_dim };
                let mut out = Strided { values: &mut scores[seen.start..], stride };
                let of_block = Factor::Summed(&q);
                keys_across.multiply(how, of_block, &part, Store::Replace, rows, &mut out);
                let part = Part { inner: 0..value_dim, ..part };
                let mut out = Strided { values: &mut changes[seen.start..], stride };
                values_across.multiply(how, Factor::Summed(&dy), &part, Store::Replace, rows, &mut out);

                let all = seen.start..seen.end.next_multiple_of(LANES);
                for row in 0..block.len() {
                    let columns = row * stride + all.start..row * stride + all.end;
                    let (scores, changes) = (&mut scores[columns.clone()], &mut changes[columns]);
                    let hidden = |index: usize| !self.sees(segment, first + row, index);
                    let visible = self.geometry.sight.of_row(segment, segment.rows.start + first + row);
                    let visible = visible.start - all.start..visible.end.min(count) - all.start;
                    let scoring = self.geometry.scoring;
                    let distances = self.geometry.distances(segment, first + row, head, all.start);
                    let mut query = Query { scoring, distances, scores, changes, slopes, visible, sink };
                    let tree = segment.tree.is_some();
                    let Softened { sink, mean } =
                        query.pass(isa, tree.then_some(&|slot| hidden(all.start + slot)));
                    if let Some(sinks) = &self.sinks {
                        let row = segment.rows.start + first + row;
                        // SAFETY: this head of these rows is this thread's.
                        unsafe { sinks.put(cx, row, head, -sink * mean) };
                    }
                }

                let (scores, changes) =
                    (Strided { values: &scores[..], stride }, Strided { values: &changes[..], stride });
                let part = Part { rows: 0..block.len(), columns: 0..key_dim, inner: seen.clone() };
                // SAFETY: this head of these rows is this thread's; each view is gone before the next.
                let write =
                    |slot, rows, columns| unsafe { cx.write::<f32>(slot, region(slot, rows, columns)) };
                let mut dq = write(&self.dq, block.clone(), &query);
                keys.multiply(how, Factor::Summed(&changes), &part, Store::Replace, rows, &mut dq);
                let part = Part { rows: seen.clone(), columns: 0..key_dim, inner: 0..block.len() };
                queries.pack(how, Factor::Across(&q), key_dim, block.len());
                let mut dk = write(&self.dk, seen.clone(), &key_of_group);
                queries.multiply(how, Factor::Across(&changes), &part, Store::Add, rows, &mut dk);
                let part = Part { columns: 0..value_dim, ..part };
                queries.pack(how, Factor::Across(&dy), value_dim, block.len());
                let mut dv = write(&self.dv, seen.clone(), &value_of_group);
                queries.multiply(how, Factor::Across(&scores), &part, Store::Add, rows, &mut dv);
            }
        }
    }

    /// Rows of a segment that some of its rows see, from a multiple of [`INNER`] on.
    fn seen(&self, segment: &SegmentState, rows: &Range<usize>) -> Range<usize> {
        if segment.tree.is_some() {
            return 0..segment.rows.len();
        }
        let of = |row| self.geometry.sight.of_row(segment, segment.rows.start + row);
        of(rows.start).start / INNER * INNER..of(rows.end - 1).end.min(segment.rows.len())
    }

    fn sees(&self, segment: &SegmentState, row: usize, index: usize) -> bool {
        self.geometry.sight.sees(segment, segment.rows.start + row, index)
    }
}

/// One query and all keys that its block sees, in whole vectors.
struct Query<'a> {
    scoring: Scoring,
    /// The penalties for distance; `None` for none.
    distances: Option<Distances>,
    /// Products of the query and keys, which become probabilities.
    scores: &'a mut [f32],
    /// Changes of probabilities, which become those of the products.
    changes: &'a mut [f32],
    slopes: &'a mut [f32],
    /// The keys that the query itself sees.
    visible: Range<usize>,
    /// The head's sink.
    sink: Option<f32>,
}

impl Query<'_> {
    /// Passes the changes through the softmax. `hidden` is true for keys within the visible range that are hidden.
    fn pass(&mut self, isa: Isa, hidden: Option<&dyn Fn(usize) -> bool>) -> Softened {
        let Self { scoring, distances, scores, changes, slopes, visible, sink } = self;
        vectorize(isa, Capped { scoring: *scoring, distances: *distances, scores, slopes });
        let outside = (0..visible.start).chain(visible.end..scores.len());
        let inside = visible.clone().filter(|&slot| hidden.is_some_and(|hidden| hidden(slot)));
        for slot in outside.chain(inside) {
            (scores[slot], changes[slot]) = (f32::NEG_INFINITY, 0.0);
        }
        let slopes = scoring.softcap.map(|_| &**slopes);
        let sink = sink.map(|sink| (sink, 0.0));
        vectorize(isa, Softmax { scale: scoring.scale, scores, changes, slopes, sink })
    }
}
