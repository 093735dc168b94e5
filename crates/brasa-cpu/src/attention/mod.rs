//! Attention: queries against cached or present keys and values.
//!
//! The work of a step is cut into **items**: a block of a segment's rows and one KV head, whose query heads share
//! every key and value that is read. Threads take items one by one. Where there are too few items for the
//! threads and the caches are long (one sequence decoding), items are cut further into pages, whose partial
//! results are merged after a barrier. Either way each page contributes the same numbers, in the same order.
//!
//! Where many rows may be rounded to bf16, items of many queries are products of tiles instead (`tiled`).
#![expect(unsafe_code, reason = "reads pages that other operations write")]

mod items;
mod page;
#[cfg(target_arch = "x86_64")]
mod panels;
mod source;
mod step_kv;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod visibility;

use std::ops::Range;
use std::ptr;

use brasa_graph::device::KvType;
use brasa_graph::step::PAGE_POSITIONS;

use crate::Isa;
use crate::arena::Region;
use crate::context::{Context, Slot};
use crate::kv::CacheReader;
use crate::simd::{LANES, vectorize};
use crate::step_state::{SegmentState, StepState};
use items::{Item, Items};
use page::{MAX_GROUPS, MAX_QUERIES, Merge, PageKernel, Partial, Scores};
use source::{Bf16, Cached, F16, F32, Q8, Source, Stage};

pub(crate) use page::Scoring;
pub(crate) use step_kv::StepAttention;
#[cfg(target_arch = "x86_64")]
use tiled::{Tiled, TiledScratch};
use visibility::Visible;
pub(crate) use visibility::{Over, Sight};

/// Queries of an item: enough to make use of keys and values while they are in the nearest caches.
const ITEM_QUERIES: usize = 64;
/// Queries from which on a page is converted to f32 before they meet it; see [`source`].
const STAGED_QUERIES: usize = 24;
/// Queries of a segment from which on they are rounded to bf16, where that is allowed.
#[cfg(target_arch = "x86_64")]
const TILED_QUERIES: usize = 24;
/// Items per thread below which long caches are cut into pages.
const FEW_ITEMS: usize = 4;

/// Attention to a cache, resolved.
#[derive(Clone, Debug)]
pub(crate) struct CacheAttention {
    pub q: Slot,
    pub out: Slot,
    /// Cache group and place within it.
    pub group: usize,
    pub place: usize,
    /// Query heads.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub sight: Sight,
    pub scoring: Scoring,
}

/// A thread's memory for attention.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// Queries in tiles, `[E][queries]` each.
    q: Vec<f32>,
    scores: Box<Scores>,
    /// Weights times scales.
    scaled: Vec<Scores>,
    /// Merged values, `[queries][value_width]`.
    o: Vec<f32>,
    seen: Vec<Partial>,
    /// Values of one page, of one tile of queries.
    next_o: Vec<f32>,
    next: [Partial; MAX_QUERIES],
    visible: Vec<Visible>,
    stage: Stage,
    #[cfg(target_arch = "x86_64")]
    tiled: TiledScratch,
    /// Weights of present rows.
    pub(super) row_scores: Vec<f32>,
}

/// How the queries of a segment are computed.
#[derive(Clone, Copy, Debug)]
enum Class {
    /// In f32, each as if it were alone.
    Vectors,
    /// As products of bf16.
    #[cfg(target_arch = "x86_64")]
    Tiled(Tiled),
}

impl AttentionScratch {
    pub(crate) fn new(most_group_heads: usize, most_head_dim: usize, max_rows: usize) -> Self {
        let queries = ITEM_QUERIES.max(most_group_heads).next_multiple_of(MAX_QUERIES);
        let width = most_head_dim.next_multiple_of(LANES);
        Self {
            q: vec![0.0; queries * most_head_dim],
            scores: Box::new([[0.0; PAGE_POSITIONS]; MAX_QUERIES]),
            scaled: vec![[[0.0; PAGE_POSITIONS]; MAX_QUERIES]; MAX_GROUPS],
            o: vec![0.0; queries * width],
            seen: vec![Partial::NONE; queries],
            next_o: vec![0.0; MAX_QUERIES * width],
            next: [Partial::NONE; MAX_QUERIES],
            visible: vec![Visible::NONE; MAX_QUERIES],
            stage: Stage::new(most_head_dim),
            #[cfg(target_arch = "x86_64")]
            tiled: TiledScratch::default(),
            row_scores: vec![0.0; max_rows],
        }
    }
}

