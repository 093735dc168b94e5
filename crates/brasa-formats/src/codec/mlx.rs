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
    /// The storage format of scales and biases: F32, F16 or BF16.
    pub scale_format: StorageFormat,
}

/// Decodes one row of `out.len()` elements.
///
/// # Errors
///
/// [`CodecError::MlxParameters`] for parameters that the format does not have; [`CodecError::RowLen`] if `out`
/// is no whole number of groups or its codes no whole number of bytes; [`CodecError::StoredLen`] if one of the
/// three arrays has another size than `out` asks for. `out` then holds nothing useful.
pub fn decode_row(mlx: MlxAffine, row: Row<'_>, out: &mut [f32]) -> Result<()> {
    check(mlx, row.scale_format, out.len(), [row.words.len(), row.scales.len(), row.biases.len()])?;
    let (bits, group_size) = (usize::from(mlx.bits), mlx.group_size as usize);
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

/// The three arrays of one encoded row, or of several that lie one after the other.
#[derive(Debug)]
pub struct RowMut<'a> {
    /// Packed codes.
    pub words: &'a mut [u8],
    /// One scale per group.
    pub scales: &'a mut [u8],
    /// One bias per group.
    pub biases: &'a mut [u8],
    /// The storage format of scales and biases: F32, F16 or BF16.
    pub scale_format: StorageFormat,
}

/// Encodes one row exactly as `mx.quantize` does, bit for bit.
///
/// Per group the end of the range that lies farther from zero is kept exactly as the bias, and the scale is
/// adjusted so that zero has a code of its own.
///
/// # Errors
///
/// Errors of [`decode_row`], and [`CodecError::NotFinite`] for infinities and NaN. Nothing was written.
pub fn encode_row(mlx: MlxAffine, x: &[f32], row: &mut RowMut<'_>) -> Result<()> {
    let format = StorageFormat::MlxAffine(mlx);
    check(mlx, row.scale_format, x.len(), [row.words.len(), row.scales.len(), row.biases.len()])?;
    if let Some((index, &value)) = x.iter().enumerate().find(|(_, x)| !x.is_finite()) {
        return Err(CodecError::NotFinite { format, index, value });
    }
    let (bits, group_size) = (usize::from(mlx.bits), mlx.group_size as usize);
    let highest = ((1 << bits) - 1) as f32;
    let width = row.scale_format.block_bytes();
    let mut codes = vec![0; x.len()];
    let stored = row.scales.chunks_exact_mut(width).zip(row.biases.chunks_exact_mut(width));
    let groups = x.chunks_exact(group_size).zip(codes.chunks_exact_mut(group_size));
    for ((x, codes), (scale_out, bias_out)) in groups.zip(stored) {
        let low = x.iter().copied().fold(f32::INFINITY, f32::min);
        let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let low_is_edge = low.abs() > high.abs();
        let magnitude = ((high - low) / highest).max(1e-7);
        let mut scale = if low_is_edge { magnitude } else { -magnitude };
        let edge = if low_is_edge { low } else { high };
        let edge_code = (edge / scale).round_ties_even();
        let mut bias = 0.0;
        if edge_code != 0.0 {
            (scale, bias) = (edge / edge_code, edge);
        }
        for (code, x) in codes.iter_mut().zip(x) {
            *code = ((x - bias) / scale).round_ties_even().clamp(0.0, highest) as u8;
        }
        super::encode_row(row.scale_format, &[scale], None, scale_out)?;
        super::encode_row(row.scale_format, &[bias], None, bias_out)?;
    }
    for (codes, bytes) in codes.chunks(8).zip(row.words.chunks_mut(bits)) {
        let packed =
            codes.iter().enumerate().fold(0, |packed, (j, &code)| packed | u64::from(code) << (j * bits));
        let len = bytes.len();
        bytes.copy_from_slice(&packed.to_le_bytes()[..len]);
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

/// Checks parameters, the length of the row, and the sizes of words, scales and biases.
fn check(mlx: MlxAffine, scale_format: StorageFormat, row_len: usize, found: [usize; 3]) -> Result<()> {
    let format = StorageFormat::MlxAffine(mlx);
    let known = matches!(mlx.bits, 2..=6 | 8) && mlx.group_size > 0 && scale_format.is_float();
    if !known {
        return Err(CodecError::MlxParameters { format });
    }
    let bits = row_len.checked_mul(usize::from(mlx.bits)).filter(|bits| bits.is_multiple_of(8));
    let groups = row_len / mlx.group_size as usize;
    let Some(bits) = bits.filter(|_| row_len.is_multiple_of(mlx.group_size as usize)) else {
        return Err(CodecError::RowLen { format, row_len });
    };
    let scale_bytes = groups * scale_format.block_bytes();
    for (found, expected) in found.into_iter().zip([bits / 8, scale_bytes, scale_bytes]) {
        if found != expected {
            return Err(CodecError::StoredLen { format, found, expected });
        }
    }
    Ok(())
}
