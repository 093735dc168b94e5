//! Matrix products.

use super::{Operation, Type, constant_dims, operands, require, width, with_width};
use crate::{CacheSpec, DType, Value};

/// A linear layer: `y[r,n] = Σ_k x[r,k] · w[n,k]`, summed in f32.
///
/// Shapes: `x` `[R, K]` (or `[R, …, K]`), `w` a weight `[N, K]` in any storage → `[R, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear;

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, w] = operands(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 2 && dims[1] == width(x)?, || "w must be [N, K] for x [.., K]".into())?;
        Ok(vec![(DType::F32, with_width(&x.shape, dims[0]))])
    }
}

/// The other side of a linear layer, on the same stored weight: `x[r,k] = Σ_n y[r,n] · w[n,k]`.
///
/// Shapes: `y` `[R, N]`, `w` a weight `[N, K]` in any storage → `[R, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearTransposed;

impl Operation for LinearTransposed {
    fn name(&self) -> &'static str {
        "linear_transposed"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [y, w] = operands(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 2 && dims[0] == width(y)?, || "w must be [N, K] for y [.., N]".into())?;
        Ok(vec![(DType::F32, with_width(&y.shape, dims[1]))])
    }
}

/// A product of temporaries: `c = op(a) · op(b)`, where `op` may swap the two axes.
///
/// Shapes: `a` `[M, K]` (or `[K, M]` transposed), `b` `[K, N]` (or `[N, K]` transposed) → `[M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matmul {
    /// True where `a` is stored `[K, M]`.
    pub transpose_a: bool,
    /// True where `b` is stored `[N, K]`.
    pub transpose_b: bool,
}

impl Operation for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(given)?;
        require(a.shape.rank() == 2 && b.shape.rank() == 2, || "both must be matrices".into())?;
        let axes = |value: &Value, swapped: bool| {
            let (outer, inner) = (value.shape.0[0], value.shape.0[1]);
            if swapped { (inner, outer) } else { (outer, inner) }
        };
        let ((m, ka), (kb, n)) = (axes(a, self.transpose_a), axes(b, self.transpose_b));
        require(ka == kb, || format!("inner dimensions {ka} and {kb} differ"))?;
        Ok(vec![(DType::F32, crate::Shape(vec![m, n]))])
    }
}
