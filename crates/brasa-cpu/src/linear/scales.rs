//! From stored scales to f32: one scale (and minimum) per output for each block of 32 or half block of 16.
//!
//! `x = scale · (code − offset)` or `x = scale · code + min`. Products of an f16 super-scale and an
//! integer sub-scale are exact in f32, so nothing is lost here, on any instruction set.
//!
//! Loops go over 16 lanes in plain Rust, and the compiler makes vectors of them. Only the conversion of f16 needs an
//! instruction that the compiler does not find: [`WidenF16`].

use super::formats::{Float, Kind, Scales};
use super::layout::{LANES, Lanes};

/// The scales of a block, or of each half of it.
#[repr(C, align(64))]
#[derive(Clone)]
pub(super) struct BlockScales {
    /// The second is not written if the shape has one scale.
    pub scale: [Lanes; 2],
    /// The second is not written if the shape has one minimum; neither is written if it has none.
    pub min: [Lanes; 2],
}

impl BlockScales {
    pub const ZERO: Self = Self { scale: [[0.0; LANES]; 2], min: [[0.0; LANES]; 2] };
}

/// A proof of instructions that convert f16 to f32, and those instructions.
pub(super) trait WidenF16: Copy {
    /// Converts 16 little-endian f16.
    fn widen(self, bytes: &[u8; 2 * LANES]) -> Lanes;
}

/// Conversion of f16 in plain Rust.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl WidenF16 for Portable {
    #[inline(always)]
    fn widen(self, bytes: &[u8; 2 * LANES]) -> Lanes {
        let mut lanes = [0.0; LANES];
        for (lane, bytes) in lanes.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *lane = half::f16::from_le_bytes(*bytes).to_f32();
        }
        lanes
    }
}

/// Writes the scales of block `at` of a span of kind K to `out`.
///
/// `head` is the strip's head from the block's super-block on, `stored` the span. `scales` are those of the layout.
#[inline(always)]
pub(super) fn of_block<K: Kind>(
    widen: impl WidenF16,
    scales: Scales,
    head: &[u8],
    stored: &[u8],
    at: usize,
    out: &mut BlockScales,
) {
    // Not a match, of which every arm would be compiled for every kernel of every format.
    macro_rules! stored_as {
        ($scales:ident) => {
            const { matches!(K::SCALES, Some(Scales::$scales)) }
        };
    }
    if stored_as!(F16) {
        out.scale[0] = widen.widen(first(&stored[2 * LANES * at..]));
    } else if stored_as!(F16Min) {
        let pair: &[u8; 4 * LANES] = first(stored);
        out.scale[0] = widen.widen(first(pair));
        out.min[0] = widen.widen(first(&pair[2 * LANES..]));
    } else if stored_as!(Q2K) {
        let (d, dmin) = super_scales(widen, stored);
        let words = words(&stored[4 * LANES * (1 + at / 2)..]);
        for half in 0..2 {
            let shift = 16 * (at % 2) + 8 * half;
            out.scale[half] = times(&d, &field(&words, shift, 15));
            out.min[half] = negative_times(&dmin, &field(&words, shift + 4, 15));
        }
    } else if stored_as!(Q3K) {
        let d = widen.widen(first(head));
        let low = words(&stored[4 * LANES * (at / 2 % 2)..]);
        let high = words(&stored[8 * LANES..]);
        for half in 0..2 {
            let byte = 16 * (at % 2) + 8 * half;
            let (low_shift, high_shift) = (byte + at / 4 * 4, byte + at / 2 * 2);
            out.scale[half] = times(&d, &six_bits(&field(&low, low_shift, 15), &field(&high, high_shift, 3)));
        }
    } else if stored_as!(Q4K) {
        let (d, dmin) = super_scales(widen, stored);
        let shift = 8 * (at % 4);
        let scales = words(&stored[4 * LANES..]);
        let mins = words(&stored[8 * LANES..]);
        if at < 4 {
            out.scale[0] = times(&d, &field(&scales, shift, 63));
            out.min[0] = negative_times(&dmin, &field(&mins, shift, 63));
        } else {
            let rest = words(&stored[12 * LANES..]);
            let late = |low: usize, early: &[u32; LANES]| {
                let (mut codes, high) = (field(&rest, shift + low, 15), field(early, shift + 6, 3));
                for (code, high) in codes.iter_mut().zip(high) {
                    *code |= high << 4;
                }
                codes
            };
            out.scale[0] = times(&d, &late(0, &scales));
            out.min[0] = negative_times(&dmin, &late(4, &mins));
        }
    } else if stored_as!(Q6K) {
        let d = widen.widen(first(head));
        let pair: &[u8; 2 * LANES] = first(&stored[2 * LANES * at..]);
        for half in 0..2 {
            let bytes: &[u8; LANES] = first(&pair[half * LANES..]);
            for ((out, d), byte) in out.scale[half].iter_mut().zip(&d).zip(bytes) {
                *out = d * (*byte as i8) as i32 as f32;
            }
        }
    } else if stored_as!(Iq4Xs) {
        let d = widen.widen(first(stored));
        let high = shorts(first(&stored[2 * LANES..]));
        let low = words(&stored[4 * LANES..]);
        out.scale[0] = times(&d, &six_bits(&field(&low, 4 * at, 15), &field(&high, 2 * at, 3)));
    } else if let Scales::Affine { float, .. } = scales {
        out.scale[0] = floats(widen, float, stored);
        out.min[0] = floats(widen, float, &stored[LANES * float.bytes()..]);
    } else {
        unreachable!("scales without an arm: {scales:?}");
    }
}

