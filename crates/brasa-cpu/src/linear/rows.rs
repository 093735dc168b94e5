//! Rows of one storage format, ready to be multiplied.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use brasa_formats::{Payload, Tensor};
use brasa_graph::device::Precision;

use super::arithmetic::{Arithmetic, WeightClass};
use super::buffer::{Buffer, Packer};
use super::exact::ExactRows;
use super::float::FloatLayout;
use super::int8::{self, Panel};
use super::layout::{BLOCK, Float, LANES, Layout};
use super::operands::{Input, Output, RowMap};
use super::pack::{self, StoredRow};
use super::planes;
use super::products::Products;
use super::residuals;
use super::scales::{BlockScales, Portable};
#[cfg(target_arch = "x86_64")]
use super::{rounded, tiled};
use crate::prefetch::PrefetchPolicy;
use crate::shared::SharedSlice;
use crate::{Error, Isa, Team};

/// Consecutive rows of one tensor.
#[derive(Debug)]
pub(super) struct PackedRows {
    pub n: usize,
    pub k: usize,
    /// Bytes of the same rows in the checkpoint.
    pub stored_bytes: usize,
    class: Class,
}

#[derive(Debug)]
enum Class {
    /// Repacked codes, int8 activations.
    Int8(Layout, Buffer),
    /// Repacked floats, f32 activations.
    Float(FloatLayout, Buffer),
    /// Stored rows, f32 activations.
    Exact(ExactRows),
}

impl Class {
    /// What of it decides about the arithmetic of products.
    fn of_weights(&self) -> WeightClass {
        match self {
            Self::Int8(..) => WeightClass::Quantised,
            Self::Float(layout, _) if layout.float != Float::F32 => WeightClass::Float16,
            Self::Float(..) | Self::Exact(_) => WeightClass::Full,
        }
    }

    /// Weights that can be rounded to bf16.
    #[cfg(target_arch = "x86_64")]
    fn to_round(&self) -> Option<rounded::Weights<'_>> {
        match self {
            Self::Int8(layout, buffer) => Some(rounded::Weights::Codes(layout, buffer.bytes())),
            Self::Float(layout, buffer) => Some(rounded::Weights::Floats(layout, buffer.bytes())),
            Self::Exact(_) => None,
        }
    }
}

/// Tiles that a packing thread takes at a time: a few dozen microseconds of work.
const TAKEN_TILES: usize = 8;

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    int8: Int8Scratch,
    residuals: residuals::Scratch,
    #[cfg(target_arch = "x86_64")]
    pub rounded: rounded::Scratch,
    weights: Vec<f32>,
}

#[derive(Default)]
struct Int8Scratch {
    panel: Panel,
    #[cfg(target_arch = "x86_64")]
    tiled: tiled::Scratch,
}

impl PackedRows {
    pub fn new(
        tensor: &Tensor,
        rows: Range<usize>,
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        check(tensor, &rows)?;
        let (n, k) = (rows.len(), tensor.row_len());
        let stored = ExactRows::new(tensor, rows.clone())?;
        let stored_bytes = stored.size_bytes();
        let class = match precision {
            Precision::Reference => Class::Exact(stored),
            Precision::Fast => {
                let scale_float = match &tensor.payload {
                    Payload::Mlx { scale_format, .. } => Float::of(*scale_format),
                    Payload::Blocks(_) => None,
                };
                if let Some(float) = Float::of(tensor.format) {
                    let layout = FloatLayout { float, k };
                    let buffer = pack_tiles(n, layout.tile_bytes(), packer, |lanes, tile| {
                        let stored: Vec<&[u8]> = lanes
                            .map(|row| match stored_row(tensor, rows.start + row) {
                                StoredRow::Blocks(_, bytes) => bytes,
                                StoredRow::Mlx { words, .. } => words,
                            })
                            .collect();
                        layout.pack_tile(&stored, tile);
                    })?;
                    Class::Float(layout, buffer)
                } else if let Some(layout) = Layout::of(tensor.format, scale_float, k) {
                    let buffer = pack_tiles(n, layout.tile_bytes(), packer, |lanes, tile| {
                        let stored: Vec<_> = lanes.map(|row| stored_row(tensor, rows.start + row)).collect();
                        pack::pack_tile(&layout, &stored, tile);
                    })?;
                    Class::Int8(layout, buffer)
                } else {
                    Class::Exact(stored)
                }
            }
        };
        Ok(Self { n, k, stored_bytes, class })
    }

    /// As [`new`](Self::new), but what would want int8 activations, or may be rounded to bf16, is decoded to F32.
    pub fn in_f32(
        tensor: &Tensor,
        rows: Range<usize>,
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        if precision == Precision::Reference || Float::of(tensor.format) == Some(Float::F32) {
            return Self::new(tensor, rows, precision, packer);
        }
        check(tensor, &rows)?;
        let (n, k) = (rows.len(), tensor.row_len());
        let stored = ExactRows::new(tensor, rows)?;
        let stored_bytes = stored.size_bytes();
        let layout = FloatLayout { float: Float::F32, k };
        let buffer = pack_tiles(n, layout.tile_bytes(), packer, |lanes, tile| {
            let decoded: Vec<Vec<u8>> = lanes
                .map(|row| {
                    let mut floats = vec![0.0; k];
                    stored.decode_row(row, &mut floats);
                    floats.into_iter().flat_map(f32::to_le_bytes).collect()
                })
                .collect();
            let decoded: Vec<&[u8]> = decoded.iter().map(Vec::as_slice).collect();
            layout.pack_tile(&decoded, tile);
        })?;
        Ok(Self { n, k, stored_bytes, class: Class::Float(layout, buffer) })
    }

