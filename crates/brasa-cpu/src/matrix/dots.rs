//! Products with few columns: dot products of rows of both factors.

use std::array::from_fn;

use super::{FactorRows, ResultRows, tile::Shape};
use crate::Isa;
use crate::simd::{Kernel, LANES, Simd, vectorize};

/// Columns from which on tiles are faster, which have at least as many.
pub(crate) const FEW_COLUMNS: usize = LANES;

/// Writes the products of `rows` rows of `a` with `columns` rows of `b`, all of which hold the elements that are summed.
///
/// Each sum is 16 sums of every sixteenth element, halved to one as a tree: it depends on the length alone.
pub(crate) fn multiply_few(
    isa: Isa,
    (a, rows): (&impl FactorRows, usize),
    (b, columns): (&impl FactorRows, usize),
    out: &mut impl ResultRows,
) {
    match Shape::of(isa) {
        Shape::Large => dots::<4, 4>(isa, (a, rows), (b, columns), out),
        Shape::Small => dots::<2, 2>(isa, (a, rows), (b, columns), out),
    }
}

fn dots<const R: usize, const C: usize>(
    isa: Isa,
    (a, rows): (&impl FactorRows, usize),
    (b, columns): (&impl FactorRows, usize),
    out: &mut impl ResultRows,
) {
    for row in (0..rows).step_by(R) {
        for column in (0..columns).step_by(C) {
            // The last ones again where there are no more.
            let a: [_; R] = from_fn(|at| a.row((row + at).min(rows - 1)));
            let b: [_; C] = from_fn(|at| b.row((column + at).min(columns - 1)));
            let sums = vectorize(isa, Dots { a, b });
            for (row, sums) in (row..rows).zip(sums) {
                let width = C.min(columns - column);
                out.row_mut(row)[column..column + width].copy_from_slice(&sums[..width]);
            }
        }
    }
}

/// The dot products of R rows and C rows of equal length.
struct Dots<'a, const R: usize, const C: usize> {
    a: [&'a [f32]; R],
    b: [&'a [f32]; C],
}

impl<const R: usize, const C: usize> Kernel for Dots<'_, R, C> {
    type Output = [[f32; C]; R];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let len = self.a[0].len();
        let (whole, rest) = (len / LANES, len % LANES);
        let a = self.a.map(|row| row[..len].as_chunks::<LANES>());
        let b = self.b.map(|row| row[..len].as_chunks::<LANES>());
        let mut sums = [[simd.splat(0.0); C]; R];
        for at in 0..whole {
            let mut b_now = [simd.splat(0.0); C];
            for (now, (b, _)) in b_now.iter_mut().zip(&b) {
                *now = simd.load(&b[at]);
            }
            for (sums, (a, _)) in sums.iter_mut().zip(&a) {
                let a = simd.load(&a[at]);
                for (sum, &b) in sums.iter_mut().zip(&b_now) {
                    *sum = simd.mul_add(a, b, *sum);
                }
            }
        }
        if rest > 0 {
            for (sums, (_, a)) in sums.iter_mut().zip(&a) {
                for (sum, (_, b)) in sums.iter_mut().zip(&b) {
                    let [mut a_last, mut b_last] = [[0.0; LANES]; 2];
                    a_last[..rest].copy_from_slice(a);
                    b_last[..rest].copy_from_slice(b);
                    *sum = simd.mul_add(simd.load(&a_last), simd.load(&b_last), *sum);
                }
            }
        }
        let mut dots = [[0.0; C]; R];
        for (dots, sums) in dots.iter_mut().zip(sums) {
            for (dot, sum) in dots.iter_mut().zip(sums) {
                *dot = simd.sum(sum);
            }
        }
        dots
    }
}
