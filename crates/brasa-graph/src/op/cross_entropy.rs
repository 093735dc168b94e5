//! The loss of a language model.

use super::reduce::row_weights;
use super::{Operation, Pick, Place, Softmax, Type, index, operands, require, require_floats, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (&[x, targets], Some(t)) = (&at.inputs[..], tangents[0]) else { return Ok(vec![None]) };
        let shares = g.apply(Softmax, &[x])?;
        let mean = g.mul(shares, t)?;
        let mean = g.sum(mean, 1)?;
        let own = g.apply(Pick, &[t, targets])?;
        Ok(vec![Some(g.sub(mean, own)?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let (&[x, targets], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let shares = g.apply(Softmax, &[x])?;
        let each = row_weights(g, d)?;
        let pulled = g.mul(shares, each)?;
        let own = g.apply(Place { width: g.width(x)? }, &[d, targets])?;
        Ok(vec![Some(g.sub(pulled, own)?), None])
    }
}
