//! Rows of activations as blocks of int8.
//!
//! A block is 32 consecutive elements with one scale, `scale = max |x| / 127` and `q = round(x / scale)`,
//! ties to even. Beside the codes a block keeps its sums, since a weight format with an offset or a minimum
//! needs `Σx`. One source is compiled once per instruction set, so that all of them give the same bits; AVX-512 has a block of its
//! own, of the same operations.
//!
//! If that is too coarse, the **residual** `x − scale · q` is quantised as well: a second row, which is multiplied and added
//! like any other. Both together are as good as codes of 15 bits.
#![expect(unsafe_code, reason = "compiles one source for several instruction sets")]
#![allow(
    clippy::inline_always,
    reason = "one source is compiled for several instruction sets, which needs inlining"
)]

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use crate::Isa;
use crate::shared::SharedSlice;

/// Elements that share a scale.
pub const BLOCK: usize = 32;

/// Scale and sums of a block of 32 codes.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockMeta {
    /// The scale: `x ≈ scale · q`.
    pub scale: f32,
    /// Scaled sum of the codes, `scale · Σq`.
    pub scaled_sum: f32,
    /// Sum of the codes, `Σq`.
    pub sum: i32,
    /// Sums of the first and of the last 16 codes.
    pub half_sums: [i16; 2],
}

/// One quantised row.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantizedRow<'a> {
    /// K codes in −127..=127.
    pub codes: &'a [i8],
    /// K / 32 blocks.
    pub blocks: &'a [BlockMeta],
}

/// Quantised rows, for reading.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedView<'a> {
    k: usize,
    codes: &'a [i8],
    blocks: &'a [BlockMeta],
    first_residual: Option<usize>,
}

impl<'a> QuantizedView<'a> {
    /// Row `row`.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[inline]
    pub fn row(&self, row: usize) -> QuantizedRow<'a> {
        let blocks = self.k / BLOCK;
        QuantizedRow {
            codes: &self.codes[row * self.k..][..self.k],
            blocks: &self.blocks[row * blocks..][..blocks],
        }
    }

    /// The row that is the residual of row 0; residuals of the other rows follow. `None` if there are no residuals.
    pub const fn first_residual(&self) -> Option<usize> {
        self.first_residual
    }
}

/// Memory for quantised rows `[R, K]`, reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct QuantizedRows {
    k: usize,
    codes: Vec<i8>,
    blocks: Vec<BlockMeta>,
    first_residual: Option<usize>,
}

/// Quantised rows that several threads fill, and read after a barrier.
#[derive(Clone, Copy, Debug)]
pub struct SharedRows<'a> {
    k: usize,
    codes: SharedSlice<'a, i8>,
    blocks: SharedSlice<'a, BlockMeta>,
    first_residual: Option<usize>,
}

impl QuantizedRows {
    /// Memory for `rows` rows of `k` elements, all zero.
    ///
    /// # Panics
    ///
    /// If `k` is no multiple of 32.
    pub fn new(rows: usize, k: usize) -> Self {
        let mut this = Self::default();
        this.reshape(rows, k);
        this
    }

    /// Makes room for `rows` rows of `k` elements. Allocates only if it never was that large.
    ///
    /// # Panics
    ///
    /// If `k` is no multiple of 32.
    pub fn reshape(&mut self, rows: usize, k: usize) {
        assert!(k.is_multiple_of(BLOCK), "{k} activations, expected a multiple of {BLOCK}");
        self.k = k;
        self.codes.resize(rows * k, 0);
        self.blocks.resize(rows * k / BLOCK, BlockMeta::default());
        self.first_residual = None;
    }

    /// Makes room for `rows` rows of `k` elements and for their residuals.
    ///
    /// # Panics
    ///
    /// If `k` is no multiple of 32.
    pub fn reshape_with_residuals(&mut self, rows: usize, k: usize) {
        self.reshape(2 * rows, k);
        self.first_residual = Some(rows);
    }

    /// Quantises `rows` of `x` `[R, K]` into the rows of the same number.
    pub fn quantize(&mut self, isa: Isa, x: &[f32], rows: Range<usize>) {
        let shared = self.shared();
        // SAFETY: `self` is borrowed mutably, nobody else reads or writes.
        unsafe { shared.quantize(isa, x, rows) }
    }

