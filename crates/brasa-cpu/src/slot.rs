//! The places of the operands and results of operations.
//!
//! The compiler gives every value a [`Slot`] in a buffer of the arena, large enough for the largest step. A step resolves the
//! slot to a [`Region`]. An operation names its operands as [`Source`]s or slots and its results as [`Out`]s, which also say how
//! threads share a result out.

use std::ops::Range;

use brasa_graph::{Dim, Sizes, StateId};
use brasa_lower::BufferId;

use crate::Team;
use crate::arena::Region;

/// Columns of a result that are split among threads in whole multiples of this: a cache line has 16.
const COLUMN_GRAIN: usize = 64;

/// The place of a value in the arena, before the sizes of a step are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The buffer that holds the value.
    pub buffer: BufferId,
    /// Elements of the buffer in front of the value's first element.
    pub offset: usize,
    /// Elements from the start of one row to the start of the next.
    pub stride: Dim,
    /// Elements of a row.
    pub width: Dim,
    /// Number of rows.
    pub outer: Dim,
}

/// The sizes of a step and the offsets of buffers, from which [`Slot::region`] finds the elements of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// The sizes of the step.
    pub sizes: &'a Sizes,
    /// Offset of each buffer in the arena, in elements, by [`BufferId::index`].
    pub offsets: &'a [usize],
}

impl Slot {
    /// The elements of the arena where the slot lies in a step.
    pub(crate) fn region(&self, places: &Places<'_>) -> Region {
        let sizes = places.sizes;
        Region {
            offset: places.offsets[self.buffer.index()] + self.offset,
            stride: self.stride.resolve(sizes),
            width: self.width.resolve(sizes),
            rows: self.outer.resolve(sizes),
        }
    }
}

/// A float operand: a value of the arena, or rows of a weight that is stored as plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A value of the arena.
    Arena(Slot),
    /// Rows of a weight.
    Weight(WeightView),
}

/// Rows of a weight that is stored as plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightView {
    /// Number of the weight.
    pub weight: usize,
    /// First element of the first row.
    pub offset: usize,
    /// Elements from the start of one row to the start of the next.
    pub stride: usize,
    /// Elements of a row.
    pub width: usize,
}

/// A result of an operation, and how its elements are shared out among threads.
///
/// The part of a thread depends on the slot, the sizes of the step and the number of threads alone, so parts of several
/// threads never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Out {
    /// The place of the result.
    pub slot: Slot,
    split: Split,
}

/// How the elements of a result are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Whole rows for each thread.
    Rows,
    /// Whole rows if there are as many rows as threads, otherwise columns of all rows.
    Elements,
    /// Columns of all rows.
    Columns,
    /// Everything for thread 0.
    First,
}

/// The part of a result that belongs to one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Rows of the result.
    pub rows: Range<usize>,
    /// Columns of the result.
    pub columns: Range<usize>,
    /// The elements in these rows and columns.
    pub region: Region,
}

impl Out {
    /// A result whose rows are computed whole.
    pub(crate) const fn by_rows(slot: Slot) -> Self {
        Self { slot, split: Split::Rows }
    }

    /// A result whose elements do not depend on each other.
    pub(crate) const fn by_elements(slot: Slot) -> Self {
        Self { slot, split: Split::Elements }
    }

    /// A result whose columns are computed whole.
    pub(crate) const fn by_columns(slot: Slot) -> Self {
        Self { slot, split: Split::Columns }
    }

    /// A result that one thread computes.
    pub(crate) const fn by_one_thread(slot: Slot) -> Self {
        Self { slot, split: Split::First }
    }

    /// The part of thread `thread` of `threads`.
    pub(crate) fn part(&self, places: &Places<'_>, threads: usize, thread: usize) -> Part {
        let region = self.slot.region(places);
        let whole = (0..region.rows, 0..region.width);
        let my_rows = || Team::split(region.rows, 1, threads, thread);
        let (rows, columns) = match self.split {
            Split::Rows => (my_rows(), whole.1),
            Split::Elements if region.rows >= threads => (my_rows(), whole.1),
            Split::Elements | Split::Columns => {
                (whole.0, Team::split(region.width, COLUMN_GRAIN, threads, thread))
            }
            Split::First if thread == 0 => whole,
            Split::First => (0..0, whole.1),
        };
        let region = region.of_rows(rows.clone()).of_columns(columns.clone());
        Part { rows, columns, region }
    }
}

/// An operand or result of an operation, with its name in the operation's formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The name in the formula.
    pub name: &'static str,
    /// Whether the operation reads or writes it.
    pub access: Access,
    /// The place of the operand.
    pub place: Place,
}

