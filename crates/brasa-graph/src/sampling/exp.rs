//! Sums of exponentials over a whole vocabulary.

/// `exp(x)` for `x ≤ 0`, to about one unit in the last place; 0 below −87.
///
/// Written without a branch, so that the compiler makes vectors of it: `2ⁿ·eʳ`, |r| ≤ ln 2/2, eʳ by its Taylor
/// polynomial of degree 7.
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_145_75;
    const LN_2_LOW: f32 = 1.428_606_8e-6;
    // Adding and subtracting 1.5·2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.max(-87.0);
    let n = (clamped * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let power = f32::from_bits(((n as i32 + 127) << 23) as u32);
    if x < -87.0 { 0.0 } else { p * power }
}

/// `Σ exp((z − max)·scale)` over all that are numbers; `max` is the largest, so no term exceeds 1.
pub(super) fn exp_sum(z: &[f32], max: f32, scale: f32) -> f64 {
    const LANES: usize = 16;
    let term = |z: f32| {
        let x = (z - max) * scale;
        // A NaN compares false and counts nothing.
        if x <= 0.0 { exp_nonpositive(x) } else { 0.0 }
    };
    let mut total = 0.0;
    for block in z.chunks(4096) {
        let mut lanes = [0.0_f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &z) in lanes.iter_mut().zip(chunk) {
                *lane += term(z);
            }
        }
        for (lane, &z) in lanes.iter_mut().zip(rest) {
            *lane += term(z);
        }
        total += lanes.iter().copied().map(f64::from).sum::<f64>();
    }
    total
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
        assert_eq!(exp_nonpositive(f32::NEG_INFINITY).to_bits(), 0);
    }

    #[test]
    fn forbidden_and_broken_logits_count_nothing() {
        let sum = exp_sum(&[1.0, f32::NEG_INFINITY, f32::NAN, 1.0], 1.0, 1.0);
        assert!((sum - 2.0).abs() < 1e-12);
    }
}