    /// A handle through which several threads fill disjoint rows.
    pub fn shared(&mut self) -> SharedRows<'_> {
        let Self { k, codes, blocks, first_residual } = self;
        SharedRows {
            k: *k,
            codes: SharedSlice::new(codes),
            blocks: SharedSlice::new(blocks),
            first_residual: *first_residual,
        }
    }

    /// All rows.
    pub fn view(&self) -> QuantizedView<'_> {
        QuantizedView {
            k: self.k,
            codes: &self.codes,
            blocks: &self.blocks,
            first_residual: self.first_residual,
        }
    }
}

impl<'a> SharedRows<'a> {
    /// Rows of `k` elements in memory that is shared already. Residuals begin with row `first_residual`.
    ///
    /// # Panics
    ///
    /// If `k` is no multiple of 32.
    pub fn over(
        k: usize,
        codes: SharedSlice<'a, i8>,
        blocks: SharedSlice<'a, BlockMeta>,
        first_residual: Option<usize>,
    ) -> Self {
        assert!(k.is_multiple_of(BLOCK), "{k} activations, expected a multiple of {BLOCK}");
        Self { k, codes, blocks, first_residual }
    }

    /// Quantises `x`, `[K]`, into row `row`, and the remainder into its residual if there are residuals.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this row and its residual until a barrier.
    ///
    /// # Panics
    ///
    /// If `x` has another length.
    pub unsafe fn quantize_row(&self, isa: Isa, row: usize, x: &[f32]) {
        assert_eq!(x.len(), self.k, "activations of a row");
        // SAFETY: exclusive by the caller's promise; a row is not its own residual.
        unsafe {
            let residual = self.first_residual.map(|first| self.row_mut(first + row));
            quantize_row(isa, x, self.row_mut(row), residual);
        }
    }

    /// Row `row`, for writing.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this row while the result lives.
    unsafe fn row_mut(&self, row: usize) -> RowMut<'a> {
        let per_row = self.k / BLOCK;
        // SAFETY: by the contract.
        unsafe {
            RowMut {
                codes: self.codes.get_mut(row * self.k..(row + 1) * self.k),
                blocks: self.blocks.get_mut(row * per_row..(row + 1) * per_row),
            }
        }
    }

    /// Elements per row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Quantises `rows` of `x` `[R, K]` into the rows of the same number.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these rows and their residuals until a barrier.
    pub unsafe fn quantize(&self, isa: Isa, x: &[f32], rows: Range<usize>) {
        for row in rows {
            // SAFETY: by the contract.
            unsafe { self.quantize_row(isa, row, &x[row * self.k..(row + 1) * self.k]) };
        }
    }

    /// The first `rows` rows, and the residuals.
    ///
    /// # Safety
    ///
    /// No thread writes the elements while the result lives.
    pub unsafe fn view(&self, rows: usize) -> QuantizedView<'a> {
        let all = rows + self.first_residual.unwrap_or(0);
        // SAFETY: not written meanwhile by the caller's promise.
        unsafe {
            QuantizedView {
                k: self.k,
                codes: self.codes.get(0..all * self.k),
                blocks: self.blocks.get(0..all * self.k / BLOCK),
                first_residual: self.first_residual,
            }
        }
    }
}

/// A row to be written.
struct RowMut<'a> {
    codes: &'a mut [i8],
    blocks: &'a mut [BlockMeta],
}