#[inline(always)]
fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("a whole unit")
}

/// The bits `mask` of every word, shifted right by `shift`.
#[inline(always)]
fn field(words: &[u32; LANES], shift: usize, mask: u32) -> [i32; LANES] {
    let mut fields = [0; LANES];
    for (field, word) in fields.iter_mut().zip(words) {
        *field = (word >> shift & mask) as i32;
    }
    fields
}

/// Six-bit scales around 32 from their lower four and upper two bits.
#[inline(always)]
fn six_bits(low: &[i32; LANES], high: &[i32; LANES]) -> [i32; LANES] {
    let mut scales = [0; LANES];
    for ((scale, low), high) in scales.iter_mut().zip(low).zip(high) {
        *scale = (low | high << 4) - 32;
    }
    scales
}

#[inline(always)]
fn times(d: &Lanes, codes: &[i32; LANES]) -> Lanes {
    let mut products = [0.0; LANES];
    for ((product, d), code) in products.iter_mut().zip(d).zip(codes) {
        *product = d * *code as f32;
    }
    products
}

#[inline(always)]
fn negative_times(d: &Lanes, codes: &[i32; LANES]) -> Lanes {
    let mut products = times(d, codes);
    for product in &mut products {
        *product = -*product;
    }
    products
}

#[inline(always)]
fn super_scales(widen: impl WidenF16, stored: &[u8]) -> (Lanes, Lanes) {
    (widen.widen(first(stored)), widen.widen(first(&stored[2 * LANES..])))
}

#[inline(always)]
fn words(bytes: &[u8]) -> [u32; LANES] {
    let bytes = first::<{ 4 * LANES }>(bytes).as_chunks::<4>().0;
    let mut words = [0; LANES];
    for (word, bytes) in words.iter_mut().zip(bytes) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

#[inline(always)]
fn shorts(bytes: &[u8; 2 * LANES]) -> [u32; LANES] {
    let mut shorts = [0; LANES];
    for (short, bytes) in shorts.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *short = u32::from(u16::from_le_bytes(*bytes));
    }
    shorts
}

#[inline(always)]
fn floats(widen: impl WidenF16, float: Float, bytes: &[u8]) -> Lanes {
    let mut lanes = [0.0; LANES];
    match float {
        Float::F16 => return widen.widen(first(bytes)),
        Float::F32 => {
            for (lane, bits) in lanes.iter_mut().zip(words(bytes)) {
                *lane = f32::from_bits(bits);
            }
        }
        Float::BF16 => {
            for (lane, bits) in lanes.iter_mut().zip(shorts(first(bytes))) {
                *lane = f32::from_bits(bits << 16);
            }
        }
    }
    lanes
}
