//! Norms of a weight's rows, optionally with a low-rank change of the rows.

use std::ops::Range;
use std::thread;

use crate::Weight;
use crate::device::DeviceError;

/// Most threads that compute row norms.
const MOST_THREADS: usize = 16;
/// Elements that make each further thread worth its start.
const LEAST_ELEMENTS: usize = 1 << 20;

/// A low-rank change `scale · B·A` of rows, as numbers.
#[derive(Clone, Copy, Debug)]
pub struct DenseChange<'a> {
    /// `A`, `[r, K]`.
    pub a: &'a [f32],
    /// `B`, `[rows, r]`.
    pub b: &'a [f32],
    /// Factor of the product.
    pub scale: f32,
}

impl DenseChange<'_> {
    /// Adds the change's row `row` to `values`, `[K]`.
    pub fn add_row(&self, row: usize, values: &mut [f32]) {
        let rank = self.a.len() / values.len().max(1);
        for (a, b) in self.a.chunks_exact(values.len()).zip(&self.b[row * rank..][..rank]) {
            let factor = self.scale * b;
            values.iter_mut().zip(a).for_each(|(w, a)| *w += factor * a);
        }
    }
}

/// The Euclidean norms of `W[rows] + change`, `[rows]`, decoded exactly; squares are summed in f64. Large weights are split over
/// several threads.
///
/// # Errors
///
/// [`DeviceError::Unsupported`] if bytes of a part do not decode.
///
/// # Panics
///
/// If the weight has no such rows, or the change another shape.
pub fn row_norms(
    weight: &Weight,
    rows: Range<usize>,
    change: Option<DenseChange<'_>>,
) -> Result<Vec<f32>, DeviceError> {
    let mut norms = vec![0.0; rows.len()];
    let available = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let threads = (rows.len() * weight.row_len() / LEAST_ELEMENTS).clamp(1, available);
    let share = rows.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let work = |(part, norms): (usize, &mut [f32])| -> Result<(), DeviceError> {
            let mut values = vec![0.0; weight.row_len()];
            for (at, norm) in (part * share..).zip(norms) {
                weight.decode_rows(rows.start + at..rows.start + at + 1, &mut values)?;
                if let Some(change) = change {
                    change.add_row(at, &mut values);
                }
                *norm = values.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
            }
            Ok(())
        };
        let parts = norms.chunks_mut(share).enumerate();
        let running: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("rows that the weight has"))
    })?;
    Ok(norms)
}
