//! Dual numbers: values that carry a derivative.

use std::cmp::Ordering;
use std::f64::consts::FRAC_2_SQRT_PI;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use super::Number;
use crate::DType;

/// `value + tangent · ε` with `ε² = 0`: a value, and its exact derivative along one direction (Clifford 1873).
///
/// A graph evaluated in dual numbers yields directional derivatives without the operations' own rules. So dual numbers are the
/// reference for those rules.
///
/// Numbers compare by their values. Rounding to 16 bits keeps the tangent, as if the value were not rounded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dual {
    /// The value of the number.
    pub value: f64,
    /// The derivative of the number along the direction.
    pub tangent: f64,
}

impl Dual {
    /// `f(self)` from the function's `value` and its derivative `slope` at this value.
    fn through(self, value: f64, slope: f64) -> Self {
        Self { value, tangent: slope * self.tangent }
    }
}

impl PartialEq for Dual {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialOrd for Dual {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl Neg for Dual {
    type Output = Self;

    fn neg(self) -> Self {
        self.through(-self.value, -1.0)
    }
}

impl Add for Dual {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { value: self.value + other.value, tangent: self.tangent + other.tangent }
    }
}

impl Sub for Dual {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { value: self.value - other.value, tangent: self.tangent - other.tangent }
    }
}

impl Mul for Dual {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let tangent = self.value * other.tangent + self.tangent * other.value;
        Self { value: self.value * other.value, tangent }
    }
}

impl Div for Dual {
    type Output = Self;

    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        Self { value, tangent: (self.tangent - value * other.tangent) / other.value }
    }
}

impl AddAssign for Dual {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Dual {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl MulAssign for Dual {
    fn mul_assign(&mut self, other: Self) {
        *self = *self * other;
    }
}

impl DivAssign for Dual {
    fn div_assign(&mut self, other: Self) {
        *self = *self / other;
    }
}

impl Number for Dual {
    fn constant(value: f64) -> Self {
        Self { value, tangent: 0.0 }
    }

    fn value(self) -> f64 {
        self.value
    }

    /// The larger number; the first of two equal ones.
    fn max(self, other: Self) -> Self {
        if self.value >= other.value || other.value.is_nan() { self } else { other }
    }

    /// The smaller number; the first of two equal ones.
    fn min(self, other: Self) -> Self {
        if self.value <= other.value || other.value.is_nan() { self } else { other }
    }

    fn exp(self) -> Self {
        let value = self.value.exp();
        self.through(value, value)
    }

    fn ln(self) -> Self {
        self.through(self.value.ln(), 1.0 / self.value)
    }

    fn ln_1p(self) -> Self {
        self.through(self.value.ln_1p(), 1.0 / (1.0 + self.value))
    }

    fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        self.through(value, 0.5 / value)
    }

    fn tanh(self) -> Self {
        let value = self.value.tanh();
        self.through(value, 1.0 - value * value)
    }

    fn erf(self) -> Self {
        self.through(Number::erf(self.value), FRAC_2_SQRT_PI * (-self.value * self.value).exp())
    }

    fn sin_cos(self) -> (Self, Self) {
        let (sin, cos) = self.value.sin_cos();
        (self.through(sin, cos), self.through(cos, -sin))
    }

    fn rounded(self, dtype: DType) -> Self {
        Self { value: self.value.rounded(dtype), tangent: self.tangent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tangent is the slope that differences of `f64` show.
    #[test]
    fn tangents_are_slopes() {
        type Function = (&'static str, fn(Dual) -> Dual);
        let functions: [Function; 15] = [
            ("neg", |x| -x),
            ("square", |x| x * x),
            ("cube", |x| x * x * x - x),
            ("inverse", |x| Dual::constant(1.0) / x),
            ("ratio", |x| x.exp() / (x * x + Dual::constant(1.0))),
            ("exp", Dual::exp),
            ("ln", Dual::ln),
            ("sqrt", Dual::sqrt),
            ("tanh", Dual::tanh),
            ("erf", Dual::erf),
            ("sin", |x| x.sin_cos().0),
            ("cos", |x| x.sin_cos().1),
            ("max", |x| x.max(Dual::constant(0.5) * x)),
            ("min", |x| x.min(Dual::constant(0.5) * x)),
            ("assigned", |x| {
                let mut y = x;
                y += x * x;
                y *= x;
                y -= x.exp();
                y /= x;
                y
            }),
        ];
        for (name, function) in functions {
            for value in [0.3, 1.0, 2.5] {
                let found = function(Dual { value, tangent: 2.0 }).tangent;
                let at = |x| function(Dual::constant(x)).value;
                let expected = 2.0 * (at(value + 1e-5) - at(value - 1e-5)) / 2e-5;
                assert!(
                    (found - expected).abs() < 1e-8 * expected.abs().max(1.0),
                    "{name} at {value}: {found}, expected {expected}"
                );
            }
        }
    }
}
