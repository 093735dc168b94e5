//! The thirteen kinds of metadata values, and typed reading of them.
//!
//! Arrays keep the form they have in the file: a vocabulary of a quarter of a million strings is walked when it is
//! asked for and copied when it is written, never turned into a quarter of a million allocations in between.

use crate::Bytes;

/// The type of a value, with its code in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[repr(u32)]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of values of one type, packed as in the file.
#[derive(Clone, Debug)]
pub struct Array {
    element: ValueType,
    len: usize,
    /// Validated: exactly `len` elements, strings and inner arrays with their headers.
    packed: Bytes,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type of a code; `None` for an unknown one.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).copied()
    }

    /// Bytes of a value of fixed size; `None` for strings and arrays.
    pub const fn size_bytes(self) -> Option<usize> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::String | Self::Array => return None,
        })
    }

    /// The name used in messages and listings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl Value {
    /// The type of this value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// A number or bool from its little-endian bytes; `None` for strings, arrays, and a bool other than 0 and 1.
    pub(super) fn from_le_bytes(value_type: ValueType, bytes: &[u8]) -> Option<Self> {
        fn fixed<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
            bytes.try_into().ok()
        }
        Some(match value_type {
            ValueType::U8 => Self::U8(u8::from_le_bytes(fixed(bytes)?)),
            ValueType::I8 => Self::I8(i8::from_le_bytes(fixed(bytes)?)),
            ValueType::U16 => Self::U16(u16::from_le_bytes(fixed(bytes)?)),
            ValueType::I16 => Self::I16(i16::from_le_bytes(fixed(bytes)?)),
            ValueType::U32 => Self::U32(u32::from_le_bytes(fixed(bytes)?)),
            ValueType::I32 => Self::I32(i32::from_le_bytes(fixed(bytes)?)),
            ValueType::F32 => Self::F32(f32::from_le_bytes(fixed(bytes)?)),
            ValueType::U64 => Self::U64(u64::from_le_bytes(fixed(bytes)?)),
            ValueType::I64 => Self::I64(i64::from_le_bytes(fixed(bytes)?)),
            ValueType::F64 => Self::F64(f64::from_le_bytes(fixed(bytes)?)),
            ValueType::Bool => match fixed::<1>(bytes)? {
                [0] => Self::Bool(false),
                [1] => Self::Bool(true),
                _ => return None,
            },
            ValueType::String | ValueType::Array => return None,
        })
    }

    /// Appends the value as the file stores it, without its type.
    pub(super) fn pack(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(x) => out.extend(x.to_le_bytes()),
            Self::I8(x) => out.extend(x.to_le_bytes()),
            Self::U16(x) => out.extend(x.to_le_bytes()),
            Self::I16(x) => out.extend(x.to_le_bytes()),
            Self::U32(x) => out.extend(x.to_le_bytes()),
            Self::I32(x) => out.extend(x.to_le_bytes()),
            Self::F32(x) => out.extend(x.to_le_bytes()),
            Self::U64(x) => out.extend(x.to_le_bytes()),
            Self::I64(x) => out.extend(x.to_le_bytes()),
            Self::F64(x) => out.extend(x.to_le_bytes()),
            Self::Bool(x) => out.push(u8::from(*x)),
            Self::String(text) => pack_string(text.as_bytes(), out),
            Self::Array(array) => array.pack(out),
        }
    }

    fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }

    fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(x) => Some(x.into()),
            Self::F64(x) => Some(x),
            _ => self.as_integer().map(|x| x as f64),
        }
    }
}

impl Array {
    /// Packs numbers or bools.
    pub fn of<T: Scalar>(elements: impl IntoIterator<Item = T>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for element in elements {
            element.into().pack(&mut packed);
            len += 1;
        }
        Self { element: T::TYPE, len, packed: packed.into() }
    }

    /// Packs strings; they may hold any bytes, as the tokens of a vocabulary do.
    pub fn of_strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for string in strings {
            pack_string(string.as_ref(), &mut packed);
            len += 1;
        }
        Self { element: ValueType::String, len, packed: packed.into() }
    }

    /// Packs arrays.
    pub fn of_arrays(arrays: impl IntoIterator<Item = Array>) -> Self {
        let mut packed = Vec::new();
        let mut len = 0;
        for array in arrays {
            array.pack(&mut packed);
            len += 1;
        }
        Self { element: ValueType::Array, len, packed: packed.into() }
    }

    /// An array whose `packed` form has been walked and found right.
    pub(super) fn validated(element: ValueType, len: usize, packed: Bytes) -> Self {
        Self { element, len, packed }
    }

    /// The type of every element.
    pub fn element_type(&self) -> ValueType {
        self.element
    }

    /// How many elements there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The elements of an array of numbers or bools.
    pub fn scalars(&self) -> Option<impl Iterator<Item = Value> + '_> {
        let size = self.element.size_bytes()?;
        Some(self.packed.chunks_exact(size).filter_map(|bytes| Value::from_le_bytes(self.element, bytes)))
    }

    /// The elements of an array of strings; they may hold any bytes.
    pub fn strings(&self) -> Option<impl Iterator<Item = &[u8]> + '_> {
        let mut rest: &[u8] = &self.packed;
        (self.element == ValueType::String)
            .then(|| std::iter::from_fn(move || take_string(&mut rest)).take(self.len))
    }

    /// The elements of an array of arrays.
    pub fn arrays(&self) -> Option<impl Iterator<Item = Array> + '_> {
        let mut at = 0;
        (self.element == ValueType::Array).then(|| {
            std::iter::from_fn(move || {
                let (array, end) = Self::unpack(&self.packed, at)?;
                at = end;
                Some(array)
            })
            .take(self.len)
        })
    }

    /// The array whose header is at `at` of `packed`, and where it ends.
    fn unpack(packed: &Bytes, at: usize) -> Option<(Self, usize)> {
        let mut rest = packed.get(at..)?;
        let element = ValueType::from_code(u32::from_le_bytes(*rest.split_off(..4)?.as_array()?))?;
        let len = usize::try_from(u64::from_le_bytes(*rest.split_off(..8)?.as_array()?)).ok()?;
        let start = at + 12;
        let bytes = match element {
            ValueType::String => {
                let before = rest.len();
                for _ in 0..len {
                    take_string(&mut rest)?;
                }
                before - rest.len()
            }
            ValueType::Array => {
                let mut end = start;
                for _ in 0..len {
                    end = Self::unpack(packed, end)?.1;
                }
                end - start
            }
            scalar => scalar.size_bytes()?.checked_mul(len)?,
        };
        let end = start.checked_add(bytes)?;
        Some((Self { element, len, packed: packed.slice(start..end)? }, end))
    }

    fn pack(&self, out: &mut Vec<u8>) {
        out.extend((self.element as u32).to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend_from_slice(&self.packed);
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.element == other.element && self.len == other.len && *self.packed == *other.packed
    }
}

fn take_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?);
    rest.split_off(..usize::try_from(len).ok()?)
}

pub(super) fn pack_string(string: &[u8], out: &mut Vec<u8>) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend_from_slice(string);
}

/// A number or bool that an [`Array`] can be packed from.
pub trait Scalar: Into<Value> {
    /// Its type in the file.
    const TYPE: ValueType;
}

/// A Rust type that a [`Value`] can be read as.
///
/// Integers of any width and sign are read as any integer type that holds the number; floats and integers are
/// read as either float type.
pub trait FromValue<'a>: Sized {
    /// What the value should have been, for messages.
    const EXPECTED: &'static str;

    /// The value, or `None` where type or range do not fit.
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
