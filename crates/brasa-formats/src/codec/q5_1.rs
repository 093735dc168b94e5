//! Q5_1: 32 five-bit codes, a scale and an offset, 6 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{Line, Offsets, fit_line};
use super::q5_0::{pack_fives, unpack_fives};
use super::{Block, Half, prepare};
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

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<32>(x, importance);
        let line = fit_line(31.0, Offsets::Free, &x, &w);
        let (d, m) = (Half::from_scale(line.scale), Half::from_scale(line.offset));
        let stored = Line { scale: d.to_f32(), offset: m.to_f32() };
        let (codes, _) = stored.quantise(31.0, &x, &w);
        let (qh, qs) = pack_fives(codes.map(|q| q as u8));
        Self { d, m, qh, qs }
    }
}
