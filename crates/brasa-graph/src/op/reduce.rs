//! Reductions over an axis.

use super::{Operation, Reshape, Type, Unary, Where, operands, require, require_floats, width};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// Softmax over the last axis: `y[r,i] = exp(x[r,i] − max) / Σ_j exp(x[r,j] − max)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax;

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        width(x)?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let mut y = x.floats().to_vec();
        y.chunks_exact_mut(x.width()).for_each(sums::softmax);
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![tangents[0].map(|t| softmax_gradient(g, at.outputs[0], t)).transpose()?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0].map(|d| softmax_gradient(g, at.outputs[0], d)).transpose()?])
    }
}

/// Kinds of reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceFn {
    /// Sum.
    Sum,
    /// Mean.
    Mean,
    /// Largest element.
    Max,
    /// `ln Σ exp`.
    LogSumExp,
}

/// Reduces one axis, which is removed. Reducing the only axis gives a scalar `[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// The kind of reduction.
    pub function: ReduceFn,
    /// The axis, counted from the outermost.
    pub axis: usize,
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        match self.function {
            ReduceFn::Sum => "sum",
            ReduceFn::Mean => "mean",
            ReduceFn::Max => "max",
            ReduceFn::LogSumExp => "logsumexp",
        }
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        require(self.axis < x.shape.rank(), || format!("no axis {}", self.axis))?;
        let mut dims = x.shape.0.clone();
        dims.remove(self.axis);
        if dims.is_empty() {
            dims.push(1.into());
        }
        Ok(vec![(DType::F32, Shape(dims))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let len = x.shape[self.axis];
        let inner: usize = x.shape[self.axis + 1..].iter().product();
        let outer: usize = x.shape[..self.axis].iter().product();
        let mut y = Vec::with_capacity(outer * inner);
        for at in 0..outer * inner {
            let first = at / inner * len * inner + at % inner;
            let line: Vec<T> = (0..len).map(|i| x.floats()[first + i * inner]).collect();
            y.push(match self.function {
                ReduceFn::Sum => sums::sum(&line),
                ReduceFn::Mean => sums::sum(&line) / T::constant(len as f64),
                ReduceFn::Max => sums::largest(&line),
                ReduceFn::LogSumExp => sums::log_sum_exp(&line),
            });
        }
        let mut shape = x.shape.clone();
        shape.remove(self.axis);
        if shape.is_empty() {
            shape.push(1);
        }
        Ok(vec![Array::of(shape, y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let Some(t) = tangents[0] else { return Ok(vec![None]) };
        Ok(vec![Some(match self.function {
            ReduceFn::Sum | ReduceFn::Mean => g.apply(*self, &[t])?,
            ReduceFn::Max | ReduceFn::LogSumExp => {
                let shares = self.shares(g, at)?;
                let weighted = g.mul(shares, t)?;
                g.sum(weighted, self.axis)?
            }
        })])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None]) };
        let shape = g.shape(at.inputs[0]);
        let each = g.spread_along(d, self.axis, &shape)?;
        Ok(vec![Some(match self.function {
            ReduceFn::Sum => each,
            ReduceFn::Mean => {
                let length = g.length(&shape, self.axis)?;
                g.div(each, length)?
            }
            ReduceFn::Max | ReduceFn::LogSumExp => {
                let shares = self.shares(g, at)?;
                g.mul(shares, each)?
            }
        })])
    }
}

impl Reduce {
    /// The derivative of the result with respect to each element: `exp(x − y)` of a sum of exponentials. Of equal largest
    /// elements each has an equal share.
    fn shares(self, g: &mut Rules, at: &Node) -> Rule {
        let (x, y) = (at.inputs[0], at.outputs[0]);
        let shape = g.shape(x);
        let y = g.spread_along(y, self.axis, &shape)?;
        let below = g.sub(x, y)?;
        if self.function == ReduceFn::LogSumExp {
            return g.apply(Unary::Exp, &[below]);
        }
        let (zero, one) = (g.constant(0.0), g.constant(1.0));
        let (zeros, ones) = (g.spread(zero, &shape)?, g.spread(one, &shape)?);
        let largest = g.apply(Where, &[below, zeros, ones])?;
        let count = g.sum(largest, self.axis)?;
        let count = g.spread_along(count, self.axis, &shape)?;
        g.div(largest, count)
    }
}

/// A change passed through a softmax over the last axis, `y · (t − Σ_j y_j · t_j)`, where `y` is its result. The Jacobian is
/// symmetric: `t` is a tangent or a cotangent.
pub(super) fn softmax_gradient(g: &mut Rules, y: ValueId, t: ValueId) -> Rule {
    let along = g.mul(y, t)?;
    let along = g.sum_of_rows(along)?;
    let rest = g.sub(t, along)?;
    g.mul(y, rest)
}

/// A number for each row, `[R]`, reshaped to a factor of rows, `[R, 1]`.
pub(super) fn row_weights(g: &mut Rules, x: ValueId) -> Rule {
    g.apply(Reshape { inner: vec![1] }, &[x])
}

/// Index of the largest element of each row, ties to the lowest: `[R, D]` → `[R]` u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argmax;

impl Operation for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        Ok(vec![(DType::U32, Shape(vec![x.shape.outer()]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        Ok(vec![Array::u32([x.outer()], x.rows().map(|row| sums::argmax(row) as u32).collect())])
    }
}
