//! Operands of products: activations, and memory for results.

use std::ops::Range;

use crate::quantize::QuantizedView;
use crate::rounded::RoundedView;
use crate::shared::SharedSlice;

/// Activations `[R, K]`, in the [forms](super::Forms) that the weights want.
#[derive(Clone, Copy, Debug, Default)]
pub struct Input<'a> {
    /// f32 rows.
    pub float: Option<FloatRows<'a>>,
    /// The rows as int8 blocks.
    pub int8: Option<QuantizedView<'a>>,
    /// The rows as bf16.
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

/// Memory for products: row r, output n goes to element `r · stride + column + n`.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    /// Memory that the threads share.
    pub values: SharedSlice<'a, f32>,
    /// Elements from row to row.
    pub stride: usize,
    /// Column of output 0. Negative if only later outputs are computed and lie further left.
    pub column: isize,
}

/// The row of results for each row of activations.
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

    /// True if there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row of activations number `index`.
    pub(super) fn x(&self, index: usize) -> usize {
        match self {
            Self::All(_) => index,
            Self::Pairs(pairs) => pairs[index].x as usize,
        }
    }

    /// Row of results number `index`.
    pub(super) fn y(&self, index: usize) -> usize {
        match self {
            Self::All(_) => index,
            Self::Pairs(pairs) => pairs[index].y as usize,
        }
    }
}

impl<'a> Input<'a> {
    /// Row `row` as f32; panics if there are no f32 activations.
    pub(super) fn float_row(&self, row: usize) -> &'a [f32] {
        let rows = self.float.expect("f32 activations for weights that want them");
        &rows.values[row * rows.stride..][..rows.k]
    }

    /// All rows as bf16; panics if there are none.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rounded(&self) -> RoundedView<'a> {
        self.bf16.expect("bf16 activations for weights that want them")
    }

    /// All rows as int8; panics if there are none.
    pub(super) fn int8(&self) -> QuantizedView<'a> {
        self.int8.expect("int8 activations for weights that want them")
    }
}

impl<'a> Output<'a> {
    /// The memory of some outputs of a row.
    ///
    /// # Safety
    ///
    /// No other thread accesses these elements while the result lives.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub(super) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        let start = (row * self.stride).wrapping_add_signed(self.column);
        // SAFETY: by the contract.
        unsafe { self.values.get_mut(start.wrapping_add(columns.start)..start.wrapping_add(columns.end)) }
    }
}
