//! Memory for activations in the forms in which kernels read them: int8 blocks, f32, bf16 tiles.
//!
//! Threads that prepare rows together share one [`Prepared`]; each thread has [`PrivateRows`] for the few rows that it
//! prepares by itself.

use crate::quantize::{BLOCK, BlockMeta, QuantizedRows};
use crate::rounded::RoundedRows;
use crate::shared::SharedSlice;
use crate::tile_row::TileRow;

/// Elements up to which every thread prepares all rows for itself.
pub(crate) const PRIVATE_ELEMENTS: usize = 8192;

/// Memory for rows that threads prepare together.
#[derive(Debug)]
pub(crate) struct Prepared {
    codes: Vec<i8>,
    blocks: Vec<BlockMeta>,
    rounded: Vec<TileRow>,
    floats: Vec<f32>,
}

/// The memory of a [`Prepared`] during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPrepared<'a> {
    /// Int8 codes.
    pub codes: SharedSlice<'a, i8>,
    /// Scales and sums of blocks of codes.
    pub blocks: SharedSlice<'a, BlockMeta>,
    /// Rows of bf16 tiles.
    pub rounded: SharedSlice<'a, TileRow>,
    /// Normed rows in f32.
    pub floats: SharedSlice<'a, f32>,
}

/// Memory for rows that a thread prepares for itself.
#[derive(Debug)]
pub(crate) struct PrivateRows {
    /// Int8 rows.
    pub quantized: QuantizedRows,
    /// Bf16 rows.
    pub rounded: RoundedRows,
    /// Normed rows in f32.
    pub floats: Vec<f32>,
    /// One normed vector.
    pub normed: Vec<f32>,
}

/// Elements of each kind of memory in a [`Prepared`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PreparedSize {
    /// Int8 codes, whole blocks.
    pub codes: usize,
    /// Elements in f32.
    pub floats: usize,
    /// Rows of bf16 tiles.
    pub rounded: usize,
}

impl PreparedSize {
    /// The size that is enough for both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            codes: self.codes.max(other.codes),
            floats: self.floats.max(other.floats),
            rounded: self.rounded.max(other.rounded),
        }
    }

    /// Bytes of the memory.
    pub(crate) fn bytes(self) -> usize {
        self.codes
            + self.codes / BLOCK * size_of::<BlockMeta>()
            + self.rounded * size_of::<TileRow>()
            + self.floats * 4
    }
}

impl Prepared {
    /// Memory of this size, zeroed.
    pub(crate) fn new(size: PreparedSize) -> Self {
        Self {
            codes: vec![0; size.codes],
            blocks: vec![BlockMeta::default(); size.codes / BLOCK],
            rounded: vec![TileRow::ZERO; size.rounded],
            floats: vec![0.0; size.floats],
        }
    }

    /// Shares the memory with the threads of one run.
    pub(crate) fn share(&mut self) -> SharedPrepared<'_> {
        SharedPrepared {
            codes: SharedSlice::new(&mut self.codes),
            blocks: SharedSlice::new(&mut self.blocks),
            rounded: SharedSlice::new(&mut self.rounded),
            floats: SharedSlice::new(&mut self.floats),
        }
    }
}

impl PrivateRows {
    /// Memory for vectors of at most `most_k` elements.
    pub(crate) fn new(most_k: usize) -> Self {
        Self {
            quantized: QuantizedRows::new(2 * PRIVATE_ELEMENTS / BLOCK, BLOCK),
            rounded: RoundedRows::default(),
            floats: vec![0.0; PRIVATE_ELEMENTS],
            normed: vec![0.0; most_k],
        }
    }
}
