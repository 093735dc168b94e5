//! Operations that arrange the same elements in another way.

use std::ops::Range;

use super::elementwise::broadcasts;
use super::{Narrow, Operation, Type, operands, require, require_floats, width, with_width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Dim, Node, Shape, Value, ValueId};

/// Elements `start..end` of the innermost axis. The result is a view if each row is contiguous (`x` is `[R, D]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// First element.
    pub start: usize,
    /// One past the last element.
    pub end: usize,
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn attributes(&self) -> String {
        format!("{}..{}", self.start, self.end)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        require(self.start < self.end && self.end <= width(x)?, || {
            format!("no range {}..{}", self.start, self.end)
        })?;
        Ok(vec![(x.dtype, with_width(&x.shape, self.end - self.start))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let width = self.end - self.start;
        Ok(vec![x.gathered(vec![x.outer(), width], |i| i / width * x.width() + self.start + i % width)])
    }

    fn part(&self) -> Option<Range<usize>> {
        Some(self.start..self.end)
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }
}

/// Rearranges each row to the dimensions `inner`; the result is a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// The new inner dimensions.
    pub inner: Vec<usize>,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.inner)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(
            x.shape.row_elements() == Some(self.inner.iter().copied().fold(1, usize::saturating_mul)),
            || format!("rows do not rearrange to {:?}", self.inner),
        )?;
        Ok(vec![(x.dtype, Shape::rows(x.shape.outer(), &self.inner))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let shape: Vec<usize> = std::iter::once(x.outer()).chain(self.inner.iter().copied()).collect();
        Ok(vec![x.reshaped(shape)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], self.clone(), at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let inner = g.shape(at.inputs[0]).inner().ok_or("rows of no constant shape")?;
        Ok(vec![cotangents[0].map(|d| g.apply(Self { inner }, &[d])).transpose()?])
    }
}

/// Puts the axes in another order; copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// For each axis of the result, the operand's axis.
    pub axes: Vec<usize>,
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.axes)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        let mut sorted = self.axes.clone();
        sorted.sort_unstable();
        require(sorted.into_iter().eq(0..x.shape.rank()), || {
            format!("{:?} is no order of the axes", self.axes)
        })?;
        Ok(vec![(x.dtype, Shape(self.axes.iter().map(|&axis| x.shape.0[axis]).collect()))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let shape: Vec<usize> = self.axes.iter().map(|&axis| x.shape[axis]).collect();
        let step = |axis: usize| x.shape[axis + 1..].iter().product::<usize>();
        let steps: Vec<usize> = self.axes.iter().map(|&axis| step(axis)).collect();
        Ok(vec![x.gathered(shape.clone(), |i| source(i, &shape, &steps))])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], self.clone(), at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, _: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let mut axes = vec![0; self.axes.len()];
        for (to, &from) in self.axes.iter().enumerate() {
            axes[from] = to;
        }
        Ok(vec![cotangents[0].map(|d| g.apply(Self { axes }, &[d])).transpose()?])
    }
}

/// Repeats along axes of length 1 (or missing outer axes) until the shape is `shape`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// The result's shape.
    pub shape: Shape,
}

impl Operation for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn attributes(&self) -> String {
        self.shape.to_string()
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(broadcasts(&x.shape, &self.shape), || format!("does not repeat to {}", self.shape))?;
        Ok(vec![(x.dtype, self.shape.clone())])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        Ok(vec![repeat(x, &self.shape.resolve(&env.sizes))])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], self.clone(), at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let shape = g.shape(at.inputs[0]);
        Ok(vec![cotangents[0].map(|d| g.gathered(d, &shape)).transpose()?])
    }
}

/// Joins two values along an axis, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis, counted from the outermost.
    pub axis: usize,
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(given)?;
        require_floats(given)?;
        require(a.shape.rank() == b.shape.rank() && self.axis < a.shape.rank(), || "ranks differ".into())?;
        let mut dims = a.shape.0.clone();
        for (axis, (dim, &other)) in dims.iter_mut().zip(&b.shape.0).enumerate() {
            if axis == self.axis {
                require(dim.symbol == other.symbol, || format!("{dim} and {other} do not add up"))?;
                dim.factor = dim.factor.saturating_add(other.factor);
            } else {
                require(*dim == other, || format!("axis {axis} differs"))?;
            }
        }
        Ok(vec![(a.dtype, Shape(dims))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [a, b] = *operands else { unreachable!("inferred") };
        let mut shape = a.shape.clone();
        shape[self.axis] += b.shape[self.axis];
        let block = |x: &Array<T>| x.shape[self.axis..].iter().product::<usize>();
        let (a_block, b_block) = (block(a), block(b));
        let both = Array::of([a.data.len() + b.data.len()], [a.to_floats(), b.to_floats()].concat());
        let joined = both.gathered(shape, |i| {
            let (outer, at) = (i / (a_block + b_block), i % (a_block + b_block));
            if at < a_block { outer * a_block + at } else { a.data.len() + outer * b_block + at - a_block }
        });
        Ok(vec![joined])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (a, b) = (g.or_zeros(tangents[0], at.inputs[0])?, g.or_zeros(tangents[1], at.inputs[1])?);
        Ok(vec![Some(g.apply(*self, &[a, b])?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let [a, b] = [0, 1].map(|operand| g.shape(at.inputs[operand]).0[self.axis]);
        let start = Dim { factor: 0, ..a };
        let parts = [(start, a), (a, b)].map(|(start, len)| Narrow { axis: self.axis, start, len });
        let mut terms = Vec::with_capacity(2);
        for (part, &wanted) in parts.into_iter().zip(wanted) {
            terms.push(wanted.then(|| g.apply(part, &[d])).transpose()?);
        }
        Ok(terms)
    }
}

/// Converts the elements to another type, rounded to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The result's type.
    pub dtype: DType,
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn attributes(&self) -> String {
        self.dtype.to_string()
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        Ok(vec![(self.dtype, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        Ok(vec![x.cast(self.dtype)])
    }

    fn jvp(&self, _: &mut Rules, _: &Node, tangents: &[Option<ValueId>]) -> Terms {
        // Tangents are f32 whatever their values are.
        Ok(vec![tangents[0]])
    }

    fn vjp(&self, _: &mut Rules, _: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0]])
    }
}

/// `x` repeated, aligned at the innermost axis, until its shape is `shape`.
pub(super) fn repeat<T: Number>(x: &Array<T>, shape: &[usize]) -> Array<T> {
    let missing = shape.len() - x.shape.len();
    let step = |axis: usize| {
        let repeated = axis < missing || x.shape[axis - missing] == 1;
        if repeated { 0 } else { x.shape[axis - missing + 1..].iter().product() }
    };
    let steps: Vec<usize> = (0..shape.len()).map(step).collect();
    x.gathered(shape.to_vec(), |i| source(i, shape, &steps))
}

/// Index in the source of element `i` of `shape`, if a step along each axis advances by that axis's entry of `steps`.
fn source(mut i: usize, shape: &[usize], steps: &[usize]) -> usize {
    let mut at = 0;
    for (&len, step) in shape.iter().zip(steps).rev() {
        at += i % len * step;
        i /= len;
    }
    at
}
