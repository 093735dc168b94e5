//! Q8_0: 32 signed bytes and one scale, 8.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::{Block, Half};
use crate::StorageFormat;

/// `x = d · q`, q in −127…127.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale.
    pub d: Half,
    /// Codes.
    pub qs: [i8; 32],
}

impl Block for BlockQ8_0 {
    const FORMAT: StorageFormat = StorageFormat::Q8_0;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of a Q8_0 block");
        let d = self.d.to_f32();
        for (x, &q) in out.iter_mut().zip(&self.qs) {
            *x = f32::from(q) * d;
        }
    }
}
