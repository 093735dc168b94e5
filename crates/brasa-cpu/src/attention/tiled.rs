//! Attention of many queries, with products of 16 bits.
//!
//! The queries of an item are rounded once, the keys and values of a page once for all of them ([`super::panels`]): to bf16
//! for a matrix unit, queries and keys to [`int16`] for vectors, so that keys need no second product.
//! 32 queries then meet the page together. Products with keys make their scores in f32, 16 positions a tile. The softmax
//! is f32. Its weights are rounded and multiplied with the values, and the sums grow from page to page. If a page has a
//! larger score than any before, the earlier sums are scaled down first (Milakov & Gimelshein 2018, arXiv:1805.02867;
//! Dao et al. 2022, arXiv:2205.14135).
//!
//! Tiles multiply 16 queries and 16 positions in as many cycles as E, in which the softmax has 16 vectors to turn into
//! weights. A weight holds eight bits, so [`exp2`] is good to 13, in half the instructions of an f32's.
//!
//! Sums are divided by the sum of the rounded weights. If rounding enlarges the share of one value, it then reduces the
//! shares of the others, so the common part of all values keeps its size. This sum is also faster: one product of
//! pairs with ones.
//!
//! A query's result does not depend on the other queries of its item: positions that it does not see have weight zero.
#![expect(unsafe_code, reason = "instructions behind proofs that the processor has them")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;
use std::ops::Range;

use brasa_graph::device::KvType;

use crate::Isa;
use crate::bf16::{Bf16Multiplier, bf16, round};
use crate::context::Context;
use crate::int16;
use crate::isa::Avx512;
use crate::kv::CacheReader;
use crate::kv::layout::{BLOCKS, TileLayout};
use crate::prefetch::lines;
use crate::rounded::RoundedRows;
use crate::simd::{LANES, Simd};
use crate::tiles::{BF16_SIDE, Bf16Factors, Bf16MatrixUnit, Bf16Rows, ROWS, Sums, TileMemory};

use super::items::Item;
use super::page::{Distances, Scoring};
use super::panels::{Panels, STEP, STEPS};
use super::plan::{Attention, Tiled};
use super::scratch::AttentionScratch;
use super::source::{Bf16, F16, F32, KvFormat, Page, Q8, Stage};

/// Queries that meet a page together, two groups of 16.
const TOGETHER: usize = BF16_SIDE * ROWS;
/// Tiles of scores that a group of queries has at a step of [`STEP`] positions.
const STEP_PANELS: usize = STEP / LANES;

/// Number of rows of results that are prefetched. Each lies on a memory page of its own, which the processor does not foresee.
const ROWS_AHEAD: usize = 4;

/// A thread's memory for tiled attention. It is allocated when it is first needed.
#[derive(Debug, Default)]
pub(super) struct TiledScratch {
    /// Rounded queries.
    q: RoundedRows,
    /// For each query the factor that makes elements of its int16 codes.
    factors: Vec<f32>,
    /// Rounded keys and values of a page.
    panels: Panels,
    /// Scores of two groups, by 16 positions and group.
    scores: Vec<Sums<f32>>,
    /// Softmax weights of two groups, by group and 32 positions.
    weights: TileMemory<Bf16Rows>,
    /// The penalties for distance of the queries that meet a page; empty for none.
    distances: Vec<Distances>,
    /// Sums of values, by two groups, 16 elements, and group.
    o: Vec<Sums<f32>>,
    /// The softmax of each group so far.
    seen: Vec<Seen>,
    /// True if the softmax of each query began with a sink, so that the sums in `o` began with zeros.
    has_sinks: bool,
}

/// The softmax of a group of queries so far: `m`, the largest score, and `s` = Σ 2^(score − m). Scores are in units of ln 2.
#[derive(Clone, Copy, Debug)]
struct Seen {
    m: [f32; ROWS],
    s: [f32; ROWS],
}

impl Seen {
    /// The softmax over nothing. The difference of two such largest scores is a number, not a NaN.
    const NONE: Self = Self { m: [f32::MIN; ROWS], s: [0.0; ROWS] };
}

