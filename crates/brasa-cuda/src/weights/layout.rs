//! Orders in which weights lie in tiles, as `kernels/hopper/layout.cuh` defines them.

use brasa_formats::{MlxAffine, Payload, StorageFormat};
use brasa_graph::{Weight, WeightPart};

/// Outputs of a tile.
pub(crate) const TILE_OUTPUTS: usize = 16;
/// Inputs of a sub.
pub(crate) const SUB_INPUTS: usize = 64;

/// A format of tiles. Several stored formats may lie in one, their values unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "names are those of stored formats")]
pub(crate) enum Layout {
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_K,
    Q6_K,
    Q5_K,
    Q4_1,
    /// Codes of eight bits, with a scale and an offset for each 32.
    MLX8,
    Q3_K,
    Q2_K,
    IQ4_XS,
}

/// Sizes of a format: bytes of a unit's header and of a sub, and subs of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    header_bytes: usize,
    sub_bytes: usize,
    unit_subs: usize,
}

impl Layout {
    /// How rows of `part` lie on the device, and the power of two by which scales and offsets are multiplied there to be numbers of
    /// f16; `None` for rows that stay as they are stored.
    pub(super) fn of(part: &WeightPart) -> Option<(Self, i32)> {
        let layout = Self::of_format(part.format())?;
        match &part.tensor.payload {
            Payload::Mlx { scales, biases, scale_format, .. } => {
                let bits = Bits::of(scales, *scale_format)?.and(Bits::of(biases, *scale_format)?);
                Some((layout, bits.power_to_f16()?))
            }
            Payload::Blocks(_) => Some((layout, 0)),
        }
    }

    /// How rows of `format` lie on the device, if MLX's scales and biases can be numbers of f16.
    fn of_format(format: StorageFormat) -> Option<Self> {
        Some(match format {
            StorageFormat::F16 => Self::F16,
            StorageFormat::BF16 => Self::BF16,
            StorageFormat::Q8_0 | StorageFormat::Q5_0 | StorageFormat::IQ4_NL => Self::Q8_0,
            StorageFormat::Q4_0 => Self::Q4_0,
            StorageFormat::Q4_1 => Self::Q4_1,
            StorageFormat::Q5_1 => Self::MLX8,
            StorageFormat::Q2_K => Self::Q2_K,
            StorageFormat::Q3_K => Self::Q3_K,
            StorageFormat::Q4_K => Self::Q4_K,
            StorageFormat::Q5_K => Self::Q5_K,
            StorageFormat::Q6_K => Self::Q6_K,
            StorageFormat::IQ4_XS => Self::IQ4_XS,
            StorageFormat::MlxAffine(MlxAffine { bits, group_size })
                if group_size >= 32 && group_size.is_multiple_of(32) =>
            {
                match bits {
                    2..=4 => Self::Q4_1,
                    5..=6 | 8 => Self::MLX8,
                    _ => return None,
                }
            }
            StorageFormat::MlxAffine(_) | StorageFormat::F32 => return None,
        })
    }

    /// Number of the layout in `layout.cuh`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::F16 => 0,
            Self::Q8_0 => 1,
            Self::Q4_0 => 2,
            Self::Q4_K => 3,
            Self::Q6_K => 4,
            Self::BF16 => 5,
            Self::Q5_K => 6,
            Self::Q4_1 => 7,
            Self::MLX8 => 8,
            Self::Q3_K => 9,
            Self::Q2_K => 10,
            Self::IQ4_XS => 11,
        }
    }

    fn sizes(self) -> Sizes {
        let (header_bytes, sub_bytes, unit_subs) = match self {
            Self::F16 | Self::BF16 => (0, 2048, 1),
            Self::Q8_0 => (0, 1088, 1),
            Self::Q4_0 => (0, 576, 1),
            Self::Q4_K => (64, 576, 4),
            Self::Q6_K => (32, 832, 4),
            Self::Q5_K => (64, 704, 4),
            Self::Q4_1 => (0, 640, 1),
            Self::MLX8 => (0, 1152, 1),
            Self::Q3_K => (32, 448, 4),
            Self::Q2_K => (64, 320, 4),
            Self::IQ4_XS => (32, 544, 4),
        };
        Sizes { header_bytes, sub_bytes, unit_subs }
    }

    /// Subs of a unit.
    pub(crate) fn unit_subs(self) -> usize {
        self.sizes().unit_subs
    }

    /// Bytes of a unit.
    pub(crate) fn unit_bytes(self) -> usize {
        let Sizes { header_bytes, sub_bytes, unit_subs } = self.sizes();
        header_bytes + unit_subs * sub_bytes
    }

    /// Subs of a tile with rows of `row_len`.
    pub(super) fn subs(self, row_len: usize) -> usize {
        row_len.div_ceil(SUB_INPUTS).next_multiple_of(self.unit_subs())
    }

    /// Bytes of a tile of `subs` subs.
    pub(super) fn tile_bytes(self, subs: usize) -> usize {
        subs / self.unit_subs() * self.unit_bytes()
    }
}

