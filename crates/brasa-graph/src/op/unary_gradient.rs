//! Slopes of functions of each element.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use super::elementwise::{CUBIC, SQRT_2_OVER_PI, Unary};
use super::{Operation, Type, operands, require, require_floats};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Value};

/// A change passed through a function of each element: `y = f'(x) · t`. Shapes are kept.
///
/// The derivative of [`Unary`] in both directions: `t` is a tangent of `x`, or a cotangent of `f(x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnaryGradient {
    /// `f`.
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
        }
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
}
