//! IQ4_NL: 32 four-bit indices into a fixed non-linear table, one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};

use super::fit::{Levels, fit_scale, quantise};
use super::q4_0::{pack_nibbles, unpack_nibbles};
use super::{Block, Half, prepare};
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

    fn encode(x: &[f32], importance: Option<&[f32]>) -> Self {
        let (x, w) = prepare::<32>(x, importance);
        let d = Half::from_scale(fit_scale(NonLinear, &x, &w));
        let (levels, _) = quantise(NonLinear, &x, &w, d.to_f32());
        Self { d, qs: pack_nibbles(levels.map(index_of)) }
    }
}

/// The levels of [`IQ4_NL_VALUES`].
#[derive(Clone, Copy)]
pub(super) struct NonLinear;

impl Levels for NonLinear {
    #[inline]
    fn nearest<const N: usize>(self, values: [f32; N]) -> [f32; N] {
        // Climb one level for every midpoint that lies below the value.
        let mut levels = [f32::from(IQ4_NL_VALUES[0]); N];
        for pair in IQ4_NL_VALUES.windows(2) {
            let (below, above) = (f32::from(pair[0]), f32::from(pair[1]));
            let (middle, rise) = (0.5 * (below + above), above - below);
            for (level, &value) in levels.iter_mut().zip(&values) {
                *level += if value > middle { rise } else { 0.0 };
            }
        }
        levels
    }

    fn reaches(self) -> impl Iterator<Item = f32> {
        (-8..=8).flat_map(|i| [-127.0 + 1.5 * i as f32, 113.0 + 1.5 * i as f32])
    }
}

/// The index of a level.
pub(super) fn index_of(level: f32) -> u8 {
    IQ4_NL_VALUES.partition_point(|&value| f32::from(value) < level) as u8
}
