//! The storage formats that have kernels, in one list.
//!
//! [`for_each_format`] names every format once, with the width of its codes, its shape and its scales. Layout, the types that
//! kernels are compiled for, and dispatch follow from the list. A new format of a known width and known scales needs one
//! entry here and the arm of [`pack`](super::pack) that reads its blocks.

use brasa_formats::codec::IQ4_NL_VALUES;
use brasa_formats::{MlxAffine, StorageFormat};

/// Width and meaning of stored codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Codes {
    Bits2,
    Bits3,
    Bits4,
    Bits5,
    Bits6,
    Bits8,
    /// 4 bits that select one of 16 values from the format's table.
    Table4(&'static [i8; 16]),
}

/// Stored form of scales and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    /// An f16 scale per block.
    F16,
    /// An f16 scale and an f16 minimum per block.
    F16Min,
    /// Q2_K: per output two f16 and 16 bytes, each a 4-bit scale and a 4-bit minimum.
    Q2K,
    /// Q3_K: per output one f16 (in the strip's head) and sixteen 6-bit scales in 12 bytes.
    Q3K,
    /// Q4_K and Q5_K: per output two f16, and eight 6-bit scales and eight 6-bit minima in 12 bytes.
    Q4K,
    /// Q6_K: per output one f16 (in the strip's head) and sixteen i8.
    Q6K,
    /// IQ4_XS: per output one f16 and eight 6-bit scales in 6 bytes.
    Iq4Xs,
    /// MLX: a scale and a bias of two bytes (f16 or bf16) or four bytes per group.
    Affine { group_blocks: usize, float: Float },
}

/// Storage type of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Float {
    F32,
    F16,
    BF16,
}

/// Number of scales and minima of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One scale; codes have an offset.
    Whole,
    /// One scale and one minimum.
    WholeMin,
    /// A scale for each half of 16 inputs; codes have an offset.
    Halves,
    /// A scale and a minimum for each half of 16 inputs.
    HalvesMin,
}

/// Bits of an unpacked code, as far as they limit how many products fit a sum of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    UpTo5,
    Six,
    Eight,
}

impl Codes {
    /// The codes of IQ4_NL and IQ4_XS.
    pub const IQ4: Self = Self::Table4(&IQ4_NL_VALUES);

    /// The table as bytes: values as i8 if `centred`, else values + 128 as u8. Zeros for codes without a table.
    pub const fn table(self, centred: bool) -> [u8; 16] {
        let mut table = [0; 16];
        let Self::Table4(values) = self else { return table };
        let mut index = 0;
        while index < 16 {
            table[index] = values[index] as u8 ^ if centred { 0 } else { 0x80 };
            index += 1;
        }
        table
    }

    /// Bits of a stored code.
    pub const fn bits(self) -> usize {
        match self {
            Self::Bits2 => 2,
            Self::Bits3 => 3,
            Self::Bits4 | Self::Table4(_) => 4,
            Self::Bits5 => 5,
            Self::Bits6 => 6,
            Self::Bits8 => 8,
        }
    }

    /// Number that a format without a minimum subtracts from an unpacked code.
    pub const fn offset(self) -> u8 {
        match self {
            Self::Table4(_) => 128,
            stored => 1 << (stored.bits() - 1),
        }
    }

    /// Width of unpacked codes: codes of a table become bytes.
    pub const fn width(self) -> Width {
        match self {
            Self::Bits2 | Self::Bits3 | Self::Bits4 | Self::Bits5 => Width::UpTo5,
            Self::Bits6 => Width::Six,
            Self::Bits8 | Self::Table4(_) => Width::Eight,
        }
    }
}

impl Width {
    /// The largest unpacked code.
    #[cfg(any(target_arch = "x86_64", test))]
    pub const fn largest_code(self) -> i32 {
        match self {
            Self::UpTo5 => 31,
            Self::Six => 63,
            Self::Eight => 255,
        }
    }
}

