//! The loop that multiplies a weight with a number of rows, and the thresholds between loops.

use super::layout::Unpacking;
use crate::Isa;

/// The class of a weight: the part of its storage format that decides how products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightClass {
    /// Codes and scales.
    Quantised,
    /// F16 and BF16.
    Float16,
    /// F32.
    Full,
    /// Rows in their stored form: reference precision, and formats without kernels.
    Stored,
}

/// The loop that multiplies; each is a file in `loops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Few rows times codes, which are unpacked as they stream from memory.
    Planes,
    /// Many rows with codes, which are unpacked before, a part of a strip at a time.
    Panels,
    /// Up to 16 rows times codes on tiles of int8, while weights stream from memory.
    FewOnTiles,
    /// Many rows times unpacked codes on tiles of int8.
    PanelsOnTiles,
    /// Many rows times any weights, both rounded to bf16, in vectors.
    Bf16,
    /// Many rows times any weights, both rounded to bf16, on tiles.
    Bf16OnTiles,
    /// Rows times floats.
    Floats,
    /// Rows times stored weights, decoded one by one.
    Decoded,
}

/// Numbers of rows at which routes change, with the measurement behind each.
///
/// | threshold | measured | result |
/// |---|---|---|
/// | [`PANELS_IF_SLOW`](Self::PANELS_IF_SLOW) | Q3_K, AVX-512 (Zen 4), 24 and 32 rows | planes take 6 and 9 % longer than panels; Q2_K and Q6_K are alike at 32 |
/// | [`PANELS_IF_MEDIUM`](Self::PANELS_IF_MEDIUM) | Q4_K, Q5_1, Q4_1, the same | panels take 11, 6 and 8 % longer at 32 rows, 2 % at 64, and 3 % less at 512 |
/// | [`PANELS_OF_OTHERS`](Self::PANELS_OF_OTHERS) | AVX2 | unpacking costs more than that wait |
/// | [`TILES`](Self::TILES) | a Xeon with AMX | up to 4 rows are not worth the way into tiles and out of them |
/// | [`FEW_ON_TILES`](Self::FEW_ON_TILES) | Xeon (Emerald Rapids), 8 sequences | gate and up in 5.06 ms while weights stream, 5.87 on vectors; a tile has 16 rows |
/// | [`BF16_OF_FLOATS`](Self::BF16_OF_FLOATS) | – | no measurement but a promise: up to 8 sequences that decode together are each computed as if alone |
/// | [`BF16_OF_CODES`](Self::BF16_OF_CODES) | Xeon (Sapphire Rapids), Q4_0 | rounding weights takes as long as four groups of 16 rows, and int8 tiles half as long again for a group; 512 rows: 816–888 instead of 449–493 GOP/s |
struct Thresholds;

impl Thresholds {
    /// Fewest rows that multiply panels with AVX-512 if codes are unpacked slowly.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "an instruction set of x86-64"))]
    const PANELS_IF_SLOW: usize = 17;
    /// Fewest rows that multiply panels with AVX-512 if codes are unpacked neither fast nor slowly.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "an instruction set of x86-64"))]
    const PANELS_IF_MEDIUM: usize = 64;
    /// Fewest rows that multiply panels with other instruction sets.
    const PANELS_OF_OTHERS: usize = 8;
    /// Fewest rows that multiply codes on tiles.
    const TILES: usize = 5;
    /// Most rows that multiply codes on tiles while weights stream.
    const FEW_ON_TILES: usize = 16;
    /// Fewest rows that multiply F16 and BF16 weights in bf16.
    const BF16_OF_FLOATS: usize = 9;
    /// Fewest rows that multiply quantised weights in bf16.
    const BF16_OF_CODES: usize = 48;
}

impl Route {
    /// The loop for the products of `rows` rows with weights of a class. Codes count as unpacked at medium speed, which decides
    /// nothing about the arithmetic.
    pub const fn of(isa: Isa, class: WeightClass, rows: usize) -> Self {
        match class {
            WeightClass::Quantised
                if isa.has_tiles() && isa.has_bf16() && rows >= Thresholds::BF16_OF_CODES =>
            {
                Self::Bf16OnTiles
            }
            WeightClass::Quantised => Self::of_int8(isa, Unpacking::Medium, rows),
            WeightClass::Float16 if isa.has_bf16() && rows >= Thresholds::BF16_OF_FLOATS => {
                if isa.has_tiles() { Self::Bf16OnTiles } else { Self::Bf16 }
            }
            WeightClass::Float16 | WeightClass::Full => Self::Floats,
            WeightClass::Stored => Self::Decoded,
        }
    }

    /// The loop for the products of `rows` rows of int8 activations, which are never rounded to bf16.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "decides for AVX-512"))]
    pub const fn of_int8(isa: Isa, unpacking: Unpacking, rows: usize) -> Self {
        if isa.has_tiles() && rows >= Thresholds::TILES {
            return if rows <= Thresholds::FEW_ON_TILES { Self::FewOnTiles } else { Self::PanelsOnTiles };
        }
        let panels = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => match unpacking {
                // Eight rows times planes come within 3 % of what the instructions allow.
                Unpacking::Fast => return Self::Planes,
                Unpacking::Medium => Thresholds::PANELS_IF_MEDIUM,
                Unpacking::Slow => Thresholds::PANELS_IF_SLOW,
            },
            _ => Thresholds::PANELS_OF_OTHERS,
        };
        if rows >= panels { Self::Panels } else { Self::Planes }
    }

    /// True if `rows` rows are multiplied with the other side of weights of a class in bf16.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "vectors of x86-64 multiply bf16"))]
    pub const fn turns(isa: Isa, class: WeightClass, rows: usize) -> bool {
        let rounds = matches!(class, WeightClass::Quantised | WeightClass::Float16);
        rounds && isa.has_bf16() && rows >= Thresholds::BF16_OF_FLOATS
    }

    const fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Planes | Self::Panels => Arithmetic::Int8,
            Self::FewOnTiles | Self::PanelsOnTiles => Arithmetic::Int8Tiles,
            Self::Bf16 => Arithmetic::Bf16,
            Self::Bf16OnTiles => Arithmetic::Bf16Tiles,
            Self::Floats | Self::Decoded => Arithmetic::F32,
        }
    }
}

