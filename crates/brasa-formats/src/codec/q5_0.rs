//! Q5_0: 32 five-bit codes around 16 and one scale, 5.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::q4_0::unpack_nibbles;
use super::{Block, Half};
use crate::StorageFormat;

/// `x = d · (q − 16)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale.
    pub d: Half,
    /// A little-endian word; bit i is bit 4 of element i.
    pub qh: [u8; 4],
    /// Byte j holds the lower four bits of element j in its low nibble, of element j + 16 in its high nibble.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_0 {
    const FORMAT: StorageFormat = StorageFormat::Q5_0;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q5_0 block");
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(unpack_fives(self.qh, self.qs)) {
            *x = d * f32::from(q as i8 - 16);
        }
    }
}

/// The 32 five-bit codes of Q5_0 and Q5_1.
pub(super) fn unpack_fives(qh: [u8; 4], qs: [u8; 16]) -> [u8; 32] {
    let mut codes = unpack_nibbles(qs);
    let qh = u32::from_le_bytes(qh);
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((qh >> i & 1) as u8) << 4;
    }
    codes
}