impl CacheAttention {
    /// Query heads that share a KV head.
    fn group_heads(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn item_rows(&self) -> usize {
        (ITEM_QUERIES / self.group_heads()).max(1)
    }

    fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Columns of the item's query heads.
    fn item_columns(&self, item: &Item<'_>) -> Range<usize> {
        let width = self.group_heads() * self.head_dim;
        item.head * width..(item.head + 1) * width
    }

    /// Items of a segment, which are cut into pages only where they are few.
    fn items_of(&self, segment: &SegmentState) -> usize {
        segment.rows.len().div_ceil(self.item_rows()) * self.kv_heads
    }

    /// How a segment's queries are computed in whole items; those of pages are few, and stay f32. So do draft trees, whose
    /// rows have gaps in what they see.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_variables, clippy::unused_self, reason = "nothing multiplies bf16")
    )]
    fn class(&self, isa: Isa, segment: &SegmentState) -> Class {
        #[cfg(target_arch = "x86_64")]
        if let Isa::Avx512(proof) = isa
            && let Some(bf16) = proof.bf16()
            && proof.tiles().is_some()
            && segment.tree.is_none()
            && segment.rows.len() * self.group_heads() >= TILED_QUERIES
        {
            return Class::Tiled(Tiled { proof, bf16 });
        }
        Class::Vectors
    }

    /// How the step is cut into pages; `None` where whole items do.
    fn split(&self, step: &StepState, threads: usize) -> Option<Split> {
        let items: usize = step.segments.iter().map(|segment| self.items_of(segment)).sum();
        let most_rows = step.segments.iter().map(|segment| segment.rows.len()).max()?;
        if threads == 1 || items >= FEW_ITEMS * threads || most_rows > self.item_rows() {
            return None;
        }
        let pages =
            step.segments.iter().map(|segment| self.sight.pages(segment, &segment.rows).len()).max()?;
        let unit_elements = most_rows * self.group_heads() * (self.value_width() + LANES);
        (pages > 1).then_some(Split { items, pages, unit_elements })
    }

    /// Elements of the memory that partial results of `step` need.
    pub(crate) fn partial_elements(&self, step: &StepState, threads: usize) -> usize {
        self.split(step, threads).map_or(0, |split| split.items * split.pages * split.unit_elements)
    }

    /// Bytes of keys and values that `step` reads, given those of a position.
    pub(crate) fn read_bytes(&self, step: &StepState, position_bytes: usize) -> u64 {
        let positions = |segment: &SegmentState| {
            let [first, last] = [segment.rows.start, segment.rows.end - 1];
            self.sight.of_row(segment, last).end - self.sight.of_row(segment, first).start
        };
        step.segments.iter().map(|segment| (positions(segment) * position_bytes) as u64).sum()
    }

    /// Multiplications and additions of `step`.
    pub(crate) fn flops(&self, step: &StepState) -> u64 {
        let row = |segment: &SegmentState| -> u64 {
            segment.rows.clone().map(|row| self.sight.of_row(segment, row).len() as u64).sum()
        };
        step.segments.iter().map(row).sum::<u64>() * (self.heads * self.head_dim * 4) as u64
    }

    /// This thread's share. Waits at the barrier once where the step is cut into pages.
    pub(crate) fn run(&self, cx: &mut Context<'_>, scratch: &mut AttentionScratch) {
        // SAFETY: caches are written by other operations, before a barrier.
        let cache = unsafe { cx.kv.cache(self.group, self.place).reader() };
        match self.split(cx.step, cx.threads) {
            None => {
                let mut items = Items::new(self, cx.isa, cx.step, cx.threads);
                while let Some(item) = items.get(cx.take()) {
                    match self.class(cx.isa, item.segment) {
                        Class::Vectors => self.run_item(cx, cache, &item, scratch),
                        #[cfg(target_arch = "x86_64")]
                        Class::Tiled(tiled) => self.run_tiled(cx, cache, &item, tiled, &mut scratch.tiled),
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

    /// All pages of an item, in order.
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
        scratch.seen[..queries].fill(Partial::NONE);
        scratch.o[..queries * width].fill(0.0);
        let table = cx.step.table(item.number, self.group);
        let pages = self.sight.pages(item.segment, &item.rows);
        for page in pages.clone() {
            let stored = table[page];
            let next = table[..pages.end].get(page + 1);
            let behind =
                next.map_or(ptr::null(), |next| cache.key_block::<u8>(*next, item.head, 0).as_ptr().cast());
            let staged = queries >= STAGED_QUERIES && self.stage(cx.isa, cache, item, page, stored, scratch);
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

    /// Converts what the item sees of a page to f32; false where the cache holds f32 anyway.
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
            KvType::F32 => return false,
            KvType::F16 => stage.fill(isa, Cached::<F16>::new(cache, stored, item.head), slots),
            KvType::BF16 => stage.fill(isa, Cached::<Bf16>::new(cache, stored, item.head), slots),
            KvType::Q8 => stage.fill(isa, Cached::<Q8>::new(cache, stored, item.head), slots),
        }
        true
    }

    /// One page of an item; the result is kept for [`merge_units`](Self::merge_units).
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
        let table = cx.step.table(item.number, self.group);
        let mut out = cx.partials.write::<f32>(split.unit(unit, queries, width));
        for first in (0..queries).step_by(tile_queries(cx.isa)) {
            let count = tile_queries(cx.isa).min(queries - first);
            let queries = first..first + count;
            let tile = Tile { page, stored: table[page], staged: false, queries, behind: ptr::null() };
            self.run_tile(cx.isa, cache, item, &tile, scratch);
            for (query, next) in scratch.next[..count].iter().enumerate() {
                let row = out.row(first + query);
                row[..width].copy_from_slice(&scratch.next_o[query * width..(query + 1) * width]);
                row[width] = next.m;
                row[width + 1] = next.s;
            }
        }
    }

    fn merge_units(&self, cx: &Context<'_>, item: &Item<'_>, split: &Split, scratch: &mut AttentionScratch) {
        let queries = item.rows.len() * self.group_heads();
        let width = self.value_width();
        let number = item.number * self.kv_heads + item.head;
        scratch.seen[..queries].fill(Partial::NONE);
        scratch.o[..queries * width].fill(0.0);
        for page in 0..self.sight.pages(item.segment, &item.rows).len() {
            let unit = number * split.pages + page;
            let rows = cx.partials.read::<f32>(split.unit(unit, queries, width));
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
        let width = self.head_dim;
        let heads = self.group_heads();
        let region = cx.region(&self.q).of_rows(item.rows.clone()).of_columns(self.item_columns(item));
        let q = cx.arena.read::<f32>(region);
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

    /// A tile of queries against one page; leaves `next` and `next_o`.
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
        for (i, visible) in scratch.visible[..padded].iter_mut().enumerate() {
            let row = item.rows.start + (queries.start + i) / self.group_heads();
            let real = i < queries.len();
            *visible = if real { self.sight.of_page(item.segment, row, tile.page) } else { Visible::NONE };
        }
        let width = self.head_dim;
        let kernel = PageKernel {
            source: (),
            q: &scratch.q[queries.start * width..][..padded * width],
            visible: &scratch.visible[..padded],
            scoring: self.scoring,
            scores: &mut scratch.scores,
            scaled: &mut scratch.scaled,
            partials: &mut scratch.next[..padded],
            o: &mut scratch.next_o[..padded * self.value_width()],
            behind: tile.behind,
        };
        let (page, head) = (tile.stored, item.head);
        let stage = tile.staged.then_some(&scratch.stage);
        match cache.layout().dtype {
            KvType::F32 => kernel.run_on(isa, Cached::<F32>::new(cache, page, head), stage),
            KvType::F16 => kernel.run_on(isa, Cached::<F16>::new(cache, page, head), stage),
            KvType::BF16 => kernel.run_on(isa, Cached::<Bf16>::new(cache, page, head), stage),
            KvType::Q8 => kernel.run_on(isa, Cached::<Q8>::new(cache, page, head), stage),
        }
    }

    /// Writes `o / s` of every query of the item.
    fn store(&self, cx: &Context<'_>, item: &Item<'_>, scratch: &AttentionScratch) {
        let (width, stride) = (self.head_dim, self.value_width());
        let heads = self.group_heads();
        let region = cx.region(&self.out).of_rows(item.rows.clone()).of_columns(self.item_columns(item));
        let mut out = cx.arena.write::<f32>(region);
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

/// Queries computed together.
fn tile_queries(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(_) => MAX_QUERIES,
        _ => 4,
    }
}

/// Queries of an item that meet a page together.
struct Tile {
    /// Number of the page in its sequence, and in the pool.
    page: usize,
    stored: u32,
    /// True where the page is staged.
    staged: bool,
    /// Queries of the item.
    queries: Range<usize>,
    /// Where what is read after the page begins; null where nobody knows.
    behind: *const u8,
}

impl PageKernel<'_, ()> {
    /// Runs on a page, or on what was staged of it.
    fn run_on<K: Source>(self, isa: Isa, source: K, stage: Option<&Stage>) {
        match stage {
            None => vectorize(isa, self.on(source)),
            Some(stage) => vectorize(isa, self.on(stage.over(source))),
        }
    }
}

/// How few items with long caches are cut into units of one page.
#[derive(Clone, Copy, Debug)]
struct Split {
    items: usize,
    /// Units of an item: the most pages that any sees.
    pages: usize,
    unit_elements: usize,
}

impl Split {
    /// Where the result of a unit lies: for each query `o`, then `m` and `s`.
    fn unit(&self, unit: usize, queries: usize, width: usize) -> Region {
        let stride = width + LANES;
        Region { offset: unit * self.unit_elements, stride, width: width + 2, rows: queries }
    }
}
