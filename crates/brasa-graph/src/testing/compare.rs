//! Compares two results, element by element.

use std::fmt;

/// How far a result may be from the reference: relative L2 at most the bound, and no element off by more than ten times the bound
/// times the largest magnitude of the reference. Both bounds are needed, so that no tolerance hides a wrong scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance(pub f32);

impl Tolerance {
    /// Bit for bit.
    pub const EXACT: Self = Self(0.0);
    /// For f32 sums in another order.
    pub const F32: Self = Self(1e-5);
    /// For f32 activations, and keys and values as halves.
    pub const F16: Self = Self(1e-3);
    /// For activations of 16 bits.
    pub const BITS_16: Self = Self(1e-2);
    /// For activations as int8.
    pub const INT8: Self = Self(3e-2);
}

/// The distance of a result from the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// `‖found − expected‖ / ‖expected‖`, in f64.
    pub relative_l2: f64,
    /// Index of the element that is furthest off, or of the first that is not a number.
    pub worst: usize,
    /// The value found at `worst`.
    pub found: f32,
    /// The value expected at `worst`.
    pub expected: f32,
    /// The largest finite magnitude expected.
    pub max_magnitude: f32,
}

/// Compares two results of one shape.
///
/// # Panics
///
/// If their lengths differ.
pub fn compare(found: &[f32], expected: &[f32]) -> Comparison {
    assert_eq!(found.len(), expected.len(), "elements of a result");
    let (mut error, mut norm, mut worst, mut max_magnitude) = (0.0, 0.0, (-1.0, 0), 0.0_f32);
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        // Equal infinities agree; any other non-finite difference is infinitely bad.
        let difference = if f.to_bits() == e.to_bits() { 0.0 } else { (f64::from(f) - f64::from(e)).abs() };
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        error += difference * difference;
        if e.is_finite() {
            norm += f64::from(e) * f64::from(e);
            max_magnitude = max_magnitude.max(e.abs());
        }
        if difference > worst.0 {
            worst = (difference, i);
        }
    }
    let relative_l2 = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    let at = |values: &[f32]| values.get(worst.1).copied().unwrap_or(0.0);
    Comparison { relative_l2, worst: worst.1, found: at(found), expected: at(expected), max_magnitude }
}

impl Comparison {
    /// True if the result is within `tolerance`, and every element is a number if the expected one is.
    pub fn within(&self, tolerance: Tolerance) -> bool {
        let worst = (f64::from(self.found) - f64::from(self.expected)).abs();
        let same = self.found.to_bits() == self.expected.to_bits();
        let allowed = 10.0 * f64::from(tolerance.0) * f64::from(self.max_magnitude);
        self.relative_l2 <= f64::from(tolerance.0) && (same || worst <= allowed)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "relative L2 {:.3e}; worst at element {}: found {}, expected {} (largest magnitude {})",
            self.relative_l2, self.worst, self.found, self.expected, self.max_magnitude
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_fails_and_infinities_must_agree() {
        let infinity = f32::INFINITY;
        assert!(compare(&[1.0, infinity], &[1.0, infinity]).within(Tolerance::EXACT));
        assert!(!compare(&[1.0, 3.0], &[1.0, infinity]).within(Tolerance::INT8));
        assert!(!compare(&[1.0, f32::NAN], &[1.0, 2.0]).within(Tolerance(1e9)));
        assert!(!compare(&[f32::NAN], &[0.0]).within(Tolerance::INT8));
    }

    #[test]
    fn a_wrong_scale_and_a_single_wrong_element_both_fail() {
        let expected: Vec<f32> = (0..10_000).map(|i| (i as f32).sin()).collect();
        let scaled: Vec<f32> = expected.iter().map(|x| x * 1.05).collect();
        assert!(!compare(&scaled, &expected).within(Tolerance::INT8));
        let mut spot = expected.clone();
        spot[77] += 0.5;
        let comparison = compare(&spot, &expected);
        assert!(comparison.relative_l2 < 1e-2);
        assert_eq!(comparison.worst, 77);
        assert!(!comparison.within(Tolerance::BITS_16));
    }
}
