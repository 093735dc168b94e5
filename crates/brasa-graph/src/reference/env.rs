//! Facts about a step that its operations read.

use std::ops::Range;
use std::sync::Arc;

use crate::step::Step;
use crate::{CacheId, DraftTree, Sizes, StateId};

/// Rows of one segment within a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentRows {
    /// Numbers of the rows within the step.
    pub rows: Range<usize>,
    /// Cache index of the first row.
    pub first_index: usize,
    /// Draft tree of the rows, if they do not follow each other in a line.
    pub tree: Option<Arc<DraftTree>>,
    /// Rows of the sequence's memories; 0 if it has none.
    pub memory_rows: usize,
}

impl SegmentRows {
    /// Rows of plain text, from cache index `first_index` on.
    pub fn text(rows: Range<usize>, first_index: usize) -> Self {
        Self { rows, first_index, tree: None, memory_rows: 0 }
    }

    /// The row of the segment that comes before row `i` in the text; `None` if row `i` follows the text before the
    /// segment.
    pub(crate) fn row_before(&self, i: usize) -> Option<usize> {
        match &self.tree {
            Some(tree) => tree.parent(i).map(|row| row as usize),
            None => i.checked_sub(1),
        }
    }

    /// The segments of `step`, in order.
    pub fn of(step: &Step) -> Vec<Self> {
        let mut start = 0;
        let place = |segment: &crate::step::Segment| {
            let rows = start..start + segment.rows;
            start = rows.end;
            let tree = segment.tree.clone();
            Self { rows, first_index: segment.first_index, tree, memory_rows: segment.memory_rows }
        };
        step.segments.iter().map(place).collect()
    }
}

/// Access to the keys and values of one step's segments.
pub(crate) trait Kv<T> {
    /// Writes one position: `k` is `[G, E]`, `v` is `[G, V]`, or empty if values are the first elements of keys.
    fn write(&mut self, cache: CacheId, segment: usize, index: usize, k: &[T], v: &[T]);

    /// Elements of one position's keys, `G · E`, and of its values, `G · V`.
    fn position_elements(&self, cache: CacheId) -> [usize; 2];

    /// Reads one position: `k` gets `[G, E]` and `v` gets `[G, V]`, also if values are the first elements of keys.
    fn read(&self, cache: CacheId, segment: usize, index: usize, k: &mut [T], v: &mut [T]);

    /// A recurrent state of `elements` elements before the segment's first row; zeros at the start of a text.
    fn state(&self, state: StateId, segment: usize, elements: usize) -> Vec<T>;

    /// Writes a recurrent state to the segment's state pages. `after` has the state after each row; the segment's
    /// [`StatePages`](crate::StatePages) name the rows whose states are kept.
    fn set_states(&mut self, state: StateId, segment: usize, after: &[Vec<T>]);
}

/// Data that an operation's reference reads besides its operands.
pub(crate) struct Env<'a, T> {
    /// Values of the symbols.
    pub sizes: Sizes,
    /// The step's segments.
    pub segments: &'a [SegmentRows],
    /// Keys and values of the step's segments.
    pub kv: &'a mut dyn Kv<T>,
}

impl<T> Env<'_, T> {
    /// Row ranges of each segment in a value of `outer` rows, a multiple of the step's rows.
    ///
    /// # Errors
    ///
    /// If `outer` is no multiple of the step's rows.
    pub(crate) fn segments_of(&self, outer: usize) -> Result<Vec<Range<usize>>, String> {
        let rows = self.sizes.rows;
        if rows == 0 || !outer.is_multiple_of(rows) {
            return Err(format!("{outer} rows, expected a multiple of the step's {rows}"));
        }
        let factor = outer / rows;
        Ok(self.segments.iter().map(|s| s.rows.start * factor..s.rows.end * factor).collect())
    }
}