impl Operand {
    /// True if the operand lies in `slot` and the operation may view it for `access`.
    pub(crate) fn allows(&self, slot: &Slot, access: Access) -> bool {
        self.place == Place::Arena(*slot) && (access == Access::Read || self.access == access)
    }
}

/// The access of an operation to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reads it only.
    Read,
    /// Writes the value, and reads it only after that.
    Write,
}

/// The place of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the arena.
    Arena(Slot),
    /// In a weight that is stored as plain floats.
    Floats(WeightView),
    /// The packed weight of this number.
    Packed(usize),
    /// A cache of the KV pool: its group, and its place in the group.
    Cache(usize, usize),
    /// A recurrent state.
    State(StateId),
}

impl From<Slot> for Place {
    fn from(slot: Slot) -> Self {
        Self::Arena(slot)
    }
}

impl From<Source> for Place {
    fn from(source: Source) -> Self {
        match source {
            Source::Arena(slot) => Self::Arena(slot),
            Source::Weight(view) => Self::Floats(view),
        }
    }
}

impl From<Out> for Place {
    fn from(out: Out) -> Self {
        Self::Arena(out.slot)
    }
}

/// The list of an operation's operands and results.
#[derive(Debug, Default)]
pub(crate) struct Operands(pub Vec<Operand>);

impl Operands {
    /// Adds an operand that the operation only reads.
    pub(crate) fn reads(&mut self, name: &'static str, place: impl Into<Place>) -> &mut Self {
        self.0.push(Operand { name, access: Access::Read, place: place.into() });
        self
    }

    /// Adds an operand that the operation only reads, if there is one.
    pub(crate) fn may_read(&mut self, name: &'static str, place: Option<impl Into<Place>>) -> &mut Self {
        if let Some(place) = place {
            self.reads(name, place);
        }
        self
    }

    /// Adds a result, or memory that the operation writes before it reads it.
    pub(crate) fn writes(&mut self, name: &'static str, place: impl Into<Place>) -> &mut Self {
        self.0.push(Operand { name, access: Access::Write, place: place.into() });
        self
    }
}

/// The first operand that overlaps a result in such a step, with that result.
pub(crate) fn collision<'o>(operands: &'o [Operand], places: &Places<'_>) -> Option<[&'o Operand; 2]> {
    let region = |operand: &Operand| match operand.place {
        Place::Arena(slot) => Some(slot.region(places)),
        _ => None,
    };
    operands.iter().enumerate().find_map(|(number, result)| {
        let written = region(result).filter(|_| result.access == Access::Write)?;
        let others = operands.iter().enumerate().filter(|&(other, _)| other != number);
        let mut colliding = others.filter(|(_, other)| region(other).is_some_and(|it| it.overlaps(&written)));
        colliding.next().map(|(_, other)| [result, other])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(offset: usize, rows: usize, width: usize) -> Slot {
        Slot { buffer: BufferId(0), offset, stride: width.into(), width: width.into(), outer: rows.into() }
    }

    #[test]
    fn parts_cover_a_result_once() {
        let places = Places { sizes: &Sizes::default(), offsets: &[0] };
        for (rows, width) in [(1, 200), (3, 130), (8, 7), (0, 5), (5, 0)] {
            let slot = slot(10, rows, width);
            let of = [Out::by_rows, Out::by_elements, Out::by_columns, Out::by_one_thread];
            for out in of.map(|of| of(slot)) {
                for threads in [1, 2, 5] {
                    let mut seen = vec![0; rows * width];
                    for thread in 0..threads {
                        let part = out.part(&places, threads, thread);
                        assert_eq!(part.region.rows, part.rows.len());
                        assert_eq!(part.region.width, part.columns.len());
                        for row in part.rows.clone() {
                            part.columns.clone().for_each(|column| seen[row * width + column] += 1);
                        }
                        if !part.rows.is_empty() && !part.columns.is_empty() {
                            let first = 10 + part.rows.start * width + part.columns.start;
                            assert_eq!(part.region.offset, first);
                        }
                    }
                    assert!(seen.iter().all(|&count| count == 1), "{out:?} among {threads}: {seen:?}");
                }
            }
        }
    }

    #[test]
    fn a_result_must_not_lie_on_an_operand() {
        let places = Places { sizes: &Sizes::default(), offsets: &[0] };
        let mut operands = Operands::default();
        operands.reads("a", slot(0, 2, 8)).reads("b", slot(0, 2, 8)).writes("out", slot(16, 2, 8));
        assert_eq!(collision(&operands.0, &places), None);
        operands.reads("c", slot(31, 1, 1));
        let names = collision(&operands.0, &places).map(|pair| pair.map(|operand| operand.name));
        assert_eq!(names, Some(["out", "c"]));
    }
}