fn quantize_row(isa: Isa, x: &[f32], row: RowMut<'_>, residual: Option<RowMut<'_>>) {
    match isa {
        Isa::Scalar => quantize_blocks(x, row, residual, quantize_block),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value proves AVX2.
        Isa::Avx2(_) => unsafe { quantize_avx2(x, row, residual) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value proves AVX-512.
        Isa::Avx512(_) => unsafe { quantize_avx512(x, row, residual) },
        // NEON needs no enabling: the compiler uses it everywhere.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(_) | Isa::Dotprod(_) | Isa::I8mm(_) => quantize_blocks(x, row, residual, quantize_block),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_avx2(x: &[f32], row: RowMut<'_>, residual: Option<RowMut<'_>>) {
    quantize_blocks(x, row, residual, quantize_block);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn quantize_avx512(x: &[f32], row: RowMut<'_>, residual: Option<RowMut<'_>>) {
    quantize_blocks(x, row, residual, |x, codes| avx512::quantize_block(x, codes));
}

#[inline(always)]
fn quantize_blocks(
    x: &[f32],
    row: RowMut<'_>,
    residual: Option<RowMut<'_>>,
    quantize_block: impl Fn(&[f32; BLOCK], &mut [i8; BLOCK]) -> BlockMeta,
) {
    let (x, _) = x.as_chunks::<BLOCK>();
    let (codes, _) = row.codes.as_chunks_mut::<BLOCK>();
    for ((x, codes), block) in x.iter().zip(&mut *codes).zip(&mut *row.blocks) {
        *block = quantize_block(x, codes);
    }
    let Some(residual) = residual else { return };
    let (residual_codes, _) = residual.codes.as_chunks_mut::<BLOCK>();
    let rows = codes.iter().zip(row.blocks).zip(residual_codes).zip(residual.blocks);
    for (x, (((codes, block), residual_codes), residual_block)) in x.iter().zip(rows) {
        let mut left = *x;
        for (left, code) in left.iter_mut().zip(codes) {
            *left -= block.scale * f32::from(*code);
        }
        *residual_block = quantize_block(&left, residual_codes);
    }
}

/// Below this a block counts as zero: the reciprocal of its scale would overflow.
const TINY: f32 = 1e-30;
/// Adding 1.5 · 2²³ leaves the rounded integer in the low bits of the mantissa.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], codes: &mut [i8; BLOCK]) -> BlockMeta {
    // As integers, magnitudes order like floats and NaN is above them all: it reaches the scale.
    let largest = x.iter().fold(0_u32, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    if largest <= TINY {
        codes.fill(0);
        return BlockMeta::default();
    }
    let scale = largest / 127.0;
    let inverse = 127.0 / largest;
    let mut rounded = [0_i32; BLOCK];
    for (rounded, x) in rounded.iter_mut().zip(x) {
        *rounded = ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32) as i8 as i32;
    }
    for (code, rounded) in codes.iter_mut().zip(&rounded) {
        *code = *rounded as i8;
    }
    let first: i32 = rounded[..16].iter().sum();
    let last: i32 = rounded[16..].iter().sum();
    let sum = first + last;
    BlockMeta { scale, scaled_sum: scale * sum as f32, sum, half_sums: [first as i16, last as i16] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let k = 352;
        let mut x = noise(3 * k, 7);
        x[40..80].fill(0.0);
        x[100] = 1e-35;
        x[352] = 1e20;
        let mut expected = QuantizedRows::new(3, k);
        expected.quantize(Isa::Scalar, &x, 0..3);
        for isa in Isa::available() {
            let mut rows = QuantizedRows::new(3, k);
            rows.quantize(isa, &x, 0..3);
            assert_eq!(rows.codes, expected.codes, "{}", isa.name());
            assert_eq!(rows.blocks, expected.blocks, "{}", isa.name());
        }
    }

    #[test]
    fn codes_are_within_half_a_step_and_sums_are_theirs() {
        let x = noise(64, 3);
        let mut rows = QuantizedRows::new(1, 64);
        rows.quantize(Isa::Scalar, &x, 0..1);
        let row = rows.view().row(0);
        for (index, (x, code)) in x.iter().zip(row.codes).enumerate() {
            let block = row.blocks[index / BLOCK];
            assert!((x - block.scale * f32::from(*code)).abs() <= block.scale * 0.5001);
        }
        let sum: i32 = row.codes[..32].iter().map(|code| i32::from(*code)).sum();
        assert_eq!(row.blocks[0].sum, sum);
        assert_eq!(row.blocks[0].half_sums.iter().map(|half| i32::from(*half)).sum::<i32>(), sum);
    }

    #[test]
    fn residuals_make_good_what_rounding_takes() {
        let k = 96;
        let mut x = noise(2 * k, 11);
        x[64..96].fill(0.0);
        for isa in Isa::available() {
            let mut rows = QuantizedRows::default();
            rows.reshape_with_residuals(2, k);
            rows.quantize(isa, &x, 0..2);
            let view = rows.view();
            assert_eq!(view.first_residual(), Some(2));
            for (index, x) in x.iter().enumerate() {
                let (row, column) = (index / k, index % k);
                let [whole, residual] = [row, 2 + row].map(|row| {
                    let row = view.row(row);
                    row.blocks[column / BLOCK].scale * f32::from(row.codes[column])
                });
                let step = view.row(row).blocks[column / BLOCK].scale;
                assert!(
                    (x - whole - residual).abs() <= step * 0.502 / 254.0,
                    "{}: {x}, {whole} + {residual}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn not_a_number_stays_visible() {
        let mut x = noise(32, 5);
        x[9] = f32::NAN;
        for isa in Isa::available() {
            let mut rows = QuantizedRows::new(1, 32);
            rows.quantize(isa, &x, 0..1);
            assert!(rows.view().row(0).blocks[0].scale.is_nan());
        }
    }
}
