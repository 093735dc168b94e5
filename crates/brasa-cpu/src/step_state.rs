//! A step, flattened for the threads that run it. The memory is used again from step to step.

use std::ops::Range;
use std::sync::Arc;

use brasa_graph::step::Step;
use brasa_graph::{DraftTree, Sizes};

/// The entry of a block table for a missing page.
const NO_PAGE: u32 = u32::MAX;

/// The rows and pages of a step.
#[derive(Debug, Default)]
pub(crate) struct StepState {
    /// Numbers of rows and outputs.
    pub sizes: Sizes,
    /// The segments, in order.
    pub segments: Vec<SegmentState>,
    /// The number of each row's segment.
    pub row_segments: Vec<u32>,
    groups: usize,
    /// The range of `pages` that is the block table of each segment and group.
    tables: Vec<Range<usize>>,
    pages: Vec<u32>,
    /// The rows whose states are kept, counted from their segment's first, and the pages that get the states.
    state_pages: Vec<(u32, u32)>,
}

/// The rows of one sequence in a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentState {
    /// Rows of the step.
    pub rows: Range<usize>,
    /// Cache index of the first row.
    pub first_index: usize,
    /// The order of rows in a draft tree; `None` if each row follows the row before.
    pub tree: Option<Arc<DraftTree>>,
    /// Embeddings `[rows, hidden_size]` that the step brings in place of token ids.
    pub embeddings: Option<Arc<[f32]>>,
    /// Rows of the sequence's memories.
    pub memory_rows: usize,
    /// The page with the states before the first row.
    pub states_from: Option<u32>,
    /// The range of the step's list of kept states that belongs to the segment.
    pub states_to: Range<usize>,
}

impl SegmentState {
    /// Cache index of a row of the step.
    pub(crate) fn index(&self, row: usize) -> usize {
        self.first_index + row - self.rows.start
    }
}

impl StepState {
    /// Loads a step that has been checked.
    pub(crate) fn load(&mut self, step: &Step) {
        self.sizes = Sizes::of(step);
        self.segments.clear();
        self.row_segments.clear();
        self.tables.clear();
        self.pages.clear();
        self.state_pages.clear();
        self.groups = step.segments.first().map_or(0, |segment| segment.pages.len());
        let mut row = 0;
        for (number, segment) in step.segments.iter().enumerate() {
            let rows = row..row + segment.rows;
            row = rows.end;
            self.row_segments.extend(rows.clone().map(|_| number as u32));
            let kept = self.state_pages.len();
            self.state_pages.extend(segment.states.to.iter().map(|&(row, page)| (row, page.index() as u32)));
            self.segments.push(SegmentState {
                rows,
                first_index: segment.first_index,
                tree: segment.tree.clone(),
                embeddings: segment.embeddings.clone(),
                memory_rows: segment.memory_rows,
                states_from: segment.states.from.map(|page| page.index() as u32),
                states_to: kept..self.state_pages.len(),
            });
            for table in &segment.pages {
                let start = self.pages.len();
                self.pages
                    .extend(table.iter().map(|entry| entry.map_or(NO_PAGE, |page| page.index() as u32)));
                self.tables.push(start..self.pages.len());
            }
        }
    }

    /// Pages of segment `segment` in group `group`, by index / 256.
    pub(crate) fn table(&self, segment: usize, group: usize) -> &[u32] {
        &self.pages[self.tables[segment * self.groups + group].clone()]
    }

    /// The rows of a segment whose states are kept, counted from its first and in ascending order, and the pages that get the states.
    pub(crate) fn states_to(&self, segment: &SegmentState) -> &[(u32, u32)] {
        &self.state_pages[segment.states_to.clone()]
    }

    /// The embedding that the step brings for row `row`, if it does.
    pub(crate) fn embedding(&self, row: usize) -> Option<&[f32]> {
        let (_, segment) = self.segment_of(row);
        let given = segment.embeddings.as_deref()?;
        let width = given.len() / segment.rows.len();
        Some(&given[(row - segment.rows.start) * width..][..width])
    }

    /// The segment that row `row` belongs to, and its number.
    pub(crate) fn segment_of(&self, row: usize) -> (usize, &SegmentState) {
        let number = self.row_segments[row] as usize;
        (number, &self.segments[number])
    }
}
