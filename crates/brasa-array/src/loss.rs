//! Losses: scalars that training makes smaller. Each is the mean over all examples or elements; predictions come first.

use crate::array::wrong;
use crate::{Array, ArrayError};

/// Cross entropy of classes: the mean of `logsumexp(logits[r]) − logits[r, targets[r]]`.
///
/// Shapes: `logits` `[R, C]`, a target below C for each row → `[1]`.
#[must_use]
pub fn cross_entropy(logits: &Array, targets: &[usize]) -> Array {
    let &[rows, classes] = logits.shape() else {
        return mistake(format!("logits of shape {:?}, expected [R, C]", logits.shape()), &[logits]);
    };
    if targets.len() != rows {
        return mistake(format!("{} targets for {rows} rows of logits", targets.len()), &[logits]);
    }
    if let Some((row, target)) = targets.iter().enumerate().find(|&(_, &target)| target >= classes) {
        return mistake(format!("target {target} of row {row}, expected less than {classes}"), &[logits]);
    }
    let mut ones = vec![0.0; rows * classes];
    for (row, target) in targets.iter().enumerate() {
        ones[row * classes + target] = 1.0;
    }
    let picked = (logits * Array::new(ones, &[rows, classes])).sum(1);
    (logits.logsumexp(1) - picked).mean_all()
}

/// Cross entropy of two classes from logits: the mean of `max(x, 0) − x·y + ln(1 + exp(−|x|))`, y between 0 and 1.
///
/// Shapes: equal, or repeating to one → `[1]`.
#[must_use]
pub fn binary_cross_entropy(logits: &Array, targets: &Array) -> Array {
    let soft = ((-logits.abs()).exp() + 1.0).log();
    (logits.relu() - logits * targets + soft).mean_all()
}

/// The mean of squared differences.
///
/// Shapes: equal, or repeating to one → `[1]`.
#[must_use]
pub fn mean_squared_error(predictions: &Array, targets: &Array) -> Array {
    (predictions - targets).square().mean_all()
}

/// The mean of absolute differences.
///
/// Shapes: equal, or repeating to one → `[1]`.
#[must_use]
pub fn mean_absolute_error(predictions: &Array, targets: &Array) -> Array {
    (predictions - targets).abs().mean_all()
}

/// Huber's loss: the mean of `d²/2` where the difference d is at most `delta` in size, and of `delta · (|d| − delta/2)` beyond.
///
/// Shapes: equal, or repeating to one → `[1]`. `delta` is above 0. Huber 1964, "Robust estimation of a location parameter".
#[must_use]
pub fn huber(predictions: &Array, targets: &Array, delta: f32) -> Array {
    if delta.is_nan() || delta <= 0.0 {
        return mistake(format!("a delta of {delta}, expected more than 0"), &[predictions, targets]);
    }
    // With m = min(|d|, delta) both pieces are m · (|d| − m/2).
    let size = (predictions - targets).abs();
    let near = size.minimum(&Array::scalar(delta));
    (&near * (&size - near.scale(0.5))).mean_all()
}

/// The Kullback–Leibler divergence of rows of log-probabilities: the mean over rows of `Σ exp(t) · (t − p)`.
///
/// Shapes: `predictions` and `targets` `[R, C]`, natural logarithms → `[1]`. A target of −∞ has no share.
#[must_use]
pub fn kl_divergence(predictions: &Array, targets: &Array) -> Array {
    match (predictions.shape(), targets.shape()) {
        (&[rows, classes], &[of, kinds]) if rows == of && classes == kinds => {
            // exp(t) · t is 0 where t is −∞, which the product of both would make NaN.
            let bounded = targets.clip(f32::MIN, f32::MAX);
            (targets.exp() * (bounded - predictions)).sum(1).mean_all()
        }
        (a, b) => mistake(format!("shapes {a:?} and {b:?}, expected [R, C] twice"), &[predictions, targets]),
    }
}

/// An earlier mistake of the operands, or else the mistake that `what` describes.
fn mistake(what: String, operands: &[&Array]) -> Array {
    let earlier: Option<ArrayError> = operands.iter().find_map(|operand| operand.check().err());
    Array::wrong(earlier.unwrap_or_else(|| wrong("loss", what)))
}
