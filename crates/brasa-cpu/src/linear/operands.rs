//! What a product reads and writes.

use std::ops::Range;

use crate::quantize::QuantizedView;
use crate::rounded::RoundedView;
use crate::shared::SharedSlice;

/// Activations `[R, K]`, in the [forms](super::Forms) that the weights want.
#[derive(Clone, Copy, Debug, Default)]
pub struct Input<'a> {
    /// f32 rows.
    pub float: Option<FloatRows<'a>>,
    /// The same rows as int8 blocks.
    pub int8: Option<QuantizedView<'a>>,
    /// The same rows as bf16.
    pub bf16: Option<RoundedView<'a>>,
}

/// f32 rows.
#[derive(Clone, Copy, Debug)]
pub struct FloatRows<'a> {
    /// Row r starts at `r · stride`.
    pub values: &'a [f32],
    /// Elements per row.
    pub k: usize,
    /// Elements from row to row.
    pub stride: usize,
}

/// Where products go: row r, output n to element `r · stride + column + n`.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// Memory that the threads share.
    pub values: SharedSlice<'a, f32>,
    /// Elements from row to row.
    pub stride: usize,
    /// Where output 0 goes in a row, or would go where only later ones are computed: hence it may be negative.
    pub column: isize,
}

/// Which row of activations makes which row of results.
#[derive(Clone, Copy, Debug)]
pub enum RowMap<'a> {
    /// Rows `0..n`, each to its own number.
    All(usize),
    /// Pairs of a row of activations and a row of results.
    Pairs(&'a [RowPair]),
}

/// A row of activations and the row of results that it makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowPair {
    /// Row of activations.
    pub x: u32,
    /// Row of results.
    pub y: u32,
}

impl RowMap<'_> {
    /// Rows.
    pub const fn len(&self) -> usize {
        match self {
            Self::All(rows) => *rows,
            Self::Pairs(pairs) => pairs.len(),
        }
    }

    /// True where there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn x(&self, index: usize) -> usize {
        match self {
            Self::All(_) => index,
            Self::Pairs(pairs) => pairs[index].x as usize,
        }
    }

    pub(super) fn y(&self, index: usize) -> usize {
        match self {
            Self::All(_) => index,
            Self::Pairs(pairs) => pairs[index].y as usize,
        }
    }
}

impl<'a> Input<'a> {
    pub(super) fn float_row(&self, row: usize) -> &'a [f32] {
        let rows = self.float.expect("f32 activations for weights that want them");
        &rows.values[row * rows.stride..][..rows.k]
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn rounded(&self) -> RoundedView<'a> {
        self.bf16.expect("bf16 activations for weights that want them")
    }

    pub(super) fn int8(&self) -> QuantizedView<'a> {
        self.int8.expect("int8 activations for weights that want them")
    }
}

impl<'a> Output<'a> {
    /// # Safety
    ///
    /// No one else touches these elements while the result lives.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub(super) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        let start = (row * self.stride).wrapping_add_signed(self.column);
        // SAFETY: by the contract.
        unsafe { self.values.get_mut(start.wrapping_add(columns.start)..start.wrapping_add(columns.end)) }
    }
}
