//! The exponential function of sampling, and each token's share of a sum.

/// ln 2 as a sum of two f32: this one and [`LN_2_LOW`].
const LN_2_HIGH: f32 = 0.693_145_75;
const LN_2_LOW: f32 = 1.428_606_8e-6;

/// `exp(x)` for `x ≤ 0` in f32, to about one unit in the last place; 0 below −87 and for NaN.
///
/// The result is the same on every device that rounds each of these operations by itself, without fused multiply-add:
///
/// - `n = (x·log2(e) + 1.5·2²³) − 1.5·2²³`, the nearest integer;
/// - `r = (x − n·0.69314575) − n·1.4286068e-6`, with ln 2 in two parts;
/// - `p = 1/5040`, then `p·r + c` for `c` = 1/720, 1/120, 1/24, 1/6, 1/2, 1, 1: the Taylor polynomial of `exp(r)`;
/// - `p · 2ⁿ`.
pub fn exp_nonpositive(x: f32) -> f32 {
    // Without a branch, so that the compiler makes vectors of it.
    // Adding and subtracting 1.5·2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.max(-87.0);
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    // The lowest bits of `rounded` are n; shifted into the exponent, the others fall out.
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x >= -87.0 { p * power } else { 0.0 }
}

/// `ln(x)` for a normal `x > 0` in f32, to about two units in the last place.
///
/// The result is the same on every device that rounds each of these operations by itself, without fused multiply-add:
///
/// - `x = 2ᵏ·f` with `f` from √½ to √2: the bits of `x`, minus those of √½ (`0x3f3504f3`), hold `k` above the lowest 23 bits;
/// - `s = (f − 1)/(f + 1)`, `q = s·s`;
/// - `p = 2/9`, then `p·q + c` for `c` = 2/7, 2/5, 2/3, 2: the series of `2·artanh(s)/s`;
/// - `k·0.69314575 + (k·1.4286068e-6 + s·p)`, with ln 2 in two parts.
pub fn ln_positive(x: f32) -> f32 {
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let above = x.to_bits().wrapping_sub(ROOT_HALF);
    let k = (above as i32 >> 23) as f32;
    let f = f32::from_bits((above & 0x007f_ffff).wrapping_add(ROOT_HALF));
    let s = (f - 1.0) / (f + 1.0);
    let q = s * s;
    let mut p = 2.0 / 9.0;
    for coefficient in [2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0, 2.0] {
        p = p * q + coefficient;
    }
    k * LN_2_HIGH + (k * LN_2_LOW + s * p)
}

/// The share of each token in a sum of exponentials, before the sum is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// The largest logit.
    max: f32,
    /// `1/T`, a normal number.
    inverse_temperature: f32,
}

impl Shares {
    /// Shares at `temperature` for logits of which `max` is the largest.
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        Self { max, inverse_temperature: (1.0 / temperature).clamp(f32::MIN_POSITIVE, f32::MAX) }
    }

    /// `1/T` as the rules of sampling define it, a normal number.
    pub(super) fn inverse_temperature(self) -> f32 {
        self.inverse_temperature
    }

    /// The exponent `x = (z − max)/T` of a logit `z`: 0 for the largest logit, otherwise negative or NaN.
    pub(super) fn exponent(self, z: f32) -> f32 {
        // An infinite logit minus itself is no number.
        if z >= self.max { 0.0 } else { (z - self.max) * self.inverse_temperature }
    }

    /// The share `exp(x)` of a logit `z`; 0 if `z` is NaN, or if the largest logit is infinite.
    pub(super) fn of(self, z: f32) -> f32 {
        exp_nonpositive((z - self.max) * self.inverse_temperature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_std() {
        for i in 0..200_000 {
            let x = -86.9 * (i as f32 / 200_000.0);
            let (found, expected) = (f64::from(exp_nonpositive(x)), f64::from(x).exp());
            assert!(((found - expected) / expected).abs() < 2e-7, "exp({x}) = {found}, expected {expected}");
        }
        assert_eq!(exp_nonpositive(0.0).to_bits(), 1.0_f32.to_bits());
        assert_eq!([f32::NEG_INFINITY, -87.000_01, f32::NAN].map(|x| exp_nonpositive(x).to_bits()), [0; 3]);
        assert!(exp_nonpositive(-87.0) >= f32::MIN_POSITIVE);
    }

    #[test]
    fn logarithms_agree_with_std() {
        for i in 1..200_000 {
            for x in [i as f32 / 200_000.0, i as f32, 1.0 + i as f32 * 1e-7] {
                let (found, expected) = (f64::from(ln_positive(x)), f64::from(x).ln());
                assert!(
                    (found - expected).abs() <= 3e-7 * expected.abs().max(1e-3),
                    "ln({x}) = {found}, expected {expected}"
                );
            }
        }
        assert_eq!(ln_positive(1.0).to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn forbidden_and_broken_logits_have_no_share() {
        let bits = |values: [f32; 3]| values.map(f32::to_bits);
        let shares = Shares::new(1.0, 0.5);
        assert_eq!(bits([1.0, f32::NEG_INFINITY, f32::NAN].map(|z| shares.of(z))), bits([1.0, 0.0, 0.0]));
        assert_eq!(shares.of(0.5).to_bits(), exp_nonpositive(-1.0).to_bits());
        // A temperature whose inverse is not finite still tells the largest from the rest.
        let shares = Shares::new(1.0, f32::from_bits(1));
        assert_eq!(bits([1.0, 1.0 - f32::EPSILON, 0.0].map(|z| shares.of(z))), bits([1.0, 0.0, 0.0]));
        // Infinite logits are all equally likely.
        let shares = Shares::new(f32::INFINITY, 0.5);
        let exponents = [f32::INFINITY, 1e38, f32::NEG_INFINITY].map(|z| shares.exponent(z));
        assert_eq!(bits(exponents), bits([0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]));
    }
}
