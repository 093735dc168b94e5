//! Operations along the rows of a sequence.

use super::{Operation, Type, constant_dims, index, operands, require, require_floats, width};
use crate::reference::{Array, Env, sums};
use crate::{CacheSpec, DType, Dim, Shape, Value};

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

    fn reference(&self, operands: &[&Array], _: &mut Env) -> Result<Vec<Array>, String> {
        let [base, indices, x] = *operands else { unreachable!("inferred") };
        let width = base.row_elements();
        let mut y = base.floats().to_vec();
        for (x, &number) in x.floats().chunks_exact(width).zip(indices.integers()) {
            let row = index(number, base.outer())?;
            sums::add_scaled(&mut y[row * width..(row + 1) * width], 1.0, x);
        }
        Ok(vec![Array::f32(base.shape.clone(), y)])
    }
}

/// One-dimensional convolution along the rows of each segment, zero-padded.
///
/// `y[t,n] = b[n] + Σ_{c,i} w[n,c,i] · x[stride·t + i − padding, c]`.
///
/// Shapes: `x` `[R, C]`, `w` a weight `[N, C, width]`, `b` `[N]` → `[R / stride, N]`; R must be a multiple of the stride
/// in every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1d {
    /// Rows per output row.
    pub stride: usize,
    /// Zero rows before the first and after the last.
    pub padding: usize,
}

impl Operation for Conv1d {
    fn name(&self) -> &'static str {
        "conv1d"
    }

    fn attributes(&self) -> String {
        format!("stride={} padding={}", self.stride, self.padding)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w, b] = operands(given)?;
        require_floats(given)?;
        require(x.shape.rank() == 2, || "x must be [R, C]".into())?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[1] == width(x)?, || "w must be [N, C, width] for x [R, C]".into())?;
        require(constant_dims(b)? == [dims[0]], || "b must be [N]".into())?;
        let rows = x.shape.outer();
        require(self.stride > 0 && rows.factor.is_multiple_of(self.stride), || {
            format!("outer dimension {rows}, expected a multiple of the stride {}", self.stride)
        })?;
        let outer = Dim { factor: rows.factor / self.stride, symbol: rows.symbol };
        Ok(vec![(DType::F32, Shape::rows(outer, &dims[..1]))])
    }

    fn reference(&self, operands: &[&Array], env: &mut Env) -> Result<Vec<Array>, String> {
        let [x, w, b] = *operands else { unreachable!("inferred") };
        let (outputs, channels, taps) = (w.shape[0], w.shape[1], w.shape[2]);
        let mut y = Vec::with_capacity(x.outer() / self.stride * outputs);
        for rows in env.segments_of(x.outer())? {
            for t in 0..rows.len() / self.stride {
                for n in 0..outputs {
                    let mut sum = b.floats()[n];
                    for tap in 0..taps {
                        // Row numbers before the first wrap beyond the last: both read zeros.
                        let row = (self.stride * t + tap).wrapping_sub(self.padding);
                        if row < rows.len() {
                            let x = &x.floats()[(rows.start + row) * channels..][..channels];
                            let weight = |c: usize| w.floats()[(n * channels + c) * taps + tap];
                            sum += x.iter().enumerate().map(|(c, x)| weight(c) * x).sum::<f32>();
                        }
                    }
                    y.push(sum);
                }
            }
        }
        Ok(vec![Array::f32([x.outer() / self.stride, outputs], y)])
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

    fn reference(&self, operands: &[&Array], env: &mut Env) -> Result<Vec<Array>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let mut y = Vec::with_capacity(env.segments.len() * x.width());
        for rows in env.segments_of(x.outer())? {
            let mut mean = vec![0.0; x.width()];
            for row in rows.clone() {
                sums::add_scaled(&mut mean, 1.0, &x.floats()[row * x.width()..(row + 1) * x.width()]);
            }
            y.extend(mean.iter().map(|sum| sum / rows.len() as f32));
        }
        Ok(vec![Array::f32([env.segments.len(), x.width()], y)])
    }
}