impl TiledScratch {
    fn reserve(&mut self, queries: usize, key_dim: usize, value_dim: usize) {
        self.panels.reserve(key_dim, value_dim);
        let groups = queries.div_ceil(ROWS);
        self.q.reshape(queries, key_dim);
        self.factors.resize(queries, 1.0);
        self.weights.reserve(BF16_SIDE * STEPS);
        self.distances.clear();
        self.distances.reserve(TOGETHER);
        self.scores.resize(BLOCKS * BF16_SIDE, Sums([[0.0; LANES]; ROWS]));
        let sums = groups * self.panels.value_panels();
        if self.o.len() < sums {
            self.o.resize(sums, Sums([[0.0; LANES]; ROWS]));
        }
        self.seen.clear();
        self.seen.resize(groups, Seen::NONE);
        self.has_sinks = false;
    }

    /// Begins the softmax of each query with its head's sink. Does nothing if `sinks` is empty.
    fn begin_with(&mut self, sinks: &[f32], queries: usize) {
        if sinks.is_empty() {
            return;
        }
        self.has_sinks = true;
        for query in 0..queries {
            let seen = &mut self.seen[query / ROWS];
            // A sink of −∞ is none; the difference of two largest scores stays a number.
            let m = sinks[query % sinks.len()] * std::f32::consts::LOG2_E;
            seen.m[query % ROWS] = if m < f32::MIN { f32::MIN } else { m };
            seen.s[query % ROWS] = 1.0;
        }
        self.o.fill(Sums([[0.0; LANES]; ROWS]));
    }
}

impl Attention {
    /// Computes all pages of an item, in order.
    pub(super) fn run_tiled(
        &self,
        cx: &Context<'_>,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        tiled: Tiled,
        scratch: &mut AttentionScratch,
    ) {
        let AttentionScratch { stage, tiled: scratch, .. } = scratch;
        let heads = self.group_heads();
        let queries = item.rows.len() * heads;
        scratch.reserve(queries, self.key_dim, self.value_dim);
        self.with_sinks(cx, item.head, |sinks| scratch.begin_with(sinks, queries));
        self.load_tiles(cx, item, tiled.proof, scratch);
        let unit = Bf16Multiplier::new(tiled.proof, tiled.bf16);
        for page in self.sight.pages(item.segment, &item.rows) {
            let stored = self.stored(cx.step, item, page);
            self.fill(cx.isa, cache, item, (page, stored), tiled, stage, &mut scratch.panels);
            for first in (0..queries).step_by(TOGETHER) {
                let count = TOGETHER.min(queries - first);
                let mut visible = [const { 0..0 }; TOGETHER];
                scratch.distances.clear();
                for (query, visible) in visible[..count].iter_mut().enumerate() {
                    let row = item.rows.start + (first + query) / heads;
                    *visible = self.sight.of_page(item.segment, row, page).slots;
                    scratch.distances.extend(self.distances(item, first + query, page));
                }
                scratch.meet(&unit, tiled, self.scoring, first / ROWS, &visible[..count]);
            }
        }
        self.store_tiles(cx, item, tiled.proof, scratch);
    }

    /// Rounds the queries of an item.
    fn load_tiles(&self, cx: &Context<'_>, item: &Item<'_>, proof: Avx512, scratch: &mut TiledScratch) {
        let region = cx.region(&self.q).of_rows(item.rows.clone()).of_columns(self.query_columns(item.head));
        let q = cx.rows_in::<f32>(&self.q, region);
        for row in 0..item.rows.len() {
            for (head, q) in q.row(row).chunks_exact(self.key_dim).enumerate() {
                let query = row * self.group_heads() + head;
                if proof.tiles().is_some() {
                    scratch.q.round_row(cx.isa, query, q);
                } else {
                    scratch.factors[query] = int16::round_row(proof, q, scratch.q.tiles_of_row(query));
                }
            }
        }
    }

    /// Rounds the positions of a page that the item sees.
    #[expect(clippy::too_many_arguments, reason = "a page and the memory for it")]
    fn fill(
        &self,
        isa: Isa,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        (page, stored): (usize, u32),
        tiled: Tiled,
        stage: &mut Stage,
        panels: &mut Panels,
    ) {
        let slots = self.sight.of_rows(item.segment, &item.rows, page);
        let head = item.head;
        let to = FillPanels { isa, tiled, slots, stage, panels };
        match cache.layout().dtype {
            KvType::F32 => to.fill(cache.layout(), Page::<F32>::of(cache, stored, head)),
            KvType::F16 => to.fill(cache.layout(), Page::<F16>::of(cache, stored, head)),
            KvType::BF16 => to.fill(cache.layout(), Page::<Bf16>::of(cache, stored, head)),
            KvType::Q8 => to.fill(cache.layout(), Page::<Q8>::of(cache, stored, head)),
        }
    }

