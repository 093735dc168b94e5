//! Operators of arrays and numbers.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::Array;

macro_rules! operators {
    ($($trait:ident $method:ident;)*) => { $(
        impl $trait<&Array> for &Array {
            type Output = Array;

            fn $method(self, other: &Array) -> Array {
                Array::$method(self, other)
            }
        }

        impl $trait<Array> for &Array {
            type Output = Array;

            fn $method(self, other: Array) -> Array {
                Array::$method(self, &other)
            }
        }

        impl $trait<&Array> for Array {
            type Output = Array;

            fn $method(self, other: &Array) -> Array {
                Array::$method(&self, other)
            }
        }

        impl $trait for Array {
            type Output = Array;

            fn $method(self, other: Array) -> Array {
                Array::$method(&self, &other)
            }
        }

        impl $trait<f32> for &Array {
            type Output = Array;

            fn $method(self, other: f32) -> Array {
                Array::$method(self, &Array::scalar(other))
            }
        }

        impl $trait<f32> for Array {
            type Output = Array;

            fn $method(self, other: f32) -> Array {
                Array::$method(&self, &Array::scalar(other))
            }
        }

        impl $trait<&Array> for f32 {
            type Output = Array;

            fn $method(self, other: &Array) -> Array {
                Array::$method(&Array::scalar(self), other)
            }
        }

        impl $trait<Array> for f32 {
            type Output = Array;

            fn $method(self, other: Array) -> Array {
                Array::$method(&Array::scalar(self), &other)
            }
        }
    )* };
}

operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
}

impl Neg for &Array {
    type Output = Array;

    fn neg(self) -> Array {
        self.scale(-1.0)
    }
}

impl Neg for Array {
    type Output = Array;

    fn neg(self) -> Array {
        self.scale(-1.0)
    }
}
