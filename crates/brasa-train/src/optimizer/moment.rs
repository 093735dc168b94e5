//! Moments: arrays that an optimizer keeps from update to update.

use super::eight_bits::Codes;

/// An array that an optimizer keeps from update to update.
#[derive(Clone, Debug, PartialEq)]
pub enum Moment {
    /// Numbers in f32.
    Floats(Vec<f32>),
    /// Numbers in eight bits.
    Codes(Codes),
}

impl Moment {
    /// Makes `count` zeros in f32.
    pub fn zeros(count: usize) -> Self {
        Self::Floats(vec![0.0; count])
    }

    /// Bytes of the moment.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Floats(values) => 4 * values.len() as u64,
            Self::Codes(codes) => codes.codes.len() as u64 + 4 * codes.magnitudes.len() as u64,
        }
    }

    /// Number of elements, and whether they are stored in eight bits.
    pub(super) fn kind(&self) -> (usize, bool) {
        match self {
            Self::Floats(values) => (values.len(), false),
            Self::Codes(codes) => (codes.codes.len(), true),
        }
    }

    /// The numbers, if they are in f32.
    pub fn as_floats(&self) -> Option<&[f32]> {
        match self {
            Self::Floats(values) => Some(values),
            Self::Codes(_) => None,
        }
    }

    /// The numbers, which must be in f32.
    ///
    /// # Panics
    ///
    /// If they are in eight bits.
    pub(super) fn floats(&mut self) -> &mut [f32] {
        match self {
            Self::Floats(values) => values,
            Self::Codes(_) => panic!("moments of eight bits, expected f32"),
        }
    }
}
