//! Sources of the rows of an output tensor.

use std::sync::Arc;

use brasa_formats::codec::CodecError;
use brasa_formats::{Payload, StorageFormat, Tensor};

use crate::change::Change;

/// Rows of an output tensor: windows of input tensors, one after the other, perhaps reordered or shifted.
#[derive(Clone, Debug)]
pub struct Source {
    parts: Vec<Part>,
    /// Heads whose rows are reordered, see [`Source::interleaved`].
    heads: Option<Heads>,
    /// Added to every element.
    shift: f32,
    /// The changes of the rows by adapters, in order.
    changes: Vec<Arc<Change>>,
}

/// Rows of a head, and those that are reordered.
#[derive(Clone, Copy, Debug)]
struct Heads {
    head_dim: usize,
    rotary_dim: usize,
}

#[derive(Clone, Debug)]
struct Part {
    tensor: Tensor,
    first: usize,
    rows: usize,
}

impl Source {
    /// Takes all rows of one tensor, unchanged.
    pub fn of(tensor: &Tensor) -> Self {
        Self::stacked([tensor])
    }

    /// All rows of several tensors, one tensor after the other.
    pub fn stacked<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Self {
        Self::windows(tensors.into_iter().map(|tensor| (tensor, 0, tensor.rows())))
    }

    /// Windows `(tensor, first row, rows)` of rows, one after the other.
    pub fn windows<'a>(windows: impl IntoIterator<Item = (&'a Tensor, usize, usize)>) -> Self {
        let part =
            |(tensor, first, rows): (&Tensor, usize, usize)| Part { tensor: tensor.clone(), first, rows };
        Self { parts: windows.into_iter().map(part).collect(), heads: None, shift: 0.0, changes: Vec::new() }
    }

    /// Takes computed values as one row.
    pub fn values(values: &[f32]) -> Self {
        Self::matrix(values, &[values.len()])
    }

    /// Takes computed values as the rows of a tensor of this shape, outermost dimension first.
    pub fn matrix(values: &[f32], shape: &[usize]) -> Self {
        Self::of(&Tensor::of_floats("", shape.to_vec(), values))
    }

    /// Puts the rows in the order of interleaved RoPE: the two halves of the first `rotary_dim` rows of every head of
    /// `head_dim` rows alternate.
    ///
    /// Llama checkpoints rotate element j with j + half; llama.cpp rotates neighbours for this family.
    pub fn interleaved(mut self, head_dim: usize, rotary_dim: usize) -> Self {
        self.heads = Some(Heads { head_dim, rotary_dim });
        self
    }

    /// Adds `shift` to every element.
    pub fn shifted(mut self, shift: f32) -> Self {
        self.shift += shift;
        self
    }

    /// Appends an adapter's change, after the changes before it.
    pub fn change(&mut self, change: Arc<Change>) {
        self.changes.push(change);
    }

    /// True if an adapter changes the rows.
    pub fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The storage format of the first input.
    pub fn format(&self) -> StorageFormat {
        self.parts.first().map_or(StorageFormat::F32, |part| part.tensor.format)
    }

    /// The stored bytes of rows `rows`; `None` if an element changes on its way.
    pub fn stored(&self, rows: std::ops::Range<usize>) -> Option<&[u8]> {
        let [part] = &self.parts[..] else { return None };
        let Payload::Blocks(bytes) = &part.tensor.payload else { return None };
        if self.heads.is_some() || self.shift != 0.0 || self.is_changed() || rows.end > part.rows {
            return None;
        }
        let row_bytes = part.tensor.format.row_bytes(part.tensor.row_len())?;
        bytes.get((part.first + rows.start) * row_bytes..(part.first + rows.end) * row_bytes)
    }

    /// Decodes row `row` of `rows`, and applies the adapters' changes.
    pub fn decode_row(&self, row: usize, rows: usize, out: &mut [f32]) -> Result<(), CodecError> {
        self.decode_base_row(row, rows, out)?;
        self.changes.iter().for_each(|change| change.apply(row, out));
        Ok(())
    }

    /// Decodes row `row` of `rows`, without adapters.
    pub fn decode_base_row(&self, row: usize, rows: usize, out: &mut [f32]) -> Result<(), CodecError> {
        // A vector is one row: there it is the elements that are reordered.
        let from = self.heads.map_or(row, |heads| if rows > 1 { heads.split_half(row) } else { row });
        let mut at = from;
        for part in &self.parts {
            if at < part.rows {
                part.tensor.decode_row(part.first + at, out)?;
                break;
            }
            at -= part.rows;
        }
        if let (Some(heads), 1) = (self.heads, rows) {
            let elements = out.to_vec();
            for (to, value) in out.iter_mut().enumerate() {
                *value = elements[heads.split_half(to)];
            }
        }
        if self.shift != 0.0 {
            for value in out {
                *value += self.shift;
            }
        }
        Ok(())
    }
}

impl Heads {
    /// The place in the split-half layout of place `to` in the interleaved layout.
    fn split_half(self, to: usize) -> usize {
        let within = to % self.head_dim;
        if within >= self.rotary_dim {
            return to;
        }
        to - within + within % 2 * (self.rotary_dim / 2) + within / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_alternate() {
        let order = |head_dim, rotary_dim| {
            (0..8).map(|to| Heads { head_dim, rotary_dim }.split_half(to)).collect::<Vec<_>>()
        };
        assert_eq!(order(4, 4), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(order(8, 4), [0, 2, 1, 3, 4, 5, 6, 7], "what does not turn stays");

        let values: Vec<f32> = (0..8_u8).map(f32::from).collect();
        let mut out = [0.0; 8];
        Source::values(&values).interleaved(4, 4).shifted(1.0).decode_row(0, 1, &mut out).unwrap();
        assert_eq!(out.map(|x| x as u8), [1, 3, 2, 4, 5, 7, 6, 8]);
    }
}
