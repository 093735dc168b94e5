//! Rows of one storage format, ready to be multiplied.

use std::ops::Range;

use brasa_formats::Payload;
use brasa_graph::WeightPart;
use brasa_graph::device::Precision;

use super::blocks::{Panel, Spans};
use super::buffer::{Buffer, Packer};
use super::float_layout::FloatLayout;
use super::formats::Float;
use super::layout::{BLOCK, LANES, Layout};
use super::loops::decoded::{self, StoredRows};
use super::loops::{Products, floats, panels, planes as plane_loop, residuals};
#[cfg(target_arch = "x86_64")]
use super::loops::{bf16, few_on_tiles, panels_on_tiles, turned};
use super::operands::{Input, Output, RowMap};
use super::pack;
use super::panels_of_rows;
use super::planes;
use super::route::{Route, WeightClass};
use super::scales::BlockScales;
use super::some_inputs::FloatStrips;
use super::stored::{self, StoredRow};
use crate::matrix::PanelRows;
use crate::prefetch::PrefetchPolicy;
#[cfg(target_arch = "x86_64")]
use crate::tiles::BF16_INPUTS;
use crate::{Error, Isa};

/// Rows of one stored tensor in the form in which kernels read them.
#[derive(Debug)]
pub(super) struct PackedRows {
    pub n: usize,
    pub k: usize,
    /// Bytes of the rows in the checkpoint.
    pub stored_bytes: usize,
    form: Form,
}

/// The form in which rows are kept.
#[derive(Debug)]
enum Form {
    /// Packed codes.
    Codes(Layout, Buffer),
    /// Packed floats.
    Floats(FloatLayout, Buffer),
    /// The stored bytes.
    Stored(StoredRows),
}

/// Memory of one thread, reused from call to call.
#[derive(Default)]
pub(super) struct Scratch {
    codes: CodesScratch,
    residuals: residuals::Scratch,
    #[cfg(target_arch = "x86_64")]
    pub rounded: bf16::Scratch,
    #[cfg(target_arch = "x86_64")]
    pub turned: turned::Scratch,
    weights: Vec<f32>,
}

#[derive(Default)]
struct CodesScratch {
    panels: [Panel; 2],
    #[cfg(target_arch = "x86_64")]
    tiles: panels_on_tiles::Scratch,
}

impl PackedRows {
    /// Packs the rows of `part` for the given precision.
    pub fn new(part: &WeightPart, precision: Precision, packer: &Packer<'_>) -> Result<Self, Error> {
        stored::check(part)?;
        let tensor = &part.tensor;
        let (n, k) = (part.rows.len(), tensor.row_len());
        let stored = StoredRows::new(part)?;
        let stored_bytes = stored.size_bytes();
        let scale_float = match &tensor.payload {
            Payload::Mlx { scale_format, .. } => Float::of(*scale_format),
            Payload::Blocks(_) => None,
        };
        let of = |lanes: Range<usize>| {
            lanes.map(|row| StoredRow::of(tensor, part.stride.stored(part.rows.start + row)))
        };
        let form = if precision == Precision::Reference {
            Form::Stored(stored)
        } else if let Some(float) = Float::of(tensor.format) {
            let layout = FloatLayout { float, k };
            let buffer = packer.strips(n, layout.strip_bytes(), |lanes, strip| {
                layout.pack_strip(&of(lanes).map(StoredRow::bytes).collect::<Vec<_>>(), strip);
            })?;
            Form::Floats(layout, buffer)
        } else if let Some(layout) = Layout::of(tensor.format, scale_float, k) {
            let buffer = packer.strips(n, layout.strip_bytes(), |lanes, strip| {
                pack::pack_strip(&layout, &of(lanes).collect::<Vec<_>>(), strip);
            })?;
            Form::Codes(layout, buffer)
        } else {
            Form::Stored(stored)
        };
        Ok(Self { n, k, stored_bytes, form })
    }

