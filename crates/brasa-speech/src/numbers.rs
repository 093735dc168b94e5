//! Probabilities of a row of logits.

/// Sum of the exponentials' logarithm over `logits`; −∞ if all are.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let sum: f64 = logits.iter().map(|&x| f64::from((x - largest).exp())).sum();
    largest + sum.ln() as f32
}

/// Number of the largest element, ties to the lowest.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (0..row.len()).fold(0, best) as u32
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
