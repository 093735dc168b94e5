//! Attention of a few queries to one page. Its order of sums never varies.
//!
//! A score is a sum over the elements of a head, in order, in one lane; a value is a sum over the positions of
//! the page, in order. If 32 elements share a scale, their part of a score is summed before it is scaled, and the scale of a
//! value is first multiplied with its weight. So a query's result does not depend on the other queries that are computed
//! with it. Pages are merged in order, so it does not depend on how they were shared out either.

use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use super::source::{KvFormat, Page};
use crate::kv::layout::SCALE_ELEMENTS;
use crate::prefetch::{NEAR_BYTES, PrefetchPolicy, ReadRange};
use crate::simd::{Kernel, LANES, Simd};

use super::visibility::Visible;

/// Most queries that are computed together.
pub(super) const MAX_QUERIES: usize = 8;

/// Number of vectors whose elements share a scale.
const VECTORS_PER_SCALE: usize = SCALE_ELEMENTS / LANES;
/// Most scales of the elements of values that are computed together, which are eight vectors.
pub(super) const MAX_GROUPS: usize = 8 / VECTORS_PER_SCALE;

/// The scores of a few queries at the positions of a page.
pub(super) type Scores = [[f32; PAGE_POSITIONS]; MAX_QUERIES];

/// The softmax of one query over one page or several: `m` = largest score, `s` = Σ exp(score − m). The sum of values
/// `o` = Σ exp(score − m) · v lies beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Partial {
    /// The largest score.
    pub m: f32,
    /// Σ exp(score − m).
    pub s: f32,
}

impl Partial {
    /// The softmax over nothing.
    pub(super) const NONE: Self = Self { m: f32::NEG_INFINITY, s: 0.0 };

    /// The softmax over one score, `sink`, that belongs to no position.
    pub(super) fn of_sink(sink: f32) -> Self {
        Self { m: sink, s: 1.0 }
    }
}

/// How scores come from products.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scoring {
    /// Factor of a product.
    pub scale: f32,
    /// Scaled products x become `softcap · tanh(x / softcap)`.
    pub softcap: Option<f32>,
}

/// The penalty of [ALiBi](brasa_graph::op::Mask::Alibi) on the scores of one query in one page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Distances {
    /// Subtracted for each position of distance.
    pub slope: f32,
    /// The query's own position, counted from the page's first.
    pub own: f32,
}

impl Distances {
    /// The penalties at 16 positions from slot `first` of the page on.
    #[inline(always)]
    pub(crate) fn penalties<S: Simd>(self, simd: S, first: usize) -> S::V {
        const NUMBERS: [f32; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
        let ahead = simd.add(simd.load(&NUMBERS), simd.splat(first as f32 - self.own));
        let distance = simd.max(ahead, simd.sub(simd.splat(0.0), ahead));
        simd.mul(distance, simd.splat(self.slope))
    }
}

/// The kernel that computes a few queries against one page of one KV head.
pub(super) struct PageKernel<'a, P> {
    /// Keys and values.
    pub page: P,
    /// Queries, `[E][queries]`.
    pub q: &'a [f32],
    /// Slots that each query sees, for 1, 2, 4 or 8 queries.
    pub visible: &'a [Visible],
    /// How scores come from products.
    pub scoring: Scoring,
    /// The penalties of each query for distance; empty for none.
    pub distances: &'a [Distances],
    /// Memory for scores.
    pub scores: &'a mut Scores,
    /// Memory for softmax weights times scales, [`MAX_GROUPS`] of them.
    pub scaled: &'a mut [Scores],
    /// Results, `[queries]`.
    pub partials: &'a mut [Partial],
    /// Sums of values, `[queries][value_width]`.
    pub o: &'a mut [f32],
    /// First byte of the memory that is read after the page; null if unknown.
    pub behind: *const u8,
}

impl<'a> PageKernel<'a, ()> {
    /// This kernel on a page.
    pub(super) fn on<P>(self, page: P) -> PageKernel<'a, P> {
        let Self { page: (), q, visible, scoring, distances, scores, scaled, partials, o, behind } = self;
        PageKernel { page, q, visible, scoring, distances, scores, scaled, partials, o, behind }
    }
}

impl<F: KvFormat> Kernel for PageKernel<'_, Page<'_, F>> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.visible.len() {
            1 => self.run_queries::<S, 1>(simd),
            2 => self.run_queries::<S, 2>(simd),
            4 => self.run_queries::<S, 4>(simd),
            8 if const { 8 <= S::ACCUMULATORS } => self.run_queries::<S, 8>(simd),
            other => unreachable!("{other} queries in a tile"),
        }
    }
}

