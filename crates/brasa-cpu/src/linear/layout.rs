//! The order of codes and scales in packed weights.
//!
//! A **strip** is 16 outputs; in every vector the 32-bit lane is the output. A strip is a sequence of **blocks**
//! of 32 inputs. Inside a block, group `g` of 8 holds for each output the four codes of inputs `4g..4g+4`: one
//! 64-byte vector, the operand of an int8 dot product and a row of an AMX tile. Codes narrower than a byte are
//! split into bit planes. Each byte of a plane holds the bits of several groups, so that shift and mask give
//! whole vectors back:
//!
//! - 4 bits: vector `v` of 4 holds group `v` in the low and group `v + 4` in the high nibble;
//! - 2 bits: vector `v` of 2 holds groups `4v + f` in bits `2f, 2f + 1`;
//! - 1 bit: one vector holds group `g` in bit `g`;
//! - 3 and 5 bits: a vector of single bits, then the wider plane; 6 bits: the pairs of groups 0 to 3, the nibbles,
//!   the pairs of groups 4 to 7. 8 bits: eight vectors.
//!
//! Scales keep their stored precision and width, output by output in lanes, and precede the blocks that they belong
//! to: a **span** of 1 to 8 blocks. So a kernel reads a strip strictly forward, which the processor's prefetcher
//! rewards: with scales half a kilobyte away from their codes, or high bits behind low ones, Q4_1 and Q5_0 were
//! read from memory at a third and two thirds of the speed that this order gives. Packing adds only the outputs
//! beyond N in the last strip and a few bytes that keep vectors on cache lines.

use brasa_formats::StorageFormat;

use super::formats::{Codes, Float, Format, Kind, Scales, Shape};

/// Outputs of a strip.
pub(super) const LANES: usize = 16;
/// Inputs of a block: the inputs that share an activation scale.
pub(super) const BLOCK: usize = crate::quantize::BLOCK;
/// Inputs of a K-quant's super-block, the longest span.
pub(super) const SUPER_BLOCK: usize = 256;
/// Blocks of a super-block.
pub(super) const SUPER_BLOCKS: usize = SUPER_BLOCK / BLOCK;
/// Bytes of a block's codes at 8 bits.
pub(super) const WIDE_BLOCK_BYTES: usize = BLOCK * LANES;

/// A number for each output of a strip.
pub(super) type Lanes = [f32; LANES];

/// The layout of a quantised weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub format: Format,
    pub codes: Codes,
    pub scales: Scales,
    pub shape: Shape,
    /// Blocks of a row: K / 32.
    pub blocks: usize,
}

/// The time that a block takes to be unpacked, beside that of its products with eight rows in AVX-512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpacking {
    /// Little: whole codes in one plane, and plain scales.
    Fast,
    /// Some: codes in two planes, a minimum for every block, or scales in super-blocks.
    Medium,
    /// Much: scales for half blocks, in super-blocks.
    Slow,
}

impl Layout {
    /// The layout of rows of `k` inputs; `scale_float` is the type of MLX scales.
    ///
    /// `None` for plain floats, for MLX groups that do not divide 256 into whole blocks, and for K with a broken block.
    pub fn of(stored: StorageFormat, scale_float: Option<Float>, k: usize) -> Option<Self> {
        let format = Format::of(stored)?;
        let (codes, shape, scales) = format.parts();
        let scales = match (scales, stored) {
            (Some(scales), _) => scales,
            (None, StorageFormat::MlxAffine(mlx)) => {
                let group = mlx.group_size as usize;
                if group == 0 || !group.is_multiple_of(BLOCK) || !SUPER_BLOCK.is_multiple_of(group) {
                    return None;
                }
                Scales::Affine { group_blocks: group / BLOCK, float: scale_float? }
            }
            (None, _) => return None,
        };
        let whole = k > 0 && k.is_multiple_of(stored.block_len());
        whole.then_some(Self { format, codes, scales, shape, blocks: k / BLOCK })
    }

    /// This layout with all quantities that depend on K as constants: strides become immediate operands.
    #[inline(always)]
    pub fn known<K: Kind>(&self) -> Self {
        let scales = match (K::SCALES, self.scales) {
            (Some(scales), _) => scales,
            (None, Scales::Affine { group_blocks, float }) => Scales::Affine { group_blocks, float },
            (None, scales) => unreachable!("groups of MLX with {scales:?}"),
        };
        Self { codes: K::CODES, scales, shape: K::SHAPE, ..*self }
    }

    /// The speed at which blocks are unpacked.
    pub const fn unpacking(&self) -> Unpacking {
        match (self.codes, self.scales) {
            _ if self.shape.has_halves() => Unpacking::Slow,
            (
                Codes::Bits2 | Codes::Bits4 | Codes::Bits8 | Codes::Table4(_),
                Scales::F16 | Scales::Affine { .. },
            ) => Unpacking::Fast,
            _ => Unpacking::Medium,
        }
    }

    /// Bytes of the codes of a block.
    pub const fn block_bytes(&self) -> usize {
        self.codes.bits() * LANES * BLOCK / 8
    }

    /// Blocks that share one piece of scales.
    pub const fn span(&self) -> usize {
        match self.scales {
            Scales::F16Min => 1,
            // Two blocks make a cache line of scales.
            Scales::F16 | Scales::Q6K => 2,
            Scales::Q2K | Scales::Q3K | Scales::Q4K | Scales::Iq4Xs => SUPER_BLOCKS,
            Scales::Affine { group_blocks, .. } => group_blocks,
        }
    }

    /// Bytes before a strip's first span: super-block scales that would break a span's alignment.
    pub const fn head_bytes(&self) -> usize {
        match self.scales {
            Scales::Q3K | Scales::Q6K => (self.blocks / SUPER_BLOCKS * LANES * 2).next_multiple_of(64),
            _ => 0,
        }
    }

    /// Bytes of the scales of a span, also of a shorter one at the end of a row.
    pub const fn scale_bytes(&self) -> usize {
        match self.scales {
            Scales::F16 | Scales::F16Min | Scales::Q6K => LANES * 4,
            Scales::Q2K => LANES * (4 + 16),
            Scales::Q3K => LANES * 12,
            Scales::Q4K => LANES * (4 + 12),
            Scales::Iq4Xs => LANES * 8,
            Scales::Affine { float, .. } => LANES * 2 * float.bytes(),
        }
    }

    /// Bytes of a whole span.
    pub const fn span_bytes(&self) -> usize {
        self.scale_bytes() + self.span() * self.block_bytes()
    }

    /// Offset within a strip of the scales of block `block`.
    pub const fn scale_offset_bytes(&self, block: usize) -> usize {
        self.head_bytes() + block / self.span() * self.span_bytes()
    }

    /// Offset within a strip of the codes of block `block`.
    pub const fn code_offset_bytes(&self, block: usize) -> usize {
        let within = block % self.span() * self.block_bytes();
        self.scale_offset_bytes(block) + self.scale_bytes() + within
    }

    /// Bytes of a strip.
    pub const fn strip_bytes(&self) -> usize {
        let spans = self.blocks.div_ceil(self.span());
        self.head_bytes() + spans * self.scale_bytes() + self.blocks * self.block_bytes()
    }
}
