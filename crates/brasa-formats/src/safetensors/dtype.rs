//! Element types of safetensors.

use std::fmt;

use crate::StorageFormat;

/// An element type, as the public format names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Dtype {
    BOOL,
    U8,
    I8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F4,
    F6_E2M3,
    F6_E3M2,
    F8_E5M2,
    F8_E4M3,
    F8_E5M2FNUZ,
    F8_E4M3FNUZ,
    F8_E8M0,
    F16,
    BF16,
    F32,
    F64,
    C64,
}

impl Dtype {
    const ALL: [Self; 22] = [
        Self::BOOL,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F4,
        Self::F6_E2M3,
        Self::F6_E3M2,
        Self::F8_E5M2,
        Self::F8_E4M3,
        Self::F8_E5M2FNUZ,
        Self::F8_E4M3FNUZ,
        Self::F8_E8M0,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::C64,
    ];

    /// The type of a name; `None` for an unknown one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The name in a file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BOOL => "BOOL",
            Self::U8 => "U8",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::U16 => "U16",
            Self::I32 => "I32",
            Self::U32 => "U32",
            Self::I64 => "I64",
            Self::U64 => "U64",
            Self::F4 => "F4",
            Self::F6_E2M3 => "F6_E2M3",
            Self::F6_E3M2 => "F6_E3M2",
            Self::F8_E5M2 => "F8_E5M2",
            Self::F8_E4M3 => "F8_E4M3",
            Self::F8_E5M2FNUZ => "F8_E5M2FNUZ",
            Self::F8_E4M3FNUZ => "F8_E4M3FNUZ",
            Self::F8_E8M0 => "F8_E8M0",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F32 => "F32",
            Self::F64 => "F64",
            Self::C64 => "C64",
        }
    }

    /// Bits per element.
    pub const fn bits(self) -> u64 {
        match self {
            Self::F4 => 4,
            Self::F6_E2M3 | Self::F6_E3M2 => 6,
            Self::BOOL
            | Self::U8
            | Self::I8
            | Self::F8_E5M2
            | Self::F8_E4M3
            | Self::F8_E5M2FNUZ
            | Self::F8_E4M3FNUZ
            | Self::F8_E8M0 => 8,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 16,
            Self::I32 | Self::U32 | Self::F32 => 32,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 => 64,
        }
    }

    /// The storage format of a plain float that Brasa reads; `None` for other types.
    pub const fn float_format(self) -> Option<StorageFormat> {
        match self {
            Self::F16 => Some(StorageFormat::F16),
            Self::BF16 => Some(StorageFormat::BF16),
            Self::F32 => Some(StorageFormat::F32),
            _ => None,
        }
    }

    /// The type of a plain float that Brasa writes; `None` for quantised formats.
    pub const fn of_float(format: StorageFormat) -> Option<Self> {
        match format {
            StorageFormat::F16 => Some(Self::F16),
            StorageFormat::BF16 => Some(Self::BF16),
            StorageFormat::F32 => Some(Self::F32),
            _ => None,
        }
    }

    /// True for integers and bools.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::BOOL
                | Self::U8
                | Self::I8
                | Self::I16
                | Self::U16
                | Self::I32
                | Self::U32
                | Self::I64
                | Self::U64
        )
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
