//! Rows of a tensor in its stored form.

use brasa_formats::{MlxAffine, Payload, StorageFormat, Tensor};
use brasa_graph::WeightPart;

use crate::Error;

/// One stored row.
#[derive(Clone, Copy)]
pub(super) enum StoredRow<'a> {
    /// Consecutive blocks.
    Blocks(&'a [u8]),
    /// The three arrays of MLX.
    Mlx { params: MlxAffine, words: &'a [u8], scales: &'a [u8], biases: &'a [u8] },
}

impl<'a> StoredRow<'a> {
    /// Row `row` of a tensor that [`check`] accepted.
    pub fn of(tensor: &'a Tensor, row: usize) -> Self {
        let cut = |bytes: &'a [u8]| {
            let width = bytes.len() / tensor.rows();
            &bytes[row * width..][..width]
        };
        match (&tensor.payload, tensor.format) {
            (Payload::Mlx { words, scales, biases, .. }, StorageFormat::MlxAffine(params)) => {
                Self::Mlx { params, words: cut(words), scales: cut(scales), biases: cut(biases) }
            }
            (Payload::Blocks(bytes) | Payload::Mlx { words: bytes, .. }, _) => Self::Blocks(cut(bytes)),
        }
    }

    /// The blocks, or the words of MLX.
    pub const fn bytes(self) -> &'a [u8] {
        match self {
            Self::Blocks(bytes) | Self::Mlx { words: bytes, .. } => bytes,
        }
    }
}

/// Checks that the tensor of `part` has the rows of the part, and bytes for all of its own rows.
///
/// # Errors
///
/// [`Error::BadWeight`] says what was found and expected.
pub(super) fn check(part: &WeightPart) -> Result<(), Error> {
    let WeightPart { tensor, stride, rows } = part;
    let bad =
        |found: String, expected: String| Error::BadWeight { name: tensor.name.clone(), found, expected };
    let available = stride.count(tensor.rows());
    if stride.step == 0 || rows.start > rows.end || rows.end > available {
        return Err(bad(format!("rows {rows:?}"), format!("rows within 0..{available}")));
    }
    let (format, k) = (tensor.format, tensor.row_len());
    let row_bytes = format
        .row_bytes(k)
        .filter(|_| k > 0)
        .ok_or_else(|| bad(format!("rows of {k}"), format!("whole blocks of {format}")))?;
    let arrays = match (&tensor.payload, format) {
        (Payload::Blocks(bytes), _) => vec![(bytes.len(), row_bytes)],
        (Payload::Mlx { words, scales, biases, scale_format }, StorageFormat::MlxAffine(mlx)) => {
            let group_bytes = k / mlx.group_size as usize * scale_format.block_bytes();
            let word_bytes = k * mlx.bits as usize / 8;
            vec![(words.len(), word_bytes), (scales.len(), group_bytes), (biases.len(), group_bytes)]
        }
        (Payload::Mlx { .. }, _) => return Err(bad(format!("MLX arrays as {format}"), "blocks".into())),
    };
    for (found, per_row) in arrays {
        if per_row.checked_mul(tensor.rows()) != Some(found) {
            return Err(bad(format!("{found} bytes"), format!("{} rows of {per_row} bytes", tensor.rows())));
        }
    }
    Ok(())
}
