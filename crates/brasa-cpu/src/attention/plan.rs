//! Attention, and how the work of a step is cut.

use std::ops::Range;

use brasa_graph::step::PAGE_POSITIONS;

use crate::Isa;
use crate::arena::Region;
use crate::context::Context;
#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx512, Avx512Bf16};
use crate::simd::LANES;
use crate::slot::{Slot, Source};
use crate::step_state::{SegmentState, StepState};

use super::items::Item;
use super::page::{Distances, Scoring};
use super::visibility::Sight;

/// Queries of an item: enough to make use of keys and values while they are in the nearest caches.
pub(super) const ITEM_QUERIES: usize = 64;
/// Queries of a segment from which on they are rounded to bf16, if that is allowed.
#[cfg(target_arch = "x86_64")]
const TILED_QUERIES: usize = 24;
/// Items per thread below which long caches are cut into pages.
pub(super) const FEW_ITEMS: usize = 4;

/// The keys and values that queries meet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys {
    /// The keys and values of a cache.
    Cache {
        /// The cache's group.
        group: usize,
        /// The cache's place in its group.
        place: usize,
    },
    /// The keys and values of the rows of the step itself.
    Rows {
        /// Keys.
        k: Slot,
        /// Values.
        v: Slot,
    },
}

/// When queries, keys and values are rounded to bf16, if that is allowed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Rounds operands that tiles multiply.
    OnTiles,
    /// Rounds operands that tiles or vectors multiply.
    Everywhere,
}

/// Attention of the rows of a step.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    /// Queries.
    pub q: Slot,
    /// Results, the heads side by side.
    pub out: Slot,
    /// Keys and values.
    pub keys: Keys,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head's query and key.
    pub key_dim: usize,
    /// Elements of a head's value and result.
    pub value_dim: usize,
    /// Sinks: for each query head, one more score of the softmax, which belongs to no position. `None` for attention
    /// without sinks.
    pub sinks: Option<Source>,
    /// The positions that rows see.
    pub sight: Sight,
    /// How scores come from products.
    pub scoring: Scoring,
    /// When operands are rounded.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "nothing multiplies bf16"))]
    pub rounding: Rounding,
}

/// How the queries of a segment are computed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    /// f32, each query computed as if it were alone.
    Vectors,
    /// In products of bf16.
    #[cfg(target_arch = "x86_64")]
    Tiled(Tiled),
}

/// Proofs of the instructions that multiply bf16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiled {
    /// Vectors of 512 bits.
    pub proof: Avx512,
    /// Products of bf16.
    pub bf16: Avx512Bf16,
}

impl Attention {
    /// Query heads that share a KV head.
    pub(super) fn group_heads(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Rows of an item.
    pub(super) fn item_rows(&self) -> usize {
        (ITEM_QUERIES / self.group_heads()).max(1)
    }

    /// Elements of a value, padded to whole vectors.
    pub(super) fn value_width(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    /// Columns of the queries of the heads that share KV head `kv_head`.
    pub(super) fn query_columns(&self, kv_head: usize) -> Range<usize> {
        let width = self.group_heads() * self.key_dim;
        kv_head * width..(kv_head + 1) * width
    }

    /// Columns of the results of the heads that share KV head `kv_head`.
    pub(super) fn result_columns(&self, kv_head: usize) -> Range<usize> {
        let width = self.group_heads() * self.value_dim;
        kv_head * width..(kv_head + 1) * width
    }

    /// Calls `begin` with the sinks of the query heads that share KV head `kv_head`; with an empty slice for attention
    /// without sinks.
    pub(super) fn with_sinks(&self, cx: &Context<'_>, kv_head: usize, begin: impl FnOnce(&[f32])) {
        let each = self.group_heads();
        match &self.sinks {
            Some(sinks) => begin(&cx.view(sinks).row(0)[kv_head * each..(kv_head + 1) * each]),
            None => begin(&[]),
        }
    }

    /// The penalties for distance of query `query` of an item on a page; `None` if distance does not count.
    pub(super) fn distances(&self, item: &Item<'_>, query: usize, page: usize) -> Option<Distances> {
        let each = self.group_heads();
        let head = item.head * each + query % each;
        let row = item.rows.start + query / each;
        self.sight.distances(item.segment, row, (head, self.heads), page * PAGE_POSITIONS)
    }

    /// Items of a segment.
    pub(super) fn items_of(&self, segment: &SegmentState) -> usize {
        segment.rows.len().div_ceil(self.item_rows()) * self.kv_heads
    }

    /// How whole items compute a segment's queries.
    ///
    /// Draft trees stay f32, because their rows have gaps in what they see. Items that are cut into pages have few queries
    /// and stay f32 too.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_variables, clippy::unused_self, reason = "nothing multiplies bf16")
    )]
    pub(super) fn class(&self, isa: Isa, segment: &SegmentState) -> Class {
        #[cfg(target_arch = "x86_64")]
        if let Isa::Avx512(proof) = isa
            && let Some(bf16) = proof.bf16()
            && (proof.tiles().is_some() || self.rounding == Rounding::Everywhere)
            && segment.tree.is_none()
            && segment.rows.len() * self.group_heads() >= TILED_QUERIES
        {
            return Class::Tiled(Tiled { proof, bf16 });
        }
        Class::Vectors
    }

    /// How items are cut into pages; `None` if whole items are enough, as they are for rows of the step: those are as many
    /// queries as keys.
    pub(super) fn split(&self, step: &StepState, threads: usize) -> Option<Split> {
        let Keys::Cache { .. } = self.keys else { return None };
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

    /// Elements of memory for the partial results of `step`.
    pub(super) fn partial_results(&self, step: &StepState, threads: usize) -> usize {
        self.split(step, threads).map_or(0, |split| split.items * split.pages * split.unit_elements)
    }

    /// Bytes of keys and values that `step` reads, given the bytes of a position.
    pub(super) fn read_bytes(&self, step: &StepState, position_bytes: usize) -> u64 {
        let positions = |segment: &SegmentState| self.sight.of_all(segment, &segment.rows).len();
        step.segments.iter().map(|segment| (positions(segment) * position_bytes) as u64).sum()
    }

    /// Multiplications and additions in `step`.
    pub(super) fn flops(&self, step: &StepState) -> u64 {
        let row = |segment: &SegmentState| -> u64 {
            segment.rows.clone().map(|row| self.sight.of_row(segment, row).len() as u64).sum()
        };
        step.segments.iter().map(row).sum::<u64>() * (self.heads * (self.key_dim + self.value_dim) * 2) as u64
    }
}

/// How a step of few items with long caches is cut into units of one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Items of the step.
    pub items: usize,
    /// Units of an item: the most pages that any item sees.
    pub pages: usize,
    /// Elements of a unit's partial results.
    pub unit_elements: usize,
}

impl Split {
    /// The region of a unit's partial results: for each query `o`, then `m` and `s`.
    pub(super) fn unit(&self, unit: usize, queries: usize, width: usize) -> Region {
        let stride = width + LANES;
        Region { offset: unit * self.unit_elements, stride, width: width + 2, rows: queries }
    }
}
