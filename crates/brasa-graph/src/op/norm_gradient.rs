//! Changes passed through norms.

use super::{Operation, Type, operands, require, require_floats, width};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Value};

/// Kinds of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// [`RmsNorm`](super::RmsNorm).
    Rms,
    /// [`LayerNorm`](super::LayerNorm).
    Layer,
}

/// A change passed through a norm without a learned scale: `y = s · (t − x̂ · mean(t · x̂))`, for layer norms less the mean of
/// `t`. `x̂` is the normed row, `s` the factor that normed it, all over the last axis.
///
/// The Jacobian of a norm is symmetric, so this is its derivative in both directions: `t` is a tangent of `x`, or a
/// cotangent of `x̂`.
///
/// Shapes: `x`, `t` `[R, …, D]` → as `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormGradient {
    /// The kind of norm.
    pub kind: NormKind,
    /// Added to the mean square, or to the variance.
    pub eps: f32,
}

impl Operation for NormGradient {
    fn name(&self) -> &'static str {
        match self.kind {
            NormKind::Rms => "rms_norm_gradient",
            NormKind::Layer => "layer_norm_gradient",
        }
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, t] = operands(given)?;
        require_floats(given)?;
        width(x)?;
        require(x.shape == t.shape, || "shapes differ".into())?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, t] = *operands else { unreachable!("inferred") };
        let (mut normed, mut y) = (x.floats().to_vec(), t.floats().to_vec());
        let rows = normed.chunks_exact_mut(x.width()).zip(y.chunks_exact_mut(x.width()));
        for (x, t) in rows {
            let length = T::constant(x.len() as f64);
            if self.kind == NormKind::Layer {
                centre(x);
                centre(t);
            }
            let spread = sums::dot(x, x) / length;
            let scale = T::constant(1.0) / (spread + T::constant(self.eps.into())).sqrt();
            for x in &mut *x {
                *x *= scale;
            }
            let along = sums::dot(x, t) / length;
            for (t, &x) in t.iter_mut().zip(&*x) {
                *t = scale * (*t - x * along);
            }
        }
        Ok(vec![Array::of(x.shape.clone(), y)])
    }
}

/// Subtracts the mean.
fn centre<T: Number>(row: &mut [T]) {
    let mean = sums::sum(row) / T::constant(row.len() as f64);
    for x in row {
        *x -= mean;
    }
}
