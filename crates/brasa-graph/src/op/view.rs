//! Other arrangements of the same elements.

use super::elementwise::broadcasts;
use super::{Operation, Type, operands, require, width, with_width};
use crate::{CacheSpec, DType, Shape, Value};

/// Elements `start..end` of the innermost axis. A view where each row is contiguous (`x` is `[R, D]`).
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

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        require(self.start < self.end && self.end <= width(x)?, || {
            format!("no range {}..{}", self.start, self.end)
        })?;
        Ok(vec![(x.dtype, with_width(&x.shape, self.end - self.start))])
    }
}

/// Each row rearranged as `inner`; a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// The new inner dimensions.
    pub inner: Vec<usize>,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(x.shape.row_elements() == Some(self.inner.iter().product()), || {
            format!("rows do not rearrange to {:?}", self.inner)
        })?;
        Ok(vec![(x.dtype, Shape::rows(x.shape.outer(), &self.inner))])
    }
}

/// Axes in another order; copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transpose {
    /// For each axis of the result, the operand's axis.
    pub axes: Vec<usize>,
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
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

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require(broadcasts(&x.shape, &self.shape), || format!("does not repeat to {}", self.shape))?;
        Ok(vec![(x.dtype, self.shape.clone())])
    }
}

/// Joins two values along an axis, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concat {
    /// Which axis, counted from the outermost.
    pub axis: usize,
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(given)?;
        require(a.shape.rank() == b.shape.rank() && self.axis < a.shape.rank(), || "ranks differ".into())?;
        let mut dims = a.shape.0.clone();
        for (axis, (dim, &other)) in dims.iter_mut().zip(&b.shape.0).enumerate() {
            if axis == self.axis {
                require(dim.symbol == other.symbol, || format!("{dim} and {other} do not add up"))?;
                dim.factor += other.factor;
            } else {
                require(*dim == other, || format!("axis {axis} differs"))?;
            }
        }
        Ok(vec![(a.dtype, Shape(dims))])
    }
}

/// The same elements in another type, rounded to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// The result's type.
    pub dtype: DType,
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        Ok(vec![(self.dtype, x.shape.clone())])
    }
}