impl Float {
    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// The float that `format` stores plainly; `None` for quantised formats.
    pub const fn of(format: StorageFormat) -> Option<Self> {
        match format {
            StorageFormat::F32 => Some(Self::F32),
            StorageFormat::F16 => Some(Self::F16),
            StorageFormat::BF16 => Some(Self::BF16),
            _ => None,
        }
    }
}

impl Shape {
    /// Scales of a block.
    pub const fn scales_per_block(self) -> usize {
        match self {
            Self::Whole | Self::WholeMin => 1,
            Self::Halves | Self::HalvesMin => 2,
        }
    }

    /// Minima of a block.
    pub const fn mins_per_block(self) -> usize {
        if self.has_min() { self.scales_per_block() } else { 0 }
    }

    /// True if each half of a block has a scale of its own.
    pub const fn has_halves(self) -> bool {
        matches!(self, Self::Halves | Self::HalvesMin)
    }

    /// True if a minimum is added to scaled codes.
    pub const fn has_min(self) -> bool {
        matches!(self, Self::WholeMin | Self::HalvesMin)
    }
}

/// Meaning of unpacked codes: all that a kernel of panels must know at compile time.
pub(super) trait Meaning {
    const SHAPE: Shape;
    const WIDTH: Width;
}

/// A format as a type: kernels are compiled for each.
pub(super) trait Kind: Meaning {
    const CODES: Codes;
    /// Scales, if the format alone determines them. MLX groups differ from weight to weight.
    const SCALES: Option<Scales>;
}

/// Codes in panels as a type. A panel does not keep the storage format of its codes.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) struct InPanel<const HALVES: bool, const MIN: bool, const BITS: usize>;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
impl<const HALVES: bool, const MIN: bool, const BITS: usize> Meaning for InPanel<HALVES, MIN, BITS> {
    const SHAPE: Shape = match (HALVES, MIN) {
        (false, false) => Shape::Whole,
        (false, true) => Shape::WholeMin,
        (true, false) => Shape::Halves,
        (true, true) => Shape::HalvesMin,
    };
    const WIDTH: Width = match BITS {
        5 => Width::UpTo5,
        6 => Width::Six,
        8 => Width::Eight,
        _ => panic!("unpacked codes have up to 5, 6 or 8 bits"),
    };
}

/// Hands the list of formats to macro `$then`, behind its own arguments.
macro_rules! for_each_format {
    ([$($then:tt)*] $($arguments:tt)*) => {
        $($then)*! { ($($arguments)*)
            Q4_0: StorageFormat::Q4_0 => Bits4 Whole Some(Scales::F16);
            Q4_1: StorageFormat::Q4_1 => Bits4 WholeMin Some(Scales::F16Min);
            Q5_0: StorageFormat::Q5_0 => Bits5 Whole Some(Scales::F16);
            Q5_1: StorageFormat::Q5_1 => Bits5 WholeMin Some(Scales::F16Min);
            Q8_0: StorageFormat::Q8_0 => Bits8 Whole Some(Scales::F16);
            Iq4Nl: StorageFormat::IQ4_NL => IQ4 Whole Some(Scales::F16);
            Iq4Xs: StorageFormat::IQ4_XS => IQ4 Whole Some(Scales::Iq4Xs);
            Q2K: StorageFormat::Q2_K => Bits2 HalvesMin Some(Scales::Q2K);
            Q3K: StorageFormat::Q3_K => Bits3 Halves Some(Scales::Q3K);
            Q4K: StorageFormat::Q4_K => Bits4 WholeMin Some(Scales::Q4K);
            Q5K: StorageFormat::Q5_K => Bits5 WholeMin Some(Scales::Q4K);
            Q6K: StorageFormat::Q6_K => Bits6 Halves Some(Scales::Q6K);
            Mlx2: StorageFormat::MlxAffine(MlxAffine { bits: 2, .. }) => Bits2 WholeMin None;
            Mlx3: StorageFormat::MlxAffine(MlxAffine { bits: 3, .. }) => Bits3 WholeMin None;
            Mlx4: StorageFormat::MlxAffine(MlxAffine { bits: 4, .. }) => Bits4 WholeMin None;
            Mlx5: StorageFormat::MlxAffine(MlxAffine { bits: 5, .. }) => Bits5 WholeMin None;
            Mlx6: StorageFormat::MlxAffine(MlxAffine { bits: 6, .. }) => Bits6 WholeMin None;
            Mlx8: StorageFormat::MlxAffine(MlxAffine { bits: 8, .. }) => Bits8 WholeMin None;
        }
    };
}

