//! The storage formats a weight can have: their names, block lengths and sizes.

use std::fmt;

/// The storage format of a tensor's rows.
///
/// Names are spelled as GGUF spells them. Every format but the MLX one is a sequence of fixed-size blocks of
/// consecutive elements of a row; MLX keeps packed words, scales and biases in three separate arrays.
///
/// A `match` over this enum is exhaustive on purpose: a new format does not compile until every device and converter knows it, or
/// refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum StorageFormat {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    /// MLX affine quantisation: `x = scale · q + bias` per group.
    MlxAffine(MlxAffine),
}

/// Parameters of MLX affine quantisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MlxAffine {
    /// Bits per element: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Elements that share a scale and a bias.
    pub group_size: u32,
}

impl StorageFormat {
    /// Every format of GGUF files that Brasa reads, in the order of their codes.
    pub const GGUF: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::BF16,
    ];

    /// Elements per block; a row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
            Self::MlxAffine(mlx) => mlx.group_size as usize,
        }
    }

    /// Bytes per block; for MLX the packed words alone, without the group's scale and bias.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 | Self::IQ4_NL => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::IQ4_XS => 136,
            Self::MlxAffine(mlx) => mlx.group_size as usize * mlx.bits as usize / 8,
        }
    }

    /// Bytes of a row of `row_len` elements (for MLX: of its packed words).
    ///
    /// `None` if `row_len` is no multiple of the block length, or the size overflows.
    pub fn row_bytes(self, row_len: usize) -> Option<usize> {
        let blocks = row_len / self.block_len();
        row_len.is_multiple_of(self.block_len()).then_some(())?;
        blocks.checked_mul(self.block_bytes())
    }

    /// Bits of an element's code, without scales: 4 of Q4_K, 16 of BF16.
    pub const fn bits(self) -> u32 {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::Q8_0 => 8,
            Self::Q6_K => 6,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K => 5,
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K | Self::IQ4_NL | Self::IQ4_XS => 4,
            Self::Q3_K => 3,
            Self::Q2_K => 2,
            Self::MlxAffine(mlx) => mlx.bits as u32,
        }
    }

    /// Elements that share a scale; `None` for floats.
    pub const fn group_size(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => None,
            Self::Q2_K | Self::Q3_K | Self::Q6_K => Some(16),
            Self::MlxAffine(mlx) => Some(mlx.group_size as usize),
            _ => Some(32),
        }
    }

    /// True if elements are plain floats.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The type code of GGUF files; `None` for MLX.
    pub const fn gguf_code(self) -> Option<u32> {
        Some(match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2_K => 10,
            Self::Q3_K => 11,
            Self::Q4_K => 12,
            Self::Q5_K => 13,
            Self::Q6_K => 14,
            Self::IQ4_NL => 20,
            Self::IQ4_XS => 23,
            Self::BF16 => 30,
            Self::MlxAffine(_) => return None,
        })
    }

    /// The format of a GGUF type code; `None` for a type that Brasa does not read.
    pub fn from_gguf_code(code: u32) -> Option<Self> {
        Self::GGUF.into_iter().find(|format| format.gguf_code() == Some(code))
    }
}

impl fmt::Display for StorageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MlxAffine(mlx) => write!(f, "MLX {}-bit/{}", mlx.bits, mlx.group_size),
            other => write!(f, "{other:?}"),
        }
    }
}
