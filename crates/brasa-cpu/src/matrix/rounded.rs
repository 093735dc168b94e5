//! Products of matrices whose factors are rounded to [`int16`], if the caller allows it and the processor has AVX-512 with
//! bf16; otherwise the products of f32 of [`Packed`].
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "instructions behind proofs that the processor has them")
)]

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::{Factor, FactorRows, Packed, Part, ResultRows, Store};
use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::int16;
#[cfg(target_arch = "x86_64")]
use crate::isa::Avx512;
#[cfg(target_arch = "x86_64")]
use crate::rounded::RoundedRows;
#[cfg(target_arch = "x86_64")]
use crate::simd::{LANES, Simd};
#[cfg(target_arch = "x86_64")]
use crate::tile_row::{BF16_INPUTS, ROWS};
#[cfg(target_arch = "x86_64")]
use crate::tiles::{Bf16Weights, Sums, TileMemory};

/// How products are computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arithmetic {
    pub isa: Isa,
    /// True if factors may be rounded.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "int16 is multiplied by AVX-512"))]
    pub rounds: bool,
}

/// A second factor, rounded or as it is.
#[derive(Debug, Default)]
pub(crate) struct SecondFactor {
    exact: Packed,
    #[cfg(target_arch = "x86_64")]
    rounded: RoundedColumns,
}

/// Memory for rows of the first factor.
#[derive(Debug, Default)]
pub(crate) struct FirstFactor {
    exact: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    rounded: RoundedRows,
    /// Rows that lie in columns: as they are, and rounded.
    #[cfg(target_arch = "x86_64")]
    turned: Vec<[f32; LANES]>,
    #[cfg(target_arch = "x86_64")]
    columns: TileMemory<Bf16Weights>,
}

#[cfg(target_arch = "x86_64")]
impl Arithmetic {
    fn proof(self) -> Option<Avx512> {
        match self.isa {
            Isa::Avx512(proof) if self.rounds && proof.bf16().is_some() => Some(proof),
            _ => None,
        }
    }
}

impl SecondFactor {
    /// Packs `columns` of a factor, with `inner` summed elements.
    pub(crate) fn pack<B: FactorRows>(
        &mut self,
        how: Arithmetic,
        from: Factor<'_, B>,
        columns: usize,
        inner: usize,
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = how.proof() {
            return self.rounded.pack(proof, how.isa, from, columns, inner);
        }
        self.exact.pack(how.isa, from, 0..columns, inner);
    }

    /// Computes or adds to `out` the product of rows of `a` and columns of this factor, as [`Packed::multiply`] does.
    pub(crate) fn multiply<A: FactorRows>(
        &self,
        how: Arithmetic,
        a: Factor<'_, A>,
        part: &Part,
        store: Store,
        memory: &mut FirstFactor,
        out: &mut impl ResultRows,
    ) {
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = how.proof() {
            return self.rounded.multiply(proof, how.isa, a, part, store, memory, out);
        }
        self.exact.multiply(how.isa, a, part, store, &mut memory.exact, out);
    }
}

/// Rounded columns, by 16 of them.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Default)]
struct RoundedColumns {
    columns: usize,
    inner: usize,
    /// Tiles of 32 summed elements.
    tiles: TileMemory<Bf16Weights>,
    /// For each column the factor that makes elements of its int16 codes.
    scales: Vec<[f32; LANES]>,
    /// Columns that lie in rows, turned.
    turned: Vec<[f32; LANES]>,
}

#[cfg(target_arch = "x86_64")]
impl RoundedColumns {
    fn pack<B: FactorRows>(
        &mut self,
        proof: Avx512,
        isa: Isa,
        from: Factor<'_, B>,
        columns: usize,
        inner: usize,
    ) {
        (self.columns, self.inner) = (columns, inner);
        let (panels, steps) = (columns.div_ceil(LANES), inner.div_ceil(BF16_INPUTS));
        self.tiles.reserve(panels * steps);
        self.scales.resize(panels, [0.0; LANES]);
        self.turned.resize(inner, [0.0; LANES]);
        for panel in 0..panels {
            let of_panel = panel * LANES..columns.min((panel + 1) * LANES);
            from.pack::<LANES>(isa, &of_panel, &(0..inner), self.turned.as_flattened_mut());
            let tiles = &mut self.tiles[panel * steps..][..steps];
            // SAFETY: the proof.
            self.scales[panel] =
                unsafe { int16::round_columns(proof, inner, |e| proof.load(&self.turned[e]), tiles) };
        }
    }

