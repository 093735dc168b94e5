//! Operations on each element.

use std::f64::consts::FRAC_1_SQRT_2;

use super::view::repeat;
use super::{Operation, Type, UnaryGradient, operands, require, require_floats};
use crate::derivative::{Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Dim, Node, Shape, Value, ValueId};

/// `√(2/π)`.
pub(super) const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

/// The share of `x³` in the tanh form of GELU.
pub(super) const CUBIC: f64 = 0.044_715;

/// A function of each element, in f32. Shape is kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    /// `c · x`.
    Scale(f32),
    /// `min(max(x, low), high)`.
    Clamp {
        /// Lower bound.
        low: f32,
        /// Upper bound.
        high: f32,
    },
    /// `c · tanh(x / c)`. Gemma 2 (Gemma Team 2024, arXiv:2408.00118).
    Softcap(f32),
    /// `exp(x)`.
    Exp,
    /// `ln(x)`.
    Log,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + exp(−x))`.
    Sigmoid,
    /// `x / (1 + exp(−x))`. Elfwing et al. 2017, arXiv:1702.03118.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`. Hendrycks & Gimpel 2016, arXiv:1606.08415.
    GeluTanh,
    /// `x/2 · (1 + erf(x/√2))`. Hendrycks & Gimpel 2016, arXiv:1606.08415.
    GeluErf,
    /// `max(x, 0)²`; a NaN stays NaN. So et al. 2021, arXiv:2109.08668.
    SquaredRelu,
    /// `ln(1 + exp(x))`, computed as `max(x, 0) + log1p(exp(−|x|))`.
    Softplus,
}

impl Unary {
    /// The value of the function at `x`.
    pub fn apply<T: Number>(&self, x: T) -> T {
        let one = T::constant(1.0);
        match *self {
            Self::Scale(c) => T::constant(c.into()) * x,
            Self::Clamp { low, high } => x.max(T::constant(low.into())).min(T::constant(high.into())),
            Self::Softcap(c) => softcap(x, c),
            Self::Exp => x.exp(),
            Self::Log => x.ln(),
            Self::Rsqrt => one / x.sqrt(),
            Self::Tanh => x.tanh(),
            Self::Sigmoid => one / (one + (-x).exp()),
            Self::Silu => x / (one + (-x).exp()),
            Self::GeluTanh => {
                let (factor, cubic) = (T::constant(SQRT_2_OVER_PI), T::constant(CUBIC));
                T::constant(0.5) * x * (one + (factor * (x + cubic * x * x * x)).tanh())
            }
            Self::GeluErf => T::constant(0.5) * x * (one + (x * T::constant(FRAC_1_SQRT_2)).erf()),
            Self::SquaredRelu => {
                if x < T::default() {
                    T::default()
                } else {
                    x * x
                }
            }
            Self::Softplus if x > T::default() => x + (-x).exp().ln_1p(),
            Self::Softplus => x.exp().ln_1p(),
        }
    }
}

