//! Operations along the rows of a sequence.

use super::{
    Fold, MeanPoolTransposed, Operation, SelectRows, Type, index, operands, require, require_floats, width,
};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Dim, Node, Shape, Value, ValueId};

/// Adds rows into a base: `y = base; y[indices[r]] += x[r]`.
///
/// Shapes: `base` `[B, D]`, `indices` `[R]` u32, `x` `[R, D]` → `[B, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexAdd;

impl Operation for IndexAdd {
    fn name(&self) -> &'static str {
        "index_add"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [base, indices, x] = operands(given)?;
        require_floats(&[base, x])?;
        require(indices.dtype == DType::U32 && indices.shape.0 == [x.shape.outer()], || {
            "indices must be u32 [R]".into()
        })?;
        require(base.shape.inner() == x.shape.inner(), || "rows differ in width".into())?;
        Ok(vec![(DType::F32, base.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [base, indices, x] = *operands else { unreachable!("inferred") };
        let width = base.row_elements();
        let mut y = base.floats().to_vec();
        for (x, &number) in x.floats().chunks_exact(width).zip(indices.integers()) {
            let row = index(number, base.outer())?;
            sums::add_scaled(&mut y[row * width..(row + 1) * width], T::constant(1.0), x);
        }
        Ok(vec![Array::of(base.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let &[base, indices, x] = &at.inputs[..] else { unreachable!("inferred") };
        if tangents[2].is_none() {
            return Ok(vec![tangents[0]]);
        }
        let (base, x) = (g.or_zeros(tangents[0], base)?, g.or_zeros(tangents[2], x)?);
        Ok(vec![Some(g.apply(*self, &[base, indices, x])?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 3]) };
        let by_x = wanted[2].then(|| g.apply(SelectRows, &[d, at.inputs[1]])).transpose()?;
        Ok(vec![Some(d), None, by_x])
    }
}

/// Places the rows that each output of a one-dimensional convolution reads side by side, zero-padded at a segment's ends. A
/// linear layer of the result is a convolution with weights `[N, C, taps]`.
///
/// `y[t, c·taps + i] = x[stride·t + i − padding, c]`.
///
/// Shapes: `x` `[R, C]` → `[R / stride, C·taps]`; R must be a multiple of the stride in every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfold {
    /// Rows that each output row reads.
    pub taps: usize,
    /// Rows per output row.
    pub stride: usize,
    /// Zero rows before the first row and after the last.
    pub padding: usize,
}

impl Operation for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn attributes(&self) -> String {
        format!("taps={} stride={} padding={}", self.taps, self.stride, self.padding)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        require(x.shape.rank() == 2, || "x must be [R, C]".into())?;
        let rows = x.shape.outer();
        require(self.stride > 0 && rows.factor.is_multiple_of(self.stride), || {
            format!("outer dimension {rows}, expected a multiple of the stride {}", self.stride)
        })?;
        let elements = width(x)?.checked_mul(self.taps).filter(|&elements| elements > 0);
        let elements = elements.ok_or_else(|| format!("{} taps", self.taps))?;
        let outer = Dim { factor: rows.factor / self.stride, symbol: rows.symbol };
        Ok(vec![(DType::F32, Shape::rows(outer, &[elements]))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let (channels, taps) = (x.width(), self.taps);
        let mut y = Vec::with_capacity(x.outer() / self.stride * channels * taps);
        for rows in env.segments_of(x.outer())? {
            for t in 0..rows.len() / self.stride {
                for c in 0..channels {
                    y.extend((0..taps).map(|tap| {
                        // Row numbers before the first wrap beyond the last: both read zeros.
                        let row = (self.stride * t + tap).wrapping_sub(self.padding);
                        if row < rows.len() {
                            x.floats()[(rows.start + row) * channels + c]
                        } else {
                            T::default()
                        }
                    }));
                }
            }
        }
        Ok(vec![Array::of([x.outer() / self.stride, channels * taps], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, _: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        Ok(vec![cotangents[0].map(|d| g.apply(Fold { unfold: *self }, &[d])).transpose()?])
    }
}

/// Mean of the rows of each segment: `[R, D]` → `[Segments, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeanPool;

impl Operation for MeanPool {
    fn name(&self) -> &'static str {
        "mean_pool"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        require(x.shape.rank() == 2, || "x must be [R, D]".into())?;
        Ok(vec![(DType::F32, Shape::rows(Dim::SEGMENTS, &[width(x)?]))])
    }

    fn reference<T: Number>(
        &self,
        operands: &[&Array<T>],
        env: &mut Env<T>,
    ) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let mut y = Vec::with_capacity(env.segments.len() * x.width());
        for rows in env.segments_of(x.outer())? {
            let mut mean = vec![T::default(); x.width()];
            for row in rows.clone() {
                sums::add_scaled(
                    &mut mean,
                    T::constant(1.0),
                    &x.floats()[row * x.width()..(row + 1) * x.width()],
                );
            }
            y.extend(mean.iter().map(|&sum| sum / T::constant(rows.len() as f64)));
        }
        Ok(vec![Array::of([env.segments.len(), x.width()], y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        Ok(vec![g.instead(tangents[0], *self, at, 0)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let transposed = MeanPoolTransposed { rows: g.shape(at.inputs[0]).outer() };
        Ok(vec![cotangents[0].map(|d| g.apply(transposed, &[d])).transpose()?])
    }
}