/// Numbers that are multiplied, and the unit that multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arithmetic {
    /// Weight codes times int8 activations, summed in 32 bits.
    Int8,
    /// Weight codes times int8 activations on tiles.
    Int8Tiles,
    /// f32 times f32, to which stored weights are widened. Attention is of this kind, except on bf16 tiles.
    F32,
    /// Weights and activations rounded to bf16, summed in f32.
    Bf16,
    /// Weights and activations rounded to bf16, on tiles.
    Bf16Tiles,
}

impl Arithmetic {
    /// Every arithmetic.
    pub const ALL: [Self; 5] = [Self::Int8, Self::Int8Tiles, Self::F32, Self::Bf16, Self::Bf16Tiles];

    /// The arithmetic of products of `rows` rows of activations with weights of a class.
    pub const fn of(isa: Isa, class: WeightClass, rows: usize) -> Self {
        Route::of(isa, class, rows).arithmetic()
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

    const fn forms(self) -> Forms {
        let none = Forms { float: false, int8: false, bf16: false };
        match self {
            Self::Int8 | Self::Int8Tiles => Forms { int8: true, ..none },
            Self::F32 => Forms { float: true, ..none },
            Self::Bf16 | Self::Bf16Tiles => Forms { bf16: true, ..none },
        }
    }
}

/// The forms in which activations are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// f32.
    pub float: bool,
    /// Blocks of int8.
    pub int8: bool,
    /// Tiles of bf16.
    pub bf16: bool,
}

impl Forms {
    /// The forms that either reads.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            float: self.float || other.float,
            int8: self.int8 || other.int8,
            bf16: self.bf16 || other.bf16,
        }
    }
}

/// The classes of several weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightClasses([bool; 4]);

impl WeightClasses {
    /// The classes in any of `all`.
    pub fn of_all(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |Self(a), Self(b)| Self(std::array::from_fn(|class| a[class] || b[class])))
    }

    /// True if a weight is of this class.
    pub const fn has(self, class: WeightClass) -> bool {
        self.0[class as usize]
    }

    /// The forms that products of `rows` rows read.
    pub fn forms(self, isa: Isa, rows: usize) -> Forms {
        use WeightClass::{Float16, Full, Quantised, Stored};
        let classes = [Quantised, Float16, Full, Stored].into_iter().filter(|class| self.has(*class));
        classes.map(|class| Arithmetic::of(isa, class, rows).forms()).fold(Forms::default(), Forms::or)
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

/// The largest number of rows, up to `count`, that may be multiplied with another stored form of the weight than more rows are.
pub(crate) fn most_few_rows(count: usize) -> usize {
    if cfg!(target_arch = "x86_64") { count.min(Thresholds::BF16_OF_CODES - 1) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_multiplied_without_tiles_and_without_rounding() {
        for isa in Isa::choices() {
            assert_eq!(Route::of(isa, WeightClass::Quantised, 1), Route::Planes, "{}", isa.name());
            assert_eq!(Route::of(isa, WeightClass::Float16, 1), Route::Floats, "{}", isa.name());
        }
    }

    #[test]
    fn many_rows_are_multiplied_by_what_the_instruction_set_names() {
        let many = |isa: Isa, class| Route::of(isa, class, 512);
        for isa in Isa::available() {
            assert_eq!(many(isa, WeightClass::Full), Route::Floats, "{}", isa.name());
            assert_eq!(many(isa, WeightClass::Float16), Route::Floats, "{}", isa.name());
            assert_eq!(many(isa, WeightClass::Stored), Route::Decoded, "{}", isa.name());
            let Some(bf16) = isa.with_bf16() else { continue };
            let (floats, codes) = if isa.has_tiles() {
                (Route::Bf16OnTiles, Route::Bf16OnTiles)
            } else {
                (Route::Bf16, Route::Panels)
            };
            assert_eq!(many(bf16, WeightClass::Float16), floats);
            assert_eq!(many(bf16, WeightClass::Quantised), codes);
        }
    }

    /// The routes of a Q4_K product, which the documentation of the parent module names.
    #[test]
    fn one_eight_and_many_rows_of_codes_take_the_documented_routes() {
        for isa in Isa::available().into_iter().chain(Isa::named("amx-emulated")) {
            let routes = [1, 8, 16, 17, 512].map(|rows| Route::of(isa, WeightClass::Quantised, rows));
            let expected = match isa.name() {
                "amx" | "amx-emulated" => [
                    Route::Planes,
                    Route::FewOnTiles,
                    Route::FewOnTiles,
                    Route::PanelsOnTiles,
                    Route::PanelsOnTiles,
                ],
                "avx512" => [Route::Planes, Route::Planes, Route::Planes, Route::Planes, Route::Panels],
                _ => [Route::Planes, Route::Panels, Route::Panels, Route::Panels, Route::Panels],
            };
            assert_eq!(routes, expected, "{}", isa.name());
        }
    }
}
