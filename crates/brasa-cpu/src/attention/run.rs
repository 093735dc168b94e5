//! Running attention: items of f32 queries, page by page.
#![expect(unsafe_code, reason = "reads pages that other operations write, and writes items of one result")]

use std::ops::Range;
use std::{iter, ptr};

use brasa_graph::Sizes;
use brasa_graph::device::KvType;

use crate::Isa;
use crate::context::Context;
use crate::kv::{CacheReader, RowPagesSize, SharedKv};
use crate::ops::operation::{Cost, Operation};
use crate::ops::scratch::{Scratch, ScratchSize};
use crate::simd::vectorize;
use crate::slot::{Operands, Place};
use crate::step_state::StepState;
use crate::weights::CpuWeights;

use super::items::{Item, Items};
#[cfg(target_arch = "x86_64")]
use super::page::MAX_QUERIES;
use super::page::{Merge, PageKernel, Partial};
use super::plan::{Attention, Class, Keys, Split};
use super::scratch::AttentionScratch;
use super::source::{Bf16, F16, F32, KvFormat, Page, Q8, Stage};
use super::visibility::Visible;

/// Queries from which on a page is converted to f32 before they meet it; see [`source`](super::source).
const STAGED_QUERIES: usize = 24;

impl Operation for Attention {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q);
        match self.keys {
            Keys::Cache { group, place } => list.reads("cache", Place::Cache(group, place)),
            Keys::Rows { k, v } => list.reads("k", k).reads("v", v),
        };
        if let Some(sinks) = self.sinks {
            list.reads("sinks", sinks);
        }
        list.writes("out", self.out);
    }

    /// Waits at the barrier once if items are cut into pages, or if rows are laid out as pages.
    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let scratch = &mut scratch.attention;
        let cache = match self.keys {
            // SAFETY: caches are written by other operations, before a barrier.
            Keys::Cache { group, place } => unsafe { cx.kv.cache(group, place).reader() },
            Keys::Rows { k, v } => self.lay_out_rows(cx, k, v),
        };
        match self.split(cx.step, cx.threads) {
            None => {
                let mut items = Items::new(self, cx.isa, cx.step, cx.threads);
                while let Some(item) = items.get(cx.take()) {
                    match self.class(cx.isa, item.segment) {
                        Class::Vectors => self.run_item(cx, cache, &item, scratch),
                        #[cfg(target_arch = "x86_64")]
                        Class::Tiled(tiled) => self.run_tiled(cx, cache, &item, tiled, scratch),
                    }
                }
            }
            Some(split) => {
                let mut items = Items::new(self, cx.isa, cx.step, cx.threads);
                loop {
                    let unit = cx.take();
                    let Some(item) = items.get(unit / split.pages) else { break };
                    self.run_unit(cx, cache, &item, &split, unit, scratch);
                }
                cx.wait();
                let mut items = Items::new(self, cx.isa, cx.step, cx.threads);
                let mut next = cx.thread;
                while let Some(item) = items.get(next) {
                    self.merge_units(cx, &item, &split, scratch);
                    next += cx.threads;
                }
            }
        }
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.add_heads(self.heads, self.kv_heads, self.key_dim.max(self.value_dim));
    }

    fn partial_elements(&self, step: &StepState, threads: usize) -> usize {
        self.partial_results(step, threads)
    }

    fn row_pages(&self, step: &StepState) -> RowPagesSize {
        match self.keys {
            Keys::Cache { .. } => RowPagesSize::default(),
            Keys::Rows { .. } => self.size_of_row_pages(step),
        }
    }

    fn cost(&self, step: &StepState, _: &CpuWeights, kv: SharedKv<'_>) -> Cost {
        let bytes = match self.keys {
            Keys::Cache { group, .. } => self.read_bytes(step, kv.position_bytes(group)),
            // What was just computed is in the processor's caches.
            Keys::Rows { .. } => 0,
        };
        Cost { bytes, flops: self.flops(step) }
    }
}

impl Attention {
    /// Computes all pages of an item, in order.
    fn run_item(
        &self,
        cx: &Context<'_>,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        scratch: &mut AttentionScratch,
    ) {
        let queries = item.rows.len() * self.group_heads();
        let width = self.value_width();
        self.load_queries(cx, item, scratch);
        self.begin(cx, item, &mut scratch.seen[..queries]);
        scratch.o[..queries * width].fill(0.0);
        let pages = self.sight.pages(item.segment, &item.rows);
        for page in pages.clone() {
            let stored = self.stored(cx.step, item, page);
            let next = (page + 1 < pages.end).then(|| self.stored(cx.step, item, page + 1));
            let behind = next.map_or(ptr::null(), |next| cache.keys::<u8>(next, item.head).as_ptr().cast());
            let must_stage = cache.layout().value.is_prefix();
            let staged = (must_stage || queries >= STAGED_QUERIES)
                && self.stage(cx.isa, cache, item, page, stored, scratch);
            for first in (0..queries).step_by(tile_queries(cx.isa)) {
                let count = tile_queries(cx.isa).min(queries - first);
                let tile = Tile { page, stored, staged, queries: first..first + count, behind };
                self.run_tile(cx.isa, cache, item, &tile, scratch);
                for (query, next) in (first..first + count).zip(scratch.next) {
                    let o = &mut scratch.o[query * width..(query + 1) * width];
                    let next_o = &scratch.next_o[(query - first) * width..(query - first + 1) * width];
                    let seen = &mut scratch.seen[query];
                    vectorize(cx.isa, Merge { seen, o, next, next_o });
                }
            }
        }
        self.store(cx, item, scratch);
    }

