//! Q4_1: 32 four-bit codes, a scale and an offset, 5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::q4_0::unpack_nibbles;
use super::{Block, Half};
use crate::StorageFormat;

/// `x = d · q + m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale.
    pub d: Half,
    /// Offset: the value of code 0.
    pub m: Half,
    /// Byte j holds element j in its low nibble, element j + 16 in its high nibble.
    pub qs: [u8; 16],
}

impl Block for BlockQ4_1 {
    const FORMAT: StorageFormat = StorageFormat::Q4_1;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q4_1 block");
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        for (x, q) in out.iter_mut().zip(unpack_nibbles(self.qs)) {
            *x = d * f32::from(q) + m;
        }
    }
}
