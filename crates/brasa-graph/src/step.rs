//! The step: the single unit of work of a program.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{DType, DraftTree, StatePages};

/// Positions per KV page.
pub const PAGE_POSITIONS: usize = 256;

/// Id of a sequence in the engine. Devices do not interpret it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A KV page of one cache group. Numbered from 1, so that `Option<PageId>` takes no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub NonZeroU32);

impl PageId {
    /// The page at `index` of its pool, counted from 0.
    pub fn from_index(index: usize) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    /// Place of the page in the pool, counted from 0.
    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Pages of one sequence in one cache group. Entry *i* is the page of the indices from `256·i` to `256·i + 255`; `None` if a
/// window group has released the page.
pub type BlockTable = Vec<Option<PageId>>;

/// Rows of several sequences, computed together. A prompt chunk, one decode token, sixteen sequences that decode together, and a
/// tree of drafts to verify are all steps. There are no padding rows and no second code path for batching.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The sequences' rows, in order.
    pub segments: Vec<Segment>,
}

/// Contiguous rows of one sequence.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Sequence that the rows belong to.
    pub sequence: SequenceId,
    /// Cache slot of the first row. Row *i* is written at `first_index + i` and sees all indices up to its own, or the rows that
    /// `tree` makes visible.
    pub first_index: usize,
    /// Rows of the segment.
    pub rows: usize,
    /// Token id of each row; may be empty for a graph that reads no token ids.
    pub tokens: Vec<u32>,
    /// Embeddings of the rows, `[rows, hidden_size]`, dense and finite, in place of those of the token ids. They replace the
    /// result of the graph's [token embedding](crate::Graph::token_embedding), so operations after it (such as Gemma's factor
    /// `√hidden_size`) apply to them as well. Other uses of token ids still read `tokens`.
    pub embeddings: Option<Arc<[f32]>>,
    /// Position of each row, for RoPE or learned embeddings. `None` for `first_index` plus the row's number (in a draft tree: its
    /// depth).
    pub positions: Option<Vec<u32>>,
    /// Draft tree of the rows, if they do not follow each other in a line.
    pub tree: Option<Arc<DraftTree>>,
    /// The segment's part of each input that the graph declares, in order of their ids.
    pub given: Vec<GivenValues>,
    /// Rows with outputs.
    pub outs: Outs,
    /// Number of memory rows that the segment's rows see; 0 if the graph reads no memory.
    pub memory_rows: usize,
    /// Block table of each cache group. It covers every index that the rows see, and the rows of a memory that they write.
    pub pages: Vec<BlockTable>,
    /// State pages that the segment reads and writes; the default, without pages, for a graph without recurrent states.
    pub states: StatePages,
}

/// The rows of a segment that have outputs, such as logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outs {
    /// No outputs, as in an inner chunk of a prompt.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
    /// The listed rows, counted from the segment's first, in this order.
    Rows(Arc<[u32]>),
}

/// The values of one segment for an input that the graph declares, as dense rows.
#[derive(Clone, Debug, PartialEq)]
pub enum GivenValues {
    /// Finite floats.
    F32(Arc<[f32]>),
    /// Unsigned integers.
    U32(Arc<[u32]>),
}

impl GivenValues {
    /// Element type of the values.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::U32(_) => DType::U32,
        }
    }

    /// Keeps the values of the last of `rows` rows.
    pub(crate) fn keep_last_row(&mut self, rows: usize) {
        if rows > 1 {
            let rest = self.elements() - self.elements() / rows;
            match self {
                Self::F32(values) => *values = values[rest..].into(),
                Self::U32(values) => *values = values[rest..].into(),
            }
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::U32(values) => values.len(),
        }
    }
}

impl Segment {
    /// Rows of plain text, from index `first_index` on.
    pub fn text(
        sequence: SequenceId,
        first_index: usize,
        tokens: Vec<u32>,
        outs: Outs,
        pages: Vec<BlockTable>,
    ) -> Self {
        Self {
            sequence,
            first_index,
            rows: tokens.len(),
            tokens,
            embeddings: None,
            positions: None,
            tree: None,
            given: Vec::new(),
            outs,
            memory_rows: 0,
            pages,
            states: StatePages::default(),
        }
    }

    /// Replaces the rows of the segment by `tokens`.
    pub fn set_tokens(&mut self, tokens: &[u32]) {
        self.rows = tokens.len();
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
    }

    /// Number of rows with outputs.
    pub fn outs(&self) -> usize {
        match &self.outs {
            Outs::None => 0,
            Outs::Last => self.rows.min(1),
            Outs::All => self.rows,
            Outs::Rows(rows) => rows.len(),
        }
    }

    /// Rows with outputs, counted from the segment's first.
    pub fn out_rows(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.outs()).map(|out| match &self.outs {
            Outs::Rows(rows) => rows[out] as usize,
            Outs::Last => self.rows - 1,
            Outs::None | Outs::All => out,
        })
    }

    /// Position of row `row`.
    pub fn position(&self, row: usize) -> u32 {
        match (&self.positions, &self.tree) {
            (Some(positions), _) => positions[row],
            (None, Some(tree)) => (self.first_index + tree.depth(row)) as u32,
            (None, None) => (self.first_index + row) as u32,
        }
    }
}

impl Step {
    /// Rows of all segments.
    pub fn rows(&self) -> usize {
        self.segments.iter().fold(0, |rows: usize, segment| rows.saturating_add(segment.rows))
    }

    /// Number of rows with outputs.
    pub fn outs(&self) -> usize {
        self.segments.iter().fold(0, |outs: usize, segment| outs.saturating_add(segment.outs()))
    }
}
