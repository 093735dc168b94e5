//! A weight as kernels read it: tiles in fragment order, or rows as the checkpoint stores them.
//!
//! Neighbouring parts of one format become one stretch of tiles, so that one launch multiplies all of them. Where a graph gates one half
//! of a weight's outputs with the other, the halves are paired within tiles.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::device::DeviceError;
use brasa_graph::fuse::GateUpLowRankRows;
use brasa_graph::{Graph, Weight, WeightPart};

use super::Form;
use super::layout::{Layout, TILE_OUTPUTS};
use super::source::{RowSource, arrays_of, odd, parts_of, release};
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
    /// Each form that some rows have, once.
    pub forms: Vec<Form>,
    pub stretches: Vec<Stretch>,
    memory: Vec<DeviceMemory>,
    /// How often its elements have been written since.
    changes: AtomicU64,
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
    pub layout: Layout,
    /// The power of two that elements are multiplied with.
    pub factor: f32,
    pub data: Ptr<u8>,
    pub count: usize,
    /// Pieces of 64 inputs that a tile has.
    pub subs: usize,
    /// The weight's rows in the upper halves of paired tiles, as many as in the lower ones.
    pub upper: Option<Range<usize>>,
    /// A bound of the magnitudes; 0 if the elements are f16.
    pub largest: f32,
    /// The largest squared norm of a row, of paired tiles, of low-rank matrices beside them, and of experts.
    pub row_norm: Option<Arc<DeviceMemory>>,
}

/// Halves of a weight that a graph multiplies with each other: the gated rows, and those that gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halves {
    pub gate: Range<usize>,
    pub up: Range<usize>,
}

/// How rows are stored, and how they lie on the device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    format: StorageFormat,
    /// The format of MLX's scales and biases.
    scale_format: Option<StorageFormat>,
    /// The layout of the tiles, and the power of two of scales and offsets; `None` for rows that are stored as in the file.
    layout: Option<(Layout, i32)>,
}

/// Consecutive rows of a weight of one kind, and those that are paired with them.
struct Piece {
    kind: Kind,
    rows: Range<usize>,
    upper: Option<Range<usize>>,
}

impl Halves {
    /// The halves of the sum that `gated` multiplies with each other.
    pub(crate) fn of(graph: &Graph, gated: &GateUpLowRankRows) -> Self {
        let rows = |value| graph.view(value).elements;
        Self { gate: rows(gated.gate), up: rows(gated.up) }
    }
}

