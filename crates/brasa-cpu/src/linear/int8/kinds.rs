//! Formats as types, and the way from a layout and a number of rows to the kernel compiled for them.

use super::super::layout::{Codes, Layout, Scales, Shape};

/// A format as a type: kernels are compiled for each.
pub(super) trait Kind {
    const CODES: Codes;
    const SHAPE: Shape;
    /// Where the kind alone says how scales are stored; MLX groups differ.
    const SCALES: Option<Scales>;

    /// The same layout, of which the compiler knows all that the kind says: strides become constants.
    #[inline(always)]
    fn layout(layout: &Layout) -> Layout {
        let scales = Self::SCALES.unwrap_or(layout.scales);
        Layout { codes: Self::CODES, scales, shape: Self::SHAPE, blocks: layout.blocks }
    }
}

macro_rules! kinds {
    ($($kind:ident: $codes:ident $shape:ident $scales:expr;)*) => {
        $(
            pub(super) struct $kind;

            impl Kind for $kind {
                const CODES: Codes = Codes::$codes;
                const SHAPE: Shape = Shape::$shape;
                const SCALES: Option<Scales> = $scales;
            }
        )*
    };
}

kinds! {
    Q4_0: Bits4 Whole Some(Scales::Half);
    Q4_1: Bits4 WholeMin Some(Scales::HalfMin);
    Q5_0: Bits5 Whole Some(Scales::Half);
    Q5_1: Bits5 WholeMin Some(Scales::HalfMin);
    Q8_0: Bits8 Whole Some(Scales::Half);
    Iq4Nl: Table4 Whole Some(Scales::Half);
    Iq4Xs: Table4 Whole Some(Scales::Iq4Xs);
    Q2K: Bits2 HalvesMin Some(Scales::Q2K);
    Q3K: Bits3 Halves Some(Scales::Q3K);
    Q4K: Bits4 WholeMin Some(Scales::Q4K);
    Q5K: Bits5 WholeMin Some(Scales::Q4K);
    Q6K: Bits6 Halves Some(Scales::Q6K);
    Mlx2: Bits2 WholeMin None;
    Mlx3: Bits3 WholeMin None;
    Mlx4: Bits4 WholeMin None;
    Mlx5: Bits5 WholeMin None;
    Mlx6: Bits6 WholeMin None;
    Mlx8: Bits8 WholeMin None;
}

/// Evaluates the expression with `$kind` standing for the kind of `$layout`.
macro_rules! with_kind {
    ($layout:expr, $kind:ident => $value:expr) => {
        with_kind!(@ $layout, $kind, $value,
            Q4_0 Bits4 Half, Q4_1 Bits4 HalfMin, Q5_0 Bits5 Half, Q5_1 Bits5 HalfMin, Q8_0 Bits8 Half,
            Iq4Nl Table4 Half, Iq4Xs Table4 Iq4Xs, Q2K Bits2 Q2K, Q3K Bits3 Q3K, Q4K Bits4 Q4K, Q5K Bits5 Q4K,
            Q6K Bits6 Q6K, Mlx2 Bits2 Affine, Mlx3 Bits3 Affine, Mlx4 Bits4 Affine, Mlx5 Bits5 Affine,
            Mlx6 Bits6 Affine, Mlx8 Bits8 Affine)
    };
    (@ $layout:expr, $kind:ident, $value:expr, $($name:ident $codes:ident $scales:ident),*) => {
        match ($layout.codes, $layout.scales) {
            $((Codes::$codes, Scales::$scales { .. }) => {
                type $kind = super::kinds::$name;
                $value
            })*
            (codes, scales) => unreachable!("no format stores {codes:?} with {scales:?}"),
        }
    };
}
pub(super) use with_kind;

/// Evaluates the expression with `$kind` standing for a kind whose panels are multiplied as those of `$layout`: what
/// codes were packed from no longer matters, only their width and the shape.
#[cfg(target_arch = "x86_64")]
macro_rules! with_panel_kind {
    ($layout:expr, $kind:ident => $value:expr) => {
        with_panel_kind!(@ $layout, $kind, $value,
            Q8_0 Whole Codes::Bits8 | Codes::Table4, Q4_0 Whole _,
            Mlx8 WholeMin Codes::Bits8, Mlx6 WholeMin Codes::Bits6, Q4_1 WholeMin _,
            Q6K Halves Codes::Bits6, Q3K Halves _, Q2K HalvesMin _)
    };
    (@ $layout:expr, $kind:ident, $value:expr, $($name:ident $shape:ident $codes:pat),*) => {
        match ($layout.shape, $layout.codes) {
            $((Shape::$shape, $codes) => {
                type $kind = super::kinds::$name;
                $value
            })*
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use with_panel_kind;

/// Evaluates the expression with the constant `$rows` equal to `$len`, one of 1, 2, 4, 8.
macro_rules! with_rows {
    ($len:expr, $rows:ident => $value:expr, $($count:literal)*) => {
        match $len {
            $($count => {
                const $rows: usize = $count;
                $value
            })*
            len => unreachable!("a kernel call of {len} rows"),
        }
    };
}
pub(super) use with_rows;
