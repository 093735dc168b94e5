//! Reductions over an axis.

use super::{Operation, Type, operands, require, width};
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
        Ok(vec![(DType::F32, x.shape.clone())])
    }
}

/// What a reduction computes.
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
    /// What is computed.
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

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(self.axis < x.shape.rank(), || format!("no axis {}", self.axis))?;
        let mut dims = x.shape.0.clone();
        dims.remove(self.axis);
        if dims.is_empty() {
            dims.push(1.into());
        }
        Ok(vec![(DType::F32, Shape(dims))])
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
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        Ok(vec![(DType::U32, Shape(vec![x.shape.outer()]))])
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
        width(x)?;
        require(targets.dtype == DType::U32 && targets.shape.0 == [x.shape.outer()], || {
            "targets must be u32 [R]".into()
        })?;
        Ok(vec![(DType::F32, targets.shape.clone())])
    }
}
