//! Places of values in memory.

use brasa_graph::{Input, Shape, WeightId};

/// Number of a buffer of the arena. A buffer holds a value, or intermediate results of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// The memory that a value lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// A buffer of the arena.
    Buffer(BufferId),
    /// Numbers that the step supplies.
    Input(Input),
    /// A weight.
    Weight(WeightId),
}

/// The place of a value in any step: element *i* of row *r* is element `start + r · row_stride + i` of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The memory that holds the value.
    pub base: Base,
    /// Elements of the memory in front of the value's first element.
    pub start: usize,
    /// Elements from the start of one outermost row to the start of the next; `None` if the rows follow each other without gaps.
    pub row_stride: Option<usize>,
    /// The value's shape.
    pub shape: Shape,
}

impl Place {
    /// All of a buffer, as a dense value.
    pub fn whole(buffer: BufferId, shape: Shape) -> Self {
        Self { base: Base::Buffer(buffer), start: 0, row_stride: None, shape }
    }

    /// True if the rows follow each other without gaps.
    pub fn is_dense(&self) -> bool {
        self.row_stride.is_none() || self.row_stride == self.shape.row_elements()
    }
}

impl BufferId {
    /// The number as an index into lists with one entry for each buffer.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