macro_rules! define {
    (() $($name:ident: $stored:pat => $codes:ident $shape:ident $scales:expr;)*) => {
        /// A quantised format that has kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Format { $($name,)* }

        impl Format {
            /// The format of stored weights; `None` for plain floats and for formats without kernels.
            pub fn of(stored: StorageFormat) -> Option<Self> {
                match stored {
                    $($stored => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Codes, shape, and scales if the format alone determines them.
            pub const fn parts(self) -> (Codes, Shape, Option<Scales>) {
                match self {
                    $(Self::$name => (Codes::$codes, Shape::$shape, $scales),)*
                }
            }
        }

        /// A type for each format.
        pub(super) mod kinds {
            use super::{Codes, Kind, Meaning, Scales, Shape, Width};
            $(
                pub struct $name;
                impl Meaning for $name {
                    const SHAPE: Shape = Shape::$shape;
                    const WIDTH: Width = Codes::$codes.width();
                }
                impl Kind for $name {
                    const CODES: Codes = Codes::$codes;
                    const SCALES: Option<Scales> = $scales;
                }
            )*
        }
    };
}
for_each_format!([define]);

/// Evaluates the expression with `$kind` standing for the type of the format of `$layout`.
macro_rules! with_kind {
    ($layout:expr, $kind:ident => $value:expr) => {
        $crate::linear::formats::for_each_format!([$crate::linear::formats::dispatch] $layout, $kind => $value)
    };
}

macro_rules! dispatch {
    (($layout:expr, $kind:ident => $value:expr)
     $($name:ident: $stored:pat => $codes:ident $shape:ident $scales:expr;)*) => {
        match $layout.format {
            $($crate::linear::formats::Format::$name => {
                type $kind = $crate::linear::formats::kinds::$name;
                $value
            })*
        }
    };
}

/// Evaluates the expression with `$kind` standing for the meaning of codes in panels of `$layout`: every shape with every width.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! with_panel_kind {
    ($layout:expr, $kind:ident => $value:expr) => {{
        use $crate::linear::formats::{Shape, with_panel_kind};
        match $layout.shape {
            Shape::Whole => with_panel_kind!(@ $layout, false, false, $kind => $value),
            Shape::WholeMin => with_panel_kind!(@ $layout, false, true, $kind => $value),
            Shape::Halves => with_panel_kind!(@ $layout, true, false, $kind => $value),
            Shape::HalvesMin => with_panel_kind!(@ $layout, true, true, $kind => $value),
        }
    }};
    (@ $layout:expr, $halves:literal, $min:literal, $kind:ident => $value:expr) => {
        match $layout.codes.width() {
            $crate::linear::formats::Width::UpTo5 => {
                type $kind = $crate::linear::formats::InPanel<$halves, $min, 5>;
                $value
            }
            $crate::linear::formats::Width::Six => {
                type $kind = $crate::linear::formats::InPanel<$halves, $min, 6>;
                $value
            }
            $crate::linear::formats::Width::Eight => {
                type $kind = $crate::linear::formats::InPanel<$halves, $min, 8>;
                $value
            }
        }
    };
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use with_panel_kind;
pub(super) use {dispatch, for_each_format, with_kind};