    /// Packs the rows of `part` for f32 activations: like [`new`](Self::new), but any packed format is decoded to F32.
    pub fn in_f32(part: &WeightPart, precision: Precision, packer: &Packer<'_>) -> Result<Self, Error> {
        if precision == Precision::Reference || Float::of(part.format()) == Some(Float::F32) {
            return Self::new(part, precision, packer);
        }
        stored::check(part)?;
        let (n, k) = (part.rows.len(), part.tensor.row_len());
        let stored = StoredRows::new(part)?;
        let layout = FloatLayout { float: Float::F32, k };
        let buffer = packer.strips(n, layout.strip_bytes(), |lanes, strip| {
            let decoded = lanes.map(|row| {
                let mut floats = vec![0.0; k];
                stored.decode_row(row, &mut floats);
                floats.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>()
            });
            let decoded: Vec<_> = decoded.collect();
            layout.pack_strip(&decoded.iter().map(Vec::as_slice).collect::<Vec<_>>(), strip);
        })?;
        Ok(Self { n, k, stored_bytes: stored.size_bytes(), form: Form::Floats(layout, buffer) })
    }

    pub fn strips(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Packed bytes, and the bytes of a strip; none of rows in their stored form.
    fn packed(&self) -> (&[u8], usize) {
        match &self.form {
            Form::Codes(layout, buffer) => (buffer.bytes(), layout.strip_bytes()),
            Form::Floats(layout, buffer) => (buffer.bytes(), layout.strip_bytes()),
            Form::Stored(_) => (&[], 0),
        }
    }

    /// The packed bytes of a strip; empty if rows keep their stored form or there is no such strip.
    pub fn strip(&self, strip: usize) -> &[u8] {
        let (bytes, strip_bytes) = self.packed();
        bytes.get(strip * strip_bytes..(strip + 1) * strip_bytes).unwrap_or_default()
    }

    /// The packed strips, if they are plain floats.
    pub fn float_strips(&self) -> Option<FloatStrips<'_>> {
        match &self.form {
            Form::Floats(layout, buffer) => {
                Some(FloatStrips { layout: *layout, bytes: &buffer.bytes()[..self.size_bytes()] })
            }
            _ => None,
        }
    }

    /// Bytes that one pass over the rows reads.
    pub fn size_bytes(&self) -> usize {
        match &self.form {
            Form::Stored(rows) => rows.size_bytes(),
            _ => self.strips() * self.packed().1,
        }
    }

    pub fn weight_class(&self) -> WeightClass {
        match &self.form {
            Form::Codes(..) => WeightClass::Quantised,
            Form::Floats(layout, _) if layout.float != Float::F32 => WeightClass::Float16,
            Form::Floats(..) => WeightClass::Full,
            Form::Stored(_) => WeightClass::Stored,
        }
    }

