//! Sums in an order that depends only on their length.

use std::array::from_fn;

/// Partial sums kept side by side; the compiler keeps them in vector registers.
const LANES: usize = 16;

/// `Σ a[i] · b[i]` in f32: sixteen interleaved partial sums, then pairwise.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths of a dot product");
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, x), y) in lanes.iter_mut().zip(a).zip(b) {
            *lane += x * y;
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += x * y;
    }
    pairwise(lanes)
}

/// `Σ a[i]`, in the same order as [`dot`].
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    pairwise(lanes)
}

/// `y[i] += c · x[i]`.
pub(crate) fn add_scaled(y: &mut [f32], c: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += c * x;
    }
}

/// Softmax in place.
pub(crate) fn softmax(row: &mut [f32]) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in &mut *row {
        *x = (*x - max).exp();
    }
    let total = sum(row);
    for x in row {
        *x /= total;
    }
}

/// `ln Σ exp(row)`.
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max.is_infinite() {
        return max;
    }
    let exps: Vec<f32> = row.iter().map(|x| (x - max).exp()).collect();
    max + sum(&exps).ln()
}

/// Number of the largest element, ties to the lowest; a NaN never wins.
pub(crate) fn argmax(row: &[f32]) -> usize {
    let mut best = (f32::NEG_INFINITY, 0);
    for (i, &x) in row.iter().enumerate() {
        if x > best.0 {
            best = (x, i);
        }
    }
    best.1
}

fn pairwise(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