    /// Sets the softmax of an item's queries before the first page: over nothing, or over the sinks of their heads.
    fn begin(&self, cx: &Context<'_>, item: &Item<'_>, seen: &mut [Partial]) {
        self.with_sinks(cx, item.head, |sinks| {
            let begun = sinks.iter().map(|&sink| Partial::of_sink(sink)).cycle();
            seen.iter_mut().zip(begun.chain(iter::repeat(Partial::NONE))).for_each(|(seen, of)| *seen = of);
        });
    }

    /// Converts the positions of a page that the item sees to f32. Returns false if there is nothing to do: the cache
    /// holds f32, with values beside keys.
    fn stage(
        &self,
        isa: Isa,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        page: usize,
        stored: u32,
        scratch: &mut AttentionScratch,
    ) -> bool {
        let slots = self.sight.of_rows(item.segment, &item.rows, page);
        let stage = &mut scratch.stage;
        match cache.layout().dtype {
            KvType::F32 if !cache.layout().value.is_prefix() => return false,
            KvType::F32 => stage.fill(isa, Page::<F32>::of(cache, stored, item.head), slots),
            KvType::F16 => stage.fill(isa, Page::<F16>::of(cache, stored, item.head), slots),
            KvType::BF16 => stage.fill(isa, Page::<Bf16>::of(cache, stored, item.head), slots),
            KvType::Q8 => stage.fill(isa, Page::<Q8>::of(cache, stored, item.head), slots),
        }
        true
    }

    /// Computes one page of an item, and keeps the result for [`merge_units`](Self::merge_units).
    fn run_unit(
        &self,
        cx: &Context<'_>,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        split: &Split,
        unit: usize,
        scratch: &mut AttentionScratch,
    ) {
        let pages = self.sight.pages(item.segment, &item.rows);
        let page = pages.start + unit % split.pages;
        if page >= pages.end {
            return;
        }
        self.load_queries(cx, item, scratch);
        let queries = item.rows.len() * self.group_heads();
        let width = self.value_width();
        let stored = self.stored(cx.step, item, page);
        let staged =
            cache.layout().value.is_prefix() && self.stage(cx.isa, cache, item, page, stored, scratch);
        // SAFETY: the units of a step have regions of their own; only this thread took this unit.
        let mut out = unsafe { cx.partials().write::<f32>(split.unit(unit, queries, width)) };
        for first in (0..queries).step_by(tile_queries(cx.isa)) {
            let count = tile_queries(cx.isa).min(queries - first);
            let queries = first..first + count;
            let tile = Tile { page, stored, staged, queries, behind: ptr::null() };
            self.run_tile(cx.isa, cache, item, &tile, scratch);
            for (query, next) in scratch.next[..count].iter().enumerate() {
                let row = out.row(first + query);
                row[..width].copy_from_slice(&scratch.next_o[query * width..(query + 1) * width]);
                row[width] = next.m;
                row[width + 1] = next.s;
            }
        }
    }

    /// Merges the results of an item's pages, in order.
    fn merge_units(&self, cx: &Context<'_>, item: &Item<'_>, split: &Split, scratch: &mut AttentionScratch) {
        let queries = item.rows.len() * self.group_heads();
        let width = self.value_width();
        let number = item.number * self.kv_heads + item.head;
        self.begin(cx, item, &mut scratch.seen[..queries]);
        scratch.o[..queries * width].fill(0.0);
        for page in 0..self.sight.pages(item.segment, &item.rows).len() {
            let unit = number * split.pages + page;
            // SAFETY: units were written before the barrier.
            let rows = unsafe { cx.partials().read::<f32>(split.unit(unit, queries, width)) };
            for query in 0..queries {
                let row = rows.row(query);
                let o = &mut scratch.o[query * width..(query + 1) * width];
                let next = Partial { m: row[width], s: row[width + 1] };
                let merge = Merge { seen: &mut scratch.seen[query], o, next, next_o: &row[..width] };
                vectorize(cx.isa, merge);
            }
        }
        self.store(cx, item, scratch);
    }

