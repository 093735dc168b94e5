//! Changes passed through attention to the rows of a step.
//!
//! A thread takes one KV head of one segment and all query heads that read it, so no sum is shared. Scores and probabilities
//! of a block of queries are computed again from queries and keys, and everything that they are needed for follows while
//! they are in a cache: five products of matrices in all, of f32 or rounded.
#![expect(unsafe_code, reason = "threads write disjoint heads of one result")]

use std::ops::Range;

use crate::Isa;
use crate::arena::{Region, Rows};
use crate::attention::{Distances, Scoring, Sight};
use crate::context::{Context, Mine};
use crate::kv::SharedKv;
use crate::matrix::{Arithmetic, Factor, FirstFactor, Found, INNER, Part, SecondFactor, Store, Strided};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Slot, Source};
use crate::step_state::{SegmentState, StepState};
use crate::weights::CpuWeights;

use super::operation::{Cost, Operation};
use super::scratch::Scratch;

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

/// The sinks of heads, and memory for their gradients.
#[derive(Clone, Debug)]
pub(crate) struct SinkChanges {
    /// The sinks, `[H]`.
    pub sinks: Source,
    /// Memory for each row's term of a gradient, `[R, H]`.
    pub terms: Slot,
    /// The gradients: the sums of the terms over all rows, `[H]`.
    pub out: Slot,
}

impl SinkChanges {
    /// Writes the term of head `head` of row `row`.
    ///
    /// # Safety
    ///
    /// No other thread writes this term, and none reads it before a barrier.
    unsafe fn put(&self, cx: &Context<'_>, row: usize, head: usize, term: f32) {
        let region = cx.region(&self.terms).of_rows(row..row + 1).of_columns(head..head + 1);
        // SAFETY: the caller's promise.
        unsafe { cx.write::<f32>(&self.terms, region).row(0)[0] = term };
    }

    /// Sums the terms of all rows, in order. Waits at the barrier once; one thread adds.
    fn sum(&self, cx: &mut Context<'_>) {
        cx.wait();
        if cx.thread != 0 {
            return;
        }
        let terms = cx.rows::<f32>(&self.terms);
        // SAFETY: no other thread views the result.
        let mut out = unsafe { cx.write::<f32>(&self.out, cx.region(&self.out)) };
        for head in 0..self.out.outer.constant().unwrap_or(0) {
            out.row(head)[0] = (0..cx.step.sizes.rows).map(|row| terms.row(row)[head]).sum();
        }
    }
}

/// Heads, and what they see.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub heads: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub sight: Sight,
    pub scoring: Scoring,
}

/// A thread's memory for the gradients of attention.
#[derive(Debug, Default)]
pub(crate) struct GradientScratch {
    /// Keys and values as factors whose columns are keys, and keys as a factor that is summed over keys.
    keys_across: SecondFactor,
    values_across: SecondFactor,
    keys: SecondFactor,
    /// Queries, and then cotangents, of a block.
    queries: SecondFactor,
    /// Scores, then probabilities, by query and key.
    scores: Vec<f32>,
    /// Changes of probabilities, then of products of queries and keys.
    changes: Vec<f32>,
    /// Slopes of the soft-cap of one query.
    slopes: Vec<f32>,
    rows: FirstFactor,
    /// For second derivatives: the keys that one query attends to.
    bent: Vec<Bent>,
}

impl Geometry {
    /// Columns of head `head` of queries or keys.
    fn of_key(&self, head: usize) -> Range<usize> {
        head * self.key_dim..(head + 1) * self.key_dim
    }

    /// Columns of head `head` of values or results.
    fn of_value(&self, head: usize) -> Range<usize> {
        head * self.value_dim..(head + 1) * self.value_dim
    }

    /// The penalties for distance on the scores of head `head` of row `row` of a segment, for keys from `first` on.
    fn distances(&self, segment: &SegmentState, row: usize, head: usize, first: usize) -> Option<Distances> {
        self.sight.distances(segment, segment.rows.start + row, (head, self.heads), first)
    }

    /// The query heads that read KV head `group`.
    fn of_group(&self, group: usize) -> Range<usize> {
        let each = self.heads / self.kv_heads;
        group * each..(group + 1) * each
    }

    /// Floating-point operations of attention over all rows: for each query and each key that it sees, `of_keys`
    /// products of vectors as wide as keys, and `of_values` as wide as values.
    fn flops(&self, step: &StepState, [of_keys, of_values]: [usize; 2]) -> u64 {
        let seen = step.segments.iter().flat_map(|segment| {
            segment.rows.clone().map(|row| self.sight.of_row(segment, row).len().min(segment.rows.len()))
        });
        let elements = of_keys * self.key_dim + of_values * self.value_dim;
        (seen.sum::<usize>() * self.heads * elements * 2) as u64
    }
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

/// Some columns of row `row` of a segment.
fn part<'a>(
    rows: &'a Rows<'_, f32>,
    segment: &SegmentState,
    row: usize,
    columns: &Range<usize>,
) -> &'a [f32] {
    &rows.row(segment.rows.start + row)[columns.clone()]
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

