//! A part of a value along any axis.

use super::{Concat, Operation, Type, operands, require};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, Dim, Node, Shape, Value, ValueId};

/// Copies elements `start .. start + len` along an axis. The transpose of [`Concat`].
///
/// Along rows, `start` and `len` are multiples of the same symbol: the second half of `[2·rows, D]` starts at `rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrow {
    /// The axis, counted from the outermost.
    pub axis: usize,
    /// The first element.
    pub start: Dim,
    /// The number of elements.
    pub len: Dim,
}

impl Narrow {
    /// Elements of the operand after the part.
    fn rest(&self, dim: Dim) -> Dim {
        Dim { factor: dim.factor - self.start.factor - self.len.factor, symbol: dim.symbol }
    }
}

impl Operation for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn attributes(&self) -> String {
        format!("axis={} start={} len={}", self.axis, self.start, self.len)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        let dim = *x.shape.0.get(self.axis).ok_or_else(|| format!("no axis {}", self.axis))?;
        let counts = |part: Dim| part.symbol == dim.symbol || part.factor == 0;
        let end = self.start.factor.checked_add(self.len.factor);
        let fits = end.is_some_and(|end| self.len.factor > 0 && end <= dim.factor);
        require(counts(self.start) && counts(self.len) && fits, || {
            format!("no {} elements from {} on along {dim}", self.len, self.start)
        })?;
        let mut dims = x.shape.0.clone();
        dims[self.axis] = self.len;
        Ok(vec![(x.dtype, Shape(dims))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let (start, len) = (self.start.resolve(&env.sizes), self.len.resolve(&env.sizes));
        let inner: usize = x.shape[self.axis + 1..].iter().product();
        let (from, part) = (x.shape[self.axis] * inner, len * inner);
        let mut shape = x.shape.clone();
        shape[self.axis] = len;
        Ok(vec![x.gathered(shape, |i| i / part * from + start * inner + i % part)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let Some(mut d) = cotangents[0] else { return Ok(vec![None]) };
        let shape = g.shape(at.inputs[0]);
        let zeros = |g: &mut Rules, len: Dim| {
            let mut dims = shape.0.clone();
            dims[self.axis] = len;
            g.zeros(&Shape(dims))
        };
        let rest = self.rest(shape.0[self.axis]);
        if self.start.factor > 0 {
            let before = zeros(g, self.start)?;
            d = g.apply(Concat { axis: self.axis }, &[before, d])?;
        }
        if rest.factor > 0 {
            let after = zeros(g, rest)?;
            d = g.apply(Concat { axis: self.axis }, &[d, after])?;
        }
        Ok(vec![Some(d)])
    }
}
