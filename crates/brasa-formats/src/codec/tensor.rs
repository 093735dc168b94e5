//! Rows of a tensor as f32.

use std::ops::Range;

use super::{CodecError, Result, decode_row, mlx};
use crate::{Payload, StorageFormat, Tensor};

impl Tensor {
    /// Decodes row `row` to `out`, which is one row long.
    ///
    /// # Errors
    ///
    /// Errors of [`decode_rows`](Self::decode_rows).
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.decode_rows(row..row.saturating_add(1), out)
    }

    /// Decodes the rows `rows` to `out`, which is as long as they are together.
    ///
    /// # Errors
    ///
    /// [`CodecError::Rows`] if a row does not exist or `out` has another length; [`CodecError::Payload`] if
    /// the payload does not belong to the declared format; what the codec finds wrong with the row.
    pub fn decode_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let row_len = self.row_len();
        let wanted = rows.end.checked_sub(rows.start).and_then(|count| count.checked_mul(row_len));
        if rows.end > self.rows() || wanted != Some(out.len()) {
            return Err(CodecError::Rows {
                name: self.name.clone(),
                first: rows.start,
                end: rows.end,
                out_len: out.len(),
                rows: self.rows(),
                row_len,
            });
        }
        if out.is_empty() {
            return Ok(());
        }
        let wrong_payload = || CodecError::Payload { name: self.name.clone(), format: self.format };
        let wrong_row = CodecError::RowLen { format: self.format, row_len };
        let window =
            |row_bytes: usize| Some(rows.start.checked_mul(row_bytes)?..rows.end.checked_mul(row_bytes)?);
        match (&self.payload, self.format) {
            (Payload::Blocks(_), StorageFormat::MlxAffine(_)) => Err(wrong_payload()),
            (Payload::Blocks(bytes), format) => {
                let row_bytes = format.row_bytes(row_len).ok_or(wrong_row)?;
                let stored =
                    window(row_bytes).and_then(|window| bytes.get(window)).ok_or_else(wrong_payload)?;
                decode_row(format, stored, out)
            }
            (Payload::Mlx { words, scales, biases, scale_format }, StorageFormat::MlxAffine(params)) => {
                let groups = row_len / params.group_size.max(1) as usize;
                let (word_bytes, scale_bytes) =
                    (row_len * usize::from(params.bits) / 8, groups * scale_format.block_bytes());
                let part = |bytes: &'_ [u8], row: usize, row_bytes: usize| {
                    row.checked_mul(row_bytes).is_some_and(|at| at + row_bytes <= bytes.len())
                };
                for (row, out) in rows.zip(out.chunks_exact_mut(row_len)) {
                    let present = part(words, row, word_bytes)
                        && part(scales, row, scale_bytes)
                        && part(biases, row, scale_bytes);
                    if !present {
                        return Err(wrong_payload());
                    }
                    let stored = mlx::Row {
                        words: &words[row * word_bytes..][..word_bytes],
                        scales: &scales[row * scale_bytes..][..scale_bytes],
                        biases: &biases[row * scale_bytes..][..scale_bytes],
                        scale_format: *scale_format,
                    };
                    mlx::decode_row(params, stored, out)?;
                }
                Ok(())
            }
            (Payload::Mlx { .. }, _) => Err(wrong_payload()),
        }
    }
}
