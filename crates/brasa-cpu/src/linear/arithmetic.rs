//! What products are made of: which of the processor's units a weight and a number of rows are multiplied on.

use super::int8;
#[cfg(target_arch = "x86_64")]
use super::rounded::{HALF_ROWS, QUANTISED_ROWS};
use crate::Isa;

/// Numbers that are multiplied, and the unit that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Weight codes times int8 activations, summed in 32 bits.
    Int8,
    /// The same in tiles.
    Int8Tiles,
    /// f32 times f32, to which stored weights are widened. So is attention, but for prompts on bf16 tiles.
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
    Float16,
    /// F32, and whatever is multiplied in reference precision.
    Full,
}

/// Of at most `count` rows, how many may be wanted in another form than all of them.
#[cfg(target_arch = "x86_64")]
pub(crate) fn most_few_rows(count: usize) -> usize {
    count.min(QUANTISED_ROWS - 1)
}

/// The same: here no form depends on how many there are.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn most_few_rows(_: usize) -> usize {
    0
}

/// The classes of several weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightClasses([bool; 3]);

/// In which forms activations are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// As f32.
    pub float: bool,
    /// As int8 blocks.
    pub int8: bool,
    /// As bf16 tiles.
    pub bf16: bool,
}

impl WeightClasses {
    /// Those of several.
    pub fn of_all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |Self(a), Self(b)| Self(std::array::from_fn(|class| a[class] || b[class])))
    }

    /// True where a weight is of this class.
    pub const fn has(self, class: WeightClass) -> bool {
        self.0[class as usize]
    }

    /// What products of `rows` rows read.
    pub fn forms(self, isa: Isa, rows: usize) -> Forms {
        let classes = [WeightClass::Quantised, WeightClass::Float16, WeightClass::Full].into_iter();
        let forms =
            classes.filter(|class| self.has(*class)).map(|class| Arithmetic::of(isa, class, rows).forms());
        forms.fold(Forms::default(), Forms::or)
    }
}

impl FromIterator<WeightClass> for WeightClasses {
    fn from_iter<I: IntoIterator<Item = WeightClass>>(classes: I) -> Self {
        let mut all = Self::default();
        for class in classes {
            all.0[class as usize] = true;
        }
        all
    }
}

impl Forms {
    /// What either wants.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            float: self.float || other.float,
            int8: self.int8 || other.int8,
            bf16: self.bf16 || other.bf16,
        }
    }
}

impl Arithmetic {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Int8, Self::Int8Tiles, Self::F32, Self::Bf16, Self::Bf16Tiles];

    /// The products of `rows` rows of activations with weights of a class.
    pub const fn of(isa: Isa, class: WeightClass, rows: usize) -> Self {
        match class {
            #[cfg(target_arch = "x86_64")]
            WeightClass::Quantised if isa.has_tiles() && isa.has_bf16() && rows >= QUANTISED_ROWS => {
                Self::Bf16Tiles
            }
            WeightClass::Quantised => Self::int8(isa, rows),
            #[cfg(target_arch = "x86_64")]
            WeightClass::Float16 if isa.has_bf16() && rows >= HALF_ROWS => {
                if isa.has_tiles() {
                    Self::Bf16Tiles
                } else {
                    Self::Bf16
                }
            }
            WeightClass::Float16 | WeightClass::Full => Self::F32,
        }
    }

    /// The products of `rows` rows of int8 activations.
    pub(super) const fn int8(isa: Isa, rows: usize) -> Self {
        if isa.has_tiles() && rows >= int8::TILED_ROWS { Self::Int8Tiles } else { Self::Int8 }
    }

    /// What activations are multiplied as.
    const fn forms(self) -> Forms {
        let none = Forms { float: false, int8: false, bf16: false };
        match self {
            Self::Int8 | Self::Int8Tiles => Forms { int8: true, ..none },
            Self::F32 => Forms { float: true, ..none },
            Self::Bf16 | Self::Bf16Tiles => Forms { bf16: true, ..none },
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
            assert_eq!(Arithmetic::of(isa, WeightClass::Float16, 1), Arithmetic::F32, "{}", isa.name());
        }
    }

    #[test]
    fn many_rows_are_multiplied_by_what_the_instruction_set_names() {
        let many = |isa: Isa, class| Arithmetic::of(isa, class, 512);
        for isa in Isa::available() {
            assert_eq!(many(isa, WeightClass::Full), Arithmetic::F32, "{}", isa.name());
            assert_eq!(many(isa, WeightClass::Float16), Arithmetic::F32, "{}", isa.name());
            let Some(bf16) = isa.with_bf16() else { continue };
            let tiles = isa.has_tiles();
            assert_eq!(
                many(bf16, WeightClass::Float16),
                if tiles { Arithmetic::Bf16Tiles } else { Arithmetic::Bf16 }
            );
            assert_eq!(
                many(bf16, WeightClass::Quantised),
                if tiles { Arithmetic::Bf16Tiles } else { Arithmetic::Int8 }
            );
        }
    }
}
