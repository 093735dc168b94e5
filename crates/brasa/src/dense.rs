//! Post-processing of a pooled vector: dense layers, a head, cutting, scaling.

use brasa_graph::op::Unary;
use brasa_models::{Activation, DenseActivation, DenseLayer, MeanHead};

use crate::EmbeddingNorm;

/// `act(W · x + b)`, `[outputs]`, for a vector `x` `[inputs]`, summed in f64.
pub(crate) fn pass(layer: &DenseLayer, x: &[f32]) -> Vec<f32> {
    let rows = layer.weight.chunks_exact(layer.inputs);
    let product =
        |row: &[f32]| -> f64 { row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum() };
    let biases = layer.bias.iter().flatten().copied().chain(std::iter::repeat(0.0));
    rows.zip(biases)
        .map(|(row, bias)| activate(layer.activation, (product(row) + f64::from(bias)) as f32))
        .collect()
}

/// The logits of a head that reads the mean of a text's states, `[labels]`.
pub(crate) fn judge(head: &MeanHead, mean: &[f32]) -> Vec<f32> {
    let x = pass(&head.dense, mean);
    let count = x.len() as f64;
    let center = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = x.iter().map(|&x| (f64::from(x) - center).powi(2)).sum::<f64>() / count;
    let deviation = (variance + f64::from(head.norm_eps)).sqrt();
    let biases = head.norm_bias.iter().flatten().copied().chain(std::iter::repeat(0.0));
    let normed: Vec<f32> = x
        .iter()
        .zip(&head.norm_weight)
        .zip(biases)
        .map(|((&x, &weight), bias)| {
            ((f64::from(x) - center) / deviation * f64::from(weight) + f64::from(bias)) as f32
        })
        .collect();
    pass(&head.output, &normed)
}

fn activate(activation: DenseActivation, x: f32) -> f32 {
    match activation {
        DenseActivation::Identity => x,
        DenseActivation::Tanh => x.tanh(),
        DenseActivation::Other(Activation::Silu) => Unary::Silu.apply(x),
        DenseActivation::Other(Activation::GeluTanh) => Unary::GeluTanh.apply(x),
        DenseActivation::Other(_) => Unary::GeluErf.apply(x),
    }
}

/// Leaves the first `dimensions` elements of a vector.
pub(crate) fn cut(vector: &mut Vec<f32>, dimensions: Option<usize>) {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
}

/// `vector` unchanged, or scaled to a Euclidean length of 1, as `norm` says.
pub(crate) fn scale(vector: Vec<f32>, norm: EmbeddingNorm) -> Vec<f32> {
    match norm {
        EmbeddingNorm::None => vector,
        EmbeddingNorm::Euclidean => {
            // A text whose states are all zero has no direction, and stays zero.
            let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let length = square.sqrt().max(f64::MIN_POSITIVE);
            vector.into_iter().map(|x| (f64::from(x) / length) as f32).collect()
        }
    }
}
