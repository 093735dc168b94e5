//! A weight as kernels read it: tiles in fragment order, or rows as the checkpoint stores them.
//!
//! Neighbouring parts of one format become one stretch of tiles, so that one launch multiplies all of them. Where a graph gates one half
//! of a weight's outputs with the other, the halves are paired within tiles.

use std::ops::Range;

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::device::DeviceError;
use brasa_graph::{Weight, WeightPart};

use super::layout::{Fragments, TILE_OUTPUTS};
use super::upload::Uploader;
use crate::driver::DeviceMemory;
use crate::gpu::Gpu;
use crate::params::{self, Part, Ptr, StoredWeight, part_bytes};

/// Alignment of every array of stored bytes.
const ALIGNMENT_BYTES: usize = 256;

/// A weight in device memory.
#[derive(Debug)]
pub(crate) struct Stored {
    /// All rows, whatever their format.
    pub weight: StoredWeight,
    /// Each format that some rows have, once.
    pub formats: Vec<StorageFormat>,
    pub stretches: Vec<Stretch>,
    memory: Vec<DeviceMemory>,
}

/// Rows of one format in one piece of memory.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub format: StorageFormat,
    /// Rows of the weight; of paired tiles, those in the lower halves.
    pub rows: Range<usize>,
    /// `None` for rows as they are stored.
    pub tiles: Option<Tiles>,
}

/// Rows in fragment order.
#[derive(Clone, Debug)]
pub(crate) struct Tiles {
    pub data: Ptr<u8>,
    pub count: usize,
    /// Pieces of 64 inputs that a tile has.
    pub subs: usize,
    /// The weight's rows in the upper halves of paired tiles, as many as in the lower ones.
    pub upper: Option<Range<usize>>,
    /// A bound of the magnitudes; 0 where the elements are f16.
    pub largest: f32,
}

/// Halves of a weight that a graph multiplies with each other: the gated rows, and those that gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halves {
    pub gate: Range<usize>,
    pub up: Range<usize>,
}

/// Consecutive rows of a weight in one format, and those that are paired with them.
struct Piece {
    format: StorageFormat,
    rows: Range<usize>,
    upper: Option<Range<usize>>,
}

