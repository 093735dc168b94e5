//! The packed layout of quantised weights.
//!
//! A **tile** is 16 output rows; in every vector the 32-bit lane is the row. A tile is a sequence of **blocks**
//! of 32 inputs. Inside a block, group `g` of 8 holds for each row the four codes of inputs `4g..4g+4`: one
//! 64-byte vector, the operand of an int8 dot product and a row of an AMX tile. Codes narrower than a byte are
//! split into bit planes, each byte of a plane holding the bits of several groups, so that shift and mask give
//! whole vectors back:
//!
//! - 4 bits: vector `v` of 4 holds group `v` in the low and group `v + 4` in the high nibble;
//! - 2 bits: vector `v` of 2 holds groups `4v + f` in bits `2f, 2f + 1`;
//! - 1 bit: one vector holds group `g` in bit `g`;
//! - 3 and 5 bits: a vector of single bits, then the wider plane; 6 bits: the pairs of groups 0 to 3, the nibbles,
//!   the pairs of groups 4 to 7. 8 bits: eight vectors.
//!
//! Scales keep their stored precision and width, row by row in lanes, and precede the blocks that they belong
//! to: a **span** of 1 to 8 blocks. So a kernel reads a tile strictly forward, which the processor's prefetcher
//! rewards: with scales half a kilobyte away from their codes, or high bits behind low ones, Q4_1 and Q5_0 were
//! read from memory at a third and two thirds of the speed that this order gives. Nothing grows but for rows
//! beyond N in the last tile and for a few bytes that keep vectors on cache lines.

use brasa_formats::StorageFormat;

/// Output rows of a tile.
pub(super) const LANES: usize = 16;
/// Inputs of a block: what one activation scale covers.
pub(super) const BLOCK: usize = crate::quantize::BLOCK;
/// Inputs of a K-quant's super-block, the longest span.
pub(super) const SUPER_BLOCK: usize = 256;
/// Blocks of a super-block.
pub(super) const SUPER_BLOCKS: usize = SUPER_BLOCK / BLOCK;
/// Bytes of a block's codes at 8 bits.
pub(super) const WIDE_BLOCK_BYTES: usize = BLOCK * LANES;

/// How codes are stored, and what they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    Bits2,
    Bits3,
    Bits4,
    Bits5,
    Bits6,
    Bits8,
    /// 4 bits that select from [`TABLE`].
    Table4,
}

/// Values of IQ4_NL and IQ4_XS codes, plus 128.
pub(super) const TABLE: [u8; 16] = {
    let values: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut table = [0; 16];
    let mut index = 0;
    while index < 16 {
        table[index] = (values[index] + 128) as u8;
        index += 1;
    }
    table
};

/// How scales (and minima) are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// f16 per block.
    Half,
    /// f16 scale and f16 minimum per block.
    HalfMin,
    /// Q2_K: per row two f16 and 16 bytes of 4-bit scale, 4-bit minimum.
    Q2K,
    /// Q3_K: per row one f16 (in the tile's head) and sixteen 6-bit scales in 12 bytes.
    Q3K,
    /// Q4_K and Q5_K: per row two f16 and eight 6-bit scales, eight 6-bit minima in 12 bytes.
    Q4K,
    /// Q6_K: per row one f16 (in the tile's head) and sixteen i8.
    Q6K,
    /// IQ4_XS: per row one f16 and eight 6-bit scales in 6 bytes.
    Iq4Xs,
    /// MLX: scale and bias of two bytes (f16 or bf16) or four, per group.
    Affine { group_blocks: usize, float: Float },
}

/// Plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    BF16,
}

/// How many scales a block has, and whether it has a minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One scale; codes have an offset.
    Whole,
    /// One scale and one minimum.
    WholeMin,
    /// A scale for each 16 inputs; codes have an offset.
    Halves,
    /// A scale and a minimum for each 16 inputs.
    HalvesMin,
}

/// The layout of a quantised weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub codes: Codes,
    pub scales: Scales,
    pub shape: Shape,
    /// Blocks of a row: K / 32.
    pub blocks: usize,
}

impl Codes {
    /// Bytes of a block of 16 rows.
    pub const fn block_bytes(self) -> usize {
        let bits = match self {
            Self::Bits2 => 2,
            Self::Bits3 => 3,
            Self::Bits4 | Self::Table4 => 4,
            Self::Bits5 => 5,
            Self::Bits6 => 6,
            Self::Bits8 => 8,
        };
        bits * LANES * BLOCK / 8
    }

    /// log₂ of what a format without a minimum subtracts from a code.
    pub const fn offset_shift(self) -> u32 {
        match self {
            Self::Bits2 => 1,
            Self::Bits3 => 2,
            Self::Bits4 => 3,
            Self::Bits5 => 4,
            Self::Bits6 => 5,
            Self::Bits8 | Self::Table4 => 7,
        }
    }
}