/// Bytes of rows `part` of `weight`: in tiles, where their format lies so. Scales in f32 are hardly ever numbers of f16.
pub(super) fn part_bytes(weight: &Weight, part: &WeightPart) -> u64 {
    let long_scales = matches!(part.tensor.payload, Payload::Mlx { scale_format: StorageFormat::F32, .. });
    match Layout::of_format(part.format()).filter(|_| !long_scales) {
        Some(layout) => {
            let tile_bytes = layout.tile_bytes(layout.subs(weight.row_len())) as u64;
            tile_bytes.saturating_mul(part.rows.len().div_ceil(TILE_OUTPUTS) as u64)
        }
        None => (part.tensor.size_bytes() / part.tensor.rows().max(1) * part.rows.len()) as u64,
    }
}

/// The exponents of the highest and the lowest bit that some of many numbers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bits {
    highest: i32,
    lowest: i32,
}

impl Bits {
    /// The bits of no number but zero.
    const NONE: Self = Self { highest: i32::MIN, lowest: i32::MAX };

    /// `None` for numbers of another format than floats, and where one is infinite, none, or longer than f16's eleven bits.
    fn of(bytes: &[u8], format: StorageFormat) -> Option<Self> {
        fn all(mut floats: impl Iterator<Item = u32>) -> Option<Bits> {
            floats.try_fold(Bits::NONE, |all, bits| Some(all.and(Bits::of_float(bits)?)))
        }
        match format {
            // As they are.
            StorageFormat::F16 => Some(Self::NONE),
            StorageFormat::BF16 => {
                all(bytes.as_chunks().0.iter().map(|&b| u32::from(u16::from_le_bytes(b)) << 16))
            }
            StorageFormat::F32 => all(bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b))),
            _ => None,
        }
    }

    fn of_float(bits: u32) -> Option<Self> {
        let (exponent, fraction) = ((bits >> 23 & 255) as i32, bits & 0x7f_ffff);
        if exponent == 0 && fraction == 0 {
            return Some(Self::NONE);
        }
        // Subnormal numbers count as if they had a bit in front of the point: they are too small all the same.
        let zeros = (fraction | 0x80_0000).trailing_zeros() as i32;
        (exponent < 255 && zeros >= 13)
            .then_some(Self { highest: exponent - 127, lowest: exponent - 150 + zeros })
    }

    fn and(self, other: Self) -> Self {
        Self { highest: self.highest.max(other.highest), lowest: self.lowest.min(other.lowest) }
    }

    /// The power of two nearest to 0 by which all numbers become numbers of f16, whose bits are those of 2^-24 to 2^15.
    fn power_to_f16(self) -> Option<i32> {
        if self == Self::NONE {
            return Some(0);
        }
        let (least, most) = (-24 - self.lowest, 15 - self.highest);
        (least <= most && (-60..=60).contains(&self.highest)).then(|| 0.clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use brasa_formats::codec::Half;

    use super::*;

    #[test]
    fn sizes_and_numbers_are_those_of_the_kernels() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/hopper/layout.cuh");
        let header = std::fs::read_to_string(path).expect("the header");
        for layout in StorageFormat::GGUF.into_iter().filter_map(Layout::of_format) {
            let Sizes { header_bytes, sub_bytes, unit_subs } = layout.sizes();
            let line = header.lines().find(|line| line.contains(&format!("case {layout:?}:")));
            let line = line.expect("its line");
            let sizes = format!("return {{{header_bytes}, {sub_bytes}, {unit_subs}}};");
            assert!(line.contains(&sizes), "{line}");
            let number = format!("{layout:?} = {},", layout.number());
            assert!(header.contains(&number), "{number}");
        }
    }

    #[test]
    fn floats_are_brought_into_the_range_of_f16() {
        let power = |values: &[u16]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Bits::of(&bytes, StorageFormat::BF16).and_then(Bits::power_to_f16)
        };
        for bits in 0..=u16::MAX {
            let value = f32::from_bits(u32::from(bits) << 16);
            let found = power(&[bits]).map(|power| value * 2.0_f32.powi(power));
            let is_near = value == 0.0 || (2.0_f32.powi(-60)..2.0_f32.powi(61)).contains(&value.abs());
            assert_eq!(found.is_some(), is_near, "{value}");
            let exact = |found: f32| Half::from_f32(found).to_f32().to_bits() == found.to_bits();
            assert!(found.is_none_or(exact), "{value}: {found:?}");
        }
        // 1.0 and 1e-7, the least scale that MLX makes; 1.0 and 1e-12; infinity.
        assert_eq!(
            (power(&[0x3f80, 0x33d7]), power(&[0x3f80, 0x2b8c]), power(&[0x7f80])),
            (Some(7), None, None)
        );
        assert_eq!(power(&[0x3f80, 0]), Some(0));
    }
}
