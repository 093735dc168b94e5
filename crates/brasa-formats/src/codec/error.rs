//! Errors of a request to decode or to encode.

use crate::StorageFormat;

/// The reason why elements could not be decoded or encoded. Nothing was written.
///
/// The error concerns a call: lengths, rows and values that a caller passed. A codec sees slices and knows no file, so it cannot
/// build a [`FormatError`](crate::FormatError); a tensor of an opened file was checked when the file was opened.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The row is no whole number of blocks.
    #[error("{format}: a row of {row_len} elements, expected a multiple of {}", .format.block_len())]
    RowLen {
        /// The storage format.
        format: StorageFormat,
        /// Elements asked for.
        row_len: usize,
    },
    /// Stored bytes of another size than the elements need.
    #[error("{format}: {found} stored bytes, expected {expected}")]
    StoredLen {
        /// The storage format.
        format: StorageFormat,
        /// Bytes given.
        found: usize,
        /// Bytes that the row needs.
        expected: usize,
    },
    /// A value that no scale can be found for.
    #[error("{format}: element {index} is {value}, expected a finite number")]
    NotFinite {
        /// The storage format.
        format: StorageFormat,
        /// Position of the element in the row.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Importances that do not belong to the row, or are not weights.
    #[error("{format}: importances: {found}, expected {row_len} finite numbers of at least 0")]
    Importance {
        /// The storage format.
        format: StorageFormat,
        /// The mistake in the importances.
        found: String,
        /// Elements of the row.
        row_len: usize,
    },
    /// A row index outside of the tensor, or an output of another length than the rows asked for.
    #[error(
        "{name}: rows {first}..{end} into {out_len} elements, expected rows of 0..{rows}, {row_len} elements each"
    )]
    Rows {
        /// The tensor.
        name: String,
        /// First row asked for.
        first: usize,
        /// One past the last row asked for.
        end: usize,
        /// Length of the output.
        out_len: usize,
        /// Rows of the tensor.
        rows: usize,
        /// Elements of one row.
        row_len: usize,
    },
    /// MLX tensors lie in three arrays, so one slice of bytes cannot be decoded.
    #[error("{format}: stored as words, scales and biases, expected one array of blocks")]
    ThreeArrays {
        /// The storage format.
        format: StorageFormat,
    },
    /// A tensor whose payload does not fit its format: blocks for an MLX format, or three arrays for a block format.
    #[error("{name}: the payload is not stored as {format}")]
    Payload {
        /// The tensor.
        name: String,
        /// The format that the tensor declares.
        format: StorageFormat,
    },
    /// MLX parameters outside of what the format has.
    #[error(
        "{format}: expected 2, 3, 4, 5, 6 or 8 bits, a group of at least one element, scales in F32, F16 or BF16"
    )]
    MlxParameters {
        /// The parameters found.
        format: StorageFormat,
    },
}
