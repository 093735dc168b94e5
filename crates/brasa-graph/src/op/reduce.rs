//! Reductions over an axis.

use super::{Operation, Type, index, operands, require, require_floats, width};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Shape, Value};

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

/// Reduces one axis, which disappears. The outermost axis of a step (its rows) is reduced to a scalar `[1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// The kind of reduction.
    pub function: ReduceFn,
    /// Which axis, counted from the outermost.
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
}

/// Number of the largest element of each row, ties to the lowest: `[R, D]` → `[R]` u32.
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

/// Negative log-likelihood of a target: `y[r] = logsumexp(x[r]) − x[r, targets[r]]`.
///
/// Shapes: `x` `[R, V]`, `targets` `[R]` u32 → `[R]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossEntropy;

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, targets] = operands(given)?;
        require_floats(&given[..1])?;
        require(x.shape.rank() == 2, || "x must be [R, V]".into())?;
        width(x)?;
        require(targets.dtype == DType::U32 && targets.shape.0 == [x.shape.outer()], || {
            "targets must be u32 [R]".into()
        })?;
        Ok(vec![(DType::F32, targets.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, targets] = *operands else { unreachable!("inferred") };
        let loss = |(row, &target): (&[T], &u32)| Ok(sums::log_sum_exp(row) - row[index(target, row.len())?]);
        let losses = x.rows().zip(targets.integers()).map(loss).collect::<Result<_, String>>()?;
        Ok(vec![Array::of(targets.shape.clone(), losses)])
    }
}
