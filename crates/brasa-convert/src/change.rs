//! The change of a weight by a low-rank adapter: `W + scale · B·A`, with DoRA's magnitudes `m · (W + scale · B·A) / ‖W + scale · B·A‖` row by row.

use brasa_formats::{LowRankPair, Tensor};
use brasa_graph::pass::DenseChange;

use crate::{ConvertError, Result};

/// The change that an adapter makes to the rows of one tensor, in the order of the output.
#[derive(Debug)]
pub struct Change {
    /// Matrices `A`, `[r, K]`, of all experts one after the other.
    a: Vec<f32>,
    /// Matrices `B`, `[rows, r]`, of all experts one after the other.
    b: Vec<f32>,
    rank: usize,
    /// Rows of one expert; all rows without experts.
    expert_rows: usize,
    scale: f32,
    /// DoRA's magnitudes, `[rows]`; `None` for adapters without.
    magnitudes: Option<Vec<f32>>,
}

impl Change {
    /// Changes the row `row`, whose values are `values`.
    pub fn apply(&self, row: usize, values: &mut [f32]) {
        let width = values.len();
        let a = &self.a[row / self.expert_rows * self.rank * width..][..self.rank * width];
        DenseChange { a, b: &self.b, scale: self.scale }.add_row(row, values);
        if let Some(magnitudes) = &self.magnitudes {
            let norm = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
            // A row of zeros has no direction.
            let gain = if norm > 0.0 { (f64::from(magnitudes[row]) / norm) as f32 } else { 0.0 };
            for value in values.iter_mut() {
                *value *= gain;
            }
        }
    }

    /// The change of a pair of matrices, times `scale`.
    ///
    /// # Errors
    ///
    /// [`ConvertError::Tensor`] if a matrix cannot be decoded.
    pub fn of(pair: &LowRankPair, scale: f32) -> Result<Self> {
        let floats = |tensor: &Tensor| {
            let mut values = vec![0.0; tensor.rows() * tensor.row_len()];
            match tensor.decode_rows(0..tensor.rows(), &mut values) {
                Ok(()) => Ok(values),
                Err(error) => Err(ConvertError::tensor(&pair.name, error.to_string())),
            }
        };
        Ok(Self {
            a: floats(&pair.a)?,
            b: floats(&pair.b)?,
            rank: pair.rank(),
            expert_rows: pair.outputs(),
            scale: pair.scale * scale,
            magnitudes: pair.magnitude.as_ref().map(floats).transpose()?,
        })
    }
}

/// The part of a change that survives rounding to the written format, measured against the same tensors without the change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Survival {
    /// `Σ Δ²` over the elements, where Δ is the change.
    own: f64,
    /// `Σ Δ·Δ'` over the elements, where Δ' is the written change.
    along: f64,
    /// `Σ (Δ' − Δ)²` over the elements, where Δ is the change and Δ' the written change.
    error: f64,
}

impl Survival {
    /// Adds a row to the sums: its values without and with the change, and both as written.
    pub fn count(&mut self, [base, changed]: [&[f32]; 2], [written_base, written]: [&[f32]; 2]) {
        for ((base, changed), (written_base, written)) in
            base.iter().zip(changed).zip(written_base.iter().zip(written))
        {
            let wanted = f64::from(*changed) - f64::from(*base);
            let found = f64::from(*written) - f64::from(*written_base);
            self.own += wanted * wanted;
            self.along += wanted * found;
            self.error += (found - wanted) * (found - wanted);
        }
    }

    pub fn add(&mut self, other: Self) {
        self.own += other.own;
        self.along += other.along;
        self.error += other.error;
    }

    /// The share of the change that was written, and the length of the error divided by that of the change.
    pub fn shares(&self) -> (f64, f64) {
        let own = self.own.max(f64::MIN_POSITIVE);
        (self.along / own, (self.error / own).sqrt())
    }
}
