//! The positions that a row sees, in its sequence and in one page.

use std::ops::Range;

use brasa_graph::DraftTree;
use brasa_graph::op::{Mask, alibi_slope};
use brasa_graph::step::PAGE_POSITIONS;

use crate::step_state::SegmentState;

use super::page::Distances;

/// The limits of what rows see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// The rows that are looked at.
    pub over: Over,
    /// Number of positions of a text that are seen, with the row's own; `None` for all.
    pub window: Option<usize>,
}

/// The rows that attention looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The text of a row up to itself, along its branch in a draft tree.
    Text,
    /// The whole memory of a row's sequence.
    Memory,
    /// The rows of the row's own segment, counted from 0.
    Rows(Mask),
}

/// Slots of a page that a row sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visible {
    /// From the first slot that is seen to the last.
    pub slots: Range<usize>,
    /// Slots among these that are hidden: other branches of a draft tree.
    pub hidden: Option<SlotSet>,
}

/// A set of slots of a page: bit *s % 64* of word *s / 64*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct SlotSet([u64; PAGE_POSITIONS / 64]);

impl SlotSet {
    /// Adds a slot.
    pub(super) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    /// True if the slot is in the set.
    pub(super) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 == 1
    }
}

impl Visible {
    /// No slots.
    pub(super) const NONE: Self = Self { slots: 0..0, hidden: None };
}

impl Sight {
    /// Indices from the first to the last that a row of the step sees.
    pub(crate) fn of_row(&self, segment: &SegmentState, row: usize) -> Range<usize> {
        let first_index = self.first_index(segment);
        let number = row - segment.rows.start;
        let end = match self.over {
            Over::Memory => return 0..segment.memory_rows,
            // Windows reach to both sides.
            Over::Rows(Mask::Bidirectional | Mask::Alibi) => {
                let end = self.window.map_or(usize::MAX, |window| number.saturating_add(window));
                end.min(segment.rows.len())
            }
            Over::Rows(Mask::Causal) | Over::Text => first_index + number + 1,
        };
        // Windows count what leads to the row, not what else a tree holds.
        let place = first_index + self.tree(segment).map_or(number, |tree| tree.depth(number));
        self.window.map_or(0, |window| (place + 1).saturating_sub(window))..end
    }

    /// The penalties for distance on the scores of head `head` of `heads` of a row of the step, at positions from `first` of its
    /// segment on; `None` if distance does not count.
    pub(crate) fn distances(
        &self,
        segment: &SegmentState,
        row: usize,
        (head, heads): (usize, usize),
        first: usize,
    ) -> Option<Distances> {
        let own = (row - segment.rows.start) as f32 - first as f32;
        (self.over == Over::Rows(Mask::Alibi)).then(|| Distances { slope: alibi_slope(heads, head), own })
    }

    /// Index of a segment's first row.
    fn first_index(&self, segment: &SegmentState) -> usize {
        match self.over {
            Over::Rows(_) => 0,
            Over::Text | Over::Memory => segment.first_index,
        }
    }