    pub fn tiles(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// The packed bytes of a tile; none where rows stay as they are stored or there is no such tile.
    pub fn tile(&self, tile: usize) -> &[u8] {
        match &self.class {
            _ if tile >= self.tiles() => &[],
            Class::Int8(layout, buffer) => tile_bytes(buffer.bytes(), layout.tile_bytes(), tile),
            Class::Float(layout, buffer) => tile_bytes(buffer.bytes(), layout.tile_bytes(), tile),
            Class::Exact(_) => &[],
        }
    }

    /// Bytes that one pass over the rows reads.
    pub fn size_bytes(&self) -> usize {
        match &self.class {
            Class::Int8(layout, _) => self.tiles() * layout.tile_bytes(),
            Class::Float(layout, _) => self.tiles() * layout.tile_bytes(),
            Class::Exact(rows) => rows.size_bytes(),
        }
    }

    pub fn weight_class(&self) -> WeightClass {
        self.class.of_weights()
    }

    /// The row as f32, equal to what its codec says.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {} × {} to {}", self.n, self.k, out.len());
        let (tile, lane) = (row / LANES, row % LANES);
        match &self.class {
            Class::Exact(rows) => rows.decode_row(row, out),
            Class::Float(layout, buffer) => {
                let tile = tile_bytes(buffer.bytes(), layout.tile_bytes(), tile);
                for (k, out) in out.iter_mut().enumerate() {
                    *out = layout.weight(tile, lane, k);
                }
            }
            Class::Int8(layout, buffer) => {
                decode_lane(layout, tile_bytes(buffer.bytes(), layout.tile_bytes(), tile), lane, out);
            }
        }
    }

    /// Writes the outputs of `tiles` for the mapped rows.
    ///
    /// # Safety
    ///
    /// No one else touches these outputs meanwhile.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        input: &Input<'_>,
        map: RowMap<'_>,
        output: &Output<'_>,
        tiles: Range<usize>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: by the contract.
        let products = unsafe { Products::new(isa, input, map, output, self.n, tiles) };
        #[cfg(target_arch = "x86_64")]
        if let Some((proofs, weights)) = self.rounded(isa, map.len()) {
            return rounded::multiply(proofs, weights, &products, &mut scratch.rounded);
        }
        match &self.class {
            Class::Int8(layout, buffer) => {
                let Scratch { int8, residuals, .. } = scratch;
                let mut multiply = |products: &Products<'_>| int8.multiply(products, layout, buffer.bytes());
                match input.int8().first_residual() {
                    None => multiply(&products),
                    Some(first_residual) => {
                        residuals::multiply(&products, first_residual, residuals, multiply);
                    }
                }
            }
            Class::Float(layout, buffer) => products.float(layout, buffer.bytes()),
            Class::Exact(stored) => products.exact(stored, self.k, &mut scratch.weights),
        }
    }

    /// The weights as products of `rows` rows round them, where they do.
    #[cfg(target_arch = "x86_64")]
    pub fn rounded(&self, isa: Isa, rows: usize) -> Option<(rounded::Proofs, rounded::Weights<'_>)> {
        let Isa::Avx512(proof) = isa else { return None };
        match Arithmetic::of(isa, self.class.of_weights(), rows) {
            Arithmetic::Bf16 | Arithmetic::Bf16Tiles => {
                Some(((proof, proof.bf16()?), self.class.to_round()?))
            }
            _ => None,
        }
    }
}

impl Int8Scratch {
    /// Quantised weights times int8 activations: tiles where there are enough rows for them, else panels, else planes.
    fn multiply(&mut self, products: &Products<'_>, layout: &Layout, weights: &[u8]) {
        let isa = products.isa;
        match Arithmetic::int8(isa, products.rows()) {
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Int8Tiles
                if let Isa::Avx512(proof) = isa
                    && let Some(unit) = proof.tiles() =>
            {
                let multiply =
                    if products.rows() <= LANES { tiled::multiply_few } else { tiled::multiply_int8 };
                multiply(proof, unit, layout, weights, products, &mut self.tiled);
            }
            _ if products.rows() >= int8::panel_rows(isa) => {
                products.int8_panels(layout, weights, &mut self.panel);
            }
            _ => products.int8_planes(layout, weights),
        }
    }
}

/// `0..items` in parts of `size`, the last one possibly shorter.
pub(super) fn parts(items: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..items).step_by(size).map(move |start| start..items.min(start + size))
}

