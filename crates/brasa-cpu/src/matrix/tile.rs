//! A tile of a product, with its sums in registers.

use std::ops::Range;

use super::{ResultRows, Store};
use crate::Isa;
use crate::simd::{Kernel, LANES, Simd};

/// The size of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// 12 rows and 32 columns, for 32 registers of 16 lanes: 24 hold sums, and 14 loads feed 24 products.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX-512 alone has them"))]
    Large,
    /// 6 rows and 16 columns, for 16 registers of 8 lanes or 32 of 4.
    Small,
}

impl Shape {
    /// The size that suits an instruction set.
    pub(super) const fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => Self::Large,
            _ => Self::Small,
        }
    }

    /// Columns of a tile.
    pub(super) const fn columns(self) -> usize {
        match self {
            Self::Large => 2 * LANES,
            Self::Small => LANES,
        }
    }
}

/// The products of up to M rows and N vectors of columns, from packed panels of both, which replace a part of a result or are added to it.
pub(super) struct Tile<'a, R, const M: usize, const N: usize> {
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub out: &'a mut R,
    /// Rows of the part.
    pub rows: Range<usize>,
    pub columns: Range<usize>,
    pub store: Store,
}

impl<R: ResultRows, const M: usize, const N: usize> Kernel for Tile<'_, R, M, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { a, b, out, rows, columns, store } = self;
        let (a, b) = (a.as_chunks::<M>().0, b.as_chunks::<LANES>().0.as_chunks::<N>().0);
        let mut sums = [[simd.splat(0.0); N]; M];
        for (a, b) in a.iter().zip(b) {
            let mut columns = [simd.splat(0.0); N];
            for (column, b) in columns.iter_mut().zip(b) {
                *column = simd.load(b);
            }
            for (sums, &a) in sums.iter_mut().zip(a) {
                let a = simd.splat(a);
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    *sum = simd.mul_add(a, column, *sum);
                }
            }
        }
        // Through memory: registers cannot be counted off.
        let mut tile = [[[0.0; LANES]; N]; M];
        for (sums, tile) in sums.iter().zip(&mut tile) {
            for (&sum, tile) in sums.iter().zip(tile) {
                simd.store(sum, tile);
            }
        }
        for (row, tile) in rows.zip(&tile) {
            let out = &mut out.row_mut(row)[columns.clone()];
            let (vectors, rest) = out.as_chunks_mut::<LANES>();
            let whole = vectors.len();
            for (out, tile) in vectors.iter_mut().zip(tile) {
                match store {
                    Store::Replace => *out = *tile,
                    Store::Add => simd.store(simd.add(simd.load(out), simd.load(tile)), out),
                }
            }
            for (out, &sum) in rest.iter_mut().zip(tile.get(whole).unwrap_or(&[0.0; LANES])) {
                match store {
                    Store::Replace => *out = sum,
                    Store::Add => *out += sum,
                }
            }
        }
    }
}

/// Sixteen rows of sixteen elements, turned.
pub(super) struct Turn<'a> {
    pub from: &'a [&'a [f32; LANES]; LANES],
    pub to: &'a mut [[f32; LANES]; LANES],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        simd.transpose(self.from, self.to);
    }
}