    /// Decodes row `row` into `out`, exactly as its codec does.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n && out.len() == self.k, "row {row} of {} × {} to {}", self.n, self.k, out.len());
        let (strip, lane) = (self.strip(row / LANES), row % LANES);
        match &self.form {
            Form::Stored(rows) => rows.decode_row(row, out),
            Form::Floats(layout, _) => {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = layout.weight(strip, lane, k);
                }
            }
            Form::Codes(layout, _) => decode_lane(layout, strip, lane, out),
        }
    }

    /// Decodes `columns` of `rows` into panels, from row `at` on, exactly as their codec does. `memory` has room for a row.
    pub fn fill_panels<const L: usize>(
        &self,
        isa: Isa,
        rows: Range<usize>,
        columns: &Range<usize>,
        memory: &mut [f32],
        (at, to): (usize, &mut PanelRows<'_, L>),
    ) {
        assert!(
            rows.end <= self.n && columns.end <= self.k,
            "{rows:?} × {columns:?} of {} × {}",
            self.n,
            self.k
        );
        if let Form::Stored(_) = &self.form {
            return for row in rows.clone() {
                self.decode_row(row, &mut memory[..self.k]);
                to.put(at + row - rows.start, 0, &memory[columns.clone()]);
            };
        }
        for strip in rows.start / LANES..rows.end.div_ceil(LANES) {
            let first = strip * LANES;
            let lanes = rows.start.saturating_sub(first)..LANES.min(rows.end - first);
            let at = at + first + lanes.start - rows.start;
            let (strip, part) = (self.strip(strip), (&lanes, columns));
            match &self.form {
                Form::Floats(layout, _) => {
                    panels_of_rows::fill_from_floats(isa, (layout, strip), part, at, to);
                }
                Form::Codes(layout, _) => panels_of_rows::fill_from_codes((layout, strip), part, at, to),
                Form::Stored(_) => unreachable!("they have no strips"),
            }
        }
    }

    /// Writes the outputs of `strips` for the mapped rows.
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
        strips: Range<usize>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: by the contract.
        let wanted = unsafe { Products::new(isa, input, map, output, self.n, strips) };
        #[cfg(target_arch = "x86_64")]
        if let Some((proofs, weights)) = self.rounded(isa, map.len()) {
            return bf16::multiply(proofs, weights, &wanted, &mut scratch.rounded);
        }
        match &self.form {
            Form::Codes(layout, buffer) => {
                let Scratch { codes, residuals, .. } = scratch;
                let mut multiply = |wanted: &Products<'_>| codes.multiply(wanted, layout, buffer.bytes());
                match input.int8().first_residual() {
                    None => multiply(&wanted),
                    Some(first_residual) => {
                        residuals::multiply(&wanted, first_residual, residuals, multiply);
                    }
                }
            }
            Form::Floats(layout, buffer) => floats::multiply(&wanted, layout, buffer.bytes()),
            Form::Stored(stored) => decoded::multiply(&wanted, stored, self.k, &mut scratch.weights),
        }
    }

    /// The weights for products with `rows` rows in bf16; `None` if such products take another route.
    #[cfg(target_arch = "x86_64")]
    pub fn rounded(&self, isa: Isa, rows: usize) -> Option<(bf16::Proofs, bf16::Weights<'_>)> {
        let (Route::Bf16 | Route::Bf16OnTiles) = Route::of(isa, self.weight_class(), rows) else {
            return None;
        };
        self.in_bf16(isa)
    }

    /// The transposed weights for products with `rows` rows in bf16; `None` if such products are computed in f32.
    #[cfg(target_arch = "x86_64")]
    pub fn turned(&self, isa: Isa, rows: usize) -> Option<(bf16::Proofs, bf16::Weights<'_>)> {
        let turns = Route::turns(isa, self.weight_class(), rows) && self.k.is_multiple_of(BF16_INPUTS);
        if turns { self.in_bf16(isa) } else { None }
    }

    #[cfg(target_arch = "x86_64")]
    fn in_bf16(&self, isa: Isa) -> Option<(bf16::Proofs, bf16::Weights<'_>)> {
        let Isa::Avx512(proof) = isa else { return None };
        let weights = match &self.form {
            Form::Codes(layout, buffer) => bf16::Weights::Codes(layout, buffer.bytes()),
            Form::Floats(layout, buffer) => bf16::Weights::Floats(layout, buffer.bytes()),
            Form::Stored(_) => return None,
        };
        Some(((proof, proof.bf16()?), weights))
    }
}

impl CodesScratch {
    /// Writes the products of codes with int8 activations.
    fn multiply(&mut self, wanted: &Products<'_>, layout: &Layout, weights: &[u8]) {
        let route = Route::of_int8(wanted.isa, layout.unpacking(), wanted.rows());
        #[cfg(target_arch = "x86_64")]
        if let Isa::Avx512(proof) = wanted.isa
            && let Some(tiles) = proof.tiles()
        {
            match route {
                Route::FewOnTiles => {
                    let rows = &mut self.tiles.rows;
                    return few_on_tiles::multiply(proof, tiles, wanted, layout, weights, rows);
                }
                Route::PanelsOnTiles => {
                    return panels_on_tiles::multiply(proof, tiles, wanted, layout, weights, &mut self.tiles);
                }
                _ => {}
            }
        }
        if route == Route::Panels {
            panels::multiply(wanted, layout, weights, &mut self.panels);
        } else {
            plane_loop::multiply(wanted, layout, weights);
        }
    }
}

fn decode_lane(layout: &Layout, strip: &[u8], lane: usize, out: &mut [f32]) {
    let halves = layout.shape.scales_per_block();
    let offset = if layout.shape.has_min() { 0 } else { i32::from(layout.codes.offset()) };
    let mut unpacked = BlockScales::ZERO;
    for (block, packed) in Spans::new(layout, strip, 0..layout.blocks, PrefetchPolicy::Never).flatten() {
        packed.portable_scales(layout, &mut unpacked);
        let codes = planes::unpack_lane(layout.codes, packed.planes, lane);
        for (index, (out, code)) in out[block * BLOCK..][..BLOCK].iter_mut().zip(codes).enumerate() {
            let half = index * halves / BLOCK;
            *out = unpacked.scale[half][lane] * (i32::from(code) - offset) as f32;
            if layout.shape.has_min() {
                *out += unpacked.min[half][lane];
            }
        }
    }
}
