//! Normalisation over the last axis.

use super::{NormGradient, NormKind, Op, Operation, Type, constant_dims, require, require_floats, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

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

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        normalised(given, 1)
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let x = operands[0];
        let mut y = x.floats().to_vec();
        for row in y.chunks_exact_mut(x.width()) {
            let mean_square = sums::dot(row, row) / length(row);
            let scale = T::constant(1.0) / (mean_square + T::constant(self.eps.into())).sqrt();
            for (i, y) in row.iter_mut().enumerate() {
                *y *= scale * operands.get(1).map_or(T::constant(1.0), |w| w.floats()[i]);
            }
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        jvp_of(g, at, tangents, NormGradient { kind: NormKind::Rms, eps: self.eps }, (*self).into())
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        vjp_of(
            g,
            at,
            cotangents[0],
            wanted,
            NormGradient { kind: NormKind::Rms, eps: self.eps },
            (*self).into(),
        )
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

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        normalised(given, 2)
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let x = operands[0];
        let mut y = x.floats().to_vec();
        for row in y.chunks_exact_mut(x.width()) {
            let mean = sums::sum(row) / length(row);
            for x in &mut *row {
                *x -= mean;
            }
            let variance = sums::dot(row, row) / length(row);
            let scale = T::constant(1.0) / (variance + T::constant(self.eps.into())).sqrt();
            for (i, y) in row.iter_mut().enumerate() {
                let weight = operands.get(1).map_or(T::constant(1.0), |w| w.floats()[i]);
                let bias = operands.get(2).map_or(T::default(), |b| b.floats()[i]);
                *y = *y * scale * weight + bias;
            }
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        jvp_of(g, at, tangents, NormGradient { kind: NormKind::Layer, eps: self.eps }, (*self).into())
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        vjp_of(
            g,
            at,
            cotangents[0],
            wanted,
            NormGradient { kind: NormKind::Layer, eps: self.eps },
            (*self).into(),
        )
    }
}

/// The tangent of `x̂ · w + b`. `norm` computes `x̂` from `x`, without `w` and `b`.
fn jvp_of(g: &mut Rules, at: &Node, tangents: &[Option<ValueId>], gradient: NormGradient, norm: Op) -> Terms {
    let x = at.inputs[0];
    let mut total = None;
    if let Some(t) = tangents[0] {
        let t = g.apply(gradient, &[x, t])?;
        total = Some(at.inputs.get(1).map_or(Ok(t), |&w| g.mul(t, w))?);
    }
    if let Some(&Some(t)) = tangents.get(1) {
        let normed = g.apply(norm, &[x])?;
        let t = g.mul(normed, t)?;
        total = g.total(total, Some(t))?;
    }
    if let Some(&Some(t)) = tangents.get(2) {
        total = Some(match total {
            Some(total) => g.add(total, t)?,
            None => g.spread(t, &g.shape(x))?,
        });
    }
    Ok(vec![total])
}

/// The cotangents of `x`, `w` and `b` for `x̂ · w + b`. `norm` computes `x̂` from `x`, without `w` and `b`.
fn vjp_of(
    g: &mut Rules,
    at: &Node,
    cotangent: Option<ValueId>,
    wanted: &[bool],
    gradient: NormGradient,
    norm: Op,
) -> Terms {
    let (x, mut terms) = (at.inputs[0], vec![None; at.inputs.len()]);
    let Some(d) = cotangent else { return Ok(terms) };
    if wanted[0] {
        let through = at.inputs.get(1).map_or(Ok(d), |&w| g.mul(d, w))?;
        terms[0] = Some(g.apply(gradient, &[x, through])?);
    }
    if wanted.get(1) == Some(&true) {
        let normed = g.apply(norm, &[x])?;
        let each = g.mul(normed, d)?;
        terms[1] = Some(g.gathered(each, &g.shape(at.inputs[1]))?);
    }
    if wanted.get(2) == Some(&true) {
        terms[2] = Some(g.gathered(d, &g.shape(at.inputs[2]))?);
    }
    Ok(terms)
}

/// The number of elements of a row, as a number of type `T`.
fn length<T: Number>(row: &[T]) -> T {
    T::constant(row.len() as f64)
}

fn normalised(given: &[&Value], most_weights: usize) -> Result<Vec<Type>, String> {
    let (x, weights) = given.split_first().ok_or("no operand")?;
    require(weights.len() <= most_weights, || format!("{} weights, at most {most_weights}", weights.len()))?;
    require_floats(given)?;
    let width = width(x)?;
    for weight in weights {
        require(constant_dims(weight)? == [width], || format!("weight must be [{width}]"))?;
    }
    Ok(vec![(DType::F32, x.shape.clone())])
}
