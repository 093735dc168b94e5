//! Q5_0: 32 five-bit codes around 16 and one scale, 5.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{Integers, fit_scale, quantise};
use super::q4_0::{pack_nibbles, unpack_nibbles};
use super::{Block, Half, prepare};
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

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<32>(x, importance);
        let levels = Integers { half: 16.0 };
        let d = Half::from_scale(fit_scale(levels, &x, &w));
        let (codes, _) = quantise(levels, &x, &w, d.to_f32());
        let (qh, qs) = pack_fives(codes.map(|q| (q + 16.0) as u8));
        Self { d, qh, qs }
    }
}

/// The inverse of [`unpack_fives`]: `(qh, qs)`.
pub(super) fn pack_fives(codes: [u8; 32]) -> ([u8; 4], [u8; 16]) {
    let qh = codes.iter().enumerate().fold(0, |qh, (i, code)| qh | u32::from(code >> 4) << i);
    (qh.to_le_bytes(), pack_nibbles(codes))
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
