//! The order of plain floats in packed weights.
//!
//! A strip of 16 outputs is stored input by input, so a vector of 16 lanes holds one input's weights of all outputs.
//! BF16 keeps pairs of inputs together in each 32-bit lane, which is what a matrix unit reads and what shift and mask
//! give back.

use super::formats::Float;
use super::layout::LANES;

/// The layout of plain floats.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatLayout {
    pub float: Float,
    /// Inputs.
    pub k: usize,
}

impl FloatLayout {
    /// Bytes of a strip.
    pub const fn strip_bytes(&self) -> usize {
        match self.float {
            Float::BF16 => self.k.div_ceil(2) * LANES * 4,
            float => (self.k * LANES * float.bytes()).next_multiple_of(64),
        }
    }

    /// Offset within a strip of the weight of `lane` and input `k`.
    const fn offset_bytes(&self, lane: usize, k: usize) -> usize {
        match self.float {
            Float::BF16 => (k / 2 * LANES + lane) * 4 + k % 2 * 2,
            float => (k * LANES + lane) * float.bytes(),
        }
    }

    /// Packs up to 16 rows of stored floats. `strip` must be zero before.
    pub fn pack_strip(&self, rows: &[&[u8]], strip: &mut [u8]) {
        match self.float {
            Float::F32 => interleave::<4>(rows, strip),
            Float::F16 => interleave::<2>(rows, strip),
            Float::BF16 => {
                interleave::<4>(rows, strip);
                if !self.k.is_multiple_of(2) {
                    for (lane, row) in rows.iter().enumerate() {
                        strip[self.offset_bytes(lane, self.k - 1)..][..2]
                            .copy_from_slice(&row[row.len() - 2..]);
                    }
                }
            }
        }
    }

    /// The weight of `lane` and input `k`.
    #[inline]
    pub fn weight(&self, strip: &[u8], lane: usize, k: usize) -> f32 {
        let stored = &strip[self.offset_bytes(lane, k)..];
        let short = || u16::from_le_bytes([stored[0], stored[1]]);
        match self.float {
            Float::F32 => f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]),
            Float::F16 => half::f16::from_bits(short()).to_f32(),
            Float::BF16 => half::bf16::from_bits(short()).to_f32(),
        }
    }
}

/// Puts words of W bytes side by side: the first of all rows, then the second of all.
///
/// Reading sixteen streams and writing one is twice as fast as the other way about. Bytes of a row behind its last whole
/// word are left out.
fn interleave<const W: usize>(rows: &[&[u8]], strip: &mut [u8]) {
    let lines = strip.as_chunks_mut::<W>().0.as_chunks_mut::<LANES>().0.iter_mut();
    if let Ok(rows) = <[&[u8]; LANES]>::try_from(rows) {
        let rows = rows.map(|row| row.as_chunks::<W>().0);
        let words = rows[0].len();
        let rows = rows.map(|row| &row[..words]);
        for (k, line) in lines.enumerate().take(words) {
            for (to, row) in line.iter_mut().zip(&rows) {
                *to = row[k];
            }
        }
    } else {
        for (k, line) in lines.enumerate() {
            for (to, row) in line.iter_mut().zip(rows) {
                if let Some(word) = row.as_chunks::<W>().0.get(k) {
                    *to = *word;
                }
            }
        }
    }
}
