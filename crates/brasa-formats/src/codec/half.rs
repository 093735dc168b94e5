//! A half-precision number inside a block.

use bytemuck::{Pod, Zeroable};

/// An IEEE 754 half as two little-endian bytes, without alignment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half([u8; 2]);

impl Half {
    /// The half with these bits.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits.to_le_bytes())
    }

    /// The stored bits.
    pub const fn to_bits(self) -> u16 {
        u16::from_le_bytes(self.0)
    }

    /// The nearest half, ties to even.
    pub fn from_f32(value: f32) -> Self {
        Self::from_bits(half::f16::from_f32(value).to_bits())
    }

    /// The nearest half that still is a scale: too large values saturate, and what is not 0 does not become 0.
    pub(super) fn from_scale(value: f32) -> Self {
        let nearest = Self::from_f32(value.clamp(-65504.0, 65504.0));
        if nearest.to_f32() == 0.0 && value != 0.0 { Self::from_bits(nearest.to_bits() | 1) } else { nearest }
    }

    /// The exact value.
    pub fn to_f32(self) -> f32 {
        half::f16::from_bits(self.to_bits()).to_f32()
    }
}