    /// Writes `o / s` of every query of the item.
    fn store_tiles(&self, cx: &Context<'_>, item: &Item<'_>, proof: Avx512, scratch: &TiledScratch) {
        let heads = self.group_heads();
        let region =
            cx.region(&self.out).of_rows(item.rows.clone()).of_columns(self.result_columns(item.head));
        // SAFETY: the items of a step have rows and columns of their own; only this thread took this item.
        let mut out = unsafe { cx.write::<f32>(&self.out, region) };
        for row in 0..item.rows.len() {
            let ahead = out.row((row + ROWS_AHEAD).min(item.rows.len() - 1));
            lines(ahead.as_ptr().cast(), size_of_val(ahead));
            for (head, out) in out.row(row).chunks_exact_mut(self.value_dim).enumerate() {
                // SAFETY: the proof.
                unsafe { scratch.result(proof, row * heads + head, out) }
            }
        }
    }
}

/// Memory for the rounded positions of a page.
struct FillPanels<'a> {
    isa: Isa,
    tiled: Tiled,
    slots: Range<usize>,
    stage: &'a mut Stage,
    panels: &'a mut Panels,
}

impl FillPanels<'_> {
    /// Rounds keys and values of a page. Values that are the first elements of keys are transposed first.
    fn fill<F: KvFormat>(self, layout: TileLayout, page: Page<'_, F>) {
        let Self { isa, tiled: Tiled { proof, bf16 }, slots, stage, panels } = self;
        if layout.value.is_prefix() {
            stage.fill(isa, page, slots.clone());
            panels.fill(proof, bf16, stage.over(page), slots);
        } else {
            panels.fill(proof, bf16, page, slots);
        }
    }
}

impl TiledScratch {
    /// Computes one or two groups of queries, from group `first` on, against the page.
    fn meet(
        &mut self,
        unit: &Bf16Multiplier,
        tiled: Tiled,
        scoring: Scoring,
        first: usize,
        visible: &[Range<usize>],
    ) {
        let seen = visible.iter().filter(|slots| !slots.is_empty());
        let Some(all) = seen.cloned().reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { return };
        let steps = all.start / STEP..all.end.div_ceil(STEP);
        let (rows, groups) = (visible.len(), visible.len().div_ceil(ROWS));
        let q: [_; BF16_SIDE] = std::array::from_fn(|group| self.q.view().tiles(first + group % groups));
        for step in steps.clone() {
            let panels = step * STEP_PANELS..(step + 1) * STEP_PANELS;
            let scores = &mut self.scores[panels.start * groups..panels.end * groups];
            if tiled.proof.tiles().is_none() {
                let factors = &self.factors[first * ROWS..][..rows];
                for (panel, scores) in panels.zip(scores.chunks_exact_mut(groups)) {
                    let (keys, scales) = (self.panels.keys(panel), self.panels.key_scales(panel));
                    for ((q, scores), factors) in q.iter().zip(scores).zip(factors.chunks(ROWS)) {
                        int16::multiply(tiled.proof, q, factors, keys, scales, scores);
                    }
                }
                continue;
            }
            let keys: [_; STEP_PANELS] = std::array::from_fn(|panel| self.panels.keys(panels.start + panel));
            let (first, second) = scores.split_at_mut(groups);
            let scores = &mut [first, second];
            unit.sum_bf16::<false>(Bf16Factors { a: &q[..groups], rows, b: &keys }, scores);
            let residuals = std::array::from_fn::<_, STEP_PANELS, _>(|panel| {
                self.panels.key_residuals(panels.start + panel)
            });
            unit.sum_bf16::<true>(Bf16Factors { a: &q[..groups], rows, b: &residuals }, scores);
        }
        let panels = self.panels.value_panels();
        let o = &mut self.o[first * panels..][..groups * panels];
        // Sums that are still to begin.
        let fresh =
            !self.has_sinks && self.seen[first..first + groups].iter().all(|seen| seen.m == Seen::NONE.m);
        for (group, visible) in visible.chunks(ROWS).enumerate() {
            let softmax = Softmax {
                scoring,
                distances: self.distances.get(group * ROWS..).unwrap_or(&[]),
                visible,
                steps: steps.clone(),
                scores: &mut self.scores[group..],
                stride: groups,
                weights: &mut self.weights[group * STEPS..][..STEPS],
                seen: &mut self.seen[first + group],
                o: if fresh { &mut [] } else { &mut o[group..] },
            };
            // SAFETY: the proofs.
            unsafe { softmax.run(tiled.proof) }
        }
        let weights: [_; BF16_SIDE] =
            std::array::from_fn(|group| &self.weights[group * STEPS..][steps.clone()]);
        for (pair, o) in o.chunks_mut(BF16_SIDE * groups).enumerate() {
            let values: [_; BF16_SIDE] = std::array::from_fn(|panel| {
                let panel = (pair * BF16_SIDE + panel).min(panels - 1);
                self.panels.values(panel, steps.clone())
            });
            let values = &values[..o.len() / groups];
            let (first, second) = o.split_at_mut(groups);
            let pair = &mut [first, second][..values.len()];
            let factors = Bf16Factors { a: &weights[..groups], rows, b: values };
            if fresh {
                unit.sum_bf16::<false>(factors, pair);
            } else {
                unit.sum_bf16::<true>(factors, pair);
            }
        }
    }
}

