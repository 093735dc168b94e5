//! Rust types as metadata values, and metadata values as Rust types.

use super::array::{Array, Scalar};
use super::value::{Value, ValueType};

/// A Rust type that a [`Value`] can be read as.
///
/// Integers of any width and sign are read as any integer type that holds the number; floats and integers are
/// read as either float type.
pub trait FromValue<'a>: Sized {
    /// A phrase for the values that fit, for messages.
    const EXPECTED: &'static str;

    /// The value, or `None` if type or range do not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! scalar {
    ($($ty:ident, $kind:ident, $expected:literal, $read:expr;)*) => {$(
        impl From<$ty> for Value {
            fn from(x: $ty) -> Self {
                Self::$kind(x)
            }
        }

        impl Scalar for $ty {
            const TYPE: ValueType = ValueType::$kind;
        }

        read!($ty, $expected, $read);
    )*};
}

macro_rules! read {
    ($ty:ident, $expected:literal, $read:expr) => {
        impl FromValue<'_> for $ty {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &Value) -> Option<Self> {
                let read: fn(&Value) -> Option<Self> = $read;
                read(value)
            }
        }

        impl FromValue<'_> for Vec<$ty> {
            const EXPECTED: &'static str = concat!("an array, each element ", $expected);

            fn from_value(value: &Value) -> Option<Self> {
                let Value::Array(array) = value else { return None };
                array.scalars()?.map(|element| $ty::from_value(&element)).collect()
            }
        }
    };
}

scalar! {
    u8, U8, "an integer from 0 to 255", |x| x.as_integer()?.try_into().ok();
    i8, I8, "an integer from -128 to 127", |x| x.as_integer()?.try_into().ok();
    u16, U16, "an integer from 0 to 65535", |x| x.as_integer()?.try_into().ok();
    i16, I16, "an integer from -32768 to 32767", |x| x.as_integer()?.try_into().ok();
    u32, U32, "an integer from 0 to 4294967295", |x| x.as_integer()?.try_into().ok();
    i32, I32, "an integer from -2147483648 to 2147483647", |x| x.as_integer()?.try_into().ok();
    u64, U64, "an integer of 0 or more", |x| x.as_integer()?.try_into().ok();
    i64, I64, "an integer of at most 64 bits with sign", |x| x.as_integer()?.try_into().ok();
    f64, F64, "a number", Value::as_float;
    f32, F32, "a number in the range of f32", |x| {
        let wide = x.as_float()?;
        let narrow = wide as f32;
        (narrow.is_finite() || !wide.is_finite()).then_some(narrow)
    };
    bool, Bool, "a bool", |x| match x { Value::Bool(x) => Some(*x), _ => None };
}

read!(usize, "an integer of 0 or more", |x| x.as_integer()?.try_into().ok());

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

impl<'a> FromValue<'a> for &'a str {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &'a Value) -> Option<Self> {
        if let Value::String(text) = value { Some(text) } else { None }
    }
}

impl FromValue<'_> for String {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &Value) -> Option<Self> {
        <&str>::from_value(value).map(str::to_owned)
    }
}

impl<'a> FromValue<'a> for &'a Array {
    const EXPECTED: &'static str = "an array";

    fn from_value(value: &'a Value) -> Option<Self> {
        if let Value::Array(array) = value { Some(array) } else { None }
    }
}

impl<'a> FromValue<'a> for Vec<&'a [u8]> {
    const EXPECTED: &'static str = "an array of strings";

    fn from_value(value: &'a Value) -> Option<Self> {
        Some(<&Array>::from_value(value)?.strings()?.collect())
    }
}

impl<'a> FromValue<'a> for Vec<&'a str> {
    const EXPECTED: &'static str = "an array of UTF-8 strings";

    fn from_value(value: &'a Value) -> Option<Self> {
        <&Array>::from_value(value)?.strings()?.map(|bytes| str::from_utf8(bytes).ok()).collect()
    }
}

impl FromValue<'_> for Vec<String> {
    const EXPECTED: &'static str = "an array of UTF-8 strings";

    fn from_value(value: &Value) -> Option<Self> {
        Vec::<&str>::from_value(value).map(|strings| strings.into_iter().map(str::to_owned).collect())
    }
}
