//! Operations along the rows of a sequence.

use super::{Operation, Type, constant_dims, operands, require, width};
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
        require(indices.dtype == DType::U32 && indices.shape.0 == [x.shape.outer()], || {
            "indices must be u32 [R]".into()
        })?;
        require(base.shape.inner() == x.shape.inner(), || "rows differ in width".into())?;
        Ok(vec![(DType::F32, base.shape.clone())])
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

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w, b] = operands(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[1] == width(x)?, || "w must be [N, C, width] for x [R, C]".into())?;
        require(constant_dims(b)? == [dims[0]], || "b must be [N]".into())?;
        let rows = x.shape.outer();
        require(self.stride > 0 && rows.factor.is_multiple_of(self.stride), || {
            format!("{rows} rows in strides of {}", self.stride)
        })?;
        let outer = Dim { factor: rows.factor / self.stride, symbol: rows.symbol };
        Ok(vec![(DType::F32, Shape::rows(outer, &dims[..1]))])
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
        Ok(vec![(DType::F32, Shape::rows(Dim::SEGMENTS, &[width(x)?]))])
    }
}
