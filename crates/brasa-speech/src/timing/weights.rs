//! Weights of the aligning heads, made comparable.

use crate::recogniser::CrossScores;

/// Width of the median filter in columns.
const MEDIAN_WIDTH: usize = 7;

/// Alignment matrix `[tokens, columns]` of the heads' scores over the first `columns` positions of a window: softmax, standardised
/// over the tokens, smoothed over time, averaged over the heads.
pub fn alignment_matrix(scores: &CrossScores, columns: usize) -> Vec<f32> {
    let (heads, tokens) = (scores.heads, scores.tokens);
    let positions = scores.values.len().checked_div(heads * tokens).unwrap_or(0);
    let columns = columns.min(positions);
    let mut mean = vec![0.0; tokens * columns];
    if columns == 0 {
        return mean;
    }
    for head in scores.values.chunks_exact(tokens * positions) {
        let mut weights: Vec<f32> = Vec::with_capacity(tokens * columns);
        for row in head.chunks_exact(positions) {
            weights.extend(softmax(&row[..columns]));
        }
        standardise(&mut weights, columns);
        for (row, mean) in weights.chunks_exact(columns).zip(mean.chunks_exact_mut(columns)) {
            for (mean, smooth) in mean.iter_mut().zip(median_filter(row, MEDIAN_WIDTH)) {
                *mean += smooth / heads as f32;
            }
        }
    }
    mean
}

fn softmax(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f32> = row.iter().map(|x| (x - largest).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}

/// Subtracts each column's mean and divides by its standard deviation.
fn standardise(weights: &mut [f32], columns: usize) {
    let rows = weights.len() / columns;
    for column in 0..columns {
        let values = || (0..rows).map(|row| row * columns + column);
        let mean = values().map(|at| f64::from(weights[at])).sum::<f64>() / rows as f64;
        let variance = values().map(|at| (f64::from(weights[at]) - mean).powi(2)).sum::<f64>() / rows as f64;
        let deviation = variance.sqrt();
        for at in values() {
            let centred = f64::from(weights[at]) - mean;
            // A column that says nothing about tokens has no weight.
            weights[at] = if deviation > 0.0 { (centred / deviation) as f32 } else { 0.0 };
        }
    }
}

/// Medians of `width` neighbours, an odd number; the row is reflected at its ends. Rows that are too short for the reflection
/// stay as they are.
pub fn median_filter(row: &[f32], width: usize) -> Vec<f32> {
    let pad = width / 2;
    if row.len() <= pad {
        return row.to_vec();
    }
    let mut near = Vec::with_capacity(width);
    (0..row.len())
        .map(|at| {
            near.clear();
            near.extend((0..width).map(|step| {
                let place = (at + step).abs_diff(pad);
                row[if place < row.len() { place } else { 2 * (row.len() - 1) - place }]
            }));
            near.sort_by(f32::total_cmp);
            near[pad]
        })
        .collect()
}
