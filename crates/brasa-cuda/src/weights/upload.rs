//! Stored bytes to device memory and into tiles, and back.
#![expect(unsafe_code, reason = "queues copies and kernels on memory of its own")]

use std::ops::Range;
use std::sync::Arc;

use brasa_formats::{Bytes, StorageFormat};
use brasa_graph::Weight;
use brasa_graph::device::DeviceError;

use super::Form;
use super::layout::{Layout, TILE_OUTPUTS};
use super::source::{RowSource, part_at, parts_of, release};
use super::stored::Tiles;
use crate::driver::{DeviceMemory, Grid, Kernel};
use crate::gpu::Gpu;
use crate::params::{Ptr, RepackParams, RowNormsParams, UnpackParams};

/// Most bytes of rows that wait on the device to be repacked, unless sixteen rows are more.
const STAGED_BYTES: usize = 64 << 20;
/// Alignment of every array of staged rows.
const ALIGNMENT_BYTES: usize = 256;
/// Threads of a block.
const THREADS: u32 = 256;

/// Repacks weights on the device, through memory that is freed with it.
#[derive(Debug)]
pub(super) struct Uploader {
    gpu: Arc<Gpu>,
    staged: Option<DeviceMemory>,
    /// The bits of a bound of magnitudes.
    largest: DeviceMemory,
}

impl Uploader {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, DeviceError> {
        Ok(Self { gpu: Arc::clone(gpu), staged: None, largest: gpu.allocate(4, "a bound of weights")? })
    }

    pub(super) fn gpu(&self) -> Arc<Gpu> {
        Arc::clone(&self.gpu)
    }

    /// Writes the tiles that hold `rows`, and those paired with them; returns a bound of the magnitudes.
    pub(super) fn repack(
        &mut self,
        weight: &Weight,
        format: StorageFormat,
        rows: &Range<usize>,
        tiles: &Tiles,
    ) -> Result<f32, DeviceError> {
        let gpu = self.gpu();
        let kernel = gpu.kernel(&format!("repack_{}", stored_name(format, tiles.layout)))?;
        if gpu.measures {
            return Ok(1.0);
        }
        let Some(part) = part_at(weight, rows.start) else { return Ok(0.0) };
        let source = RowSource::of(&gpu, weight, &part)?;
        let row_bytes: usize = source.bytes.iter().sum();
        let tile_bytes = tiles.layout.tile_bytes(tiles.subs);
        let tile_rows = if tiles.upper.is_some() { TILE_OUTPUTS / 2 } else { TILE_OUTPUTS };
        let once = (STAGED_BYTES / (TILE_OUTPUTS * row_bytes).max(1)).clamp(1, tiles.count.max(1));
        // Each array of the rows follows the one before.
        let array_bytes =
            source.bytes.map(|bytes| (once * TILE_OUTPUTS * bytes).next_multiple_of(ALIGNMENT_BYTES));
        let staged = self.stage(array_bytes.iter().sum(), &weight.name)?;
        let begins =
            [staged, staged + array_bytes[0] as u64, staged + (array_bytes[0] + array_bytes[1]) as u64];
        // SAFETY: four bytes of this uploader's own.
        unsafe { gpu.stream.clear(self.largest.address(), 4) }.map_err(|error| gpu.error(error))?;
        for first in (0..tiles.count).step_by(once) {
            let count = once.min(tiles.count - first);
            let wanted = |all: &Range<usize>| {
                let start = all.start + first * tile_rows;
                start..(start + count * tile_rows).min(all.end)
            };
            let lower = wanted(rows);
            let mut copies = Vec::new();
            let mut ends = copy_rows(&gpu, weight, &lower, begins, &mut copies)?;
            let mut params = RepackParams {
                source: Ptr::new(begins[0]),
                scales: Ptr::new(begins[1]),
                biases: Ptr::new(begins[2]),
                to: Ptr::new(tiles.data.0 + (first * tile_bytes) as u64),
                largest: Ptr::new(self.largest.address()),
                row_bytes: source.bytes[0] as u32,
                inputs: weight.row_len() as u32,
                subs: tiles.subs as u32,
                tiles: count as u32,
                tile_rows: tile_rows as u32,
                lower_rows: lower.len() as u32,
                upper_start: 8,
                upper_rows: (lower.len() as u32).saturating_sub(8),
                bits: source.bits,
                group_size: source.group_size,
                groups: source.groups,
                scale_format: source.scale_format,
                divisor: tiles.factor,
            };
            if let Some(upper) = &tiles.upper {
                let upper = wanted(upper);
                params.upper_start = lower.len() as u32;
                params.upper_rows = upper.len() as u32;
                ends = copy_rows(&gpu, weight, &upper, ends, &mut copies)?;
            }
            debug_assert!(
                ends.iter()
                    .zip(begins)
                    .zip(array_bytes)
                    .all(|((end, begin), bytes)| end - begin <= bytes as u64)
            );
            self.launch(&kernel, count * tiles.subs * 32, &params)?;
            if !copies.is_empty() {
                gpu.stream.synchronize().map_err(|error| gpu.error(error))?;
            }
        }
        let mut bits = [0; 4];
        gpu.read(&self.largest, &mut bits)?;
        for rows in [Some(rows), tiles.upper.as_ref()].into_iter().flatten() {
            release(&gpu, weight, rows)?;
        }
        Ok(f32::from_bits(u32::from_ne_bytes(bits)))
    }