impl<F: KvFormat> PageKernel<'_, Page<'_, F>> {
    #[inline(always)]
    fn run_queries<S: Simd, const Q: usize>(mut self, simd: S) {
        let seen = self.visible.iter().map(|visible| &visible.slots).filter(|slots| !slots.is_empty());
        let first = seen.clone().map(|slots| slots.start).min().unwrap_or(0);
        let end = seen.map(|slots| slots.end).max().unwrap_or(0);
        if first == end {
            self.partials.fill(Partial::NONE);
            return;
        }
        let blocks = first / LANES..end.div_ceil(LANES);
        let vectors = self.page.value_dim().div_ceil(LANES);
        let values = (&raw const self.page.values()[first * vectors]).cast();
        self.score::<S, Q>(simd, blocks.clone(), values);
        for query in 0..Q {
            self.partials[query] = self.soften(simd, query, blocks.clone());
        }
        self.weigh::<S, Q>(simd, first..end);
    }

    /// Computes the scores of all queries at the positions of `blocks`. Afterwards the kernel reads from `values` on.
    #[inline(always)]
    fn score<S: Simd, const Q: usize>(&mut self, simd: S, blocks: Range<usize>, values: *const u8) {
        let first = self.page.keys(0).as_ptr().cast::<u8>();
        let end = first.wrapping_add(blocks.end * self.page.key_block_bytes());
        let range = ReadRange { end, then: values };
        let mut block = blocks.start;
        while block < blocks.end {
            let left = blocks.end - block;
            block += if left >= 4 && const { key_sums::<F>(Q) * 4 <= S::ACCUMULATORS } {
                self.score_blocks::<S, Q, 4>(simd, block, range)
            } else if left >= 2 && const { key_sums::<F>(Q) * 2 <= S::ACCUMULATORS } {
                self.score_blocks::<S, Q, 2>(simd, block, range)
            } else {
                self.score_blocks::<S, Q, 1>(simd, block, range)
            };
        }
    }

    /// Computes the scores at P blocks from `block` on.
    #[inline(always)]
    fn score_blocks<S: Simd, const Q: usize, const P: usize>(
        &mut self,
        simd: S,
        block: usize,
        range: ReadRange,
    ) -> usize {
        let page = self.page;
        let width = page.key_dim();
        let (q, _) = self.q.as_chunks::<Q>();
        let q = &q[..width];
        let keys: [_; P] = std::array::from_fn(|p| page.keys(block + p));
        // Blocks lie one behind the other: while some are read side by side, as many of the next are prefetched in order.
        let blocks_bytes = P * page.key_block_bytes();
        let targets = range.targets(keys[0].as_ptr().cast(), blocks_bytes, policy_of(Q));
        let mut sums = [[simd.splat(0.0); P]; Q];
        if F::SCALED {
            let scales: [_; P] = std::array::from_fn(|p| page.key_scales(block + p));
            for (group, first) in (0..width).step_by(SCALE_ELEMENTS).enumerate() {
                let end = (first + SCALE_ELEMENTS).min(width);
                let mut parts = [[simd.splat(0.0); P]; Q];
                let before = P * size_of_val(&keys[0][..first]);
                let keys = keys.map(|keys| &keys[first..end]);
                let ask = |offset, len| targets.prefetch(before + offset, len);
                add_products::<S, F, Q, P>(simd, &mut parts, keys, &q[first..end], ask);
                let scale: [S::V; P] = std::array::from_fn(|p| simd.load_f16(&scales[p][group]));
                for (sums, parts) in sums.iter_mut().zip(parts) {
                    for ((sum, part), scale) in sums.iter_mut().zip(parts).zip(scale) {
                        *sum = simd.mul_add(part, scale, *sum);
                    }
                }
            }
            let codes_bytes = P * size_of_val(keys[0]);
            targets.prefetch(codes_bytes, blocks_bytes - codes_bytes);
        } else {
            let ask = |offset, len| targets.prefetch(offset, len);
            add_products::<S, F, Q, P>(simd, &mut sums, keys, q, ask);
        }
        for (scores, sums) in self.scores.iter_mut().zip(sums) {
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            for (scores, sum) in scores[block..block + P].iter_mut().zip(sums) {
                simd.store(sum, scores);
            }
        }
        P
    }