    /// The draft tree that hides rows of a segment from others, if there is one.
    fn tree<'s>(&self, segment: &'s SegmentState) -> Option<&'s DraftTree> {
        match self.over {
            Over::Text | Over::Rows(Mask::Causal) => segment.tree.as_deref(),
            Over::Memory | Over::Rows(Mask::Bidirectional | Mask::Alibi) => None,
        }
    }

    /// Pages that rows of a segment see.
    pub(super) fn pages(&self, segment: &SegmentState, rows: &Range<usize>) -> Range<usize> {
        // Any row of a tree may be a root, which sees back the farthest.
        let farthest = if self.tree(segment).is_some() { segment.rows.start } else { rows.start };
        let (first, end) = (self.of_row(segment, farthest).start, self.of_row(segment, rows.end - 1).end);
        first / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS)
    }

    /// The slots that a row of the step sees of page `page` of its sequence.
    pub(super) fn of_page(&self, segment: &SegmentState, row: usize, page: usize) -> Visible {
        let base = page * PAGE_POSITIONS;
        let slots = slots(&self.of_row(segment, row), page);
        let first_index = self.first_index(segment);
        let tree = self.tree(segment).filter(|_| base + slots.end > first_index);
        let Some(tree) = tree else { return Visible { slots, hidden: None } };
        let row = row - segment.rows.start;
        let shown = |&slot: &usize| {
            let Some(other) = (base + slot).checked_sub(first_index) else { return true };
            self.shows(tree, row, other)
        };
        let Some(first) = slots.clone().find(shown) else { return Visible::NONE };
        let slots = first..slots.clone().rfind(shown).map_or(first, |last| last) + 1;
        let mut hidden = SlotSet::default();
        slots.clone().filter(|slot| !shown(slot)).for_each(|slot| hidden.insert(slot));
        Visible { slots, hidden: Some(hidden) }
    }

    /// True if row `row` of a segment sees its row `other` in a draft tree.
    fn shows(&self, tree: &DraftTree, row: usize, other: usize) -> bool {
        let steps = || tree.depth(row) - tree.depth(other);
        tree.sees(row, other) && self.window.is_none_or(|window| steps() < window)
    }

    /// True if a row of the step, which attends to the rows of the step, attends to index `index` of the result of
    /// [`of_row`](Self::of_row).
    pub(crate) fn sees(&self, segment: &SegmentState, row: usize, index: usize) -> bool {
        self.tree(segment).is_none_or(|tree| self.shows(tree, row - segment.rows.start, index))
    }

    /// Indices from the first to the last that any of `rows` sees.
    pub(super) fn of_all(&self, segment: &SegmentState, rows: &Range<usize>) -> Range<usize> {
        self.of_row(segment, rows.start).start..self.of_row(segment, rows.end - 1).end
    }

    /// Slots of page `page` from the first to the last that any of `rows` sees.
    pub(super) fn of_rows(&self, segment: &SegmentState, rows: &Range<usize>, page: usize) -> Range<usize> {
        let seen = rows.clone().map(|row| slots(&self.of_row(segment, row), page));
        let all = seen.filter(|slots| !slots.is_empty());
        all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }
}

/// The slots of page `page` that hold `indices`.
fn slots(indices: &Range<usize>, page: usize) -> Range<usize> {
    let base = page * PAGE_POSITIONS;
    let end = indices.end.saturating_sub(base).min(PAGE_POSITIONS);
    indices.start.saturating_sub(base).min(end)..end
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brasa_graph::testing::Random;

    use super::*;

    /// Every index by itself: the text before a row is its segment's beginning and its ancestors.
    #[test]
    fn pages_show_the_text_that_leads_to_a_row() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let count = 1 + random.below(256);
            let parents: Vec<Option<u32>> = (0..count)
                .map(|row| (row > 0 && random.below(9) > 0).then(|| random.below(row) as u32))
                .collect();
            let tree = (random.below(4) > 0).then(|| Arc::new(DraftTree::new(&parents).unwrap()));
            let first_index = random.below(700);
            let segment = SegmentState {
                rows: 5..5 + count,
                first_index,
                tree: tree.clone(),
                embeddings: None,
                memory_rows: random.below(600),
                ..SegmentState::default()
            };
            let window = [None, Some(1 + random.below(300)), Some(1)][random.below(3)];
            let sight = Sight { over: Over::Text, window };
            let part = 5 + random.below(count)..5 + count;
            let pages = sight.pages(&segment, &part);
            for row in part {
                let mut text: Vec<usize> = (0..first_index).collect();
                let mut path = vec![row - 5];
                while let Some(parent) = match &tree {
                    Some(_) => parents[path[path.len() - 1]].map(|parent| parent as usize),
                    None => path[path.len() - 1].checked_sub(1),
                } {
                    path.push(parent);
                }
                text.extend(path.iter().rev().map(|row| first_index + row));
                let expected = &text[text.len() - sight.window.unwrap_or(text.len()).min(text.len())..];
                let found: Vec<usize> = pages
                    .clone()
                    .flat_map(|page| {
                        let Visible { slots, hidden } = sight.of_page(&segment, row, page);
                        slots
                            .filter(move |&slot| hidden.is_none_or(|hidden| !hidden.contains(slot)))
                            .map(move |slot| page * PAGE_POSITIONS + slot)
                    })
                    .collect();
                assert_eq!(found, expected, "seed {seed}, row {row}, {sight:?}, {tree:?}");
            }
            let memory = Sight { over: Over::Memory, window: None };
            let part = segment.rows.end - 1..segment.rows.end;
            let pages = memory.pages(&segment, &part).map(|page| memory.of_page(&segment, part.start, page));
            let slots: Vec<Range<usize>> = pages
                .map(|Visible { slots, hidden }| {
                    assert_eq!(hidden, None);
                    slots
                })
                .collect();
            assert!(slots.iter().all(|slots| slots.start == 0));
            assert_eq!(slots.iter().map(Range::len).sum::<usize>(), segment.memory_rows);
        }
    }
}
