//! Normalisation over the last axis.

use super::{Operation, Type, constant_dims, require, width};
use crate::{CacheSpec, DType, Value};

/// Root-mean-square norm over the last axis.
///
/// `y[r,i] = w[i] · x[r,i] / sqrt(mean_j x[r,j]² + eps)`, summed in f32; without `w` the scale is one.
///
/// Shapes: `x` `[R, …, D]`, `w` `[D]` (optional) → as `x`.
/// Zhang & Sennrich 2019, arXiv:1910.07467.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        normalised(given, 1)
    }
}

/// Layer norm over the last axis: `y[r,i] = w[i] · (x[r,i] − mean) / sqrt(variance + eps) + b[i]`.
///
/// Shapes: `x` `[R, …, D]`, `w` `[D]`, `b` `[D]` (both optional) → as `x`.
/// Ba, Kiros & Hinton 2016, arXiv:1607.06450.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        normalised(given, 2)
    }
}

fn normalised(given: &[&Value], most_weights: usize) -> Result<Vec<Type>, String> {
    let (x, weights) = given.split_first().ok_or("no operand")?;
    require(weights.len() <= most_weights, || format!("{} weights, at most {most_weights}", weights.len()))?;
    let width = width(x)?;
    for weight in weights {
        require(constant_dims(weight)? == [width], || format!("weight must be [{width}]"))?;
    }
    Ok(vec![(DType::F32, x.shape.clone())])
}
