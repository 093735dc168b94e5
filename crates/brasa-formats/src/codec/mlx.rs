//! MLX affine quantisation: `x = scale · q + bias` per group, q unsigned.
//!
//! The codes of a row are one dense little-endian bit stream, lowest bits first, so eight codes of b bits fill
//! exactly b bytes and no code is padded to a byte or word. Scales and biases lie in two arrays of their own.
//!
//! MLX computes the product and the sum in the type of the scales; here both are f32, which equals
//! `mx.dequantize` given scales and biases widened to f32, and agrees with it to the last half or bfloat16
//! rounding otherwise.

use super::{CodecError, Result, decode_row as decode_floats};
use crate::{MlxAffine, StorageFormat};

/// One row of an MLX tensor, or several that lie one after the other in all three arrays.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Packed codes.
    pub words: &'a [u8],
    /// One scale per group.
    pub scales: &'a [u8],
    /// One bias per group.
    pub biases: &'a [u8],
    /// How scales and biases are stored: F32, F16 or BF16.
    pub scale_format: StorageFormat,
}

/// Decodes one row of `out.len()` elements.
///
/// # Errors
///
/// [`CodecError::MlxParameters`] for parameters that the format does not have; [`CodecError::RowLen`] where `out`
/// is no whole number of groups or its codes no whole number of bytes; [`CodecError::StoredLen`] where one of the
/// three arrays has another size than `out` asks for. `out` then holds nothing useful.
pub fn decode_row(mlx: MlxAffine, row: Row<'_>, out: &mut [f32]) -> Result<()> {
    let format = StorageFormat::MlxAffine(mlx);
    check_parameters(mlx, row.scale_format)?;
    let (bits, group_size) = (usize::from(mlx.bits), mlx.group_size as usize);
    let row_len = out.len();
    let bits_total = row_len.checked_mul(bits).filter(|bits| bits.is_multiple_of(8));
    let Some(bits_total) = bits_total.filter(|_| row_len.is_multiple_of(group_size)) else {
        return Err(CodecError::RowLen { format, row_len });
    };
    let groups = row_len / group_size;
    let expected_scale_bytes = groups * row.scale_format.block_bytes();
    for (found, expected) in [
        (row.words.len(), bits_total / 8),
        (row.scales.len(), expected_scale_bytes),
        (row.biases.len(), expected_scale_bytes),
    ] {
        if found != expected {
            return Err(CodecError::StoredLen { format, found, expected });
        }
    }
    unpack(bits, row.words, out);
    let width = row.scale_format.block_bytes();
    let pairs = row.scales.chunks_exact(width).zip(row.biases.chunks_exact(width));
    for (group, (scale, bias)) in out.chunks_exact_mut(group_size).zip(pairs) {
        let (scale, bias) = (float(row.scale_format, scale)?, float(row.scale_format, bias)?);
        for x in group {
            *x = scale * *x + bias;
        }
    }
    Ok(())
}

/// The codes of a row as floats.
fn unpack(bits: usize, words: &[u8], out: &mut [f32]) {
    let mask = (1 << bits) - 1;
    for (codes, bytes) in out.chunks_mut(8).zip(words.chunks(bits)) {
        let mut packed = [0; 8];
        packed[..bytes.len()].copy_from_slice(bytes);
        let packed = u64::from_le_bytes(packed);
        for (j, code) in codes.iter_mut().enumerate() {
            *code = (packed >> (j * bits) & mask) as f32;
        }
    }
}

fn float(format: StorageFormat, stored: &[u8]) -> Result<f32> {
    let mut value = [0.0];
    decode_floats(format, stored, &mut value)?;
    Ok(value[0])
}

fn check_parameters(mlx: MlxAffine, scale_format: StorageFormat) -> Result<()> {
    let known = matches!(mlx.bits, 2..=6 | 8) && mlx.group_size > 0 && scale_format.is_float();
    if known { Ok(()) } else { Err(CodecError::MlxParameters { format: StorageFormat::MlxAffine(mlx) }) }
}
