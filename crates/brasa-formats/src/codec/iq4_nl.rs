//! IQ4_NL: 32 four-bit indices into a fixed non-linear table, one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::q4_0::unpack_nibbles;
use super::{Block, Half};
use crate::StorageFormat;

/// The values that an index of IQ4_NL and IQ4_XS stands for: dense near zero, where weights are.
pub const IQ4_NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `x = d · T[q]`, T = [`IQ4_NL_VALUES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIQ4NL {
    /// Scale.
    pub d: Half,
    /// Byte j holds element j in its low nibble, element j + 16 in its high nibble.
    pub qs: [u8; 16],
}

impl Block for BlockIQ4NL {
    const FORMAT: StorageFormat = StorageFormat::IQ4_NL;
    const LEN: usize = 32;

    fn decode(&self, out: &mut [f32]) {
        assert_eq!(out.len(), Self::LEN, "elements of an IQ4_NL block");
        let d = self.d.to_f32();
        for (x, q) in out.iter_mut().zip(unpack_nibbles(self.qs)) {
            *x = d * f32::from(IQ4_NL_VALUES[usize::from(q)]);
        }
    }
}