    /// Turns products into weights `exp(score − m)`; positions that are not seen get weight zero.
    #[inline(always)]
    fn soften<S: Simd>(&mut self, simd: S, query: usize, blocks: Range<usize>) -> Partial {
        let Visible { slots: visible, hidden } = &self.visible[query];
        let slots = blocks.start * LANES..blocks.end * LANES;
        let scores = &mut self.scores[query];
        if visible.is_empty() {
            scores[slots].fill(0.0);
            return Partial::NONE;
        }
        let Scoring { mut scale, softcap } = self.scoring;
        let distances = self.distances.get(query);
        if softcap.is_some() || distances.is_some() || scale <= 0.0 {
            // Otherwise the largest product is also the largest score, and scaling is part of the subtraction.
            let (vectors, _) = scores[slots.clone()].as_chunks_mut::<LANES>();
            for (scores, block) in vectors.iter_mut().zip(blocks) {
                let mut score = simd.mul(simd.load(scores), simd.splat(scale));
                if let Some(cap) = softcap {
                    let bent = simd.tanh(simd.div(score, simd.splat(cap)));
                    score = simd.mul(bent, simd.splat(cap));
                }
                if let Some(distances) = distances {
                    score = simd.sub(score, distances.penalties(simd, block * LANES));
                }
                simd.store(score, scores);
            }
            scale = 1.0;
        }
        scores[slots.start..visible.start].fill(f32::NEG_INFINITY);
        scores[visible.end..slots.end].fill(f32::NEG_INFINITY);
        if let Some(hidden) = hidden {
            let hidden = visible.clone().filter(|&slot| hidden.contains(slot));
            hidden.for_each(|slot| scores[slot] = f32::NEG_INFINITY);
        }
        let (vectors, _) = scores[slots].as_chunks_mut::<LANES>();
        let mut largest = simd.splat(f32::NEG_INFINITY);
        for scores in &*vectors {
            largest = simd.max(simd.load(scores), largest);
        }
        let m = simd.largest(largest) * scale;
        let (mut sum, factor, minus_m) = (simd.splat(0.0), simd.splat(scale), simd.splat(-m));
        for scores in vectors {
            let weight = simd.exp_to_one(simd.mul_add(simd.load(scores), factor, minus_m));
            simd.store(weight, scores);
            sum = simd.add(sum, weight);
        }
        Partial { m, s: simd.sum(sum) }
    }

    /// Computes `o` = Σ weight · v over `slots`.
    #[inline(always)]
    fn weigh<S: Simd, const Q: usize>(&mut self, simd: S, slots: Range<usize>) {
        let vectors = self.page.value_dim().div_ceil(LANES);
        let mut vector = 0;
        while vector < vectors {
            let left = vectors - vector;
            vector += if left >= 8 && const { Q * 8 <= S::ACCUMULATORS } {
                self.weigh_vectors::<S, Q, 8>(simd, &slots, vector)
            } else if left >= 4 && const { Q * 4 <= S::ACCUMULATORS } {
                self.weigh_vectors::<S, Q, 4>(simd, &slots, vector)
            } else if left >= 2 && const { Q * 2 <= S::ACCUMULATORS } {
                self.weigh_vectors::<S, Q, 2>(simd, &slots, vector)
            } else {
                self.weigh_vectors::<S, Q, 1>(simd, &slots, vector)
            };
        }
    }

    #[inline(always)]
    fn weigh_vectors<S: Simd, const Q: usize, const E: usize>(
        &mut self,
        simd: S,
        slots: &Range<usize>,
        vector: usize,
    ) -> usize {
        let vectors = self.page.value_dim().div_ceil(LANES);
        let page = self.page;
        let values = page.values();
        let mut sums = [[simd.splat(0.0); E]; Q];
        let range =
            ReadRange { end: values[..slots.end * vectors].as_ptr_range().end.cast(), then: self.behind };
        let row_bytes = vectors * size_of_val(&values[0]);
        if F::SCALED {
            self.scale_weights::<S, Q, E>(simd, slots, vector);
        }
        let group_of = |e: usize| (vector + e) / VECTORS_PER_SCALE - vector / VECTORS_PER_SCALE;
        for first in slots.clone().step_by(LANES) {
            let piece = first..slots.end.min(first + LANES);
            let values = &values[piece.start * vectors..piece.end * vectors];
            let targets = range.targets(values[vector..].as_ptr().cast(), NEAR_BYTES, policy_of(Q));
            for (at, (row, slot)) in values.chunks_exact(vectors).zip(piece).enumerate() {
                let row = &row[vector..vector + E];
                targets.prefetch(at * row_bytes, size_of_val(row));
                // It is below that anyway, and now no weight's index is checked.
                let slot = slot % PAGE_POSITIONS;
                if F::SCALED {
                    for (e, row) in row.iter().enumerate() {
                        let v = F::load(simd, row);
                        for (sums, weights) in sums.iter_mut().zip(&self.scaled[group_of(e)]) {
                            sums[e] = simd.mul_add(v, simd.splat(weights[slot]), sums[e]);
                        }
                    }
                } else {
                    let v: [S::V; E] = std::array::from_fn(|e| F::load(simd, &row[e]));
                    let weights: [f32; Q] = std::array::from_fn(|query| self.scores[query][slot]);
                    accumulate(simd, &mut sums, &v, &weights);
                }
            }
        }
        let (o, _) = self.o.as_chunks_mut::<LANES>();
        for (query, sums) in sums.into_iter().enumerate() {
            for (e, sum) in sums.into_iter().enumerate() {
                simd.store(sum, &mut o[query * vectors + vector + e]);
            }
        }
        E
    }

