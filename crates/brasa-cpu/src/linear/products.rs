//! Products of packed rows: which kernel, how many rows at a time, in which order.
#![expect(unsafe_code, reason = "several threads write one output")]

use std::ops::Range;

use super::exact::{self, ExactRows};
use super::float::{self, FloatLayout};
use super::int8::{self, MAX_ROWS, Panel};
use super::layout::{LANES, Layout};
use super::operands::{Input, Output, RowMap};
use super::rows::{parts, tile_bytes};
use super::scales::Lanes;
use crate::Isa;
use crate::quantize::QuantizedRow;
#[cfg(target_arch = "x86_64")]
use crate::rounded::{RoundedRows, RoundedView};

/// Activations of a pass over all tiles: what stays in the second cache beside the weights.
const FLOAT_PASS: usize = 128 << 10;

/// Results of a run of tiles that few rows are multiplied with: a call costs little beside eight tiles.
const RUN_RESULTS: usize = 8 * MAX_ROWS;

/// What is multiplied into what.
#[derive(Clone)]
pub(super) struct Products<'a> {
    pub isa: Isa,
    pub input: &'a Input<'a>,
    pub map: RowMap<'a>,
    output: &'a Output<'a>,
    /// Outputs of all tiles.
    pub n: usize,
    pub tiles: Range<usize>,
}

impl<'a> Products<'a> {
    /// The outputs of `tiles` for the mapped rows; all tiles make `n`.
    ///
    /// # Safety
    ///
    /// No one else touches these outputs while the result lives.
    pub unsafe fn new(
        isa: Isa,
        input: &'a Input<'a>,
        map: RowMap<'a>,
        output: &'a Output<'a>,
        n: usize,
        tiles: Range<usize>,
    ) -> Self {
        Self { isa, input, map, output, n, tiles }
    }

    pub fn rows(&self) -> usize {
        self.map.len()
    }

