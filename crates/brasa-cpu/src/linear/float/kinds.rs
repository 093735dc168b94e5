//! Storage types as types, and the way from a layout to the kernel compiled for it.

use super::super::layout::Float;

/// A storage type as a type: a kernel is compiled for each.
pub(super) trait Kind {
    const FLOAT: Float;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl Kind for F32 {
    const FLOAT: Float = Float::F32;
}
impl Kind for F16 {
    const FLOAT: Float = Float::F16;
}
impl Kind for BF16 {
    const FLOAT: Float = Float::BF16;
}

/// Evaluates the expression with `$kind` standing for the storage type of `$layout`.
macro_rules! with_kind {
    ($layout:expr, $kind:ident => $value:expr) => {
        match $layout.float {
            Float::F32 => {
                type $kind = $crate::linear::float::kinds::F32;
                $value
            }
            Float::F16 => {
                type $kind = $crate::linear::float::kinds::F16;
                $value
            }
            Float::BF16 => {
                type $kind = $crate::linear::float::kinds::BF16;
                $value
            }
        }
    };
}
pub(super) use with_kind;
