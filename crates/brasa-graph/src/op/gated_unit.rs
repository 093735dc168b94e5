//! Activations of gated feed-forward layers.

use super::{Operation, Type, Unary, UnaryGradient, operands, require, require_floats};
use crate::derivative::{Rule, Rules, Terms};
use crate::reference::{Array, Env, Number};
use crate::{CacheSpec, DType, Node, Value, ValueId};

/// The function that joins `gate` and `up` in a gated feed-forward layer, element by element.
///
/// Shazeer 2020, arXiv:2002.05202.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GatedUnit {
    /// `silu(gate) · up`.
    Silu,
    /// `gelu(gate) · up`, GELU in its tanh form.
    GeluTanh,
    /// `gelu(gate) · up`, GELU by the error function.
    GeluErf,
    /// `(u + 1) · g · σ(α·g)` of a clamped gate `g` and a clamped up `u`: see [`ClampedUnit`].
    Clamped(ClampedUnit),
}

/// The clamped gated unit of gpt-oss: `y = (u + 1) · g · σ(α·g)`, with `g = min(gate, limit)` and
/// `u = clamp(up, −limit, limit)`.
///
/// A NaN stays NaN. Shapes: `gate` and `up` of one shape → this shape.
/// OpenAI 2025, arXiv:2508.10925.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClampedUnit {
    /// α, the factor of the gate within the sigmoid.
    pub alpha: f32,
    /// Largest gate, and largest absolute value of up; positive.
    pub limit: f32,
}

impl GatedUnit {
    /// The unit `activation(gate) · up`; `None` for a function that gated layers do not use.
    pub fn of(activation: Unary) -> Option<Self> {
        match activation {
            Unary::Silu => Some(Self::Silu),
            Unary::GeluTanh => Some(Self::GeluTanh),
            Unary::GeluErf => Some(Self::GeluErf),
            _ => None,
        }
    }

    /// The activation of the gate in a unit `act(gate) · up`; `None` for a clamped unit.
    pub fn activation(self) -> Option<Unary> {
        match self {
            Self::Silu => Some(Unary::Silu),
            Self::GeluTanh => Some(Unary::GeluTanh),
            Self::GeluErf => Some(Unary::GeluErf),
            Self::Clamped(_) => None,
        }
    }

    /// Computes the unit for one element of `gate` and one of `up`.
    pub fn apply<T: Number>(self, gate: T, up: T) -> T {
        match self {
            Self::Silu => Unary::Silu.apply(gate) * up,
            Self::GeluTanh => Unary::GeluTanh.apply(gate) * up,
            Self::GeluErf => Unary::GeluErf.apply(gate) * up,
            Self::Clamped(unit) => unit.apply(gate, up),
        }
    }
}

impl ClampedUnit {
    /// Computes the unit for one element of `gate` and one of `up`.
    pub fn apply<T: Number>(self, gate: T, up: T) -> T {
        let (one, limit) = (T::constant(1.0), T::constant(self.limit.into()));
        // Comparisons with a NaN are false and keep it.
        let gate = if gate > limit { limit } else { gate };
        let up = if up > limit { limit } else { up };
        let up = if up < -limit { -limit } else { up };
        let opened = gate / (one + (-(T::constant(self.alpha.into()) * gate)).exp());
        (up + one) * opened
    }

    /// The clamp of gates.
    fn of_gates(self) -> Unary {
        Unary::Clamp { low: f32::NEG_INFINITY, high: self.limit }
    }

    /// The clamp of ups.
    fn of_ups(self) -> Unary {
        Unary::Clamp { low: -self.limit, high: self.limit }
    }

    /// `t` through the slopes of the unit along the gate.
    fn along_gate(self, g: &mut Rules, [gate, up]: [ValueId; 2], t: ValueId) -> Rule {
        let up = g.apply(self.of_ups(), &[up])?;
        let up = g.shifted(up, 1.0)?;
        let t = g.mul(t, up)?;
        // g · σ(α·g) is silu(α·g) / α: its slope is that of SiLU at α·g.
        let clamped = g.apply(self.of_gates(), &[gate])?;
        let steep = g.scaled(clamped, self.alpha.into())?;
        let t = g.apply(UnaryGradient { function: Unary::Silu }, &[steep, t])?;
        g.apply(UnaryGradient { function: self.of_gates() }, &[gate, t])
    }

    /// `t` through the slopes of the unit along `up`.
    fn along_up(self, g: &mut Rules, [gate, up]: [ValueId; 2], t: ValueId) -> Rule {
        let clamped = g.apply(self.of_gates(), &[gate])?;
        let steep = g.scaled(clamped, self.alpha.into())?;
        let share = g.apply(Unary::Sigmoid, &[steep])?;
        let opened = g.mul(clamped, share)?;
        let t = g.mul(t, opened)?;
        g.apply(UnaryGradient { function: self.of_ups() }, &[up, t])
    }
}

impl Operation for ClampedUnit {
    fn name(&self) -> &'static str {
        "clamped_unit"
    }

    fn attributes(&self) -> String {
        format!("alpha={} limit={}", self.alpha, self.limit)
    }

    fn infer(&self, given: &[&Value], _: &[CacheSpec]) -> Result<Vec<Type>, String> {
        let [gate, up] = operands(given)?;
        require_floats(given)?;
        require(gate.shape == up.shape, || "shapes differ".into())?;
        require(self.limit > 0.0 && self.alpha.is_finite(), || {
            format!("α = {} with the limit {}", self.alpha, self.limit)
        })?;
        Ok(vec![(DType::F32, gate.shape.clone())])
    }

    fn reference<T: Number>(&self, operands: &[&Array<T>], _: &mut Env<T>) -> Result<Vec<Array<T>>, String> {
        let [gate, up] = *operands else { unreachable!("inferred") };
        let pairs = gate.floats().iter().zip(up.floats());
        Ok(vec![Array::of(gate.shape.clone(), pairs.map(|(&gate, &up)| self.apply(gate, up)).collect())])
    }

    fn jvp(&self, g: &mut Rules, at: &Node, tangents: &[Option<ValueId>]) -> Terms {
        let operands = [at.inputs[0], at.inputs[1]];
        let by_gate = tangents[0].map(|t| self.along_gate(g, operands, t)).transpose()?;
        let by_up = tangents[1].map(|t| self.along_up(g, operands, t)).transpose()?;
        Ok(vec![g.total(by_gate, by_up)?])
    }

    fn vjp(&self, g: &mut Rules, at: &Node, cotangents: &[Option<ValueId>], wanted: &[bool]) -> Terms {
        let Some(d) = cotangents[0] else { return Ok(vec![None; 2]) };
        let operands = [at.inputs[0], at.inputs[1]];
        let by_gate = wanted[0].then(|| self.along_gate(g, operands, d)).transpose()?;
        let by_up = wanted[1].then(|| self.along_up(g, operands, d)).transpose()?;
        Ok(vec![by_gate, by_up])
    }
}
