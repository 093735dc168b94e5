//! Q8_0: 32 signed bytes and one scale, 8.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{extreme, inverse};
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

    /// The largest element sets the scale, as everywhere: files of different writers are then equal.
    fn encode(x: &[f32], _importance: Option<&[f32]>) -> Self {
        assert_eq!(x.len(), Self::LEN, "elements of a Q8_0 block");
        let d = extreme(x).abs() / 127.0;
        let inverse = inverse(d);
        let mut block = Self { d: Half::from_f32(d.min(65504.0)), qs: [0; 32] };
        for (q, x) in block.qs.iter_mut().zip(x) {
            *q = (x * inverse).round() as i8;
        }
        block
    }
}
