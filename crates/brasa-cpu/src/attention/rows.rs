//! Attention to the rows of the step itself, for encoders and for graphs that are differentiated.
//!
//! The keys and values of a segment's rows are first laid out as pages of f32, as a cache would hold them, so that what
//! attends to caches attends to them too.
#![expect(unsafe_code, reason = "writes pages that several threads share")]

use brasa_graph::ValueWidth;
use brasa_graph::device::KvType;
use brasa_graph::step::PAGE_POSITIONS;

use crate::context::Context;
use crate::kv::layout::TileLayout;
use crate::kv::{CacheReader, RowPagesSize};
use crate::simd::LANES;
use crate::slot::Slot;
use crate::step_state::{SegmentState, StepState};
use crate::team::Team;

use super::plan::Attention;

impl Attention {
    /// The layout of pages of rows.
    fn row_layout(&self) -> TileLayout {
        TileLayout { dtype: KvType::F32, key_dim: self.key_dim, value: ValueWidth::Own(self.value_dim) }
    }

    /// The pages that the rows of a step take.
    pub(super) fn size_of_row_pages(&self, step: &StepState) -> RowPagesSize {
        let pages = step.segments.iter().map(pages_of).sum();
        RowPagesSize { pages, page_bytes: self.kv_heads * self.row_layout().head_bytes() }
    }

    /// Lays the rows of the step out as pages, each segment from a page of its own on. Waits at the barrier once.
    pub(super) fn lay_out_rows<'a>(&self, cx: &mut Context<'a>, k: Slot, v: Slot) -> CacheReader<'a> {
        let view = cx.row_pages(self.row_layout(), self.kv_heads);
        let (k, v) = (cx.rows::<f32>(&k), cx.rows::<f32>(&v));
        let mine = Team::split(cx.step.row_segments.len(), LANES, cx.threads, cx.thread);
        let mut first_page = 0;
        for segment in &cx.step.segments {
            let rows = mine.start.max(segment.rows.start)..mine.end.min(segment.rows.end);
            let mut first = rows.start;
            while first < rows.end {
                let place = first - segment.rows.start;
                // Up to the end of a block of keys.
                let count = (LANES - place % LANES).min(rows.end - first);
                let page = (first_page + place / PAGE_POSITIONS) as u32;
                for head in 0..self.kv_heads {
                    let of_key = head * self.key_dim..(head + 1) * self.key_dim;
                    let of_value = head * self.value_dim..(head + 1) * self.value_dim;
                    let slot = place % PAGE_POSITIONS;
                    let positions = (first..first + count)
                        .map(|row| [&k.row(row)[of_key.clone()], &v.row(row)[of_value.clone()]]);
                    // SAFETY: rows have slots of their own, and each row is one thread's. Nothing reads the pages
                    // before the barrier, and nothing has read them since the barrier before this operation.
                    unsafe { view.write_some(cx.isa, page, head, slot, positions) };
                }
                first += count;
            }
            first_page += pages_of(segment);
        }
        cx.wait();
        // SAFETY: the pages are not written again before the barrier behind this operation.
        unsafe { view.reader() }
    }
}

/// Pages that the rows of a segment take.
pub(super) fn pages_of(segment: &SegmentState) -> usize {
    segment.rows.len().div_ceil(PAGE_POSITIONS)
}
