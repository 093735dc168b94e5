//! Activations in the forms that weights want them in: normed, as f32, as int8 blocks.
//!
//! A few rows are prepared by every thread for itself, which is cheaper than waiting for each other; many are
//! shared out, with a barrier before the products.
#![expect(unsafe_code, reason = "threads prepare disjoint rows of shared memory")]

use crate::context::{Context, Source, View};
use crate::linear::{FloatRows, Input};
use crate::quantize::{BLOCK, BlockMeta, QuantizedRows, SharedRows};
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
    /// Wanted as int8 blocks, as f32.
    pub int8: bool,
    pub float: bool,
}

/// Memory for prepared rows, for all threads together.
#[derive(Debug)]
pub(crate) struct Prepared {
    codes: Vec<i8>,
    blocks: Vec<BlockMeta>,
    floats: Vec<f32>,
}

/// The same during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPrepared<'a> {
    codes: SharedSlice<'a, i8>,
    blocks: SharedSlice<'a, BlockMeta>,
    floats: SharedSlice<'a, f32>,
}

/// Memory for rows that a thread prepares for itself.
#[derive(Debug)]
pub(crate) struct PrivateRows {
    quantized: QuantizedRows,
    floats: Vec<f32>,
    /// One normed vector.
    normed: Vec<f32>,
}

/// Elements of shared memory: int8 and f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PreparedSize {
    pub codes: usize,
    pub floats: usize,
}

impl PreparedSize {
    /// Enough for both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self { codes: self.codes.max(other.codes), floats: self.floats.max(other.floats) }
    }

    pub(crate) fn bytes(self) -> usize {
        self.codes + self.codes / BLOCK * size_of::<BlockMeta>() + self.floats * 4
    }
}

impl Prepared {
    pub(crate) fn new(size: PreparedSize) -> Self {
        Self {
            codes: vec![0; size.codes],
            blocks: vec![BlockMeta::default(); size.codes / BLOCK],
            floats: vec![0.0; size.floats],
        }
    }

    pub(crate) fn share(&mut self) -> SharedPrepared<'_> {
        SharedPrepared {
            codes: SharedSlice::new(&mut self.codes),
            blocks: SharedSlice::new(&mut self.blocks),
            floats: SharedSlice::new(&mut self.floats),
        }
    }
}

impl PrivateRows {
    pub(crate) fn new(most_k: usize) -> Self {
        Self {
            quantized: QuantizedRows::new(PRIVATE_ELEMENTS / BLOCK, BLOCK),
            floats: vec![0.0; PRIVATE_ELEMENTS],
            normed: vec![0.0; most_k],
        }
    }
}

impl Activations {
    /// Elements of shared memory that `rows` rows need.
    pub(crate) fn size(&self, rows: usize) -> PreparedSize {
        let elements = rows * self.per_row * self.k;
        PreparedSize {
            codes: if self.int8 { elements } else { 0 },
            floats: if self.float && self.norm.is_some() { elements } else { 0 },
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
        let norm = self.norm.as_ref().map(|norm| norm.ready(cx));
        let plain = self.float && norm.is_none();
        let mut input = Input::default();
        if plain {
            input.float = Some(self.plain(view));
        }
        if !self.int8 && plain {
            return input;
        }
        if count * self.k <= PRIVATE_ELEMENTS || cx.threads == 1 {
            // One thread shares with nobody.
            let PrivateRows { quantized, floats, normed } = private;
            let floats = if self.float && norm.is_some() {
                if floats.len() < count * self.k {
                    floats.resize(count * self.k, 0.0);
                }
                SharedSlice::new(floats)
            } else {
                SharedSlice::new(&mut floats[..0])
            };
            quantized.reshape(if self.int8 { count } else { 0 }, self.k.next_multiple_of(BLOCK));
            let shared = quantized.shared();
            // SAFETY: this thread's own memory.
            unsafe { self.fill(cx, view, 0..count, norm.as_ref(), shared, floats, normed) };
            // SAFETY: as above; nothing is written from here on.
            unsafe { self.finish(&mut input, count, shared, floats) };
        } else {
            let SharedPrepared { codes, blocks, floats } = cx.prepared;
            let shared = SharedRows::over(self.k.next_multiple_of(BLOCK), codes, blocks);
            let mine = cx.share(count);
            // SAFETY: shares are disjoint, and the last reader of this memory has passed a barrier.
            unsafe { self.fill(cx, view, mine, norm.as_ref(), shared, floats, &mut private.normed) };
            cx.wait();
            // SAFETY: all rows are written, and stay until the operation ends with a barrier.
            unsafe { self.finish(&mut input, count, shared, floats) };
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
    /// No other thread uses these rows of `quantized` and `floats` until a barrier.
    unsafe fn fill(
        &self,
        cx: &Context<'_>,
        view: &View<'_>,
        vectors: std::ops::Range<usize>,
        norm: Option<&ReadyNorm<'_>>,
        quantized: SharedRows<'_>,
        floats: SharedSlice<'_, f32>,
        normed: &mut [f32],
    ) {
        let k = self.k;
        for vector in vectors {
            let column = vector % self.per_row * k;
            let x = &view.row(vector / self.per_row)[column..column + k];
            let x = match norm {
                None => x,
                Some(norm) if self.float => {
                    // SAFETY: by the contract.
                    let y = unsafe { floats.get_mut(vector * k..(vector + 1) * k) };
                    norm.apply(cx.isa, x, y);
                    &*y
                }
                Some(norm) => {
                    norm.apply(cx.isa, x, &mut normed[..k]);
                    &normed[..k]
                }
            };
            if self.int8 {
                // SAFETY: by the contract.
                unsafe { quantized.quantize_row(cx.isa, vector, x) };
            }
        }
    }

    /// # Safety
    ///
    /// Nobody writes the first `count` rows while the input lives.
    unsafe fn finish<'s>(
        &self,
        input: &mut Input<'s>,
        count: usize,
        quantized: SharedRows<'s>,
        floats: SharedSlice<'s, f32>,
    ) {
        if self.int8 {
            // SAFETY: by the contract.
            input.int8 = Some(unsafe { quantized.view(count) });
        }
        if self.float && self.norm.is_some() {
            // SAFETY: by the contract.
            let values = unsafe { floats.get(0..count * self.k) };
            input.float = Some(FloatRows { values, k: self.k, stride: self.k });
        }
    }
}
