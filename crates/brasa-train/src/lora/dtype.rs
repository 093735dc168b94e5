//! The element type of an adapter's matrices in products.

use std::borrow::Cow;

use brasa_formats::{StorageFormat, codec};

/// The element type of `A` and `B` in products and in files.
///
/// The values that are learned are f32 in either case: with [`Bf16`](Self::Bf16) they are *master* values (Micikevicius et al.
/// 2017, arXiv:1710.03740). Forward and backward pass read them rounded to the nearest bfloat16, ties to even. The gradient of
/// the rounded values, summed in f32, changes the master values. Magnitudes of DoRA are always f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdapterDtype {
    /// Products read the learned f32 values.
    #[default]
    F32,
    /// Products read the learned values rounded to bfloat16.
    Bf16,
}

impl AdapterDtype {
    /// The format in which files store such matrices.
    pub fn storage_format(self) -> StorageFormat {
        match self {
            Self::F32 => StorageFormat::F32,
            Self::Bf16 => StorageFormat::BF16,
        }
    }

    /// The values as products read them: unchanged or rounded.
    pub(crate) fn seen(self, values: &[f32]) -> Cow<'_, [f32]> {
        if self == Self::F32 {
            return Cow::Borrowed(values);
        }
        let format = self.storage_format();
        let mut stored = vec![0; values.len() * format.block_bytes()];
        let mut seen = vec![0.0; values.len()];
        codec::encode_row(format, values, None, &mut stored).expect("floats of any number");
        codec::decode_row(format, &stored, &mut seen).expect("floats of any number");
        Cow::Owned(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_to_the_nearest_bfloat16_and_ties_to_even() {
        let one = 1.0_f32.to_bits();
        // One and a half of the last place between two bfloat16, which is a tie, and what lies beside it.
        let values = [one, one + 0x7FFF, one + 0x8000, one + 0x8001, one + 0x1_8000].map(f32::from_bits);
        let expected = [one, one, one, one + 0x1_0000, one + 0x2_0000].map(f32::from_bits);
        assert_eq!(AdapterDtype::Bf16.seen(&values), &expected[..]);
        assert_eq!(AdapterDtype::F32.seen(&values), &values[..]);
    }
}