    pub fn int8_row(&self, row: usize) -> QuantizedRow<'a> {
        self.input.int8().row(self.map.x(row))
    }

    pub fn float_row(&self, row: usize) -> &'a [f32] {
        self.input.float_row(self.map.x(row))
    }

    /// The mapped rows as bf16; `memory` is for those that have to be gathered.
    #[cfg(target_arch = "x86_64")]
    pub fn rounded<'s>(&self, memory: &'s mut RoundedRows) -> RoundedView<'s>
    where
        'a: 's,
    {
        let rounded = self.input.rounded();
        match self.map {
            RowMap::All(_) => rounded,
            RowMap::Pairs(_) => {
                memory.gather(rounded, self.rows(), |row| self.map.x(row));
                memory.view()
            }
        }
    }

    /// Where the results of a row and a tile go.
    ///
    /// # Safety
    ///
    /// No two of them are the same at a time.
    pub unsafe fn results(&self, row: usize, tile: usize) -> &'a mut [f32] {
        let columns = tile * LANES..self.n.min((tile + 1) * LANES);
        // SAFETY: by this contract and that of `new`.
        unsafe { self.output.row(self.map.y(row), columns) }
    }

    fn load(&self, row: usize, tile: usize) -> Lanes {
        // SAFETY: gone before the next is asked for.
        let results = unsafe { self.results(row, tile) };
        <&Lanes>::try_from(&*results).copied().unwrap_or_else(|_| {
            let mut lanes = [0.0; LANES];
            lanes[..results.len()].copy_from_slice(results);
            lanes
        })
    }

    fn store(&self, row: usize, tile: usize, lanes: &Lanes) {
        // SAFETY: gone before the next is asked for.
        let results = unsafe { self.results(row, tile) };
        match <&mut Lanes>::try_from(&mut *results) {
            Ok(whole) => *whole = *lanes,
            Err(_) => store_part(results, lanes),
        }
    }

    /// Writes the results of a row and consecutive tiles.
    pub fn store_run<'s>(&self, row: usize, tiles: &Range<usize>, lanes: impl Iterator<Item = &'s Lanes>) {
        let columns = tiles.start * LANES..self.n.min(tiles.end * LANES);
        // SAFETY: by the contract of `new`, and gone before others are asked for.
        let results = unsafe { self.output.row(self.map.y(row), columns) };
        let (whole, rest) = results.as_chunks_mut::<LANES>();
        let mut lanes = lanes.take(tiles.len());
        for (to, lanes) in whole.iter_mut().zip(&mut lanes) {
            *to = *lanes;
        }
        if let Some(lanes) = lanes.next() {
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }

    /// Few rows times planes, as they are unpacked.
    pub fn int8_planes(&self, layout: &Layout, weights: &[u8]) {
        let mut x = [QuantizedRow::default(); MAX_ROWS];
        let mut out = [[0.0; LANES]; RUN_RESULTS];
        for tiles in parts(self.tiles.len(), RUN_RESULTS / self.rows().clamp(1, MAX_ROWS)) {
            let tiles = self.tiles.start + tiles.start..self.tiles.start + tiles.end;
            let packed = &weights[tiles.start * layout.tile_bytes()..tiles.end * layout.tile_bytes()];
            for rows in in_groups(0..self.rows(), int8::rows_at_once) {
                let (x, out) = (&mut x[..rows.len()], &mut out[..tiles.len() * rows.len()]);
                self.gather_int8(&rows, x);
                int8::multiply_tiles(self.isa, layout, packed, x, out);
                for (at, row) in rows.clone().enumerate() {
                    self.store_run(row, &tiles, out[at..].iter().step_by(rows.len()));
                }
            }
        }
    }

    /// Many rows times panels.
    pub fn int8_panels(&self, layout: &Layout, weights: &[u8], panel: &mut Panel) {
        let mut x = [QuantizedRow::default(); int8::PASS_ROWS];
        let mut out = [[0.0; LANES]; MAX_ROWS];
        for pass in parts(self.rows(), int8::PASS_ROWS) {
            self.gather_int8(&pass, &mut x);
            let each = parts(layout.blocks, int8::PANEL_BLOCKS)
                .flat_map(|blocks| self.tiles.clone().map(move |tile| (blocks.clone(), tile)));
            for (blocks, tile) in each {
                let packed = tile_bytes(weights, layout.tile_bytes(), tile);
                int8::fill_panel(self.isa, layout, packed, &blocks, panel);
                for rows in in_groups(0..pass.len(), int8::rows_at_once) {
                    let (x, out) = (&x[rows.clone()], &mut out[..rows.len()]);
                    let rows = pass.start + rows.start..pass.start + rows.end;
                    if blocks.start > 0 {
                        for (row, out) in rows.clone().zip(&mut *out) {
                            *out = self.load(row, tile);
                        }
                    }
                    int8::multiply_panel(self.isa, layout, panel, x, out);
                    for (row, out) in rows.zip(out) {
                        self.store(row, tile, out);
                    }
                }
            }
        }
    }

    /// Rows of a kernel call, written field by field: an array that is built and then moved is read before it is
    /// written, which cost a tenth of a prompt's products.
    #[inline(always)]
    fn gather_int8(&self, rows: &Range<usize>, x: &mut [QuantizedRow<'a>]) {
        for (x, row) in x.iter_mut().zip(rows.clone()) {
            let QuantizedRow { codes, blocks } = self.int8_row(row);
            x.codes = codes;
            x.blocks = blocks;
        }
    }

    /// Rows times floats.
    pub fn float(&self, layout: &FloatLayout, weights: &[u8]) {
        let pass_rows = (FLOAT_PASS / layout.k).next_multiple_of(float::ROWS).max(float::ROWS);
        let mut x: [&[f32]; float::MAX_ROWS] = [&[]; float::MAX_ROWS];
        let mut out = [[0.0; LANES]; float::MAX_TILES * float::MAX_ROWS];
        for pass in parts(self.rows(), pass_rows) {
            for tiles in parts(self.tiles.len(), float::MAX_TILES) {
                let tiles = self.tiles.start + tiles.start..self.tiles.start + tiles.end;
                let packed = &weights[tiles.start * layout.tile_bytes()..tiles.end * layout.tile_bytes()];
                for rows in in_groups(pass.clone(), |left| float::rows_at_once(self.isa, left)) {
                    let (x, out) = (&mut x[..rows.len()], &mut out[..tiles.len() * rows.len()]);
                    for (x, row) in x.iter_mut().zip(rows.clone()) {
                        *x = self.float_row(row);
                    }
                    float::multiply_tiles(self.isa, layout, packed, x, out);
                    for (at, row) in rows.clone().enumerate() {
                        self.store_run(row, &tiles, out[at..].iter().step_by(rows.len()));
                    }
                }
            }
        }
    }

    /// Rows times stored weights, of which one row at a time is decoded into `weights`.
    pub fn exact(&self, stored: &ExactRows, k: usize, weights: &mut Vec<f32>) {
        weights.resize(k, 0.0);
        for tile in self.tiles.clone() {
            for (lane, column) in (tile * LANES..self.n.min((tile + 1) * LANES)).enumerate() {
                stored.decode_row(column, weights);
                for row in 0..self.rows() {
                    let dot = exact::dot(self.isa, weights, self.float_row(row));
                    // SAFETY: gone before the next is asked for.
                    unsafe { self.results(row, tile)[lane] = dot };
                }
            }
        }
    }
}

/// Apart, so that storing all lanes stays one vector: side by side both become a call with a length.
#[cold]
#[inline(never)]
fn store_part(results: &mut [f32], lanes: &Lanes) {
    results.copy_from_slice(&lanes[..results.len()]);
}

/// `rows` in groups, of which `at_once` says the size from how many are left.
fn in_groups(rows: Range<usize>, at_once: impl Fn(usize) -> usize) -> impl Iterator<Item = Range<usize>> {
    let mut next = rows.start;
    std::iter::from_fn(move || {
        let left = rows.end - next;
        let group = next..next + at_once(left);
        next = group.end;
        (left > 0).then_some(group)
    })
}
