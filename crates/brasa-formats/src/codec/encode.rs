//! f32 rows to stored bytes.

use super::{
    Block, BlockIQ4NL, BlockIQ4XS, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1,
    BlockQ5K, BlockQ6K, BlockQ8_0, CodecError, Result, float,
};
use crate::StorageFormat;

/// Encodes one row, or several that lie one after the other, to `out`.
///
/// Quantised formats minimise `Σ importance·(x − x̂)²` block by block; without importances every element counts
/// the same. Importances are one number per element, such as the mean square of the activation that the element
/// meets. Q8_0 and plain floats ignore them. The same input gives the same bytes on every machine.
///
/// A scale beyond the largest half (65504) saturates, as do finite values in F16; plain floats keep infinities
/// and NaN.
///
/// # Errors
///
/// [`CodecError::RowLen`] if `x` is no whole number of blocks, [`CodecError::StoredLen`] if `out` has another
/// size than they need, [`CodecError::NotFinite`] for an infinity or NaN in a quantised row,
/// [`CodecError::Importance`] for importances that are no weights of this row, [`CodecError::ThreeArrays`] for MLX,
/// which [`mlx::encode_row`](super::mlx::encode_row) encodes. Nothing was written.
pub fn encode_row(
    format: StorageFormat,
    x: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<()> {
    if let StorageFormat::MlxAffine(_) = format {
        return Err(CodecError::ThreeArrays { format });
    }
    let expected = format.row_bytes(x.len()).ok_or(CodecError::RowLen { format, row_len: x.len() })?;
    if out.len() != expected {
        return Err(CodecError::StoredLen { format, found: out.len(), expected });
    }
    if !format.is_float() {
        check_finite(format, x)?;
    }
    if let Some(importance) = importance {
        check_importance(format, importance, x.len())?;
    }
    match format {
        StorageFormat::F32 => float::encode_f32(x, out),
        StorageFormat::F16 => float::encode_f16(x, out),
        StorageFormat::BF16 => float::encode_bf16(x, out),
        StorageFormat::Q4_0 => encode_blocks::<BlockQ4_0>(x, importance, out),
        StorageFormat::Q4_1 => encode_blocks::<BlockQ4_1>(x, importance, out),
        StorageFormat::Q5_0 => encode_blocks::<BlockQ5_0>(x, importance, out),
        StorageFormat::Q5_1 => encode_blocks::<BlockQ5_1>(x, importance, out),
        StorageFormat::Q8_0 => encode_blocks::<BlockQ8_0>(x, importance, out),
        StorageFormat::Q2_K => encode_blocks::<BlockQ2K>(x, importance, out),
        StorageFormat::Q3_K => encode_blocks::<BlockQ3K>(x, importance, out),
        StorageFormat::Q4_K => encode_blocks::<BlockQ4K>(x, importance, out),
        StorageFormat::Q5_K => encode_blocks::<BlockQ5K>(x, importance, out),
        StorageFormat::Q6_K => encode_blocks::<BlockQ6K>(x, importance, out),
        StorageFormat::IQ4_NL => encode_blocks::<BlockIQ4NL>(x, importance, out),
        StorageFormat::IQ4_XS => encode_blocks::<BlockIQ4XS>(x, importance, out),
        StorageFormat::MlxAffine(_) => return Err(CodecError::ThreeArrays { format }),
    }
    Ok(())
}

fn encode_blocks<B: Block>(x: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (i, (x, stored)) in x.chunks_exact(B::LEN).zip(out.chunks_exact_mut(size_of::<B>())).enumerate() {
        let importance = importance.map(|importance| &importance[i * B::LEN..][..B::LEN]);
        stored.copy_from_slice(bytemuck::bytes_of(&B::encode(x, importance)));
    }
}

fn check_finite(format: StorageFormat, x: &[f32]) -> Result<()> {
    match x.iter().enumerate().find(|(_, x)| !x.is_finite()) {
        Some((index, &value)) => Err(CodecError::NotFinite { format, index, value }),
        None => Ok(()),
    }
}

fn check_importance(format: StorageFormat, importance: &[f32], row_len: usize) -> Result<()> {
    let found = if importance.len() == row_len {
        match importance.iter().enumerate().find(|(_, w)| !w.is_finite() || **w < 0.0) {
            Some((index, w)) => format!("number {index} is {w}"),
            None => return Ok(()),
        }
    } else {
        format!("{} numbers", importance.len())
    };
    Err(CodecError::Importance { format, found, row_len })
}

/// The elements and weights of a block in a range where no square overflows or vanishes.
///
/// Elements so small that no half could scale them become zeros; importances are relative to their largest, and
/// all 1 if every one is 0.
pub(super) fn prepare<const N: usize>(x: &[f32], importance: Option<&[f32]>) -> ([f32; N], [f32; N]) {
    const SMALLEST: f32 = 1e-12;
    const LARGEST: f32 = 1e12;
    assert_eq!(x.len(), N, "elements of a block");
    let mut values = [0.0; N];
    for (value, x) in values.iter_mut().zip(x) {
        *value = if x.abs() < SMALLEST { 0.0 } else { x.clamp(-LARGEST, LARGEST) };
    }
    let mut weights = [1.0; N];
    if let Some(importance) = importance {
        assert_eq!(importance.len(), N, "importances of a block");
        let largest = importance.iter().copied().fold(0.0, f32::max);
        if largest > 0.0 {
            for (weight, importance) in weights.iter_mut().zip(importance) {
                *weight = importance / largest;
            }
        }
    }
    (values, weights)
}
