//! Rows times stored weights, which are decoded one by one: the reference precision, and any storage format for
//! which there are no kernels.
//!
//! A dot product has 16 running sums, of the inputs k ≡ 0…15 (mod 16), products rounded before they are added,
//! halved to one sum as a tree.

use std::array::from_fn;

use brasa_graph::WeightPart;

use super::super::layout::LANES;
use super::Products;
use crate::Error;
use crate::simd::{Kernel, Simd, vectorize};

/// Rows that meet a decoded row together, so that no sum waits for another.
const TOGETHER: usize = 4;

/// Rows of a stored tensor.
#[derive(Debug)]
pub(in super::super) struct StoredRows {
    part: WeightPart,
}

impl StoredRows {
    /// Checks that the first and the last row of `part` can be decoded, and takes the part. The tensor was validated
    /// when its file was opened.
    pub fn new(part: &WeightPart) -> Result<Self, Error> {
        let tensor = &part.tensor;
        let mut row = vec![0.0; tensor.row_len()];
        let mut stored = part.stored_rows();
        for index in [stored.next(), stored.last()].into_iter().flatten() {
            tensor.decode_row(index, &mut row).map_err(|error| Error::BadWeight {
                name: tensor.name.clone(),
                found: error.to_string(),
                expected: format!("{} rows of {}", tensor.format, tensor.row_len()),
            })?;
        }
        Ok(Self { part: part.clone() })
    }

    /// Stored bytes of the rows.
    pub fn size_bytes(&self) -> usize {
        let WeightPart { tensor, rows, .. } = &self.part;
        tensor.size_bytes() / tensor.rows().max(1) * rows.len()
    }

    /// Decodes row `row` into `out`, exactly as its codec does.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        let WeightPart { tensor, stride, rows } = &self.part;
        assert!(row < rows.len(), "row {row} of {}", rows.len());
        if let Err(error) = tensor.decode_row(stride.stored(rows.start + row), out) {
            unreachable!("{}: {error}", tensor.name)
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
            let write = |row, dot| {
                // SAFETY: gone before other memory is asked for.
                unsafe { wanted.results(row, strip..strip + 1)[lane] = dot };
            };
            let mut row = 0;
            while wanted.rows() - row >= TOGETHER {
                let rows = from_fn(|at| wanted.float_row(row + at));
                for dot in vectorize(wanted.isa, Dots::<TOGETHER> { weights, rows }) {
                    write(row, dot);
                    row += 1;
                }
            }
            for row in row..wanted.rows() {
                let [dot] = vectorize(wanted.isa, Dots { weights, rows: [wanted.float_row(row)] });
                write(row, dot);
            }
        }
    }
}

/// The dot products of a decoded row and R rows of activations.
struct Dots<'a, const R: usize> {
    weights: &'a [f32],
    rows: [&'a [f32]; R],
}

impl<const R: usize> Kernel for Dots<'_, R> {
    type Output = [f32; R];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f32; R] {
        let (weights, weights_rest) = self.weights.as_chunks::<LANES>();
        let rows = self.rows.map(|row| row[..self.weights.len()].as_chunks::<LANES>());
        let mut sums = [simd.splat(0.0); R];
        for (at, weights) in weights.iter().enumerate() {
            let weights = simd.load(weights);
            for (sum, (row, _)) in sums.iter_mut().zip(&rows) {
                *sum = simd.add(*sum, simd.mul(weights, simd.load(&row[at])));
            }
        }
        let mut dots = [0.0; R];
        for ((dot, sum), (_, rest)) in dots.iter_mut().zip(sums).zip(rows) {
            *dot = simd.sum(if weights_rest.is_empty() {
                sum
            } else {
                let mut lanes = [0.0; LANES];
                simd.store(sum, &mut lanes);
                for (lane, (weight, x)) in lanes.iter_mut().zip(weights_rest.iter().zip(rest)) {
                    *lane += weight * x;
                }
                simd.load(&lanes)
            });
        }
        dots
    }
}
