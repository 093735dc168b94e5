//! Activations in the forms that weights want them in: normed, as f32, as int8 blocks, as bf16 tiles.
//!
//! A few rows are prepared by every thread for itself, which is cheaper than waiting for each other; many are
//! shared out, with a barrier before the products.
#![expect(unsafe_code, reason = "threads prepare disjoint rows of shared memory")]

use crate::Isa;
use crate::context::{Context, Source, View};
use crate::linear::{FloatRows, Forms, Input, WeightClasses, most_few_rows};
use crate::quantize::{BLOCK, BlockMeta, QuantizedRows, SharedRows};
use crate::rounded::{RoundedRows, SharedRounded, TileRow, tile_rows};
use crate::shared::SharedSlice;

use super::norm::{Norm, ReadyNorm};

/// Elements up to which every thread prepares all rows for itself.
const PRIVATE_ELEMENTS: usize = 8192;

/// What is to be prepared: vectors of `k` elements, `per_row` of them in each row of `x`.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    pub x: Source,
    pub k: usize,
    pub per_row: usize,
    pub norm: Option<Norm>,
    /// Those of the weights that they are multiplied with.
    pub classes: WeightClasses,
    /// Rows go to different weights, many to one and few to another.
    pub scattered: bool,
    /// Int8 blocks have residuals.
    pub residuals: bool,
}

/// Memory for prepared rows, for all threads together.
#[derive(Debug)]
pub(crate) struct Prepared {
    codes: Vec<i8>,
    blocks: Vec<BlockMeta>,
    rounded: Vec<TileRow>,
    floats: Vec<f32>,
}

/// The same during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPrepared<'a> {
    codes: SharedSlice<'a, i8>,
    blocks: SharedSlice<'a, BlockMeta>,
    rounded: SharedSlice<'a, TileRow>,
    floats: SharedSlice<'a, f32>,
}

/// Memory for rows that a thread prepares for itself.
#[derive(Debug)]
pub(crate) struct PrivateRows {
    quantized: QuantizedRows,
    rounded: RoundedRows,
    floats: Vec<f32>,
    /// One normed vector.
    normed: Vec<f32>,
}

/// Where the forms of rows are written.
#[derive(Clone, Copy)]
struct Targets<'a> {
    forms: Forms,
    quantized: SharedRows<'a>,
    rounded: SharedRounded<'a>,
    floats: SharedSlice<'a, f32>,
}

/// Elements of shared memory: int8 and f32; rows of bf16 tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PreparedSize {
    pub codes: usize,
    pub floats: usize,
    pub rounded: usize,
}

impl PreparedSize {
    /// Enough for both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            codes: self.codes.max(other.codes),
            floats: self.floats.max(other.floats),
            rounded: self.rounded.max(other.rounded),
        }
    }

    pub(crate) fn bytes(self) -> usize {
        self.codes
            + self.codes / BLOCK * size_of::<BlockMeta>()
            + self.rounded * size_of::<TileRow>()
            + self.floats * 4
    }
}

impl Prepared {
    pub(crate) fn new(size: PreparedSize) -> Self {
        Self {
            codes: vec![0; size.codes],
            blocks: vec![BlockMeta::default(); size.codes / BLOCK],
            rounded: vec![TileRow::ZERO; size.rounded],
            floats: vec![0.0; size.floats],
        }
    }

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
    pub(crate) fn new(most_k: usize) -> Self {
        Self {
            quantized: QuantizedRows::new(2 * PRIVATE_ELEMENTS / BLOCK, BLOCK),
            rounded: RoundedRows::default(),
            floats: vec![0.0; PRIVATE_ELEMENTS],
            normed: vec![0.0; most_k],
        }
    }
}

impl Activations {
    /// The forms that products of `count` vectors read.
    fn forms(&self, isa: Isa, count: usize) -> Forms {
        let forms = self.classes.forms(isa, count);
        if self.scattered { forms.or(self.classes.forms(isa, 1)) } else { forms }
    }

    /// Elements of shared memory that at most `rows` rows need.
    pub(crate) fn size(&self, isa: Isa, rows: usize) -> PreparedSize {
        let count = rows * self.per_row;
        let (few, many) = (self.forms(isa, 1), self.forms(isa, count));
        let vectors = |many, few| match (many, few) {
            (true, _) => count,
            (false, true) => most_few_rows(count),
            (false, false) => 0,
        };
        PreparedSize {
            codes: vectors(many.int8, few.int8)
                * (1 + usize::from(self.residuals))
                * self.k.next_multiple_of(BLOCK),
            floats: if self.norm.is_some() { vectors(many.float, few.float) * self.k } else { 0 },
            rounded: tile_rows(vectors(many.bf16, few.bf16), self.k),
        }
    }

