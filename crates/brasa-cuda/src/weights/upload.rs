//! Stored bytes to device memory and into tiles, and back.
#![expect(unsafe_code, reason = "queues copies and kernels on memory of its own")]

use std::ops::Range;
use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::Weight;
use brasa_graph::device::DeviceError;

use super::kernel_suffix;
use super::layout::{Fragments, TILE_OUTPUTS};
use super::stored::{Tiles, bytes_of, row_bytes};
use crate::driver::{DeviceMemory, Grid, Kernel};
use crate::gpu::Gpu;
use crate::params::{Ptr, RepackParams, UnpackParams};

/// Most bytes of rows that wait on the device to be repacked, unless sixteen rows are more.
const STAGED_BYTES: usize = 64 << 20;
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
        let row_bytes = row_bytes(&gpu, weight, format)?;
        let kernel = gpu.kernel(&format!("repack_{}", kernel_suffix(format)))?;
        let tile_bytes = Fragments::of(format).map_or(0, |fragments| fragments.tile_bytes(tiles.subs));
        let tile_rows = if tiles.upper.is_some() { TILE_OUTPUTS / 2 } else { TILE_OUTPUTS };
        let once = (STAGED_BYTES / (TILE_OUTPUTS * row_bytes).max(1)).clamp(1, tiles.count.max(1));
        let staged = self.stage(once * TILE_OUTPUTS * row_bytes, &weight.name)?;
        // SAFETY: four bytes of this uploader's own.
        unsafe { gpu.stream.clear(self.largest.address(), 4) }.map_err(|error| gpu.error(error))?;
        for first in (0..tiles.count).step_by(once) {
            let count = once.min(tiles.count - first);
            let wanted = |all: &Range<usize>| {
                let start = all.start + first * tile_rows;
                start..(start + count * tile_rows).min(all.end)
            };
            let lower = wanted(rows);
            let mut offset = copy_rows(&gpu, weight, &lower, staged, 0)?;
            let mut params = RepackParams {
                source: Ptr::new(staged),
                to: Ptr::new(tiles.data.0 + (first * tile_bytes) as u64),
                largest: Ptr::new(self.largest.address()),
                row_bytes: row_bytes as u32,
                inputs: weight.row_len() as u32,
                subs: tiles.subs as u32,
                tiles: count as u32,
                tile_rows: tile_rows as u32,
                lower_rows: lower.len() as u32,
                upper_start: 8,
                upper_rows: (lower.len() as u32).saturating_sub(8),
            };
            if let Some(upper) = &tiles.upper {
                let upper = wanted(upper);
                params.upper_start = lower.len() as u32;
                params.upper_rows = upper.len() as u32;
                offset = copy_rows(&gpu, weight, &upper, staged, offset)?;
            }
            debug_assert!(offset <= once * TILE_OUTPUTS * row_bytes, "{offset} bytes staged");
            self.launch(&kernel, count * tiles.subs * 32, &params)?;
        }
        let mut bits = [0; 4];
        gpu.read(&self.largest, &mut bits)?;
        for bytes in bytes_of(&gpu, weight, rows)? {
            bytes.release_pages();
        }
        if let Some(upper) = &tiles.upper {
            bytes_of(&gpu, weight, upper)?.iter().for_each(brasa_formats::Bytes::release_pages);
        }
        Ok(f32::from_bits(u32::from_ne_bytes(bits)))
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
        if blocks == 0 {
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

/// Queues a copy of rows to `offset` bytes behind `address`; returns the bytes behind its end.
fn copy_rows(
    gpu: &Gpu,
    weight: &Weight,
    rows: &Range<usize>,
    address: u64,
    mut offset: usize,
) -> Result<usize, DeviceError> {
    for bytes in bytes_of(gpu, weight, rows)? {
        // SAFETY: the staged memory was made large enough for these rows; the bytes belong to the weight, which outlives the wait at
        // the end of the upload.
        unsafe { gpu.stream.upload(address + offset as u64, &bytes) }.map_err(|error| gpu.error(error))?;
        offset += bytes.len();
    }
    Ok(offset)
}
