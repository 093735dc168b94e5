//! The stored values from which a weight was computed.

use brasa_formats::{StorageFormat, Tensor};

use crate::device::DeviceError;

/// The stored tensor from which loading a checkpoint computed a vector of a graph: `factor · stored + offset`, element by element.
///
/// Matrices need no origin: their [parts](crate::Weight::parts) are the stored tensors themselves.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The stored vectors, concatenated in this order.
    pub pieces: Vec<Piece>,
    /// The factor of every stored value.
    pub factor: f32,
    /// The offset of every value, e.g. 1 for the norms of Gemma.
    pub offset: f32,
}

/// A stored vector within a weight.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The stored tensor; `None` for zeros in place of a bias that the checkpoint does not have.
    pub tensor: Option<Tensor>,
    /// Number of elements.
    pub elements: usize,
}

impl Origin {
    /// The stored values of one tensor, unchanged.
    pub fn of(tensor: &Tensor, elements: usize) -> Self {
        let piece = Piece { tensor: Some(tensor.clone()), elements };
        Self { pieces: vec![piece], factor: 1.0, offset: 0.0 }
    }

    /// The stored values, decoded exactly.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if bytes of a tensor do not decode.
    pub fn stored_values(&self) -> Result<Vec<f32>, DeviceError> {
        let mut values = vec![0.0; self.pieces.iter().map(|piece| piece.elements).sum()];
        let mut rest = values.as_mut_slice();
        for Piece { tensor, elements } in &self.pieces {
            let (out, tail) = rest.split_at_mut(*elements);
            if let Some(tensor) = tensor {
                tensor.decode_rows(0..tensor.rows(), out).map_err(|error| DeviceError::Unsupported {
                    device: "host".into(),
                    what: format!("{}: {error}", tensor.name),
                })?;
            }
            rest = tail;
        }
        Ok(values)
    }

    /// The names and storage formats of the stored vectors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, StorageFormat)> {
        self.pieces
            .iter()
            .filter_map(|piece| piece.tensor.as_ref())
            .map(|tensor| (tensor.name.as_str(), tensor.format))
    }
}