impl TiledScratch {
    /// Writes `o / s` of a query to `out`.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    fn result(&self, simd: Avx512, query: usize, out: &mut [f32]) {
        let (group, row) = (query / ROWS, query % ROWS);
        let first = group / BF16_SIDE * BF16_SIDE;
        let together = BF16_SIDE.min(self.seen.len() - first);
        let place = first * self.panels.value_panels() + group % BF16_SIDE;
        let mut o = self.o[place..].iter().step_by(together).map(|o| &o.0[row]);
        let inverse = 1.0 / self.seen[group].s[row];
        let (whole, rest) = out.as_chunks_mut::<LANES>();
        for (out, o) in whole.iter_mut().zip(&mut o) {
            simd.store(simd.mul(simd.load(o), simd.splat(inverse)), out);
        }
        for (out, o) in rest.iter_mut().zip(o.flatten()) {
            *out = o * inverse;
        }
    }
}

/// The scores of a group at the positions of a page, on their way to weights.
struct Softmax<'a> {
    scoring: Scoring,
    /// The penalties of each query for distance; empty for none.
    distances: &'a [Distances],
    /// Slots that each query sees.
    visible: &'a [Range<usize>],
    steps: Range<usize>,
    /// Scores by 16 positions, `stride` apart.
    scores: &'a mut [Sums<f32>],
    stride: usize,
    /// Softmax weights by 32 positions.
    weights: &'a mut [Bf16Rows],
    seen: &'a mut Seen,
    /// Sums of values by 16 elements, `stride` apart; empty before the first page.
    o: &'a mut [Sums<f32>],
}