fn check(tensor: &Tensor, rows: &Range<usize>) -> Result<(), Error> {
    let bad =
        |found: String, expected: String| Error::BadWeight { name: tensor.name.clone(), found, expected };
    if rows.start > rows.end || rows.end > tensor.rows() {
        return Err(bad(format!("rows {rows:?}"), format!("rows within 0..{}", tensor.rows())));
    }
    let (format, k) = (tensor.format, tensor.row_len());
    let row_bytes = format
        .row_bytes(k)
        .filter(|_| k > 0)
        .ok_or_else(|| bad(format!("rows of {k}"), format!("whole blocks of {format}")))?;
    let arrays = match (&tensor.payload, format) {
        (Payload::Blocks(bytes), _) => vec![(bytes.len(), row_bytes)],
        (
            Payload::Mlx { words, scales, biases, scale_format },
            brasa_formats::StorageFormat::MlxAffine(mlx),
        ) => {
            let group_bytes = k / mlx.group_size as usize * scale_format.block_bytes();
            let sizes = [(words.len(), k * mlx.bits as usize / 8), (scales.len(), group_bytes)];
            [&sizes[..], &[(biases.len(), group_bytes)]].concat()
        }
        (Payload::Mlx { .. }, _) => return Err(bad(format!("MLX arrays as {format}"), "blocks".into())),
    };
    for (found, per_row) in arrays {
        if per_row.checked_mul(tensor.rows()) != Some(found) {
            return Err(bad(format!("{found} bytes"), format!("{} rows of {per_row} bytes", tensor.rows())));
        }
    }
    Ok(())
}

fn stored_row(tensor: &Tensor, row: usize) -> StoredRow<'_> {
    let cut = |bytes| {
        let bytes: &[u8] = bytes;
        let width = bytes.len() / tensor.rows();
        &bytes[row * width..][..width]
    };
    match (&tensor.payload, tensor.format) {
        (Payload::Mlx { words, scales, biases, .. }, brasa_formats::StorageFormat::MlxAffine(params)) => {
            StoredRow::Mlx { params, words: cut(words), scales: cut(scales), biases: cut(biases) }
        }
        (Payload::Blocks(bytes) | Payload::Mlx { words: bytes, .. }, format) => {
            StoredRow::Blocks(format, cut(bytes))
        }
    }
}

pub(super) fn tile_bytes(packed: &[u8], tile_bytes: usize, tile: usize) -> &[u8] {
    &packed[tile * tile_bytes..][..tile_bytes]
}

/// Packs all tiles with all threads; `pack` gets the rows of a tile and its bytes.
#[expect(unsafe_code, reason = "several threads write one buffer")]
fn pack_tiles(
    n: usize,
    tile_bytes: usize,
    packer: &Packer<'_>,
    pack: impl Fn(Range<usize>, &mut [u8]) + Sync,
) -> Result<Buffer, Error> {
    let tiles = n.div_ceil(LANES);
    let mut buffer = packer.buffer(tiles * tile_bytes)?;
    let bytes = SharedSlice::new(buffer.bytes_mut());
    let threads = packer.team.threads();
    let shares: Vec<Range<usize>> =
        (0..threads).map(|thread| Team::split(tiles, 1, threads, thread)).collect();
    let taken: Vec<AtomicUsize> = shares.iter().map(|share| AtomicUsize::new(share.start)).collect();
    packer.team.run(|thread, _| {
        // Its own share first, so that memory lies near the thread that will read it; then what others have left, since
        // one of them may share its processor with the tokenizer, which is made meanwhile.
        for victim in (0..threads).map(|step| (thread + step) % threads) {
            loop {
                let first = taken[victim].fetch_add(TAKEN_TILES, Ordering::Relaxed);
                let end = shares[victim].end.min(first + TAKEN_TILES);
                if first >= end {
                    break;
                }
                for tile in first..end {
                    // SAFETY: every tile is taken once.
                    let bytes = unsafe { bytes.get_mut(tile * tile_bytes..(tile + 1) * tile_bytes) };
                    pack(tile * LANES..n.min((tile + 1) * LANES), bytes);
                }
            }
        }
    })?;
    Ok(buffer)
}

fn decode_lane(layout: &Layout, tile: &[u8], lane: usize, out: &mut [f32]) {
    let halves = layout.shape.scales_per_block();
    let offset = if layout.shape.has_min() { 0 } else { 1 << layout.codes.offset_shift() };
    let mut unpacked = BlockScales::ZERO;
    int8::for_each_block(layout, tile, 0..layout.blocks, PrefetchPolicy::Never, |block, packed| {
        packed.scales::<Portable>(layout.scales, &mut unpacked);
        let codes = planes::unpack_lane(layout.codes, packed.planes, lane);
        for (index, (out, code)) in out[block * BLOCK..][..BLOCK].iter_mut().zip(codes).enumerate() {
            let sub = index * halves / BLOCK;
            let code = i32::from(code) - offset;
            *out = unpacked.scale[sub][lane] * code as f32;
            if layout.shape.has_min() {
                *out += unpacked.min[sub][lane];
            }
        }
    });
}
