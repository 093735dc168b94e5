//! Rows as the checkpoint stores them: their arrays, and the parts that they are in.

use std::ops::Range;

use brasa_formats::{Bytes, Payload, StorageFormat};
use brasa_graph::device::DeviceError;
use brasa_graph::{Weight, WeightPart};

use crate::gpu::Gpu;

/// How rows of a part are stored: in one array of blocks, or as MLX's codes, scales and biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSource {
    /// Bytes of a row in each array.
    pub bytes: [usize; 3],
    /// MLX's parameters.
    pub bits: u32,
    pub group_size: u32,
    pub groups: u32,
    pub scale_format: u32,
}

impl RowSource {
    /// How rows of `part` of `weight` are stored.
    pub(super) fn of(gpu: &Gpu, weight: &Weight, part: &WeightPart) -> Result<Self, DeviceError> {
        let (format, row_len) = (part.format(), weight.row_len());
        let refuse = |what: &str| gpu.unsupported(format!("{}: {what}", weight.name));
        let row_bytes = match format {
            StorageFormat::MlxAffine(mlx) => row_len
                .checked_mul(usize::from(mlx.bits))
                .filter(|bits| {
                    bits.is_multiple_of(8) && row_len.is_multiple_of(mlx.group_size.max(1) as usize)
                })
                .map(|bits| bits / 8),
            _ => format.row_bytes(row_len),
        };
        let row_bytes = row_bytes
            .filter(|&bytes| u32::try_from(bytes).is_ok())
            .ok_or_else(|| refuse("rows that are no whole number of blocks"))?;
        let plain = Self { bytes: [row_bytes, 0, 0], bits: 0, group_size: 1, groups: 0, scale_format: 0 };
        match (&part.tensor.payload, format) {
            (Payload::Blocks(_), format) if format.gguf_code().is_some() => Ok(plain),
            (Payload::Mlx { scale_format, .. }, StorageFormat::MlxAffine(mlx)) => {
                let groups = row_len / mlx.group_size.max(1) as usize;
                let scale_bytes = groups * scale_format.block_bytes();
                let code = scale_format.gguf_code().filter(|_| scale_format.is_float());
                let (Some(scale_format), 2..=6 | 8) = (code, mlx.bits) else {
                    return Err(refuse(&format!("{format} with scales in {scale_format}")));
                };
                Ok(Self {
                    bytes: [row_bytes, scale_bytes, scale_bytes],
                    bits: u32::from(mlx.bits),
                    group_size: mlx.group_size,
                    groups: groups as u32,
                    scale_format,
                })
            }
            _ => Err(odd(gpu, weight)),
        }
    }

    /// The bytes of the rows of `part`: one array for a format of blocks, three (words, scales, biases) for MLX. Rows
    /// that are not neighbours in the checkpoint are copied.
    pub(super) fn arrays(
        &self,
        gpu: &Gpu,
        weight: &Weight,
        part: &WeightPart,
    ) -> Result<Vec<Bytes>, DeviceError> {
        let arrays = match &part.tensor.payload {
            Payload::Blocks(bytes) => vec![bytes],
            Payload::Mlx { words, scales, biases, .. } => vec![words, scales, biases],
        };
        let rows = |(bytes, &row_bytes): (&Bytes, &usize)| {
            let slice = |rows: Range<usize>| bytes.get(rows.start * row_bytes..rows.end * row_bytes);
            let gathered = match part.consecutive_rows() {
                Some(rows) => bytes.slice(rows.start * row_bytes..rows.end * row_bytes),
                None => part
                    .stored_rows()
                    .map(|row| slice(row..row + 1))
                    .collect::<Option<Vec<_>>>()
                    .map(|rows| Bytes::from(rows.concat())),
            };
            gathered.ok_or_else(|| odd(gpu, weight))
        };
        arrays.into_iter().zip(&self.bytes).map(rows).collect()
    }
}

pub(super) fn odd(gpu: &Gpu, weight: &Weight) -> DeviceError {
    gpu.unsupported(format!("{}: stored bytes that do not belong to its format", weight.name))
}

/// The parts that hold rows `wanted`, cut to them, each with the weight's row that it begins at.
pub(super) fn parts_of<'w>(
    weight: &'w Weight,
    wanted: &Range<usize>,
) -> impl Iterator<Item = (usize, WeightPart)> + 'w {
    let wanted = wanted.clone();
    let mut first_row = 0;
    weight.parts.iter().filter_map(move |part| {
        let start = first_row;
        first_row += part.rows.len();
        let (begin, end) = (wanted.start.max(start), wanted.end.min(first_row));
        let cut = |begin: usize, end: usize| (begin, part.cut(begin - start..end - start));
        (begin < end).then(|| cut(begin, end))
    })
}

/// The part of `weight` that row `row` is in.
pub(super) fn part_at(weight: &Weight, row: usize) -> Option<WeightPart> {
    parts_of(weight, &(row..row + 1)).next().map(|(_, part)| part)
}

/// The stored bytes of rows `wanted`: of each part, its arrays.
pub(super) fn arrays_of(
    gpu: &Gpu,
    weight: &Weight,
    wanted: &Range<usize>,
) -> Result<Vec<Vec<Bytes>>, DeviceError> {
    let arrays =
        |(_, part): (usize, WeightPart)| RowSource::of(gpu, weight, &part)?.arrays(gpu, weight, &part);
    parts_of(weight, wanted).map(arrays).collect()
}

/// Tells the operating system that the stored bytes of the rows `wanted` of `weight` will not be read again soon.
pub(super) fn release(gpu: &Gpu, weight: &Weight, wanted: &Range<usize>) -> Result<(), DeviceError> {
    for (_, part) in parts_of(weight, wanted) {
        if part.is_consecutive() {
            let arrays = RowSource::of(gpu, weight, &part)?.arrays(gpu, weight, &part)?;
            arrays.iter().for_each(Bytes::release_pages);
        } else {
            part.tensor.release_pages();
        }
    }
    Ok(())
}