/// Scales scores, caps them and subtracts penalties for distance; writes the slopes of the cap if there is one.
struct Capped<'a> {
    scoring: Scoring,
    distances: Option<Distances>,
    scores: &'a mut [f32],
    slopes: &'a mut [f32],
}

impl Kernel for Capped<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Scoring { scale, softcap } = self.scoring;
        let scores = self.scores.as_chunks_mut::<LANES>().0;
        match softcap {
            None => {
                for scores in &mut *scores {
                    simd.store(simd.mul(simd.load(scores), simd.splat(scale)), scores);
                }
            }
            Some(cap) => {
                for (scores, slopes) in scores.iter_mut().zip(self.slopes.as_chunks_mut::<LANES>().0) {
                    let score = simd.tanh(simd.mul(simd.load(scores), simd.splat(scale / cap)));
                    let one = simd.splat(1.0);
                    simd.store(simd.sub(one, simd.mul(score, score)), slopes);
                    simd.store(simd.mul(score, simd.splat(cap)), scores);
                }
            }
        }
        let Some(distances) = self.distances else { return };
        for (block, scores) in scores.iter_mut().enumerate() {
            let score = simd.sub(simd.load(scores), distances.penalties(simd, block * LANES));
            simd.store(score, scores);
        }
    }
}

/// The softmax of one query and its derivative. Scores become probabilities p; changes dp of probabilities become
/// `scale · slope · p · (dp − Σ p·dp)`. A sink and its change take part in the sums.
struct Softmax<'a> {
    scale: f32,
    scores: &'a mut [f32],
    changes: &'a mut [f32],
    slopes: Option<&'a [f32]>,
    sink: Option<(f32, f32)>,
}

/// Numbers of a softmax that the gradient of a sink needs.
#[derive(Clone, Copy, Debug)]
struct Softened {
    /// The probability of the sink; 0 for none.
    sink: f32,
    /// `Σ p·dp`, the mean change.
    mean: f32,
}

impl Kernel for Softmax<'_> {
    type Output = Softened;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Softened {
        let scores = self.scores.as_chunks_mut::<LANES>().0;
        let changes = self.changes.as_chunks_mut::<LANES>().0;
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for scores in &*scores {
            largest = simd.max(simd.load(scores), largest);
        }
        if let Some((sink, _)) = self.sink {
            largest = simd.max(simd.splat(sink), largest);
        }
        let largest = simd.splat(simd.largest(largest));
        let (mut sum, mut along) = (simd.splat(0.0), simd.splat(0.0));
        for (scores, changes) in scores.iter_mut().zip(&*changes) {
            let p = simd.exp_to_one(simd.sub(simd.load(scores), largest));
            simd.store(p, scores);
            sum = simd.add(sum, p);
            along = simd.mul_add(p, simd.load(changes), along);
        }
        let (mut total, mut along, mut of_sink) = (simd.sum(sum), simd.sum(along), 0.0);
        if let Some((sink, change)) = self.sink {
            let mut weights = [0.0; LANES];
            simd.store(simd.exp_to_one(simd.sub(simd.splat(sink), largest)), &mut weights);
            of_sink = weights[0];
            total += of_sink;
            along += of_sink * change;
        }
        let sum = 1.0 / total;
        let of_all = Softened { sink: of_sink * sum, mean: along * sum };
        let mean = simd.splat(of_all.mean);
        let (sum, scale) = (simd.splat(sum), simd.splat(self.scale));
        for (at, (scores, changes)) in scores.iter_mut().zip(changes).enumerate() {
            let p = simd.mul(simd.load(scores), sum);
            simd.store(p, scores);
            let mut factor = simd.mul(p, scale);
            if let Some(slopes) = self.slopes.and_then(|slopes| slopes.as_chunks::<LANES>().0.get(at)) {
                factor = simd.mul(factor, simd.load(slopes));
            }
            simd.store(simd.mul(factor, simd.sub(simd.load(changes), mean)), changes);
        }
        of_all
    }
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

/// A key as a query sees it, and how that changes along the direction.
#[derive(Debug)]
struct Bent {
    /// The scaled score, before the soft-cap.
    score: f32,
    /// How the score changes.
    by_score: f32,
    /// How the probability changes, as a share of itself.
    turn: f32,
    /// The cotangent of the probability.
    pull: f32,
    /// How that changes.
    by_pull: f32,
}

fn add_scaled(to: &mut [f32], factor: f32, x: &[f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += factor * x;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
