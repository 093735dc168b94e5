//! Sums in an order that depends only on their length.

use std::array::from_fn;

use super::Number;

/// Number of partial sums; the compiler keeps them in vector registers.
const LANES: usize = 16;

/// `Σ a[i] · b[i]`: sixteen interleaved partial sums, then pairwise.
pub(crate) fn dot<T: Number>(a: &[T], b: &[T]) -> T {
    assert_eq!(a.len(), b.len(), "lengths of a dot product");
    let mut lanes = [T::default(); LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, x), y) in lanes.iter_mut().zip(a).zip(b) {
            *lane += *x * *y;
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += *x * *y;
    }
    pairwise(lanes)
}

/// `Σ a[i]`, in the same order as [`dot`].
pub(crate) fn sum<T: Number>(a: &[T]) -> T {
    let mut lanes = [T::default(); LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += *x;
    }
    pairwise(lanes)
}

/// `y[i] += c · x[i]`.
pub(crate) fn add_scaled<T: Number>(y: &mut [T], c: T, x: &[T]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += c * *x;
    }
}

/// Replaces `row` by its softmax.
pub(crate) fn softmax<T: Number>(row: &mut [T]) {
    let max = largest(row);
    for x in &mut *row {
        *x = (*x - max).exp();
    }
    let total = sum(row);
    for x in row {
        *x /= total;
    }
}

/// `ln Σ exp(row)`.
pub(crate) fn log_sum_exp<T: Number>(row: &[T]) -> T {
    let max = largest(row);
    if max.value().is_infinite() {
        return max;
    }
    let exps: Vec<T> = row.iter().map(|&x| (x - max).exp()).collect();
    max + sum(&exps).ln()
}

/// The largest element; NaN is ignored.
pub(crate) fn largest<T: Number>(row: &[T]) -> T {
    row.iter().copied().fold(T::constant(f64::NEG_INFINITY), T::max)
}

/// Index of the largest element, ties to the lowest; NaN is ignored.
pub(crate) fn argmax<T: Number>(row: &[T]) -> usize {
    let mut best = (T::constant(f64::NEG_INFINITY), 0);
    for (i, &x) in row.iter().enumerate() {
        if x > best.0 {
            best = (x, i);
        }
    }
    best.1
}

fn pairwise<T: Number>(lanes: [T; LANES]) -> T {
    let eight: [T; 8] = from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [T; 4] = from_fn(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}
