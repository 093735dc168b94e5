//! Rows times stored weights, which are decoded one by one: the reference precision, and any storage format for
//! which there are no kernels.
//!
//! A dot product has 16 running sums, of the inputs k ≡ 0…15 (mod 16), products rounded before they are added,
//! halved to one sum as a tree.

use std::ops::Range;

use brasa_formats::Tensor;

use super::super::layout::LANES;
use super::Products;
use crate::{Error, Isa};

/// Rows of a stored tensor.
#[derive(Debug)]
pub(in super::super) struct StoredRows {
    tensor: Tensor,
    rows: Range<usize>,
}

impl StoredRows {
    /// Takes rows whose first and last can be decoded; the tensor was validated when its file was opened.
    pub fn new(tensor: &Tensor, rows: Range<usize>) -> Result<Self, Error> {
        let mut row = vec![0.0; tensor.row_len()];
        for index in [rows.start, rows.end.saturating_sub(1)].into_iter().filter(|_| !rows.is_empty()) {
            tensor.decode_row(index, &mut row).map_err(|error| Error::BadWeight {
                name: tensor.name.clone(),
                found: error.to_string(),
                expected: format!("{} rows of {}", tensor.format, tensor.row_len()),
            })?;
        }
        Ok(Self { tensor: tensor.clone(), rows })
    }

    /// Stored bytes of the rows.
    pub fn size_bytes(&self) -> usize {
        let stored = self.tensor.size_bytes() / self.tensor.rows().max(1);
        stored * self.rows.len()
    }

    /// Writes row `row` to `out` exactly as its codec decodes it.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows.len(), "row {row} of {}", self.rows.len());
        if let Err(error) = self.tensor.decode_row(self.rows.start + row, out) {
            unreachable!("{}: {error}", self.tensor.name)
        }
    }
}

/// Writes the wanted products of rows of `k` inputs; `weights` is scratch memory.
#[expect(unsafe_code, reason = "several threads write one output")]
pub(in super::super) fn multiply(
    wanted: &Products<'_>,
    stored: &StoredRows,
    k: usize,
    weights: &mut Vec<f32>,
) {
    weights.resize(k, 0.0);
    for strip in wanted.strips.clone() {
        for (lane, column) in (strip * LANES..wanted.n.min((strip + 1) * LANES)).enumerate() {
            stored.decode_row(column, weights);
            for row in 0..wanted.rows() {
                let dot = dot(wanted.isa, weights, wanted.float_row(row));
                // SAFETY: gone before other memory is asked for.
                unsafe { wanted.results(row, strip..strip + 1)[lane] = dot };
            }
        }
    }
}

/// The dot product of a decoded row and activations.
fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "compiles one source for several instruction sets")]
        // SAFETY: the value proves AVX2.
        Isa::Avx2(_) => unsafe { dot_avx2(a, b) },
        #[cfg(target_arch = "x86_64")]
        #[expect(unsafe_code, reason = "compiles one source for several instruction sets")]
        // SAFETY: the value proves AVX-512.
        Isa::Avx512(_) => unsafe { dot_avx512(a, b) },
        // NEON needs no enabling: the compiler uses it everywhere.
        _ => dot_generic(a, b),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn dot_avx2(a: &[f32], b: &[f32]) -> f32 {
    dot_generic(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn dot_avx512(a: &[f32], b: &[f32]) -> f32 {
    dot_generic(a, b)
}

#[inline(always)]
fn dot_generic(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let (a, a_rest) = a.as_chunks::<16>();
    let (b, b_rest) = b.as_chunks::<16>();
    for (a, b) in a.iter().zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    for half in [8, 4, 2, 1] {
        for index in 0..half {
            sums[index] += sums[index + half];
        }
    }
    sums[0]
}