impl Softmax<'_> {
    /// Computes the weights of all steps, zero for positions that are not seen, and scales `seen` and `o` to the new largest
    /// scores.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn run(mut self, simd: Avx512) {
        let Scoring { mut scale, softcap } = self.scoring;
        // Otherwise the largest product is also the largest score, and scaling is part of the subtraction.
        if softcap.is_some() || !self.distances.is_empty() || scale <= 0.0 {
            self.bend(simd);
            scale = 1.0;
        }
        let scale = scale * std::f32::consts::LOG2_E;
        let mut m = self.seen.m;
        for (row, m) in m.iter_mut().enumerate().take(self.visible.len()) {
            let largest = self.largest(row) * scale;
            *m = if largest > *m { largest } else { *m };
        }
        self.rescale(simd, &m);
        for (row, m) in m.into_iter().enumerate().take(self.visible.len()) {
            self.seen.s[row] += self.weigh(simd, row, scale, -m);
        }
    }

    /// The steps of which a query sees at least one position.
    fn steps_of(&self, row: usize) -> Range<usize> {
        let visible = &self.visible[row];
        if visible.is_empty() {
            return self.steps.start..self.steps.start;
        }
        visible.start / STEP..visible.end.div_ceil(STEP)
    }

    /// Computes scores from products if they are more than multiples of them.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn bend(&mut self, simd: Avx512) {
        let Scoring { scale, softcap } = self.scoring;
        for panel in self.steps.start * STEP_PANELS..self.steps.end * STEP_PANELS {
            let scores = &mut self.scores[panel * self.stride].0[..self.visible.len()];
            for (row, scores) in scores.iter_mut().enumerate() {
                let mut score = simd.mul(simd.load(scores), simd.splat(scale));
                if let Some(cap) = softcap {
                    let bent = simd.tanh(simd.div(score, simd.splat(cap)));
                    score = simd.mul(bent, simd.splat(cap));
                }
                if let Some(distances) = self.distances.get(row) {
                    score = simd.sub(score, distances.penalties(simd, panel * LANES));
                }
                simd.store(score, scores);
            }
        }
    }

    /// Returns the largest score that a query sees, and sets the scores that it does not see to −∞.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn largest(&mut self, row: usize) -> f32 {
        let visible = &self.visible[row];
        let steps = self.steps_of(row);
        let edges = [visible.start / STEP, visible.end.saturating_sub(1) / STEP];
        let cut = [!visible.start.is_multiple_of(STEP), !visible.end.is_multiple_of(STEP)];
        for (edge, _) in edges.into_iter().zip(cut).filter(|(_, cut)| *cut && !visible.is_empty()) {
            for panel in edge * STEP_PANELS..(edge + 1) * STEP_PANELS {
                let below = |end: usize| (1_u32 << end.saturating_sub(panel * LANES).min(LANES)) - 1;
                let hidden = !(below(visible.end) & !below(visible.start)) as u16;
                let scores = &mut self.scores[panel * self.stride].0[row];
                // SAFETY: at most 16 floats are written.
                unsafe {
                    _mm512_mask_storeu_ps(scores.as_mut_ptr(), hidden, _mm512_set1_ps(f32::NEG_INFINITY));
                }
            }
        }
        let mut largest = [_mm512_set1_ps(f32::NEG_INFINITY); STEP_PANELS];
        for step in steps {
            for (panel, largest) in largest.iter_mut().enumerate() {
                *largest = _mm512_max_ps(self.load(step, panel, row), *largest);
            }
        }
        _mm512_reduce_max_ps(_mm512_max_ps(largest[0], largest[1]))
    }

    /// Changes the largest scores to `m`, and scales the sums of weights and values to them.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn rescale(&mut self, simd: Avx512, m: &[f32; ROWS]) {
        let (before, after) = (simd.load(&self.seen.m), simd.load(m));
        let grown = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(before, after);
        if grown == 0 {
            return;
        }
        self.seen.m = *m;
        let mut factors = [0.0; ROWS];
        simd.store(exp2(simd.sub(before, after)), &mut factors);
        for row in (0..ROWS).filter(|row| grown >> row & 1 == 1) {
            self.seen.s[row] *= factors[row];
            for o in self.o.iter_mut().step_by(self.stride) {
                let scaled = simd.mul(simd.load(&o.0[row]), simd.splat(factors[row]));
                simd.store(scaled, &mut o.0[row]);
            }
        }
    }

    /// Computes the weights of a query, 2^(score · scale − m), and returns their sum.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn weigh(&mut self, simd: Avx512, row: usize, scale: f32, minus_m: f32) -> f32 {
        const ONES: i32 = 0x3f80_3f80;
        let seen = self.steps_of(row);
        for step in (self.steps.start..seen.start).chain(seen.end..self.steps.end) {
            self.weights[step][row].fill(0);
        }
        let (scale, minus_m) = (simd.splat(scale), simd.splat(minus_m));
        let mut sum = simd.splat(0.0);
        for step in seen {
            let [first, second]: [_; STEP_PANELS] =
                std::array::from_fn(|panel| exp2(simd.mul_add(self.load(step, panel, row), scale, minus_m)));
            let rounded = round(first, second);
            // SAFETY: 32 bf16 are written.
            unsafe { _mm512_storeu_si512(self.weights[step][row].as_mut_ptr().cast(), rounded) };
            sum = _mm512_dpbf16_ps(sum, bf16(rounded), bf16(_mm512_set1_epi32(ONES)));
        }
        _mm512_reduce_add_ps(sum)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(&self, step: usize, panel: usize, row: usize) -> __m512 {
        let scores = &self.scores[(step * STEP_PANELS + panel) * self.stride].0[row];
        // SAFETY: 16 floats are read.
        unsafe { _mm512_loadu_ps(scores.as_ptr()) }
    }
}

/// 2^t with a relative error of at most 8e-5, zero below −126; NaN stays NaN.
///
/// 2^(t − ⌊t⌋) is the cubic of the least relative error on 0..1 (Remez 1934); ⌊t⌋ is added to the exponent.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn exp2(t: __m512) -> __m512 {
    const FRACTION: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    let normal = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(t, _mm512_set1_ps(-126.0));
    let r = _mm512_reduce_ps::<FRACTION>(t);
    let mut p = _mm512_set1_ps(0.078_024_52);
    for c in [0.226_067_16, 0.695_833_54, 0.999_925_2] {
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    }
    _mm512_maskz_scalef_ps(normal, p, t)
}
