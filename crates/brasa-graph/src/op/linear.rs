//! Matrix products.

use super::{Operation, Type, constant_dims, operands, require, require_floats, width, with_width};
use crate::reference::{Array, Env, Number, sums};
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
        require_floats(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 2 && dims[1] == width(x)?, || "w must be [N, K] for x [.., K]".into())?;
        Ok(vec![(DType::F32, with_width(&x.shape, dims[0]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, w] = *operands else { unreachable!("inferred") };
        let outputs = w.outer();
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("inferred") = outputs;
        let mut y = vec![T::default(); shape.iter().product()];
        for (n, w) in w.rows().enumerate() {
            for (r, x) in x.rows().enumerate() {
                y[r * outputs + n] = sums::dot(x, w);
            }
        }
        Ok(vec![Array::of(shape, y)])
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
        require_floats(given)?;
        let dims = constant_dims(w)?;
        require(dims.len() == 2 && dims[0] == width(y)?, || "w must be [N, K] for y [.., N]".into())?;
        Ok(vec![(DType::F32, with_width(&y.shape, dims[1]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [y, w] = *operands else { unreachable!("inferred") };
        let mut shape = y.shape.clone();
        *shape.last_mut().expect("inferred") = w.width();
        let mut x = vec![T::default(); shape.iter().product()];
        for (x, y) in x.chunks_exact_mut(w.width()).zip(y.rows()) {
            for (&y, w) in y.iter().zip(w.rows()) {
                sums::add_scaled(x, y, w);
            }
        }
        Ok(vec![Array::of(shape, x)])
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

    fn attributes(&self) -> String {
        let swapped = |name, swapped| if swapped { name } else { "" };
        format!("{}{}", swapped("aᵀ ", self.transpose_a), swapped("bᵀ", self.transpose_b))
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(given)?;
        require_floats(given)?;
        require(a.shape.rank() == 2 && b.shape.rank() == 2, || "both must be matrices".into())?;
        let axes = |value: &Value, swapped: bool| {
            let (outer, inner) = (value.shape.0[0], value.shape.0[1]);
            if swapped { (inner, outer) } else { (outer, inner) }
        };
        let ((m, ka), (kb, n)) = (axes(a, self.transpose_a), axes(b, self.transpose_b));
        require(ka == kb, || format!("inner dimensions {ka} and {kb} differ"))?;
        Ok(vec![(DType::F32, crate::Shape(vec![m, n]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [a, b] = *operands else { unreachable!("inferred") };
        let axes = |x: &Array<T>, swapped: bool| {
            if swapped { (x.shape[1], x.shape[0]) } else { (x.shape[0], x.shape[1]) }
        };
        let ((m, k), (_, n)) = (axes(a, self.transpose_a), axes(b, self.transpose_b));
        // Both with the summed axis innermost.
        let rows = a.gathered(vec![m, k], |i| if self.transpose_a { i % k * m + i / k } else { i });
        let columns = b.gathered(vec![n, k], |i| if self.transpose_b { i } else { i % k * n + i / k });
        let mut c = Vec::with_capacity(m * n);
        for row in rows.rows() {
            c.extend(columns.rows().map(|column| sums::dot(row, column)));
        }
        Ok(vec![Array::of([m, n], c)])
    }
}
