//! Q5_1: 32 five-bit codes, a scale and an offset, 6 bits per element.

use bytemuck::{Pod, Zeroable};

use super::q5_0::unpack_fives;
use super::{Block, Half};
use crate::StorageFormat;

/// `x = d · q + m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale.
    pub d: Half,
    /// Offset: the value of code 0.
    pub m: Half,
    /// A little-endian word; bit i is bit 4 of element i.
    pub qh: [u8; 4],
    /// Byte j holds the lower four bits of element j in its low nibble, of element j + 16 in its high nibble.
    pub qs: [u8; 16],
}

impl Block for BlockQ5_1 {
    const FORMAT: StorageFormat = StorageFormat::Q5_1;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q5_1 block");
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (x, q) in out.iter_mut().zip(unpack_fives(self.qh, self.qs)) {
            *x = d * f32::from(q) + m;
        }
    }
}
