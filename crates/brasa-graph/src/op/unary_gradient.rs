//! Derivatives of functions of each element.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::elementwise::{CUBIC, SQRT_2_OVER_PI, Unary};
use super::{Operation, Type, operands, require, require_floats};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// A change passed through a function of each element: `y = f'(x) · t`. Shapes are kept.
///
/// The derivative of [`Unary`], in forward and in reverse mode: `t` is a tangent of `x`, or a cotangent of `f(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnaryGradient {
    /// The function `f`.
    pub function: Unary,
}

impl Unary {
    /// The function's slope at `x`. A clamp's is one at its bounds.
    pub fn slope<T: Number>(&self, x: T) -> T {
        let (one, half) = (T::constant(1.0), T::constant(0.5));
        match *self {
            Self::Scale(c) => T::constant(c.into()),
            Self::Clamp { low, high } => {
                let inside = x >= T::constant(low.into()) && x <= T::constant(high.into());
                if inside { one } else { T::default() }
            }
            Self::Softcap(c) => {
                let y = (x / T::constant(c.into())).tanh();
                one - y * y
            }
            Self::Exp => x.exp(),
            Self::Log => one / x,
            Self::Rsqrt => -half / (x * x.sqrt()),
            Self::Tanh => {
                let y = x.tanh();
                one - y * y
            }
            Self::Sigmoid => {
                let y = Self::Sigmoid.apply(x);
                y * (one - y)
            }
            Self::Silu => {
                let gate = Self::Sigmoid.apply(x);
                gate * (one + x * (one - gate))
            }
            Self::GeluTanh => {
                let (factor, cubic) = (T::constant(SQRT_2_OVER_PI), T::constant(CUBIC));
                let y = (factor * (x + cubic * x * x * x)).tanh();
                let inner = factor * (one + T::constant(3.0 * CUBIC) * x * x);
                half * (one + y) + half * x * (one - y * y) * inner
            }
            Self::GeluErf => {
                let density = T::constant(0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2) * (-half * x * x).exp();
                half * (one + (x * T::constant(FRAC_1_SQRT_2)).erf()) + x * density
            }
            Self::SquaredRelu => {
                if x < T::default() {
                    T::default()
                } else {
                    T::constant(2.0) * x
                }
            }
            Self::Softplus => Self::Sigmoid.apply(x),
        }
    }
}

impl Unary {
    /// Builds `f''(x) · u` from operations that can be differentiated again; `None` if the slope is constant except for jumps.
    pub(super) fn bend(self, g: &mut Rules, x: ValueId, u: ValueId) -> Rule<Option<ValueId>> {
        let through = |g: &mut Rules, function: Self| g.apply(UnaryGradient { function }, &[x, u]);
        Ok(Some(match self {
            Self::Scale(_) | Self::Clamp { .. } => return Ok(None),
            Self::Exp => through(g, self)?,
            // −1/x² and 3/(4·x²·√x), by slopes.
            Self::Log | Self::Rsqrt => {
                let slope = through(g, self)?;
                let each = g.div(slope, x)?;
                g.scaled(each, if self == Self::Log { -1.0 } else { -1.5 })?
            }
            // −2·tanh·tanh'.
            Self::Tanh => {
                let (y, slope) = (g.apply(self, &[x])?, through(g, self)?);
                let each = g.mul(slope, y)?;
                g.scaled(each, -2.0)?
            }
            Self::Softcap(cap) => {
                let (y, slope) = (g.apply(self, &[x])?, through(g, self)?);
                let (each, cap) = (g.mul(slope, y)?, g.constant(cap));
                let each = g.div(each, cap)?;
                let each = g.div(each, cap)?;
                g.scaled(each, -2.0)?
            }
            Self::Softplus => through(g, Self::Sigmoid)?,
            // s'·(1 − 2s).
            Self::Sigmoid => {
                let (y, slope) = (g.apply(self, &[x])?, through(g, self)?);
                let rest = g.affine(y, -2.0, 1.0)?;
                g.mul(slope, rest)?
            }
            // s'·(2 + x·(1 − 2s)).
            Self::Silu => {
                let (gate, slope) = (g.apply(Self::Sigmoid, &[x])?, through(g, Self::Sigmoid)?);
                let rest = g.affine(gate, -2.0, 1.0)?;
                let rest = g.mul(rest, x)?;
                let rest = g.shifted(rest, 2.0)?;
                g.mul(slope, rest)?
            }
            // With t the tanh of k·(x + c·x³): t'·(k + 6kc·x² − x·t·(k + 3kc·x²)²).
            Self::GeluTanh => {
                let square = g.mul(x, x)?;
                let inner = g.affine(square, SQRT_2_OVER_PI * CUBIC, SQRT_2_OVER_PI)?;
                let inner = g.mul(inner, x)?;
                let tanh = g.apply(Self::Tanh, &[inner])?;
                let slope = g.apply(UnaryGradient { function: Self::Tanh }, &[inner, u])?;
                let of_inner = g.affine(square, 3.0 * SQRT_2_OVER_PI * CUBIC, SQRT_2_OVER_PI)?;
                let bent = g.mul(of_inner, of_inner)?;
                let bent = g.mul(bent, tanh)?;
                let bent = g.mul(bent, x)?;
                let first = g.affine(square, 6.0 * SQRT_2_OVER_PI * CUBIC, SQRT_2_OVER_PI)?;
                let rest = g.sub(first, bent)?;
                g.mul(slope, rest)?
            }
            // The normal density times 2 − x².
            Self::GeluErf => {
                let square = g.mul(x, x)?;
                let half = g.scaled(square, -0.5)?;
                let density = g.apply(Self::Exp, &[half])?;
                let density = g.scaled(density, 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2)?;
                let each = g.mul(density, u)?;
                let rest = g.affine(square, -1.0, 2.0)?;
                g.mul(each, rest)?
            }
            // 2 above zero.
            Self::SquaredRelu => {
                let above = through(g, Self::Clamp { low: 0.0, high: f32::INFINITY })?;
                g.scaled(above, 2.0)?
            }
        }))
    }
}

impl Operation for UnaryGradient {
    fn name(&self) -> &'static str {
        "unary_gradient"
    }

    fn attributes(&self) -> String {
        format!("{} {}", self.function.name(), self.function.attributes()).trim_end().into()
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x, t] = operands(given)?;
        require_floats(given)?;
        require(x.shape == t.shape, || "shapes differ".into())?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x, t] = *operands else { unreachable!("inferred") };
        let pairs = x.floats().iter().zip(t.floats());
        Ok(vec![Array::of(x.shape.clone(), pairs.map(|(&x, &t)| self.function.slope(x) * t).collect())])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (x, t) = (at.inputs[0], at.inputs[1]);
        let by_t = g.instead(tangents[1], *self, at, 1)?;
        let by_x = match tangents[0] {
            Some(tx) => {
                let both = g.mul(t, tx)?;
                self.function.bend(g, x, both)?
            }
            None => None,
        };
        Ok(vec![g.total(by_t, by_x)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[x, t], Some(d)) = (&at.inputs[..], cotangents[0]) else { return Ok(vec![None; 2]) };
        let mut by_x = None;
        if wanted[0] {
            let both = g.mul(t, d)?;
            by_x = self.function.bend(g, x, both)?;
        }
        let by_t = wanted[1].then(|| g.apply(*self, &[x, d])).transpose()?;
        Ok(vec![by_x, by_t])
    }
}
