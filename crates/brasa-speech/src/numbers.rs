//! Probabilities of a row of logits.
//!
//! A row has as many logits as the vocabulary has tokens, and each text takes several sums a token: they are written so that compilers
//! make vectors of them.

/// Elements that are taken together.
const LANES: usize = 16;

/// Sum of the exponentials' logarithm over `logits`; −∞ if all are.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    let largest = maximum(logits);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(exp(logit - largest));
        }
    }
    let rest: f64 = rest.iter().map(|&logit| f64::from(exp(logit - largest))).sum();
    largest + (sums.iter().sum::<f64>() + rest).ln() as f32
}

/// The largest element; −∞ of none.
fn maximum(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (most, &x) in lanes.iter_mut().zip(chunk) {
            *most = if x > *most { x } else { *most };
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The exponential of a number that is not above 0, within two units of the last place; below −87 that of −87, which is 1.6e−38.
///
/// `2^k · e^f` with `k` the nearest integer of `x / ln 2`, `f = x − k ln 2`, and Taylor's series of `e^f` for `|f| ≤ ln 2 / 2`.
fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: adding it rounds to an integer, which then is in the low bits.
    const ROUNDING: f32 = 12_582_912.0;
    /// ln 2 in two parts, of which the first has few bits: its products with integers are exact (Cody & Waite 1980).
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const SERIES: [f32; 7] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    let x = if x > -87.0 { x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUNDING;
    let k = rounded - ROUNDING;
    let f = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    let series = SERIES.into_iter().fold(0.0, |sum, c| sum * f + c) * f + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUNDING.to_bits()).wrapping_add(127) << 23;
    series * f32::from_bits(exponent)
}

/// Number of the largest element, ties to the lowest.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let largest = maximum(row);
    row.iter().position(|&x| x >= largest).unwrap_or(0) as u32
}

/// Numbers of the `count` largest elements, largest first, ties to the lowest number.
pub(crate) fn largest(row: &[f32], count: usize) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::with_capacity(count + 1);
    for (token, &value) in row.iter().enumerate() {
        if found.len() == count && found.last().is_none_or(|&last| row[last as usize] >= value) {
            continue;
        }
        let place = found.partition_point(|&other| row[other as usize] >= value);
        found.insert(place, token as u32);
        found.truncate(count);
    }
    found
}

/// Probability of `token` in a row of logits.
pub(crate) fn probability(logits: &[f32], token: u32) -> f64 {
    f64::from(logits[token as usize] - log_sum_exp(logits)).exp()
}
