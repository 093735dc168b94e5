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

    /// The exact value.
    pub fn to_f32(self) -> f32 {
        half::f16::from_bits(self.to_bits()).to_f32()
    }
}
