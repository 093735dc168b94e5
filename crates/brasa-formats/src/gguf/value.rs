//! The thirteen kinds of metadata values.

use super::array::{Array, pack_string};

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

    pub(super) fn as_integer(&self) -> Option<i128> {
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

    pub(super) fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(x) => Some(x.into()),
            Self::F64(x) => Some(x),
            _ => self.as_integer().map(|x| x as f64),
        }
    }
}
