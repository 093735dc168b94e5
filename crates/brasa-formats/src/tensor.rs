//! A tensor of a checkpoint: name, shape, storage format and bytes.

use crate::{Bytes, StorageFormat};

/// One tensor of an opened checkpoint. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name in its file.
    pub name: String,
    /// Dimensions, outermost first: a linear layer is `[N outputs, K inputs]`, whatever the container's order.
    pub shape: Vec<usize>,
    /// The storage format of rows, which are the innermost dimension.
    pub format: StorageFormat,
    /// The stored elements, validated against `shape` and `format` when the file was opened.
    pub payload: Payload,
}

/// The bytes of a tensor.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Rows of consecutive blocks, no padding between rows.
    Blocks(Bytes),
    /// MLX affine quantisation, three arrays of `rows` rows each.
    Mlx {
        /// Packed elements: one little-endian bit stream a row, lowest bits first.
        words: Bytes,
        /// One scale per group.
        scales: Bytes,
        /// One bias per group.
        biases: Bytes,
        /// The storage format of scales and biases: F32, F16 or BF16.
        scale_format: StorageFormat,
    },
}

impl Tensor {
    /// Computed values in F32, as many as `shape` has elements.
    pub fn of_floats(name: impl Into<String>, shape: Vec<usize>, values: &[f32]) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len(), "values of a tensor");
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let payload = Payload::Blocks(Bytes::from(bytes));
        Self { name: name.into(), shape, format: StorageFormat::F32, payload }
    }

    /// Elements of the innermost dimension; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the innermost.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Stored bytes, scales and biases included.
    pub fn size_bytes(&self) -> usize {
        match &self.payload {
            Payload::Blocks(bytes) => bytes.len(),
            Payload::Mlx { words, scales, biases, .. } => words.len() + scales.len() + biases.len(),
        }
    }

    /// Tells the system that the stored bytes will not be read again soon; see [`Bytes::release_pages`].
    pub fn release_pages(&self) {
        match &self.payload {
            Payload::Blocks(bytes) => bytes.release_pages(),
            Payload::Mlx { words, scales, biases, .. } => {
                [words, scales, biases].into_iter().for_each(Bytes::release_pages);
            }
        }
    }
}
