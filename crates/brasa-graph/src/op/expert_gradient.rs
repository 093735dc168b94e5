//! Derivatives of the linear layers of chosen experts.

use super::{ExpertLinear, Operation, Type, constant_dims, index, operands, require, require_floats, width};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Shape, Value, ValueId};

/// Multiplies rows by the transposes of their experts' matrices in the weight of an [`ExpertLinear`]: `x[r,j,k] = Σ_n y[r,j,n] ·
/// w[experts[r,j],n,k]`.
///
/// Shapes: `y` `[R, k, N]`, `experts` `[R, k]` u32, `w` a weight `[X, N, K]` in any storage → `[R, k, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinearTransposed;

impl Operation for ExpertLinearTransposed {
    fn name(&self) -> &'static str {
        "expert_linear_transposed"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [y, experts, w] = operands(given)?;
        require_floats(&[y, w])?;
        let dims = constant_dims(w)?;
        require(dims.len() == 3 && dims[1] == width(y)?, || "w must be [X, N, K] for y [R, k, N]".into())?;
        let chosen = require_chosen(y, experts)?;
        Ok(vec![(DType::F32, Shape::rows(y.shape.outer(), &[chosen, dims[2]]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [y, experts, w] = *operands else { unreachable!("inferred") };
        let (outputs, inputs) = (w.shape[1], w.shape[2]);
        let mut x = vec![T::default(); experts.data.len() * inputs];
        for ((x, y), &expert) in x.chunks_exact_mut(inputs).zip(y.rows()).zip(experts.integers()) {
            let expert = index(expert, w.outer())?;
            let matrix = &w.floats()[expert * outputs * inputs..(expert + 1) * outputs * inputs];
            for (&y, w) in y.iter().zip(matrix.chunks_exact(inputs)) {
                sums::add_scaled(x, y, w);
            }
        }
        Ok(vec![Array::of([experts.outer(), experts.width(), inputs], x)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let by_y = g.instead(tangents[0], *self, at, 0)?;
        let by_w = g.instead(tangents[2], *self, at, 2)?;
        Ok(vec![g.total(by_y, by_w)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let [y, experts, w] = at.inputs[..] else { unreachable!("inferred") };
        let Some(d) = cotangents[0] else { return Ok(vec![None; 3]) };
        let by_y = wanted[0].then(|| g.apply(ExpertLinear, &[d, experts, w])).transpose()?;
        let by_w = wanted[2].then(|| {
            let count = g.shape(w).outer().factor;
            g.apply(ExpertLinearGradient { experts: count }, &[y, experts, d])
        });
        let by_w = by_w.transpose()?;
        Ok(vec![by_y, None, by_w])
    }
}

/// The gradient of the weights of [`ExpertLinear`]: `dw[e,n,k] = Σ_{r,j: experts[r,j] = e} dy[r,j,n] · x[r,(j),k]`.
///
/// Shapes: `dy` `[R, k, N]`, `experts` `[R, k]` u32, `x` `[R, K]` or `[R, k, K]` → `[X, N, K]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLinearGradient {
    /// X, the number of experts.
    pub experts: usize,
}

impl Operation for ExpertLinearGradient {
    fn name(&self) -> &'static str {
        "expert_linear_gradient"
    }

    fn attributes(&self) -> String {
        format!("experts={}", self.experts)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [dy, experts, x] = operands(given)?;
        require_floats(&[dy, x])?;
        let chosen = require_chosen(dy, experts)?;
        let fits = match x.shape.rank() {
            2 => true,
            3 => x.shape.0[1].constant() == Some(chosen),
            _ => false,
        };
        require(fits && x.shape.outer() == dy.shape.outer(), || "x must be [R, K] or [R, k, K]".into())?;
        Ok(vec![(DType::F32, Shape::new([self.experts, width(dy)?, width(x)?]))])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [dy, experts, x] = *operands else { unreachable!("inferred") };
        let (outputs, inputs, chosen) = (dy.width(), x.width(), experts.width());
        let mut dw = vec![T::default(); self.experts * outputs * inputs];
        for (slot, (dy, &expert)) in dy.rows().zip(experts.integers()).enumerate() {
            let row = if x.shape.len() == 3 { slot } else { slot / chosen };
            let x = &x.floats()[row * inputs..(row + 1) * inputs];
            let first = index(expert, self.experts)? * outputs * inputs;
            let matrix = &mut dw[first..first + outputs * inputs];
            for (dw, &dy) in matrix.chunks_exact_mut(inputs).zip(dy) {
                sums::add_scaled(dw, dy, x);
            }
        }
        Ok(vec![Array::of([self.experts, outputs, inputs], dw)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let by_dy = g.instead(tangents[0], *self, at, 0)?;
        let by_x = g.instead(tangents[2], *self, at, 2)?;
        Ok(vec![g.total(by_dy, by_x)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[dy, experts, x], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 3]) };
        let by_dy = wanted[0].then(|| g.apply(ExpertLinear, &[x, experts, d])).transpose()?;
        let mut by_x = None;
        if wanted[2] {
            let each = g.apply(ExpertLinearTransposed, &[dy, experts, d])?;
            let shared = g.shape(x).rank() == 2;
            by_x = Some(if shared { g.sum(each, 1)? } else { each });
        }
        Ok(vec![by_dy, None, by_x])
    }
}

/// The number of experts per row. `y` must be `[R, k, N]` and `experts` u32 `[R, k]`.
fn require_chosen(y: &Value, experts: &Value) -> Result<usize, String> {
    require(experts.dtype == DType::U32 && experts.shape.rank() == 2, || {
        "experts must be u32 [R, k]".into()
    })?;
    let fits = y.shape.rank() == 3 && y.shape.0[..2] == experts.shape.0[..];
    require(fits, || "the first operand must be [R, k, N]".into())?;
    width(experts)
}
