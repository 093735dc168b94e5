//! The numbers that the reference interpreter computes with.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use half::{bf16, f16};

use super::erf::erf;
use crate::DType;

/// A real number with the operations of the interpreter: `f32` as devices compute, `f64` for exact comparisons, and
/// [`Dual`](super::Dual) for derivatives.
pub trait Number:
    Copy
    + Default
    + PartialOrd
    + Debug
    + Send
    + Sync
    + 'static
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    /// The number nearest to `x`, as a constant: a [`Dual`](super::Dual) has the tangent 0.
    fn constant(x: f64) -> Self;

    /// The value of the number in `f64`, without its tangent.
    fn value(self) -> f64;

    /// The larger of two numbers. If one is NaN, the other.
    #[must_use]
    fn max(self, other: Self) -> Self;

    /// The smaller of two numbers. If one is NaN, the other.
    #[must_use]
    fn min(self, other: Self) -> Self;

    /// `e^self`.
    #[must_use]
    fn exp(self) -> Self;

    /// The natural logarithm.
    #[must_use]
    fn ln(self) -> Self;

    /// `ln(1 + self)`, exact near zero.
    #[must_use]
    fn ln_1p(self) -> Self;

    /// The square root.
    #[must_use]
    fn sqrt(self) -> Self;

    /// The hyperbolic tangent.
    #[must_use]
    fn tanh(self) -> Self;

    /// `2/√π · ∫₀ˣ exp(−t²) dt`.
    #[must_use]
    fn erf(self) -> Self;

    /// Sine and cosine of an angle in radians.
    fn sin_cos(self) -> (Self, Self);

    /// The number rounded to `dtype`, ties to even. `F32` and `U32` leave it as it is.
    #[must_use]
    fn rounded(self, dtype: DType) -> Self;
}

/// Implements the functions of [`Number`] that a float of the standard library has as methods of the same names.
macro_rules! own_methods {
    () => {
        fn max(self, other: Self) -> Self {
            self.max(other)
        }

        fn min(self, other: Self) -> Self {
            self.min(other)
        }

        fn exp(self) -> Self {
            self.exp()
        }

        fn ln(self) -> Self {
            self.ln()
        }

        fn ln_1p(self) -> Self {
            self.ln_1p()
        }

        fn sqrt(self) -> Self {
            self.sqrt()
        }

        fn tanh(self) -> Self {
            self.tanh()
        }

        fn sin_cos(self) -> (Self, Self) {
            self.sin_cos()
        }
    };
}

impl Number for f32 {
    fn constant(x: f64) -> Self {
        x as f32
    }

    fn value(self) -> f64 {
        self.into()
    }

    own_methods!();

    fn erf(self) -> Self {
        erf(self.into()) as f32
    }

    fn rounded(self, dtype: DType) -> Self {
        match dtype {
            DType::F16 => f16::from_f32(self).to_f32(),
            DType::BF16 => bf16::from_f32(self).to_f32(),
            DType::F32 | DType::U32 => self,
        }
    }
}

impl Number for f64 {
    fn constant(x: f64) -> Self {
        x
    }

    fn value(self) -> f64 {
        self
    }

    own_methods!();

    fn erf(self) -> Self {
        erf(self)
    }

    fn rounded(self, dtype: DType) -> Self {
        match dtype {
            DType::F16 => f16::from_f64(self).to_f64(),
            DType::BF16 => bf16::from_f64(self).to_f64(),
            DType::F32 | DType::U32 => self,
        }
    }
}