impl Float {
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    pub const fn of(format: StorageFormat) -> Option<Self> {
        match format {
            StorageFormat::F32 => Some(Self::F32),
            StorageFormat::F16 => Some(Self::F16),
            StorageFormat::BF16 => Some(Self::BF16),
            _ => None,
        }
    }
}

impl Layout {
    /// The layout of rows of `k` elements, `scale_float` being that of MLX scales; `None` where the format
    /// has none: plain floats, MLX groups that do not divide 256 into whole blocks, K with a broken block.
    pub fn of(format: StorageFormat, scale_float: Option<Float>, k: usize) -> Option<Self> {
        use StorageFormat as F;
        let (codes, scales, shape) = match format {
            F::Q4_0 => (Codes::Bits4, Scales::Half, Shape::Whole),
            F::Q4_1 => (Codes::Bits4, Scales::HalfMin, Shape::WholeMin),
            F::Q5_0 => (Codes::Bits5, Scales::Half, Shape::Whole),
            F::Q5_1 => (Codes::Bits5, Scales::HalfMin, Shape::WholeMin),
            F::Q8_0 => (Codes::Bits8, Scales::Half, Shape::Whole),
            F::IQ4_NL => (Codes::Table4, Scales::Half, Shape::Whole),
            F::IQ4_XS => (Codes::Table4, Scales::Iq4Xs, Shape::Whole),
            F::Q2_K => (Codes::Bits2, Scales::Q2K, Shape::HalvesMin),
            F::Q3_K => (Codes::Bits3, Scales::Q3K, Shape::Halves),
            F::Q4_K => (Codes::Bits4, Scales::Q4K, Shape::WholeMin),
            F::Q5_K => (Codes::Bits5, Scales::Q4K, Shape::WholeMin),
            F::Q6_K => (Codes::Bits6, Scales::Q6K, Shape::Halves),
            F::MlxAffine(mlx) => {
                let codes = match mlx.bits {
                    2 => Codes::Bits2,
                    3 => Codes::Bits3,
                    4 => Codes::Bits4,
                    5 => Codes::Bits5,
                    6 => Codes::Bits6,
                    8 => Codes::Bits8,
                    _ => return None,
                };
                let group = mlx.group_size as usize;
                if group == 0 || !group.is_multiple_of(BLOCK) || !SUPER_BLOCK.is_multiple_of(group) {
                    return None;
                }
                let scales = Scales::Affine { group_blocks: group / BLOCK, float: scale_float? };
                (codes, scales, Shape::WholeMin)
            }
            F::F32 | F::F16 | F::BF16 => return None,
        };
        let whole = k > 0 && k.is_multiple_of(format.block_len());
        whole.then_some(Self { codes, scales, shape, blocks: k / BLOCK })
    }

    /// Blocks whose scales lie together.
    pub const fn span(&self) -> usize {
        match self.scales {
            Scales::HalfMin => 1,
            // Two blocks make a cache line of scales.
            Scales::Half | Scales::Q6K => 2,
            Scales::Q2K | Scales::Q3K | Scales::Q4K | Scales::Iq4Xs => SUPER_BLOCKS,
            Scales::Affine { group_blocks, .. } => group_blocks,
        }
    }

    /// Bytes before a tile's first span: super-block scales that would break a span's alignment.
    pub const fn head_bytes(&self) -> usize {
        match self.scales {
            Scales::Q3K | Scales::Q6K => (self.blocks / SUPER_BLOCKS * LANES * 2).next_multiple_of(64),
            _ => 0,
        }
    }

    /// Bytes of the scales of a span, a shorter one at the end of a row included.
    pub const fn scale_bytes(&self) -> usize {
        match self.scales {
            Scales::Half | Scales::HalfMin | Scales::Q6K => LANES * 4,
            Scales::Q2K => LANES * (4 + 16),
            Scales::Q3K => LANES * 12,
            Scales::Q4K => LANES * (4 + 12),
            Scales::Iq4Xs => LANES * 8,
            Scales::Affine { float, .. } => LANES * 2 * float.bytes(),
        }
    }

    /// Bytes of a whole span.
    pub const fn span_bytes(&self) -> usize {
        self.scale_bytes() + self.span() * self.codes.block_bytes()
    }

    /// Where the scales of block `block` begin within a tile.
    pub const fn scale_offset_bytes(&self, block: usize) -> usize {
        self.head_bytes() + block / self.span() * self.span_bytes()
    }

    /// Where the codes of block `block` begin within a tile.
    pub const fn code_offset_bytes(&self, block: usize) -> usize {
        let within = block % self.span() * self.codes.block_bytes();
        self.scale_offset_bytes(block) + self.scale_bytes() + within
    }

    /// Bytes of a tile.
    pub const fn tile_bytes(&self) -> usize {
        let spans = self.blocks.div_ceil(self.span());
        self.head_bytes() + spans * self.scale_bytes() + self.blocks * self.codes.block_bytes()
    }
}