    /// Weights times the scales of `E` vectors of values.
    #[inline(always)]
    fn scale_weights<S: Simd, const Q: usize, const E: usize>(
        &mut self,
        simd: S,
        slots: &Range<usize>,
        vector: usize,
    ) {
        let first = vector / VECTORS_PER_SCALE;
        let last = (vector + E - 1) / VECTORS_PER_SCALE;
        for (scaled, group) in self.scaled.iter_mut().zip(first..=last) {
            let scales = self.page.value_scales();
            for (scaled, weights) in scaled.iter_mut().zip(&self.scores[..Q]) {
                let ((scaled, _), (weights, _)) = (scaled.as_chunks_mut(), weights.as_chunks());
                for block in slots.start / LANES..slots.end.div_ceil(LANES) {
                    let scale = simd.load_f16(scales.at(group, block));
                    simd.store(simd.mul(simd.load(&weights[block]), scale), &mut scaled[block]);
                }
            }
        }
    }
}

/// Number of sums that a block of keys takes: sums of a group take registers too.
const fn key_sums<F: KvFormat>(queries: usize) -> usize {
    if F::SCALED { 2 * queries } else { queries }
}

/// Few queries wait for memory.
#[inline(always)]
fn policy_of(queries: usize) -> PrefetchPolicy {
    if queries <= 4 { PrefetchPolicy::for_pages() } else { PrefetchPolicy::Never }
}

/// Adds the products of elements of the keys of P blocks with those of Q queries; `ask` is called with the numbers of bytes of
/// keys that were read before and after.
#[inline(always)]
fn add_products<S: Simd, F: KvFormat, const Q: usize, const P: usize>(
    simd: S,
    sums: &mut [[S::V; P]; Q],
    keys: [&[[F::Raw; LANES]]; P],
    q: &[[f32; Q]],
    ask: impl Fn(usize, usize),
) {
    // So many at a time, of which no index is checked.
    const ELEMENTS: usize = 8;
    let bytes = P * size_of::<[F::Raw; LANES]>();
    let (steps, rest) = q.as_chunks::<ELEMENTS>();
    let key_steps = keys.map(|keys| keys.as_chunks::<ELEMENTS>().0);
    for (step, q) in steps.iter().enumerate() {
        ask(step * ELEMENTS * bytes, ELEMENTS * bytes);
        let keys: [&[_; ELEMENTS]; P] = std::array::from_fn(|p| &key_steps[p][step]);
        for e in 0..ELEMENTS {
            let k: [S::V; P] = std::array::from_fn(|p| F::load(simd, &keys[p][e]));
            accumulate(simd, sums, &k, &q[e]);
        }
    }
    for (e, q) in (q.len() - rest.len()..).zip(rest) {
        ask(e * bytes, bytes);
        let k: [S::V; P] = std::array::from_fn(|p| F::load(simd, &keys[p][e]));
        accumulate(simd, sums, &k, q);
    }
}

/// `sums[q][p] += factors[q] · v[p]`.
#[inline(always)]
fn accumulate<S: Simd, const Q: usize, const P: usize>(
    simd: S,
    sums: &mut [[S::V; P]; Q],
    v: &[S::V; P],
    factors: &[f32; Q],
) {
    for (sums, &factor) in sums.iter_mut().zip(factors) {
        let factor = simd.splat(factor);
        for (sum, &v) in sums.iter_mut().zip(v) {
            *sum = simd.mul_add(v, factor, *sum);
        }
    }
}

/// Merges the next page into what was seen before. Pages are merged in order.
pub(super) struct Merge<'a> {
    pub seen: &'a mut Partial,
    pub o: &'a mut [f32],
    pub next: Partial,
    pub next_o: &'a [f32],
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if self.next.m == f32::NEG_INFINITY && self.next.s == 0.0 {
            return;
        }
        let m = if self.seen.m > self.next.m { self.seen.m } else { self.next.m };
        let mut factors = [0.0; LANES];
        factors[0] = self.seen.m - m;
        factors[1] = self.next.m - m;
        let exponentials = simd.exp(simd.load(&factors));
        simd.store(exponentials, &mut factors);
        self.seen.m = m;
        self.seen.s = self.seen.s * factors[0] + self.next.s * factors[1];
        let (before, after) = (simd.splat(factors[0]), simd.splat(factors[1]));
        let (o, _) = self.o.as_chunks_mut::<LANES>();
        let (next, _) = self.next_o.as_chunks::<LANES>();
        for (o, next) in o.iter_mut().zip(next) {
            let sum = simd.mul_add(simd.load(o), before, simd.mul(simd.load(next), after));
            simd.store(sum, o);
        }
    }
}
