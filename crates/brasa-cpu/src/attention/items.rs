//! The items of a step: blocks of rows, and their numbers.

use std::ops::Range;

use crate::Isa;
use crate::step_state::{SegmentState, StepState};

use super::plan::{Attention, Class, FEW_ITEMS, ITEM_QUERIES, Keys};
use super::rows::pages_of;

/// Queries of an item of bf16 products, which share the rounding of keys and values.
///
/// The first number is taken that leaves every thread [`FEW_ITEMS`] items.
const TILED_ITEM_QUERIES: [usize; 3] = [256, 128, ITEM_QUERIES];

/// A block of rows of a segment, and a KV head.
#[derive(Clone, Debug)]
pub(super) struct Item<'a> {
    /// Number of the segment.
    pub number: usize,
    /// The segment.
    pub segment: &'a SegmentState,
    /// Rows of the step.
    pub rows: Range<usize>,
    /// KV head.
    pub head: usize,
    /// Pages that the rows of earlier segments take.
    pages_before: usize,
}

/// Finds items by their numbers, which only grow.
pub(super) struct Items<'a> {
    op: &'a Attention,
    isa: Isa,
    step: &'a StepState,
    /// Rows of a tiled item.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "nothing multiplies bf16"))]
    tiled_rows: usize,
    /// Number of the current segment.
    segment: usize,
    /// Items of earlier segments.
    before: usize,
    /// Pages that the rows of earlier segments take.
    pages_before: usize,
}

impl<'a> Items<'a> {
    /// All items of a step that `threads` threads share.
    pub fn new(op: &'a Attention, isa: Isa, step: &'a StepState, threads: usize) -> Self {
        let [.., fewest] = TILED_ITEM_QUERIES;
        let queries = TILED_ITEM_QUERIES.into_iter().find(|queries| {
            let rows = (queries / op.group_heads()).max(1);
            let blocks = step.segments.iter().map(|segment| segment.rows.len() / rows);
            blocks.sum::<usize>() * op.kv_heads >= FEW_ITEMS * threads
        });
        let tiled_rows = (queries.unwrap_or(fewest) / op.group_heads()).max(1);
        Self { op, isa, step, tiled_rows, segment: 0, before: 0, pages_before: 0 }
    }

    /// Rows of the items of a segment.
    fn rows(&self, segment: &SegmentState) -> usize {
        match self.op.class(self.isa, segment) {
            Class::Vectors => self.op.item_rows(),
            #[cfg(target_arch = "x86_64")]
            Class::Tiled(_) => self.tiled_rows,
        }
    }

    /// Item number `item` of the step.
    pub fn get(&mut self, item: usize) -> Option<Item<'a>> {
        loop {
            let segment = self.step.segments.get(self.segment)?;
            let rows = self.rows(segment);
            let blocks = segment.rows.len().div_ceil(rows);
            if item < self.before + blocks * self.op.kv_heads {
                let (head, block) = ((item - self.before) / blocks, (item - self.before) % blocks);
                // The last block sees the most: begin with it.
                let start = segment.rows.start + (blocks - 1 - block) * rows;
                let rows = start..(start + rows).min(segment.rows.end);
                let pages_before = self.pages_before;
                return Some(Item { number: self.segment, segment, rows, head, pages_before });
            }
            self.before += blocks * self.op.kv_heads;
            self.pages_before += pages_of(segment);
            self.segment += 1;
        }
    }
}

impl Attention {
    /// Number in the pool, or among the pages of the step's rows, of page `page` of an item's sequence.
    pub(super) fn stored(&self, step: &StepState, item: &Item<'_>, page: usize) -> u32 {
        match self.keys {
            Keys::Cache { group, .. } => step.table(item.number, group)[page],
            Keys::Rows { .. } => (item.pages_before + page) as u32,
        }
    }
}
