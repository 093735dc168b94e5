//! Q4_0: 32 four-bit codes around 8 and one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{Integers, fit_scale, quantise};
use super::{Block, Half, prepare};
use crate::StorageFormat;

/// `x = d · (q − 8)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale.
    pub d: Half,
    /// Byte j holds element j in its low nibble, element j + 16 in its high nibble.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_0 {
    const FORMAT: StorageFormat = StorageFormat::Q4_0;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q4_0 block");
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(unpack_nibbles(self.qs)) {
            *x = d * f32::from(q as i8 - 8);
        }
    }

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<32>(x, importance);
        let levels = Integers { half: 8.0 };
        let d = Half::from_scale(fit_scale(levels, &x, &w));
        let (codes, _) = quantise(levels, &x, &w, d.to_f32());
        Self { d, qs: pack_nibbles(codes.map(|q| (q + 8.0) as u8)) }
    }
}

/// The inverse of [`unpack_nibbles`]; only the lower four bits of a code count.
pub(super) fn pack_nibbles(codes: [u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | codes[j + 16] << 4)
}

/// The 32 codes of 16 bytes: low nibbles first, then high ones.
pub(super) fn unpack_nibbles(qs: [u8; 16]) -> [u8; 32] {
    let mut codes = [0; 32];
    let (low, high) = codes.split_at_mut(16);
    for j in 0..16 {
        low[j] = qs[j] & 15;
        high[j] = qs[j] >> 4;
    }
    codes
}