    /// Queues the largest squared norm of the rows of tiles that keep it.
    pub(super) fn row_norm(&mut self, tiles: &Tiles) -> Result<(), DeviceError> {
        let Some(memory) = &tiles.row_norm else { return Ok(()) };
        let gpu = self.gpu();
        gpu.clear(memory)?;
        let params = RowNormsParams {
            source: tiles.data,
            largest: Ptr::new(memory.address()),
            tiles: tiles.count as u32,
            subs: tiles.subs as u32,
            format: tiles.layout.number(),
            factor: tiles.factor,
        };
        self.launch(&gpu.kernel("row_norms")?, tiles.count * THREADS as usize, &params)
    }

    /// Reads `rows` rows of two-byte elements back from tiles.
    pub(super) fn unpack(
        &mut self,
        tiles: &Tiles,
        rows: usize,
        row_len: usize,
        place: u32,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        let gpu = self.gpu();
        let memory = gpu.allocate(bytes.len(), "a weight that is read")?;
        let params = UnpackParams {
            source: tiles.data,
            to: Ptr::new(memory.address()),
            rows: rows as u32,
            inputs: row_len as u32,
            subs: tiles.subs as u32,
            place,
        };
        self.launch(&gpu.kernel("unpack_16")?, rows * row_len, &params)?;
        gpu.read(&memory, bytes)
    }

    fn launch<P: Copy>(&self, kernel: &Kernel, threads: usize, params: &P) -> Result<(), DeviceError> {
        let blocks = threads.div_ceil(THREADS as usize) as u32;
        if blocks == 0 || self.gpu.measures {
            return Ok(());
        }
        let grid = Grid { blocks: [blocks, 1, 1], threads: THREADS, shared_bytes: 0 };
        // SAFETY: the parameters are this kernel's; they name memory of this uploader and of the weight, as large as its shape.
        unsafe { self.gpu.stream.launch(kernel, grid, params) }.map_err(|error| self.gpu.error(error))
    }

    /// The address of `bytes` that rows are copied to.
    fn stage(&mut self, bytes: usize, what: &str) -> Result<u64, DeviceError> {
        let held = self.staged.as_ref().map_or(0, DeviceMemory::size_bytes);
        if held < bytes || self.staged.is_none() {
            self.staged = None;
            self.staged = Some(self.gpu.allocate(bytes.max(1), what)?);
        }
        Ok(self.staged.as_ref().map_or(0, DeviceMemory::address))
    }
}

/// Queues uploads of the arrays of `rows`, each to its address in `to`; returns the addresses behind the uploaded
/// bytes. Arrays that were gathered in host memory move to `copies`, which must live until the stream is synchronised.
fn copy_rows(
    gpu: &Gpu,
    weight: &Weight,
    rows: &Range<usize>,
    mut to: [u64; 3],
    copies: &mut Vec<Bytes>,
) -> Result<[u64; 3], DeviceError> {
    for (_, part) in parts_of(weight, rows) {
        let arrays = RowSource::of(gpu, weight, &part)?.arrays(gpu, weight, &part)?;
        for (bytes, to) in arrays.iter().zip(&mut to) {
            // SAFETY: the staged memory was made large enough for these rows; the bytes belong to the weight, which outlives the wait
            // at the end of the upload, or to `copies`, which outlive the wait of the caller.
            let queued = unsafe { gpu.stream.upload(*to, bytes) };
            *to += bytes.len() as u64;
            if !part.is_consecutive() {
                copies.push(bytes.clone());
            }
            queued.map_err(|error| gpu.error(error))?;
        }
    }
    Ok(to)
}

/// A stored format's part of the names of kernels that repack it.
fn stored_name(format: StorageFormat, layout: Layout) -> String {
    match format {
        StorageFormat::MlxAffine(_) => format!("mlx_{}", Form::Tiles(layout).kernel_suffix()),
        _ => format!("{format:?}").to_lowercase(),
    }
}
