//! What products are made of: which of the processor's units a weight and a number of rows are multiplied on.

use super::int8;
#[cfg(target_arch = "x86_64")]
use super::tiled::BF16_ROWS;
use crate::Isa;

/// Numbers that are multiplied, and the unit that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Weight codes times int8 activations, summed in 32 bits.
    Int8,
    /// The same in tiles.
    Int8Tiles,
    /// f32 times f32, to which stored weights are widened. So is attention, whatever the weights are.
    F32,
    /// Weights and activations rounded to bf16, summed in f32.
    Bf16,
    /// The same in tiles.
    Bf16Tiles,
}

/// What of a weight's storage format decides about its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightClass {
    /// Codes and scales.
    Quantised,
    /// F16 and BF16.
    Half,
    /// F32, and whatever is multiplied in reference precision.
    Full,
}

impl Arithmetic {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Int8, Self::Int8Tiles, Self::F32, Self::Bf16, Self::Bf16Tiles];

    /// The products of `rows` rows of activations with weights of a class.
    pub const fn of(isa: Isa, class: WeightClass, rows: usize) -> Self {
        match class {
            WeightClass::Quantised if isa.has_tiles() && rows >= int8::panel_rows(isa) => Self::Int8Tiles,
            WeightClass::Quantised => Self::Int8,
            #[cfg(target_arch = "x86_64")]
            WeightClass::Half if isa.has_bf16() && rows >= BF16_ROWS => {
                if isa.has_tiles() {
                    Self::Bf16Tiles
                } else {
                    Self::Bf16
                }
            }
            WeightClass::Half | WeightClass::Full => Self::F32,
        }
    }

    /// A name for people and for JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int8Tiles => "int8 tiles",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16Tiles => "bf16 tiles",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_multiplied_without_tiles_and_without_rounding() {
        for isa in Isa::choices() {
            assert_eq!(Arithmetic::of(isa, WeightClass::Quantised, 1), Arithmetic::Int8, "{}", isa.name());
            assert_eq!(Arithmetic::of(isa, WeightClass::Half, 1), Arithmetic::F32, "{}", isa.name());
        }
    }

    #[test]
    fn many_rows_are_multiplied_by_what_the_instruction_set_names() {
        let many = |isa: Isa, class| Arithmetic::of(isa, class, 512);
        for isa in Isa::available() {
            assert_eq!(many(isa, WeightClass::Full), Arithmetic::F32, "{}", isa.name());
            assert_eq!(many(isa, WeightClass::Half), Arithmetic::F32, "{}", isa.name());
            let Some(bf16) = isa.with_bf16() else { continue };
            let tiles = isa.has_tiles();
            assert_eq!(
                many(bf16, WeightClass::Half),
                if tiles { Arithmetic::Bf16Tiles } else { Arithmetic::Bf16 }
            );
            assert_eq!(
                many(bf16, WeightClass::Quantised),
                if tiles { Arithmetic::Int8Tiles } else { Arithmetic::Int8 }
            );
        }
    }
}
