//! The error function, which the standard library lacks.

use std::f64::consts::PI;

/// `erf(x) = 2/√π · ∫₀ˣ exp(−t²) dt`, to 13 digits.
///
/// Maclaurin series in f64 if |x| < 3 (its largest term is below 500 then, so 13 digits remain), Lentz's continued fraction of
/// erfc beyond, and 1 if the difference is below the precision of f64. Abramowitz & Stegun 1964, 7.1.6 and 7.1.14.
pub(super) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if x.is_nan() {
        x
    } else if magnitude < 3.0 {
        series(magnitude)
    } else if magnitude < 6.0 {
        1.0 - erfc_fraction(magnitude)
    } else {
        1.0
    };
    value.copysign(x)
}

/// `2/√π · exp(−x²) · Σ 2ⁿ x^(2n+1) / (1·3·…·(2n+1))`: all terms positive.
fn series(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term > sum * 1e-17 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

/// `exp(−x²)/√π · 1/(x + (1/2)/(x + (2/2)/(x + …)))`, evaluated from the inside.
fn erfc_fraction(x: f64) -> f64 {
    let fraction = (1..=60).rev().fold(x, |inner, n| x + f64::from(n) / 2.0 / inner);
    (-x * x).exp() / PI.sqrt() / fraction
}

#[cfg(test)]
mod tests {
    use super::erf;

    /// Values of Abramowitz & Stegun 1964, table 7.1, and of mpmath.
    #[test]
    fn known_values() {
        for (x, expected) in [
            (0.0, 0.0),
            (1e-3, 0.001_128_379),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.0, 0.995_322_3),
            (2.999, 0.999_977_8),
            (3.0, 0.999_977_9),
            (4.0, 0.999_999_98),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1.2e-7, "erf({x}) = {}, expected {expected}", erf(x));
            assert_eq!(erf(-x).to_bits(), (-erf(x)).to_bits());
        }
        assert!(erf(f64::NAN).is_nan());
    }
}