    #[allow(clippy::too_many_arguments, reason = "those of `SecondFactor::multiply`, and the proof")]
    fn multiply<A: FactorRows>(
        &self,
        proof: Avx512,
        isa: Isa,
        a: Factor<'_, A>,
        part: &Part,
        store: Store,
        memory: &mut FirstFactor,
        out: &mut impl ResultRows,
    ) {
        let Part { rows, columns, inner } = part;
        assert!(columns.end <= self.columns && inner.end <= self.inner, "{part:?} of {self:?}");
        assert!(
            columns.start.is_multiple_of(LANES) && inner.start.is_multiple_of(BF16_INPUTS),
            "the beginning of {part:?}"
        );
        let steps = inner.start / BF16_INPUTS..inner.end.div_ceil(BF16_INPUTS);
        let mut sums = Sums([[0.0; LANES]; ROWS]);
        for first in rows.clone().step_by(ROWS) {
            let group = first..rows.end.min(first + ROWS);
            let factors = memory.round(proof, isa, a, &group, inner);
            for panel in columns.start / LANES..columns.end.div_ceil(LANES) {
                let tiles = &self.tiles[panel * self.inner.div_ceil(BF16_INPUTS)..][steps.clone()];
                let of_group = memory.rounded.view();
                int16::multiply(
                    proof,
                    of_group.tiles(0),
                    &factors[..group.len()],
                    tiles,
                    &self.scales[panel],
                    &mut sums,
                );
                let from = panel * LANES - columns.start;
                let to = from..columns.len().min(from + LANES);
                for (row, sums) in group.clone().zip(&sums.0) {
                    let out = &mut out.row_mut(row - rows.start)[to.clone()];
                    match store {
                        Store::Replace => out.copy_from_slice(&sums[..out.len()]),
                        Store::Add => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl FirstFactor {
    /// Rounds up to 16 rows of a factor, and returns what the products of each are to be multiplied with.
    fn round<A: FactorRows>(
        &mut self,
        proof: Avx512,
        isa: Isa,
        a: Factor<'_, A>,
        rows: &Range<usize>,
        inner: &Range<usize>,
    ) -> [f32; ROWS] {
        let mut factors = [0.0; ROWS];
        self.rounded.reshape(ROWS, inner.len());
        match a {
            Factor::Summed(a) => {
                for (at, row) in rows.clone().enumerate() {
                    let x = &a.row(row)[inner.clone()];
                    factors[at] = int16::round_row(proof, x, self.rounded.tiles_of_row(at));
                }
            }
            Factor::Across(_) => {
                self.turned.resize(inner.len(), [0.0; LANES]);
                a.pack::<LANES>(isa, rows, inner, self.turned.as_flattened_mut());
                let tiles = self.rounded.tiles_mut(0);
                self.columns.reserve(tiles.len());
                let columns = &mut self.columns[..tiles.len()];
                let element = |e: usize| proof.load(&self.turned[e]);
                // SAFETY: the proof.
                factors = unsafe { int16::round_columns(proof, inner.len(), element, columns) };
                int16::turn(proof, columns, tiles);
            }
        }
        factors
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use brasa_graph::testing::Random;

    use super::*;
    use crate::matrix::Strided;

    /// Rows of a matrix or of its transpose: `[outer, inner]` from [`Strided`] rows of either.
    fn element(matrix: &[f32], stride: usize, across: bool, outer: usize, inner: usize) -> f64 {
        f64::from(if across { matrix[inner * stride + outer] } else { matrix[outer * stride + inner] })
    }

    /// Every layout of both factors, parts that begin behind the first summed element, and odd sizes.
    #[test]
    fn rounded_products_are_near_those_of_f64() {
        let Ok(isa @ Isa::Avx512(proof)) = Isa::detect() else {
            return println!("no AVX-512 here: nothing is tested");
        };
        if proof.bf16().is_none() {
            return println!("no bf16 here: nothing is rounded");
        }
        let how = Arithmetic { isa, rounds: true };
        let mut random = Random::new(5);
        for (m, n, k) in [(1, 1, 1), (5, 33, 70), (16, 16, 32), (37, 20, 300), (64, 128, 513)] {
            for (a_across, b_across, first) in
                [(false, false, 0), (false, true, 0), (true, true, 0), (true, false, 256 * (k / 256))]
            {
                let stride = m.max(n).max(k);
                let mut matrix =
                    || -> Vec<f32> { (0..stride * stride).map(|_| 0.5 + random.normal()).collect() };
                let (a, b) = (matrix(), matrix());
                let a_rows = Strided { values: &a[..], stride };
                let b_rows = Strided { values: &b[..], stride };
                let (mut second, mut memory) = (SecondFactor::default(), FirstFactor::default());
                let of_b = if b_across { Factor::Across(&b_rows) } else { Factor::Summed(&b_rows) };
                second.pack(how, of_b, n, k);
                let of_a = if a_across { Factor::Across(&a_rows) } else { Factor::Summed(&a_rows) };
                let part = Part { rows: 0..m, columns: 0..n, inner: first..k };
                let mut found = vec![1.0; m * n];
                for store in [Store::Replace, Store::Add] {
                    let mut out = Strided { values: &mut found[..], stride: n };
                    second.multiply(how, of_a, &part, store, &mut memory, &mut out);
                }
                let mut lengths = 0.0_f64;
                let mut errors = 0.0_f64;
                for row in 0..m {
                    for column in 0..n {
                        let products = (first..k).map(|i| {
                            element(&a, stride, a_across, row, i) * element(&b, stride, b_across, column, i)
                        });
                        let expected = 2.0 * products.sum::<f64>();
                        lengths += expected * expected;
                        errors += (f64::from(found[row * n + column]) - expected).powi(2);
                    }
                }
                let error = (errors / lengths.max(1e-30)).sqrt();
                assert!(error < 3e-4, "{m} × {n} × {k}, {a_across} {b_across}, from {first}: {error}");
            }
        }
    }
}
