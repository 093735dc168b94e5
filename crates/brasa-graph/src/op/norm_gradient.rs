//! Derivatives of norms.

use super::{LayerNorm, Op, Operation, RmsNorm, Type, operands, require, require_floats, width};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number, sums};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// Kinds of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// [`RmsNorm`](super::RmsNorm).
    Rms,
    /// [`LayerNorm`](super::LayerNorm).
    Layer,
}

/// A change passed through a norm without a learned scale: `y = s · (t − x̂ · mean(t · x̂))`. For layer norms, `t` is taken minus
/// its mean. `x̂` is the normed row and `s` the factor that normed it, over the last axis.
///
/// The Jacobian of a norm is symmetric, so this operation is the derivative in both directions: `t` is a tangent of `x`, or a
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

impl NormGradient {
    /// Builds the derivative of this operation's result along `u`, a change of `x`: `−s² · (t · mean(x̂·u) + u · mean(x̂·t) + x̂
    /// · (mean(t·u) − 3 · mean(x̂·t) · mean(x̂·u)))`. For layer norms, `t` and `u` are taken minus their means.
    ///
    /// A norm without a scale is the gradient of a root of a sum of squares, so its second derivative is symmetric in `t`, `u` and a cotangent.
    fn bend(self, g: &mut Rules, x: ValueId, t: ValueId, u: ValueId) -> Rule {
        let (x, t, u) = match self.kind {
            NormKind::Rms => (x, t, u),
            NormKind::Layer => (centred(g, x)?, centred(g, t)?, centred(g, u)?),
        };
        let norm: Op = match self.kind {
            NormKind::Rms => RmsNorm { eps: self.eps }.into(),
            NormKind::Layer => LayerNorm { eps: self.eps }.into(),
        };
        let normed = g.apply(norm, &[x])?;
        let (along_t, along_u) = (mean(g, normed, t)?, mean(g, normed, u)?);
        let both = mean(g, t, u)?;
        let product = g.mul(along_t, along_u)?;
        let product = g.scaled(product, 3.0)?;
        let rest = g.sub(both, product)?;
        let terms = [g.mul(t, along_u)?, g.mul(u, along_t)?, g.mul(normed, rest)?];
        let total = g.add(terms[0], terms[1])?;
        let total = g.add(total, terms[2])?;
        let spread = mean(g, x, x)?;
        let spread = g.shifted(spread, self.eps.into())?;
        let total = g.div(total, spread)?;
        g.negated(total)
    }
}

/// The mean over each row of `a · b`, `[R, …, 1]`.
fn mean(g: &mut Rules, a: ValueId, b: ValueId) -> Rule {
    let product = g.mul(a, b)?;
    mean_of_rows(g, product)
}

fn mean_of_rows(g: &mut Rules, x: ValueId) -> Rule {
    let width = g.width(x)?;
    let (sum, length) = (g.sum_of_rows(x)?, g.constant(width as f32));
    g.div(sum, length)
}

/// Each row minus its mean.
fn centred(g: &mut Rules, x: ValueId) -> Rule {
    let mean = mean_of_rows(g, x)?;
    g.sub(x, mean)
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

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let by_x = tangents[0].map(|tx| self.bend(g, at.inputs[0], at.inputs[1], tx)).transpose()?;
        let by_t = g.instead(tangents[1], *self, at, 1)?;
        Ok(vec![g.total(by_x, by_t)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[x, t], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let by_x = wanted[0].then(|| self.bend(g, x, t, d)).transpose()?;
        let by_t = wanted[1].then(|| g.apply(*self, &[x, d])).transpose()?;
        Ok(vec![by_x, by_t])
    }
}

/// Subtracts the row's mean.
fn centre<T: Number>(row: &mut [T]) {
    let mean = sums::sum(row) / T::constant(row.len() as f64);
    for x in row {
        *x -= mean;
    }
}