impl Stored {
    /// Uploads `weight`, whose `halves` a graph may want paired. Of one `beside_gates` the rows' norms are needed, too.
    pub(super) fn new(
        uploader: &mut Uploader,
        weight: &Weight,
        halves: Option<&Halves>,
        beside_gates: bool,
    ) -> Result<Self, DeviceError> {
        let gpu = uploader.gpu();
        let rows: usize = weight.parts.iter().map(|part| part.rows.len()).sum();
        let refused = || gpu.unsupported(format!("{}: more rows than can be numbered", weight.name));
        if u32::try_from(rows).is_err() {
            return Err(refused());
        }
        let (mut stretches, mut memory, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces(weight, halves) {
            let (stretch, parts, arrays) = match piece.kind.layout {
                Some((layout, power)) => {
                    let has_norm = beside_gates || piece.upper.is_some() || weight.shape.len() == 3;
                    tiles(uploader, weight, &piece, (layout, power), has_norm)?
                }
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
        let mut forms: Vec<Form> = Vec::new();
        for stretch in &stretches {
            if !forms.contains(&stretch.form()) {
                forms.push(stretch.form());
            }
        }
        Ok(Self { weight: stored, forms, stretches, memory, changes: AtomicU64::new(0) })
    }

    /// Address of the rows as dense f32, one behind the other; `None` for rows in another form.
    pub(crate) fn floats(&self) -> Option<u64> {
        match (&self.stretches[..], &self.forms[..]) {
            ([_], [Form::F32]) => Some(self.memory[0].address()),
            _ => None,
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        let tiles = self.stretches.iter().filter_map(|stretch| stretch.tiles.as_ref());
        let norms = tiles.filter_map(|tiles| tiles.row_norm.as_deref());
        self.memory.iter().chain(norms).map(DeviceMemory::size_bytes).sum()
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

    /// Number of times that the weight's elements have been written. Data derived from the weight are stale if their number
    /// differs. Read it while the weights are held [steady](super::CudaWeights::hold_steady).
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Puts `weight`, all of whose rows are floats, in place of what the GPU holds.
    pub(super) fn write(&self, uploader: &mut Uploader, weight: &Weight) -> Result<(), DeviceError> {
        self.changes.fetch_add(1, Ordering::Relaxed);
        for (stretch, memory) in self.stretches.iter().zip(&self.memory) {
            if let Some(tiles) = &stretch.tiles {
                uploader.repack(weight, stretch.format, &stretch.rows, tiles)?;
                uploader.row_norm(tiles)?;
                continue;
            }
            let (mut offset, gpu) = (0, uploader.gpu());
            for bytes in arrays_of(&gpu, weight, &stretch.rows)?.iter().flatten() {
                gpu.write(memory, offset, bytes)?;
                offset += bytes.len();
            }
        }
        Ok(())
    }
}

impl Tiles {
    /// Address of the largest squared norm of a row, if that norm is kept.
    pub(crate) fn row_norm(&self) -> Option<Ptr<f32>> {
        self.row_norm.as_ref().map(|norm| Ptr::new(norm.address()))
    }

    /// The power of two by which elements are multiplied before they are rounded to f16: the largest become about 2^13.
    pub(crate) fn raise(&self) -> f32 {
        raise_of(self.largest)
    }
}

/// The power of two by which `largest` becomes about 2^13; 1 for zero.
pub(crate) fn raise_of(largest: f32) -> f32 {
    if !largest.is_normal() {
        return 1.0;
    }
    let exponent = 13 + 127 - (largest.to_bits() >> 23) as i32;
    2.0_f32.powi(exponent.clamp(-60, 60))
}

impl Kind {
    fn of(part: &WeightPart) -> Self {
        let scale_format = match &part.tensor.payload {
            Payload::Mlx { scale_format, .. } => Some(*scale_format),
            Payload::Blocks(_) => None,
        };
        Self { format: part.format(), scale_format, layout: Layout::of(part) }
    }
}

impl Stretch {
    /// How kernels find its rows.
    pub(crate) fn form(&self) -> Form {
        self.tiles.as_ref().map_or_else(|| Form::of_rows(self.format), |tiles| Form::Tiles(tiles.layout))
    }

    /// True if the tiles' halves are those that are wanted.
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
        let (kind, rows) = (Kind::of(part), first_row..first_row + part.rows.len());
        first_row = rows.end;
        match pieces.last_mut() {
            Some(last)
                if last.kind == kind
                    && kind.layout.is_some()
                    && last.rows.len().is_multiple_of(TILE_OUTPUTS) =>
            {
                last.rows.end = rows.end;
            }
            _ => pieces.push(Piece { kind, rows, upper: None }),
        }
    }
    if let Some(halves) = halves
        && can_pair(&pieces, halves, first_row)
    {
        let upper = Some(halves.up.clone());
        return vec![Piece { kind: pieces[0].kind, rows: halves.gate.clone(), upper }];
    }
    pieces
}

/// True if the halves are all rows, of one kind, in whole halves of tiles.
fn can_pair(pieces: &[Piece], Halves { gate, up }: &Halves, rows: usize) -> bool {
    let adjacent = gate.end == up.start || up.end == gate.start;
    let one_kind = pieces.windows(2).all(|pair| pair[0].kind == pair[1].kind);
    adjacent
        && gate.len() == up.len()
        && gate.len() + up.len() == rows
        && gate.len().is_multiple_of(TILE_OUTPUTS / 2)
        && one_kind
        && pieces.first().is_some_and(|piece| piece.kind.layout.is_some())
}

type Uploaded = (Stretch, Vec<Part>, DeviceMemory);

/// Uploads a piece as tiles.
fn tiles(
    uploader: &mut Uploader,
    weight: &Weight,
    Piece { kind: Kind { format, .. }, rows, upper }: &Piece,
    (layout, power): (Layout, i32),
    has_norm: bool,
) -> Result<Uploaded, DeviceError> {
    let tile_rows = if upper.is_some() { TILE_OUTPUTS / 2 } else { TILE_OUTPUTS };
    let (subs, count) = (layout.subs(weight.row_len()), rows.len().div_ceil(tile_rows));
    let bytes = count.checked_mul(layout.tile_bytes(subs)).filter(|&bytes| isize::try_from(bytes).is_ok());
    let too_large = || DeviceError::OutOfMemory { bytes: u64::MAX, what: weight.name.clone() };
    let memory = uploader.gpu().allocate(bytes.ok_or_else(too_large)?, &weight.name)?;
    let data = Ptr::new(memory.address());
    let factor = 2.0_f32.powi(-power);
    let mut tiles =
        Tiles { layout, factor, data, count, subs, upper: upper.clone(), largest: 0.0, row_norm: None };
    tiles.largest = uploader.repack(weight, *format, rows, &tiles)?;
    // Of weights whose products are gated, of low-rank ones beside them, and of experts.
    if has_norm {
        tiles.row_norm = Some(Arc::new(uploader.gpu().allocate(4, &weight.name)?));
        uploader.row_norm(&tiles)?;
    }
    let part = |rows: &Range<usize>, place: u32| Part {
        subs: subs as u32,
        place,
        factor,
        ..part(data, rows, 0, Form::Tiles(layout))
    };
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
    Piece { kind: Kind { format, .. }, rows, .. }: &Piece,
) -> Result<Uploaded, DeviceError> {
    let (_, source) = parts_of(weight, rows).next().ok_or_else(|| odd(gpu, weight))?;
    let of_rows = RowSource::of(gpu, weight, &source)?;
    let arrays = of_rows.arrays(gpu, weight, &source)?;
    let RowSource { bytes: [row_bytes, ..], bits, group_size, groups, scale_format } = of_rows;
    let mut stored = Part {
        bits,
        group_size,
        groups,
        scale_format,
        ..part(Ptr::NONE, rows, row_bytes as u32, Form::of_rows(*format))
    };
    let sizes = arrays.iter().map(|array| array.len().next_multiple_of(ALIGNMENT_BYTES));
    let memory = gpu.allocate(sizes.sum(), &weight.name)?;
    let (mut offset, mut addresses) = (0, [0; 3]);
    for (array, address) in arrays.iter().zip(&mut addresses) {
        gpu.write(&memory, offset, array)?;
        *address = memory.address() + offset as u64;
        offset += array.len().next_multiple_of(ALIGNMENT_BYTES);
    }
    release(gpu, weight, rows)?;
    [stored.data, stored.scales, stored.biases] = addresses.map(Ptr::new);
    Ok((Stretch { format: *format, rows: rows.clone(), tiles: None }, vec![stored], memory))
}

fn part(data: Ptr<u8>, rows: &Range<usize>, row_bytes: u32, form: Form) -> Part {
    Part {
        data,
        scales: Ptr::NONE,
        biases: Ptr::NONE,
        first_row: rows.start as u32,
        rows: rows.len() as u32,
        row_bytes,
        format: form.code(),
        bits: 0,
        group_size: 1,
        groups: 0,
        scale_format: 0,
        subs: 0,
        place: params::PLACE_TILES,
        factor: 1.0,
        reserved: 0,
    }
}