impl Operation for Unary {
    fn name(&self) -> &'static str {
        match self {
            Self::Scale(_) => "scale",
            Self::Clamp { .. } => "clamp",
            Self::Softcap(_) => "softcap",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Rsqrt => "rsqrt",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_tanh",
            Self::GeluErf => "gelu_erf",
            Self::SquaredRelu => "squared_relu",
            Self::Softplus => "softplus",
        }
    }

    fn attributes(&self) -> String {
        match self {
            Self::Scale(c) | Self::Softcap(c) => c.to_string(),
            Self::Clamp { low, high } => format!("{low}..{high}"),
            _ => String::new(),
        }
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [x] = operands(given)?;
        require_floats(given)?;
        Ok(vec![(DType::F32, x.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [x] = *operands else { unreachable!("inferred") };
        let y = x.floats().iter().map(|&x| self.apply(x)).collect();
        Ok(vec![Array::of(x.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let gradient = UnaryGradient { function: *self };
        Ok(vec![tangents[0].map(|t| g.apply(gradient, &[at.inputs[0], t])).transpose()?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], _: &[bool]) -> Terms {
        let gradient = UnaryGradient { function: *self };
        Ok(vec![cotangents[0].map(|d| g.apply(gradient, &[at.inputs[0], d])).transpose()?])
    }
}

/// A function of two elements, in f32.
///
/// Shapes: the result has the shape of `a`; `b` is aligned at the innermost axis and may lack outer axes or have `1` where `a`
/// has more (a bias `[D]`, a weight `[R, k, 1]`, a scalar `[1]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`.
    Add,
    /// `a − b`.
    Sub,
    /// `a · b`.
    Mul,
    /// `a / b`.
    Div,
    /// `max(a, b)`.
    Maximum,
}

impl Binary {
    /// The value of the function at `a` and `b`.
    pub fn apply<T: Number>(self, a: T, b: T) -> T {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Maximum => a.max(b),
        }
    }
}

impl Operation for Binary {
    fn name(&self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Maximum => "maximum",
        }
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [a, b] = operands(given)?;
        require_floats(given)?;
        require(broadcasts(&b.shape, &a.shape), || "the second does not broadcast to the first".into())?;
        Ok(vec![(DType::F32, a.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [a, b] = *operands else { unreachable!("inferred") };
        let repeated = repeat(b, &a.shape);
        let pairs = a.floats().iter().zip(repeated.floats());
        Ok(vec![Array::of(a.shape.clone(), pairs.map(|(&a, &b)| self.apply(a, b)).collect())])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let (&[a, b], y) = (&at.inputs[..], at.outputs[0]) else { unreachable!("inferred") };
        let (ta, tb) = (tangents[0], tangents[1]);
        let shape = g.shape(a);
        let total = match self {
            // Where `a` alone counts, its tangent is the result's; where `b` counts, it is repeated as `b` is.
            Self::Add | Self::Sub => {
                let tb = match (self, tb) {
                    (Self::Sub, Some(tb)) => Some(g.negated(tb)?),
                    _ => tb,
                };
                match (ta, tb) {
                    (Some(ta), Some(tb)) => Some(g.add(ta, tb)?),
                    (None, Some(tb)) => Some(g.spread(tb, &shape)?),
                    (ta, None) => ta,
                }
            }
            Self::Mul => {
                let ta = ta.map(|ta| g.mul(ta, b)).transpose()?;
                let tb = tb.map(|tb| g.mul(a, tb)).transpose()?;
                g.total(ta, tb)?
            }
            Self::Div => {
                let ta = ta.map(|ta| g.div(ta, b)).transpose()?;
                let tb = tb.map(|tb| {
                    let change = g.div(tb, b)?;
                    let change = g.mul(y, change)?;
                    g.negated(change)
                });
                g.total(ta, tb.transpose()?)?
            }
            Self::Maximum => {
                let by_b = g.sub(y, a)?;
                let ta = g.or_zeros(ta, a)?;
                let tb = g.or_zeros(tb, b)?;
                let tb = g.spread(tb, &shape)?;
                Some(g.apply(Where, &[by_b, tb, ta])?)
            }
        };
        Ok(vec![total])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (&[a, b], y) = (&at.inputs[..], at.outputs[0]) else { unreachable!("inferred") };
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let of_b = g.shape(b);
        let (by_a, by_b) = match self {
            Self::Add => (Some(d), Some(d)),
            Self::Sub => (Some(d), wanted[1].then(|| g.negated(d)).transpose()?),
            Self::Mul => {
                let by_a = wanted[0].then(|| g.mul(d, b)).transpose()?;
                (by_a, wanted[1].then(|| g.mul(d, a)).transpose()?)
            }
            Self::Div => {
                let by_a = g.div(d, b)?;
                let by_b = wanted[1].then(|| {
                    let change = g.mul(by_a, y)?;
                    g.negated(change)
                });
                (Some(by_a), by_b.transpose()?)
            }
            Self::Maximum => {
                let from_b = g.sub(y, a)?;
                let zeros = g.zeros(&g.shape(d))?;
                let by_a = wanted[0].then(|| g.apply(Where, &[from_b, zeros, d])).transpose()?;
                (by_a, wanted[1].then(|| g.apply(Where, &[from_b, d, zeros])).transpose()?)
            }
        };
        let by_b = by_b.filter(|_| wanted[1]).map(|by_b| g.gathered(by_b, &of_b)).transpose()?;
        Ok(vec![by_a, by_b])
    }
}

/// `y = condition ≠ 0 ? a : b`, all of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where;

impl Operation for Where {
    fn name(&self) -> &'static str {
        "where"
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [condition, a, b] = operands(given)?;
        require_floats(&given[1..])?;
        require(condition.shape == a.shape && a.shape == b.shape, || "shapes differ".into())?;
        Ok(vec![(DType::F32, a.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [condition, a, b] = *operands else { unreachable!("inferred") };
        let condition = condition.to_floats();
        let choices = condition.iter().zip(a.floats().iter().zip(b.floats()));
        let y = choices.map(|(&c, (&a, &b))| if c == T::default() { b } else { a }).collect();
        Ok(vec![Array::of(a.shape.clone(), y)])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let &[condition, a, b] = &at.inputs[..] else { unreachable!("inferred") };
        if tangents[1..] == [None, None] {
            return Ok(vec![None]);
        }
        let (ta, tb) = (g.or_zeros(tangents[1], a)?, g.or_zeros(tangents[2], b)?);
        Ok(vec![Some(g.apply(*self, &[condition, ta, tb])?)])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let (condition, Some(d)) = (at.inputs[0], cotangents[0]) else { return Ok(vec![None; 3]) };
        let zeros = g.zeros(&g.shape(d))?;
        let by_a = wanted[1].then(|| g.apply(*self, &[condition, d, zeros])).transpose()?;
        let by_b = wanted[2].then(|| g.apply(*self, &[condition, zeros, d])).transpose()?;
        Ok(vec![None, by_a, by_b])
    }
}

/// `cap · tanh(x / cap)`.
pub(super) fn softcap<T: Number>(x: T, cap: f32) -> T {
    let cap = T::constant(cap.into());
    cap * (x / cap).tanh()
}

/// True if `small`, aligned at the innermost axis, repeats to `large`.
pub(super) fn broadcasts(small: &Shape, large: &Shape) -> bool {
    small.rank() <= large.rank()
        && small.0.iter().rev().zip(large.0.iter().rev()).all(|(&s, &l)| s == l || s == Dim::from(1))
}
