//! Heads of attention, what they see, and their columns in the rows of a segment.

use std::ops::Range;

use crate::arena::Rows;
use crate::attention::{Distances, Scoring, Sight};
use crate::step_state::{SegmentState, StepState};

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

impl Geometry {
    /// Columns of head `head` of queries or keys.
    pub(super) fn of_key(&self, head: usize) -> Range<usize> {
        head * self.key_dim..(head + 1) * self.key_dim
    }

    /// Columns of head `head` of values or results.
    pub(super) fn of_value(&self, head: usize) -> Range<usize> {
        head * self.value_dim..(head + 1) * self.value_dim
    }

    /// The penalties for distance on the scores of head `head` of row `row` of a segment, for keys from `first` on.
    pub(super) fn distances(
        &self,
        segment: &SegmentState,
        row: usize,
        head: usize,
        first: usize,
    ) -> Option<Distances> {
        self.sight.distances(segment, segment.rows.start + row, (head, self.heads), first)
    }

    /// The query heads that read KV head `group`.
    pub(super) fn of_group(&self, group: usize) -> Range<usize> {
        let each = self.heads / self.kv_heads;
        group * each..(group + 1) * each
    }

    /// Floating-point operations of attention over all rows: for each query and each key that it sees, `of_keys`
    /// products of vectors as wide as keys, and `of_values` as wide as values.
    pub(super) fn flops(&self, step: &StepState, [of_keys, of_values]: [usize; 2]) -> u64 {
        let seen = step.segments.iter().flat_map(|segment| {
            segment.rows.clone().map(|row| self.sight.of_row(segment, row).len().min(segment.rows.len()))
        });
        let elements = of_keys * self.key_dim + of_values * self.value_dim;
        (seen.sum::<usize>() * self.heads * elements * 2) as u64
    }
}

/// Some columns of row `row` of a segment.
#[inline]
pub(super) fn part<'a>(
    rows: &'a Rows<'_, f32>,
    segment: &SegmentState,
    row: usize,
    columns: &Range<usize>,
) -> &'a [f32] {
    &rows.row(segment.rows.start + row)[columns.clone()]
}

/// The sum of products of elements, in order.
#[inline]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
