//! Q4_1: 32 four-bit codes, a scale and an offset, 5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{Line, Offsets, fit_line};
use super::q4_0::{pack_nibbles, unpack_nibbles};
use super::{Block, Half, prepare};
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

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<32>(x, importance);
        let line = fit_line(15.0, Offsets::Free, &x, &w);
        let (d, m) = (Half::from_scale(line.scale), Half::from_scale(line.offset));
        let stored = Line { scale: d.to_f32(), offset: m.to_f32() };
        let (codes, _) = stored.quantise(15.0, &x, &w);
        Self { d, m, qs: pack_nibbles(codes.map(|q| q as u8)) }
    }
}
