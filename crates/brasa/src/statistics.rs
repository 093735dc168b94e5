//! Means and medians of samples, and their names in llama-bench's JSON.

use serde_json::{Map, Value, json};

/// The arithmetic mean.
pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// The standard deviation of a sample; 0 of a single one.
pub fn deviation(samples: &[f64]) -> f64 {
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    (squares / (samples.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// The middle sample, or the mean of the two in the middle.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The largest sample minus the smallest, divided by the median.
pub fn spread(samples: &[f64]) -> f64 {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (most - least) / median(samples)
}

/// Rates in tokens a second under the names of llama-bench and `brasa bench`: mean, deviation, median, and spread.
pub fn rates(samples: &[f64]) -> Map<String, Value> {
    let figures = json!({
        "avg_ts": mean(samples),
        "stddev_ts": deviation(samples),
        "median_ts": median(samples),
        "spread": spread(samples),
    });
    let Value::Object(figures) = figures else { unreachable!("an object") };
    figures
}