    /// Prepares the rows of `x`; waits at the barrier where they are shared out.
    pub(crate) fn prepare<'a: 's, 's>(
        &self,
        cx: &mut Context<'a>,
        view: &'s View<'a>,
        rows: usize,
        private: &'s mut PrivateRows,
    ) -> Input<'s> {
        let count = rows * self.per_row;
        let forms = self.forms(cx.isa, count);
        let norm = self.norm.as_ref().map(|norm| norm.ready(cx));
        let mut input = Input::default();
        if forms.float && norm.is_none() {
            input.float = Some(self.plain(view));
            if !forms.int8 && !forms.bf16 {
                return input;
            }
        }
        let normed_floats = forms.float && norm.is_some();
        if count * self.k <= PRIVATE_ELEMENTS || cx.threads == 1 {
            // One thread shares with nobody.
            let PrivateRows { quantized, rounded, floats, normed } = private;
            let floats = if normed_floats {
                if floats.len() < count * self.k {
                    floats.resize(count * self.k, 0.0);
                }
                SharedSlice::new(floats)
            } else {
                SharedSlice::new(&mut floats[..0])
            };
            let (int8_rows, padded) = (if forms.int8 { count } else { 0 }, self.k.next_multiple_of(BLOCK));
            if self.residuals {
                quantized.reshape_with_residuals(int8_rows, padded);
            } else {
                quantized.reshape(int8_rows, padded);
            }
            rounded.reshape(if forms.bf16 { count } else { 0 }, self.k);
            let to = Targets { forms, quantized: quantized.shared(), rounded: rounded.shared(), floats };
            // SAFETY: this thread's own memory.
            unsafe { self.fill(cx, view, 0..count, norm.as_ref(), to, normed) };
            // SAFETY: as above; nothing is written from here on.
            unsafe { self.finish(&mut input, count, to) };
        } else {
            let SharedPrepared { codes, blocks, rounded, floats } = cx.prepared;
            let first_residual = self.residuals.then_some(count);
            let quantized = SharedRows::over(self.k.next_multiple_of(BLOCK), codes, blocks, first_residual);
            let to = Targets { forms, quantized, rounded: SharedRounded::over(self.k, rounded), floats };
            let mine = cx.share(count);
            // SAFETY: shares are disjoint, and the last reader of this memory has passed a barrier.
            unsafe { self.fill(cx, view, mine, norm.as_ref(), to, &mut private.normed) };
            cx.wait();
            // SAFETY: all rows are written, and stay until the operation ends with a barrier.
            unsafe { self.finish(&mut input, count, to) };
        }
        input
    }

    /// The operand itself as f32 rows.
    fn plain<'s>(&self, view: &'s View<'_>) -> FloatRows<'s> {
        match view {
            View::Arena(rows) => {
                let stride = if self.per_row == 1 { rows.region().stride } else { self.k };
                // SAFETY: what lies between the rows belongs to the same value, which nobody writes now.
                FloatRows { values: unsafe { rows.spanning() }, k: self.k, stride }
            }
            View::Weight(values, view) => FloatRows {
                values: &values[view.offset..],
                k: self.k,
                stride: if self.per_row == 1 { view.stride } else { self.k },
            },
        }
    }

    /// # Safety
    ///
    /// No other thread uses these rows of `to` until a barrier.
    unsafe fn fill(
        &self,
        cx: &Context<'_>,
        view: &View<'_>,
        vectors: std::ops::Range<usize>,
        norm: Option<&ReadyNorm<'_>>,
        to: Targets<'_>,
        normed: &mut [f32],
    ) {
        let k = self.k;
        for vector in vectors {
            let column = vector % self.per_row * k;
            let x = &view.row(vector / self.per_row)[column..column + k];
            let x = match norm {
                None => x,
                Some(norm) if to.forms.float => {
                    // SAFETY: by the contract.
                    let y = unsafe { to.floats.get_mut(vector * k..(vector + 1) * k) };
                    norm.apply(cx.isa, x, y);
                    &*y
                }
                Some(norm) => {
                    norm.apply(cx.isa, x, &mut normed[..k]);
                    &normed[..k]
                }
            };
            if to.forms.int8 {
                // SAFETY: by the contract.
                unsafe { to.quantized.quantize_row(cx.isa, vector, x) };
            }
            if to.forms.bf16 {
                // SAFETY: by the contract.
                unsafe { to.rounded.round_row(cx.isa, vector, x) };
            }
        }
    }

    /// # Safety
    ///
    /// Nobody writes the first `count` rows while the input lives.
    unsafe fn finish<'s>(&self, input: &mut Input<'s>, count: usize, from: Targets<'s>) {
        // SAFETY: by the contract.
        unsafe {
            input.int8 = from.forms.int8.then(|| from.quantized.view(count));
            input.bf16 = from.forms.bf16.then(|| from.rounded.view(count));
            if from.forms.float && self.norm.is_some() {
                let values = from.floats.get(0..count * self.k);
                input.float = Some(FloatRows { values, k: self.k, stride: self.k });
            }
        }
    }
}