impl Stored {
    /// Uploads `weight`, whose `halves` a graph may want paired.
    pub(super) fn new(
        uploader: &mut Uploader,
        weight: &Weight,
        halves: Option<&Halves>,
    ) -> Result<Self, DeviceError> {
        let gpu = uploader.gpu();
        let rows: usize = weight.parts.iter().map(|part| part.rows.len()).sum();
        let refused = || gpu.unsupported(format!("{}: more rows than can be numbered", weight.name));
        if u32::try_from(rows).is_err() {
            return Err(refused());
        }
        let (mut stretches, mut memory, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces(weight, halves) {
            let (stretch, parts, arrays) = match Fragments::of(piece.format) {
                Some(fragments) => tiles(uploader, weight, &piece, fragments)?,
                None => rows_as_stored(&gpu, weight, &piece)?,
            };
            stretches.push(stretch);
            table.extend(parts);
            memory.push(arrays);
        }
        table.sort_by_key(|part: &Part| part.first_row);
        let memory_of_table = gpu.allocate(table.len() * size_of::<Part>(), &weight.name)?;
        gpu.write(&memory_of_table, 0, part_bytes(&table))?;
        let stored = StoredWeight {
            parts: Ptr::new(memory_of_table.address()),
            parts_count: table.len() as u32,
            rows: rows as u32,
            row_len: weight.row_len() as u32,
        };
        memory.push(memory_of_table);
        let mut formats: Vec<StorageFormat> = Vec::new();
        for stretch in &stretches {
            // Kernels know one MLX format, whose parameters each part brings.
            if !formats.iter().any(|&known| format_code(known) == format_code(stretch.format)) {
                formats.push(stretch.format);
            }
        }
        Ok(Self { weight: stored, formats, stretches, memory })
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.memory.iter().map(DeviceMemory::size_bytes).sum()
    }

    /// `weight` with the floats that the GPU holds now. Quantised rows cannot have changed.
    pub(super) fn read(&self, uploader: &mut Uploader, weight: &Weight) -> Result<Weight, DeviceError> {
        let mut parts: Vec<(usize, WeightPart)> = Vec::new();
        let row_len = weight.row_len();
        for (stretch, memory) in self.stretches.iter().zip(&self.memory) {
            let format = stretch.format;
            if !format.is_float() {
                parts.extend(parts_of(weight, &stretch.rows));
                if let Some(upper) = stretch.tiles.as_ref().and_then(|tiles| tiles.upper.as_ref()) {
                    parts.extend(parts_of(weight, upper));
                }
                continue;
            }
            let mut floats = |rows: &Range<usize>, place: u32| -> Result<(), DeviceError> {
                let shape = vec![rows.len(), row_len];
                let mut bytes = vec![0; rows.len() * row_len * format.block_bytes()];
                match &stretch.tiles {
                    Some(tiles) => uploader.unpack(tiles, rows.len(), row_len, place, &mut bytes)?,
                    None => uploader.gpu().read(memory, &mut bytes)?,
                }
                let payload = Payload::Blocks(Bytes::from(bytes));
                let tensor = Tensor { name: weight.name.clone(), shape, format, payload };
                parts.push((rows.start, WeightPart::whole(tensor)));
                Ok(())
            };
            match stretch.tiles.as_ref().and_then(|tiles| tiles.upper.as_ref()) {
                None => floats(&stretch.rows, params::PLACE_TILES)?,
                Some(upper) => {
                    floats(&stretch.rows, params::PLACE_LOWER)?;
                    floats(upper, params::PLACE_UPPER)?;
                }
            }
        }
        parts.sort_by_key(|&(first_row, _)| first_row);
        Ok(Weight { parts: parts.into_iter().map(|(_, part)| part).collect(), ..weight.clone() })
    }

    /// Puts `weight`, all of whose rows are floats, in place of what the GPU holds.
    pub(super) fn write(&self, uploader: &mut Uploader, weight: &Weight) -> Result<(), DeviceError> {
        for (stretch, memory) in self.stretches.iter().zip(&self.memory) {
            if let Some(tiles) = &stretch.tiles {
                uploader.repack(weight, stretch.format, &stretch.rows, tiles)?;
                continue;
            }
            let (mut offset, gpu) = (0, uploader.gpu());
            for bytes in bytes_of(&gpu, weight, &stretch.rows)? {
                gpu.write(memory, offset, &bytes)?;
                offset += bytes.len();
            }
        }
        Ok(())
    }
}

impl Tiles {
    /// The power of two by which elements are multiplied before they are rounded to f16: the largest become about 2^13.
    pub(crate) fn raise(&self) -> f32 {
        if !self.largest.is_normal() {
            return 1.0;
        }
        let exponent = 13 + 127 - (self.largest.to_bits() >> 23) as i32;
        2.0_f32.powi(exponent.clamp(-60, 60))
    }
}

impl Stretch {
    /// True where the tiles' halves are those that are wanted.
    pub(crate) fn pairs(&self, halves: &Halves) -> bool {
        let upper = self.tiles.as_ref().and_then(|tiles| tiles.upper.as_ref());
        self.rows == halves.gate && upper == Some(&halves.up)
    }
}

/// The weight's rows in stretches of one format. Paired halves are the piece of the gated rows.
fn pieces(weight: &Weight, halves: Option<&Halves>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut first_row = 0;
    for part in weight.parts.iter().filter(|part| !part.rows.is_empty()) {
        let (format, rows) = (part.format(), first_row..first_row + part.rows.len());
        first_row = rows.end;
        match pieces.last_mut() {
            Some(last)
                if last.format == format
                    && Fragments::of(format).is_some()
                    && last.rows.len().is_multiple_of(TILE_OUTPUTS) =>
            {
                last.rows.end = rows.end;
            }
            _ => pieces.push(Piece { format, rows, upper: None }),
        }
    }
    if let Some(halves) = halves
        && can_pair(&pieces, halves, first_row)
    {
        let upper = Some(halves.up.clone());
        return vec![Piece { format: pieces[0].format, rows: halves.gate.clone(), upper }];
    }
    pieces
}

/// True where the halves are all rows, of one format, in whole halves of tiles.
fn can_pair(pieces: &[Piece], Halves { gate, up }: &Halves, rows: usize) -> bool {
    let adjacent = gate.end == up.start || up.end == gate.start;
    let one_format = pieces.windows(2).all(|pair| pair[0].format == pair[1].format);
    adjacent
        && gate.len() == up.len()
        && gate.len() + up.len() == rows
        && gate.len().is_multiple_of(TILE_OUTPUTS / 2)
        && one_format
        && pieces.first().is_some_and(|piece| Fragments::of(piece.format).is_some())
}

type Uploaded = (Stretch, Vec<Part>, DeviceMemory);

/// Uploads a piece as tiles.
fn tiles(
    uploader: &mut Uploader,
    weight: &Weight,
    Piece { format, rows, upper }: &Piece,
    fragments: Fragments,
) -> Result<Uploaded, DeviceError> {
    let tile_rows = if upper.is_some() { TILE_OUTPUTS / 2 } else { TILE_OUTPUTS };
    let (subs, count) = (fragments.subs(weight.row_len()), rows.len().div_ceil(tile_rows));
    let bytes = count.checked_mul(fragments.tile_bytes(subs)).filter(|&bytes| isize::try_from(bytes).is_ok());
    let too_large = || DeviceError::OutOfMemory { bytes: u64::MAX, what: weight.name.clone() };
    let memory = uploader.gpu().allocate(bytes.ok_or_else(too_large)?, &weight.name)?;
    let data = Ptr::new(memory.address());
    let mut tiles = Tiles { data, count, subs, upper: upper.clone(), largest: 0.0 };
    tiles.largest = uploader.repack(weight, *format, rows, &tiles)?;
    let part =
        |rows: &Range<usize>, place: u32| Part { subs: subs as u32, place, ..part(data, rows, 0, *format) };
    let parts = match &tiles.upper {
        None => vec![part(rows, params::PLACE_TILES)],
        Some(upper) => vec![part(rows, params::PLACE_LOWER), part(upper, params::PLACE_UPPER)],
    };
    Ok((Stretch { format: *format, rows: rows.clone(), tiles: Some(tiles) }, parts, memory))
}

/// Uploads a piece, one part of the weight, as it is stored.
fn rows_as_stored(
    gpu: &Gpu,
    weight: &Weight,
    Piece { format, rows, .. }: &Piece,
) -> Result<Uploaded, DeviceError> {
    let refuse = |what: &str| gpu.unsupported(format!("{}: {what}", weight.name));
    let row_len = weight.row_len();
    let row_bytes = row_bytes(gpu, weight, *format)?;
    let mut stored = part(Ptr::NONE, rows, row_bytes as u32, *format);
    let found = parts_of(weight, rows).next();
    let (_, source) = found.ok_or_else(|| refuse("rows without a part"))?;
    let slice = |bytes: &Bytes, row_bytes: usize| {
        bytes
            .slice(source.rows.start * row_bytes..source.rows.end * row_bytes)
            .ok_or_else(|| refuse("stored bytes that do not belong to its format"))
    };
    let arrays = match (&source.tensor.payload, *format) {
        (Payload::Blocks(bytes), format) if format.gguf_code().is_some() => vec![slice(bytes, row_bytes)?],
        (Payload::Mlx { words, scales, biases, scale_format }, StorageFormat::MlxAffine(mlx)) => {
            let groups = row_len / mlx.group_size.max(1) as usize;
            let scale_bytes = groups * scale_format.block_bytes();
            if !matches!(mlx.bits, 2..=6 | 8) || !scale_format.is_float() {
                return Err(refuse(&format!("{format} with scales in {scale_format}")));
            }
            stored.bits = u32::from(mlx.bits);
            stored.group_size = mlx.group_size;
            stored.groups = groups as u32;
            stored.scale_format = format_code(*scale_format);
            vec![slice(words, row_bytes)?, slice(scales, scale_bytes)?, slice(biases, scale_bytes)?]
        }
        _ => return Err(refuse("stored bytes that do not belong to its format")),
    };
    let sizes = arrays.iter().map(|array| array.len().next_multiple_of(ALIGNMENT_BYTES));
    let memory = gpu.allocate(sizes.sum(), &weight.name)?;
    let (mut offset, mut addresses) = (0, [0; 3]);
    for (array, address) in arrays.iter().zip(&mut addresses) {
        gpu.write(&memory, offset, array)?;
        array.release_pages();
        *address = memory.address() + offset as u64;
        offset += array.len().next_multiple_of(ALIGNMENT_BYTES);
    }
    [stored.data, stored.scales, stored.biases] = addresses.map(Ptr::new);
    Ok((Stretch { format: *format, rows: rows.clone(), tiles: None }, vec![stored], memory))
}

fn part(data: Ptr<u8>, rows: &Range<usize>, row_bytes: u32, format: StorageFormat) -> Part {
    Part {
        data,
        scales: Ptr::NONE,
        biases: Ptr::NONE,
        first_row: rows.start as u32,
        rows: rows.len() as u32,
        row_bytes,
        format: format_code(format),
        bits: 0,
        group_size: 1,
        groups: 0,
        scale_format: 0,
        subs: 0,
        place: params::PLACE_TILES,
    }
}

/// Bytes of a stored row of codes.
pub(super) fn row_bytes(gpu: &Gpu, weight: &Weight, format: StorageFormat) -> Result<usize, DeviceError> {
    let row_len = weight.row_len();
    let bytes = match format {
        StorageFormat::MlxAffine(mlx) => row_len
            .checked_mul(usize::from(mlx.bits))
            .filter(|bits| bits.is_multiple_of(8) && row_len.is_multiple_of(mlx.group_size.max(1) as usize))
            .map(|bits| bits / 8),
        _ => format.row_bytes(row_len),
    };
    bytes
        .filter(|&bytes| u32::try_from(bytes).is_ok())
        .ok_or_else(|| gpu.unsupported(format!("{}: rows that are no whole number of blocks", weight.name)))
}

/// The parts that hold rows `wanted`, cut to them, each with the weight's row that it begins at.
fn parts_of<'w>(weight: &'w Weight, wanted: &Range<usize>) -> impl Iterator<Item = (usize, WeightPart)> + 'w {
    let wanted = wanted.clone();
    let mut first_row = 0;
    weight.parts.iter().filter_map(move |part| {
        let start = first_row;
        first_row += part.rows.len();
        let (begin, end) = (wanted.start.max(start), wanted.end.min(first_row));
        let cut = |begin: usize, end: usize| {
            let rows = part.rows.start + begin - start..part.rows.start + end - start;
            (begin, WeightPart { tensor: part.tensor.clone(), rows })
        };
        (begin < end).then(|| cut(begin, end))
    })
}

/// The stored bytes of rows `wanted`, all in one format of blocks.
pub(super) fn bytes_of(gpu: &Gpu, weight: &Weight, wanted: &Range<usize>) -> Result<Vec<Bytes>, DeviceError> {
    let refuse =
        || gpu.unsupported(format!("{}: stored bytes that do not belong to its format", weight.name));
    let slice = |(_, part): (usize, WeightPart)| {
        let row_bytes = row_bytes(gpu, weight, part.format())?;
        match &part.tensor.payload {
            Payload::Blocks(bytes) => {
                bytes.slice(part.rows.start * row_bytes..part.rows.end * row_bytes).ok_or_else(refuse)
            }
            Payload::Mlx { .. } => Err(refuse()),
        }
    };
    parts_of(weight, wanted).map(slice).collect()
}

/// The number by which kernels know a format: GGUF's, or 255 for MLX.
fn format_code(format: StorageFormat) -> u32 {
    format.gguf_code().unwrap_or(255)
}
