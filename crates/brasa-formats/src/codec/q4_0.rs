//! Q4_0: 32 four-bit codes around 8 and one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::{Block, Half};
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
