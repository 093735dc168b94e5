//! Matrix products.

use super::{Operation, Type, constant_dims, operands, require, require_floats, width, with_width};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let terms = [0, 1].map(|place| g.instead(tangents[place], *self, at, place));
        let [first, second] = terms;
        Ok(vec![g.total(first?, second?)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[x, w], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let by_x = wanted[0].then(|| g.apply(LinearTransposed, &[d, w])).transpose()?;
        let by_w = wanted[1].then(|| g.apply(LinearGradient, &[d, x])).transpose()?;
        Ok(vec![by_x, by_w])
    }
}

/// Multiplies rows by the transpose of a linear layer's stored weight: `x[r,k] = Σ_n y[r,n] · w[n,k]`.
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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let terms = [0, 1].map(|place| g.instead(tangents[place], *self, at, place));
        let [first, second] = terms;
        Ok(vec![g.total(first?, second?)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[y, w], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let by_y = wanted[0].then(|| g.apply(Linear, &[d, w])).transpose()?;
        let by_w = wanted[1].then(|| g.apply(LinearGradient, &[y, d])).transpose()?;
        Ok(vec![by_y, by_w])
    }
}

/// The gradient of the weights of [`Linear`]: `dw[n,k] = Σ_r dy[r,n] · x[r,k]`, over all axes but the last.
///
/// Shapes: `dy` `[R, …, N]`, `x` `[R, …, K]` → `[N, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearGradient;

impl Operation for LinearGradient {
    fn name(&self) -> &'static str {
        "linear_gradient"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [dy, x] = operands(given)?;
        require_floats(given)?;
        let (n, k) = (width(dy)?, width(x)?);
        require(with_width(&dy.shape, k) == x.shape, || "dy and x differ in rows".into())?;
        Ok(vec![(DType::F32, Shape::new([n, k]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [dy, x] = *operands else { unreachable!("inferred") };
        let (n, k) = (dy.width(), x.width());
        let mut dw = vec![T::default(); n * k];
        for (dy, x) in dy.rows().zip(x.rows()) {
            for (dw, &dy) in dw.chunks_exact_mut(k).zip(dy) {
                sums::add_scaled(dw, dy, x);
            }
        }
        Ok(vec![Array::of([n, k], dw)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let terms = [0, 1].map(|place| g.instead(tangents[place], *self, at, place));
        let [first, second] = terms;
        Ok(vec![g.total(first?, second?)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[dy, x], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let by_dy = wanted[0].then(|| rows_times_transposed(g, x, d)).transpose()?;
        let by_x = wanted[1].then(|| rows_times(g, dy, d)).transpose()?;
        Ok(vec![by_dy, by_x])
    }
}

/// Builds `x · wᵀ` for rows `x` and a computed matrix `w`, as [`Linear`] does for a stored weight.
pub(super) fn rows_times_transposed(g: &mut Rules, x: ValueId, w: ValueId) -> Rule {
    match g.shape(x).rank() {
        2 => g.apply(Matmul { transpose_a: false, transpose_b: true }, &[x, w]),
        _ => g.apply(Linear, &[x, w]),
    }
}

/// Builds `y · w` for rows `y` and a computed matrix `w`, as [`LinearTransposed`] does for a stored weight.
pub(super) fn rows_times(g: &mut Rules, y: ValueId, w: ValueId) -> Rule {
    match g.shape(y).rank() {
        2 => g.apply(Matmul { transpose_a: false, transpose_b: false }, &[y, w]),
        _ => g.apply(LinearTransposed, &[y, w]),
    }
}

/// A product of two computed matrices: `c = op(a) · op(b)`, where `op` may swap the two axes.
///
/// Shapes: `a` `[M, K]` (or `[K, M]` transposed), `b` `[K, N]` (or `[N, K]` transposed) → `[M, N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matmul {
    /// True if `a` is stored `[K, M]`.
    pub transpose_a: bool,
    /// True if `b` is stored `[N, K]`.
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
        Ok(vec![(DType::F32, Shape(vec![m, n]))])
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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let terms = [0, 1].map(|place| g.instead(tangents[place], *self, at, place));
        let [first, second] = terms;
        Ok(vec![g.total(first?, second?)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[a, b], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let Self { transpose_a, transpose_b } = *self;
        let mut product =
            |(a, transpose_a), (b, transpose_b)| g.apply(Self { transpose_a, transpose_b }, &[a, b]);
        // c = a·b: da = dc·bᵀ and db = aᵀ·dc, each side swapped where it is stored so.
        let by_a = wanted[0].then(|| {
            if transpose_a {
                product((b, transpose_b), (d, true))
            } else {
                product((d, false), (b, !transpose_b))
            }
        });
        let by_a = by_a.transpose()?;
        let by_b = wanted[1].then(|| {
            if transpose_b {
                product((d, true), (a, transpose_a))
            } else {
                product((a, !transpose_a), (d, false))
            }
        });
        Ok(vec![by_a, by_b.transpose()?])
    }
}