    /// Lays the item's queries out as `[E][queries]` of each tile; a short tile is filled up with zeroes.
    fn load_queries(&self, cx: &Context<'_>, item: &Item<'_>, scratch: &mut AttentionScratch) {
        let width = self.key_dim;
        let heads = self.group_heads();
        let region = cx.region(&self.q).of_rows(item.rows.clone()).of_columns(self.query_columns(item.head));
        let q = cx.rows_in::<f32>(&self.q, region);
        let queries = item.rows.len() * heads;
        let tile = tile_queries(cx.isa);
        for first in (0..queries).step_by(tile) {
            let count = tile.min(queries - first);
            let padded = count.next_power_of_two();
            let to = &mut scratch.q[first * width..][..padded * width];
            for column in 0..padded {
                if column >= count {
                    to.iter_mut().skip(column).step_by(padded).for_each(|q| *q = 0.0);
                    continue;
                }
                let (row, head) = ((first + column) / heads, (first + column) % heads);
                let from = &q.row(row)[head * width..(head + 1) * width];
                for (to, &from) in to.iter_mut().skip(column).step_by(padded).zip(from) {
                    *to = from;
                }
            }
        }
    }

    /// Computes a tile of queries against one page, into `next` and `next_o` of `scratch`.
    fn run_tile(
        &self,
        isa: Isa,
        cache: CacheReader<'_>,
        item: &Item<'_>,
        tile: &Tile,
        scratch: &mut AttentionScratch,
    ) {
        let queries = &tile.queries;
        let padded = queries.len().next_power_of_two();
        scratch.distances.clear();
        for (i, visible) in scratch.visible[..padded].iter_mut().enumerate() {
            let row = item.rows.start + (queries.start + i) / self.group_heads();
            let real = i < queries.len();
            *visible = if real { self.sight.of_page(item.segment, row, tile.page) } else { Visible::NONE };
            scratch.distances.extend(self.distances(item, queries.start + i, tile.page));
        }
        let width = self.key_dim;
        let kernel = PageKernel {
            page: (),
            q: &scratch.q[queries.start * width..][..padded * width],
            visible: &scratch.visible[..padded],
            scoring: self.scoring,
            distances: &scratch.distances,
            scores: &mut scratch.scores,
            scaled: &mut scratch.scaled,
            partials: &mut scratch.next[..padded],
            o: &mut scratch.next_o[..padded * self.value_width()],
            behind: tile.behind,
        };
        let (page, head) = (tile.stored, item.head);
        let stage = tile.staged.then_some(&scratch.stage);
        match cache.layout().dtype {
            KvType::F32 => kernel.run_on(isa, Page::<F32>::of(cache, page, head), stage),
            KvType::F16 => kernel.run_on(isa, Page::<F16>::of(cache, page, head), stage),
            KvType::BF16 => kernel.run_on(isa, Page::<Bf16>::of(cache, page, head), stage),
            KvType::Q8 => kernel.run_on(isa, Page::<Q8>::of(cache, page, head), stage),
        }
    }

    /// Writes `o / s` of every query of the item.
    fn store(&self, cx: &Context<'_>, item: &Item<'_>, scratch: &AttentionScratch) {
        let (width, stride) = (self.value_dim, self.value_width());
        let heads = self.group_heads();
        let region =
            cx.region(&self.out).of_rows(item.rows.clone()).of_columns(self.result_columns(item.head));
        // SAFETY: the items of a step have rows and columns of their own; only this thread took this item.
        let mut out = unsafe { cx.write::<f32>(&self.out, region) };
        for row in 0..item.rows.len() {
            for (head, out) in out.row(row).chunks_exact_mut(width).enumerate() {
                let query = row * heads + head;
                let inverse = 1.0 / scratch.seen[query].s;
                for (out, o) in out.iter_mut().zip(&scratch.o[query * stride..]) {
                    *out = o * inverse;
                }
            }
        }
    }
}

/// Queries that are computed together.
fn tile_queries(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => MAX_QUERIES,
        _ => 4,
    }
}

/// Queries of an item that meet a page together.
struct Tile {
    /// Number of the page in its sequence.
    page: usize,
    /// Number of the page in the pool.
    stored: u32,
    /// True if the page was converted to f32.
    staged: bool,
    /// Queries of the item.
    queries: Range<usize>,
    /// First byte of the memory that is read after the page; null if unknown.
    behind: *const u8,
}

impl PageKernel<'_, ()> {
    /// Runs on a page, or on its positions that were converted to f32.
    fn run_on<F: KvFormat>(self, isa: Isa, page: Page<'_, F>, stage: Option<&Stage>) {
        match stage {
            None => vectorize(isa, self.on(page)),
            Some(stage) => vectorize(isa, self.on(stage.over(page))),
        }
    }
}
