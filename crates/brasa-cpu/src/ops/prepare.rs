//! Preparing activations for products: normed, as f32, as int8 blocks, as bf16 tiles.
//!
//! Every thread prepares a few rows for itself, which is cheaper than waiting for the others. Many rows are shared out,
//! with a barrier before the products.
#![expect(unsafe_code, reason = "threads prepare disjoint rows of shared memory")]

use crate::Isa;
use crate::context::{Context, View};
use crate::linear::{FloatRows, Forms, Input, WeightClasses, most_few_rows};
use crate::prepared::{PRIVATE_ELEMENTS, PreparedSize, PrivateRows, SharedPrepared};
use crate::quantize::{BLOCK, SharedRows};
use crate::rounded::{SharedRounded, tile_rows};
use crate::shared::SharedSlice;
use crate::slot::{Operands, Source};

use super::norm::{Norm, ReadyNorm};

/// The operand of a linear layer, and how it is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Activations {
    /// The value.
    pub x: Source,
    /// Elements of a vector.
    pub k: usize,
    /// Vectors in a row of `x`.
    pub per_row: usize,
    /// Applied to every vector first.
    pub norm: Option<Norm>,
    /// Classes of the weights that the vectors are multiplied with.
    pub classes: WeightClasses,
    /// The weights that a vector meets.
    pub meets: Meets,
    /// True if int8 codes come with codes of their residual (see `compile/residuals.rs`).
    pub residuals: bool,
}

/// The weights that a vector of an operand is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meets {
    /// Every vector meets every weight.
    All,
    /// A vector meets the weights that its row has chosen, as experts: many vectors may meet one weight, and few
    /// another.
    Chosen,
    /// A vector meets the weight at its own place in the row, as heads do: each weight meets one vector of every row.
    OfPlace,
}

/// Memory that prepared rows are written to.
#[derive(Clone, Copy)]
struct Targets<'a> {
    forms: Forms,
    quantized: SharedRows<'a>,
    rounded: SharedRounded<'a>,
    floats: SharedSlice<'a, f32>,
}

impl Activations {
    /// Lists `x` and the weights of the norm.
    pub(crate) fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x);
        if let Some(norm) = &self.norm {
            norm.operands(list);
        }
    }

    /// The forms that products of `count` vectors read.
    fn forms(&self, isa: Isa, count: usize) -> Forms {
        match self.meets {
            Meets::All => self.classes.forms(isa, count),
            Meets::Chosen => self.classes.forms(isa, count).or(self.classes.forms(isa, 1)),
            Meets::OfPlace => self.classes.forms(isa, count / self.per_row.max(1)),
        }
    }

    /// Shared memory that at most `rows` rows of `x` need.
    pub(crate) fn size(&self, isa: Isa, rows: usize) -> PreparedSize {
        let count = rows * self.per_row;
        let least = if self.meets == Meets::OfPlace { self.per_row.max(1) } else { 1 };
        let (few, many) = (self.forms(isa, least), self.forms(isa, count));
        let vectors = |many, few| match (many, few) {
            (true, _) => count,
            (false, true) => most_few_rows(count / least) * least,
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

    /// Prepares the first `rows` rows of `x`, which `view` shows. Waits at the barrier if threads share them out.
    ///
    /// The context comes back for reading only, so that prepared rows are gone before the next barrier.
    pub(crate) fn prepare<'a: 's, 's>(
        &self,
        cx: &'s mut Context<'a>,
        view: &'s View<'a>,
        rows: usize,
        private: &'s mut PrivateRows,
    ) -> (Input<'s>, &'s Context<'a>) {
        let count = rows * self.per_row;
        let forms = self.forms(cx.isa, count);
        let norm = self.norm.as_ref().map(|norm| norm.ready(cx));
        let mut input = Input::default();
        if forms.float && norm.is_none() {
            input.float = Some(self.plain(view));
            if !forms.int8 && !forms.bf16 {
                return (input, cx);
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
            // SAFETY: this thread's own memory, not written while the input borrows it.
            unsafe { self.finish(&mut input, count, to) };
        } else {
            let SharedPrepared { codes, blocks, rounded, floats } = cx.lend_prepared();
            let first_residual = self.residuals.then_some(count);
            let quantized = SharedRows::over(self.k.next_multiple_of(BLOCK), codes, blocks, first_residual);
            let to = Targets { forms, quantized, rounded: SharedRounded::over(self.k, rounded), floats };
            let mine = cx.share(count);
            // SAFETY: shares are disjoint, and what was lent in an earlier phase is no longer read.
            unsafe { self.fill(cx, view, mine, norm.as_ref(), to, &mut private.normed) };
            cx.wait();
            // SAFETY: all rows are written, and stay as they are for a phase, which the input does not outlive.
            unsafe { self.finish(&mut input, count, to) };
        }
        (input, cx)
    }

    /// The rows of the operand as they are, in f32.
    fn plain<'s>(&self, view: &'s View<'_>) -> FloatRows<'s> {
        match view {
            View::Arena(rows) => {
                let stride = if self.per_row == 1 { rows.region().stride } else { self.k };
                // SAFETY: between the rows lie elements of the same buffer, which this operation does not write.
                FloatRows { values: unsafe { rows.spanning() }, k: self.k, stride }
            }
            View::Weight(values, view) => FloatRows {
                values: &values[view.offset..],
                k: self.k,
                stride: if self.per_row == 1 { view.stride } else { self.k },
            },
        }
    }

    /// Writes the forms of some vectors.
    ///
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

    /// Adds views of the first `count` rows of `from` to `input`.
    ///
    /// # Safety
    ///
    /// No thread writes these rows while the input lives.
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
