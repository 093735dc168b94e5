//! Functions of each element.

use std::f64::consts::FRAC_1_SQRT_2;

use super::view::repeat;
use super::{Operation, Type, operands, require, require_floats};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Dim, Shape, Value};

/// `√(2/π)`.
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

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
}

impl Unary {
    /// The function's value.
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
                let (factor, cubic) = (T::constant(SQRT_2_OVER_PI), T::constant(0.044_715));
                T::constant(0.5) * x * (one + (factor * (x + cubic * x * x * x)).tanh())
            }
            Self::GeluErf => T::constant(0.5) * x * (one + (x * T::constant(FRAC_1_SQRT_2)).erf()),
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
}

/// A function of two elements, in f32.
///
/// Shapes: `a` gives the result's; `b` is aligned at the innermost axis and may lack outer axes or have `1` where
/// `a` has more (a bias `[D]`, a weight `[R, k, 1]`, a scalar `[1]`).
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
    /// The function's value.
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
}

/// `cap · tanh(x / cap)`.
pub(super) fn softcap<T: Number>(x: T, cap: f32) -> T {
    let cap = T::constant(cap.into());
    cap * (x / cap).tanh()
}

/// True where `small`, aligned at the innermost axis, repeats to `large`.
pub(super) fn broadcasts(small: &Shape, large: &Shape) -> bool {
    small.rank() <= large.rank()
        && small.0.iter().rev().zip(large.0.iter().rev()).all(|(&s, &l)| s == l || s == Dim::from(1))
}
