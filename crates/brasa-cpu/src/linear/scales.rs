//! From stored scales to f32: one scale (and minimum) per row for each block of 32 or half block of 16.
//!
//! `x = scale · (code − offset)` or `x = scale · code + min`. Products of a half-precision super-scale and an
//! integer sub-scale are exact in f32, so nothing is lost here, on any instruction set.

use super::layout::{Float, LANES, Layout, Scales, UNIT_BLOCKS};

/// One value per row of a tile.
pub(super) type Lanes = [f32; LANES];

/// The scales of a unit.
#[repr(C, align(64))]
#[derive(Clone)]
pub(super) struct UnitScales {
    /// By block, or by half block.
    pub scale: [Lanes; 2 * UNIT_BLOCKS],
    /// As `scale`; untouched where the shape has no minimum.
    pub min: [Lanes; 2 * UNIT_BLOCKS],
}

impl UnitScales {
    pub const ZERO: Self =
        Self { scale: [[0.0; LANES]; 2 * UNIT_BLOCKS], min: [[0.0; LANES]; 2 * UNIT_BLOCKS] };
}

/// Expands the scales of unit `unit`: `head` is the tile's head, `stored` starts at the unit.
#[inline(always)]
pub(super) fn expand(layout: &Layout, head: &[u8], unit: usize, stored: &[u8], out: &mut UnitScales) {
    let blocks = layout.unit_blocks(unit);
    match layout.scales {
        Scales::Half => {
            for (stored, out) in stored.as_chunks::<{ 2 * LANES }>().0.iter().zip(&mut out.scale).take(blocks)
            {
                *out = halves(stored);
            }
        }
        Scales::HalfMin => {
            let (pairs, _) = stored.as_chunks::<{ 4 * LANES }>();
            for ((pair, scale), min) in pairs.iter().zip(&mut out.scale).zip(&mut out.min).take(blocks) {
                *scale = halves(first(pair));
                *min = halves(first(&pair[2 * LANES..]));
            }
        }
        Scales::Q2K => {
            let (d, dmin) = super_scales(stored);
            for sub in 0..16 {
                let words = words(&stored[4 * LANES * (1 + sub / 4)..]);
                for lane in 0..LANES {
                    let byte = words[lane] >> (8 * (sub % 4));
                    out.scale[sub][lane] = d[lane] * (byte & 15) as i32 as f32;
                    out.min[sub][lane] = -(dmin[lane] * ((byte >> 4) & 15) as i32 as f32);
                }
            }
        }
        Scales::Q3K => {
            let d = halves(first(&head[2 * LANES * unit..]));
            let high = words(&stored[8 * LANES..]);
            for sub in 0..16 {
                let low = words(&stored[4 * LANES * (sub / 4 % 2)..]);
                for lane in 0..LANES {
                    let low = (low[lane] >> (8 * (sub % 4) + 4 * (sub / 8))) & 15;
                    let high = (high[lane] >> (8 * (sub % 4) + 2 * (sub / 4))) & 3;
                    out.scale[sub][lane] = d[lane] * ((low | high << 4) as i32 - 32) as f32;
                }
            }
        }
        Scales::Q4K => {
            let (d, dmin) = super_scales(stored);
            let scales = words(&stored[4 * LANES..]);
            let mins = words(&stored[8 * LANES..]);
            let rest = words(&stored[12 * LANES..]);
            for sub in 0..4 {
                let shift = 8 * sub;
                for lane in 0..LANES {
                    let (scale, min, rest) =
                        (scales[lane] >> shift, mins[lane] >> shift, rest[lane] >> shift);
                    let late_scale = (rest & 15) | (scale >> 2 & 0x30);
                    let late_min = (rest >> 4 & 15) | (min >> 2 & 0x30);
                    out.scale[sub][lane] = d[lane] * (scale & 63) as i32 as f32;
                    out.min[sub][lane] = -(dmin[lane] * (min & 63) as i32 as f32);
                    out.scale[sub + 4][lane] = d[lane] * late_scale as i32 as f32;
                    out.min[sub + 4][lane] = -(dmin[lane] * late_min as i32 as f32);
                }
            }
        }
        Scales::Q6K => {
            let d = halves(first(&head[2 * LANES * unit..]));
            for (sub, bytes) in stored.as_chunks::<LANES>().0.iter().take(16).enumerate() {
                for lane in 0..LANES {
                    out.scale[sub][lane] = d[lane] * (bytes[lane] as i8) as i32 as f32;
                }
            }
        }
        Scales::Iq4Xs => {
            let d = halves(first(stored));
            let high = shorts(first(&stored[2 * LANES..]));
            let low = words(&stored[4 * LANES..]);
            for sub in 0..8 {
                for lane in 0..LANES {
                    let low = (low[lane] >> (4 * sub)) & 15;
                    let high = (high[lane] >> (2 * sub)) & 3;
                    out.scale[sub][lane] = d[lane] * ((low | high << 4) as i32 - 32) as f32;
                }
            }
        }
        Scales::Affine { group_blocks, float } => {
            let size = LANES * float.bytes();
            for block in 0..blocks {
                let stored = &stored[block / group_blocks * 2 * size..];
                out.scale[block] = floats(float, stored);
                out.min[block] = floats(float, &stored[size..]);
            }
        }
    }
}

#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("a whole unit")
}

#[inline(always)]
fn super_scales(stored: &[u8]) -> (Lanes, Lanes) {
    (halves(first(stored)), halves(first(&stored[2 * LANES..])))
}

#[inline(always)]
fn words(bytes: &[u8]) -> [u32; LANES] {
    let words = first::<{ 4 * LANES }>(bytes).as_chunks::<4>().0;
    std::array::from_fn(|lane| u32::from_le_bytes(words[lane]))
}

#[inline(always)]
fn shorts(bytes: &[u8; 2 * LANES]) -> [u32; LANES] {
    let shorts = bytes.as_chunks::<2>().0;
    std::array::from_fn(|lane| u16::from_le_bytes(shorts[lane]) as u32)
}

#[inline(always)]
pub(super) fn floats(float: Float, bytes: &[u8]) -> Lanes {
    match float {
        Float::F32 => words(bytes).map(f32::from_bits),
        Float::F16 => halves(first(bytes)),
        Float::BF16 => shorts(first(bytes)).map(|bits| f32::from_bits(bits << 16)),
    }
}

/// Half to single precision without branches, so that the compiler keeps all lanes in one vector.
#[inline(always)]
fn halves(bytes: &[u8; 2 * LANES]) -> Lanes {
    shorts(bytes).map(|half| {
        let exponent_and_fraction = (half & 0x7fff) << 13;
        let exponent = exponent_and_fraction & 0x0f80_0000;
        let rebased = exponent_and_fraction + (112 << 23);
        let subnormal = (f32::from_bits(rebased + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
        let special = rebased + (112 << 23);
        let magnitude = if exponent == 0 { subnormal } else { rebased };
        let magnitude = if exponent == 0x0f80_0000 { special } else { magnitude };
        f32::from_bits(magnitude | (half & 0x8000) << 16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_converted_as_ieee_says() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let mut bytes = [0; 2 * LANES];
            bytes[6..8].copy_from_slice(&bits.to_le_bytes());
            let found = halves(&bytes)[3];
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{bits:#06x}: {found} instead of {expected}"
            );
        }
    }
}
