//! The common logarithm of positive normal f32, without branches, so that a loop over many is one over vectors.

use std::f32::consts::{LOG10_2, LOG10_E, SQRT_2};

/// `log10(x)` within 3e-7 × max(1, |log10 x|), for positive normal x.
///
/// x = m · 2ᵉ with m in [√½, √2), and `ln m = 2 artanh(s)` of `s = (m − 1) / (m + 1)`, |s| < 0.172, as its series up to s⁹.
#[inline]
pub(super) fn log10(x: f32) -> f32 {
    const MANTISSA: u32 = (1 << 23) - 1;
    let offset = 1.0_f32.to_bits() - (SQRT_2 / 2.0).to_bits();
    let bits = x.to_bits() + offset;
    let exponent = (bits >> 23) as i32 - 127;
    let m = f32::from_bits((bits & MANTISSA) + (SQRT_2 / 2.0).to_bits());
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series = 1.0 + z * (1.0 / 3.0 + z * (1.0 / 5.0 + z * (1.0 / 7.0 + z * (1.0 / 9.0))));
    exponent as f32 * LOG10_2 + 2.0 * LOG10_E * s * series
}
