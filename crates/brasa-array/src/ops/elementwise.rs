//! Functions of each element, and of two that meet.

use brasa_graph::op::{Binary, Broadcast, Unary, Where};

use crate::array::{shape_of, wrong};
use crate::{Array, ArrayError, Result};

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident: $function:ident;)*) => { impl Array { $(
        $(#[$doc])*
        #[must_use]
        pub fn $name(&self) -> Self {
            self.unary(Unary::$function)
        }
    )* } };
}

unary! {
    /// `exp(x)`.
    exp: Exp;
    /// `ln(x)`.
    log: Log;
    /// `1 / sqrt(x)`.
    rsqrt: Rsqrt;
    /// `tanh(x)`.
    tanh: Tanh;
    /// `1 / (1 + exp(−x))`.
    sigmoid: Sigmoid;
    /// `x / (1 + exp(−x))`.
    silu: Silu;
    /// `x/2 · (1 + erf(x/√2))`.
    gelu: GeluErf;
    /// The tanh form of [`gelu`](Self::gelu).
    gelu_tanh: GeluTanh;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident: $function:ident;)*) => { impl Array { $(
        $(#[$doc])*
        ///
        /// Shapes are aligned at the innermost axis; an axis of 1, or one that is missing, repeats.
        #[must_use]
        #[allow(clippy::should_implement_trait, reason = "the operators are there too")]
        pub fn $name(&self, other: &Self) -> Self {
            self.binary(stringify!($name), Binary::$function, other)
        }
    )* } };
}

binary! {
    /// `a + b`.
    add: Add;
    /// `a − b`.
    sub: Sub;
    /// `a · b`.
    mul: Mul;
    /// `a / b`.
    div: Div;
    /// `max(a, b)`.
    maximum: Maximum;
}

impl Array {
    /// `factor · x`.
    #[must_use]
    pub fn scale(&self, factor: f32) -> Self {
        self.unary(Unary::Scale(factor))
    }

    /// `min(max(x, low), high)`.
    #[must_use]
    pub fn clip(&self, low: f32, high: f32) -> Self {
        self.unary(Unary::Clamp { low, high })
    }

    /// `max(x, 0)`.
    #[must_use]
    pub fn relu(&self) -> Self {
        self.maximum(&Self::scalar(0.0))
    }

    /// `x²`.
    #[must_use]
    pub fn square(&self) -> Self {
        self.mul(self)
    }

    /// `√x`. Its slope at 0 is no number.
    #[must_use]
    pub fn sqrt(&self) -> Self {
        Self::scalar(1.0).div(&self.rsqrt())
    }

    /// `|x|`. Its slope at 0 is 0.
    #[must_use]
    pub fn abs(&self) -> Self {
        self.maximum(&self.scale(-1.0))
    }

    /// `min(a, b)`. Shapes are aligned at the innermost axis; an axis of 1, or one that is missing, repeats.
    #[must_use]
    pub fn minimum(&self, other: &Self) -> Self {
        self.scale(-1.0).maximum(&other.scale(-1.0)).scale(-1.0)
    }

    /// `a` where this array is not 0, `b` elsewhere. Shapes are aligned at the innermost axis; an axis of 1, or one that is
    /// missing, repeats.
    #[must_use]
    pub fn choose(&self, a: &Self, b: &Self) -> Self {
        let shape = joined("choose", self, a).and_then(|shape| joined_shapes("choose", &shape, b.shape()));
        match shape {
            Ok(shape) => {
                let [condition, a, b] = [self, a, b].map(|array| array.repeated(&shape));
                Self::result(Where, &[&condition, &a, &b], shape)
            }
            Err(error) => Self::wrong(error),
        }
    }

    /// The array repeated until its shape is `shape`: aligned at the innermost axis, along axes of 1 and missing ones.
    #[must_use]
    pub fn broadcast_to(&self, shape: &[usize]) -> Self {
        match joined_shapes("broadcast_to", self.shape(), shape) {
            Ok(found) if found == shape => self.repeated(shape),
            Ok(_) => {
                let what = format!("shape {:?} does not repeat to {shape:?}", self.shape());
                Self::result_or(wrong("broadcast_to", what), self)
            }
            Err(error) => Self::result_or(error, self),
        }
    }

    fn unary(&self, function: Unary) -> Self {
        Self::result(function, &[self], self.shape().to_vec())
    }

    fn binary(&self, name: &'static str, function: Binary, other: &Self) -> Self {
        match joined(name, self, other) {
            // The second operand repeats within the operation.
            Ok(shape) => Self::result(function, &[&self.repeated(&shape), other], shape),
            Err(error) => Self::wrong(error),
        }
    }

    fn repeated(&self, shape: &[usize]) -> Self {
        if self.shape() == shape {
            return self.clone();
        }
        Self::result(Broadcast { shape: shape_of(shape) }, &[self], shape.to_vec())
    }

    /// The earlier mistake of `operand`, or else `error`.
    pub(crate) fn result_or(error: ArrayError, operand: &Self) -> Self {
        Self::wrong(operand.check().err().unwrap_or(error))
    }
}

/// The shape of the elementwise result of two arrays; an error for an earlier mistake of either.
fn joined(operation: &'static str, a: &Array, b: &Array) -> Result<Vec<usize>> {
    a.check()?;
    b.check()?;
    joined_shapes(operation, a.shape(), b.shape())
}

pub(super) fn joined_shapes(operation: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let axes = a.len().max(b.len());
    let at =
        |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(axes).map_or(1, |own| shape[own]);
    let joined = (0..axes).map(|axis| match (at(a, axis), at(b, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    });
    joined
        .collect::<Option<Vec<_>>>()
        .filter(|shape| !shape.is_empty())
        .ok_or_else(|| wrong(operation, format!("shapes {a:?} and {b:?} do not repeat to one")))
}
