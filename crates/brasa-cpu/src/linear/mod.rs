//! Weights repacked into the order in which kernels stream them, and their products `y = x · Wᵀ`.
//!
//! A [`PackedLinear`] is one logical weight `[N, K]`: a list of row segments, each in its own storage format.
//! Outputs come in **tiles** of 16; a thread computes any range of tiles for all rows of a step, so the work of
//! one operation is split by tiles, and the order of every sum depends on K and the storage format alone: not
//! on rows, threads or what else is in the step.
//!
//! Three classes, chosen by format and precision:
//! - quantised formats: codes at their stored width, rows interleaved, times int8 activations, or many rows of bf16 where
//!   there are tiles for it;
//! - F32, F16, BF16: stored precision, rows interleaved, times f32 activations, or but for F32 many rows of bf16; a weight that
//!   scores experts is decoded to F32;
//! - reference precision, and formats without kernels: stored bytes, decoded row by row.
#![allow(
    clippy::inline_always,
    reason = "one source is compiled for several instruction sets, which needs inlining"
)]

mod arithmetic;
mod buffer;
mod exact;
mod experts;
mod float;
mod int8;
mod layout;
mod operands;
mod pack;
mod planes;
mod products;
mod residuals;
#[cfg(target_arch = "x86_64")]
mod rounded;
mod rows;
mod scales;
#[cfg(target_arch = "x86_64")]
mod tiled;

use std::cell::RefCell;
use std::ops::Range;

use brasa_graph::WeightPart;
use brasa_graph::device::Precision;

pub(crate) use arithmetic::most_few_rows;
pub use arithmetic::{Arithmetic, Forms, WeightClass, WeightClasses};
pub use buffer::Packer;
pub use experts::{ExpertGroups, ExpertInput, PackedExperts};
pub use operands::{FloatRows, Input, Output, RowMap, RowPair};

use crate::quantize::QuantizedRows;
use crate::rounded::RoundedRows;
use crate::shared::SharedSlice;
use crate::{Error, Isa, Team};
use rows::{PackedRows, Scratch};

/// Outputs of a tile.
pub const STRIP: usize = layout::LANES;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Bytes that are asked for before an operation begins: enough to set the processor's prefetcher going.
const WARM_BYTES: usize = 4 << 10;

/// A weight `[N, K]`, ready to be multiplied.
#[derive(Debug)]
pub struct PackedLinear {
    n: usize,
    k: usize,
    segments: Vec<Segment>,
}

#[derive(Debug)]
struct Segment {
    rows: PackedRows,
    first_row: usize,
    first_tile: usize,
}

impl PackedLinear {
    /// Packs stacked `parts`.
    ///
    /// # Errors
    ///
    /// [`Error::BadWeight`]: parts of different row lengths, or bytes that do not fit their description;
    /// [`Error::OutOfMemory`].
    pub fn new(
        name: &str,
        parts: &[WeightPart],
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        Self::of(name, parts, |part| PackedRows::new(&part.tensor, part.rows.clone(), precision, packer))
    }

    /// The same for f32 activations whatever the format: rows that [`new`](Self::new) would multiply with int8
    /// or bf16 activations are decoded to f32 once. For small weights whose products decide something.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn in_f32(
        name: &str,
        parts: &[WeightPart],
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        Self::of(name, parts, |part| PackedRows::in_f32(&part.tensor, part.rows.clone(), precision, packer))
    }

    fn of(
        name: &str,
        parts: &[WeightPart],
        pack: impl Fn(&WeightPart) -> Result<PackedRows, Error>,
    ) -> Result<Self, Error> {
        let k = parts.first().map_or(0, |part| part.tensor.row_len());
        let mut this = Self { n: 0, k, segments: Vec::with_capacity(parts.len()) };
        for part in parts.iter().filter(|part| !part.rows.is_empty()) {
            if part.tensor.row_len() != k {
                return Err(Error::BadWeight {
                    name: name.into(),
                    found: format!("{} with rows of {}", part.tensor.name, part.tensor.row_len()),
                    expected: format!("rows of {k}"),
                });
            }
            let rows = pack(part)?;
            let segment = Segment { first_row: this.n, first_tile: this.strips(), rows };
            this.n += segment.rows.n;
            this.segments.push(segment);
        }
        Ok(this)
    }

    /// Outputs.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Inputs.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Tiles of outputs; segments begin with a fresh tile.
    pub fn strips(&self) -> usize {
        self.segments.last().map_or(0, |last| last.first_tile + last.rows.tiles())
    }

    /// The outputs that a tile makes, at most [`STRIP`].
    ///
    /// # Panics
    ///
    /// Where there is no such tile.
    pub fn strip_outputs(&self, tile: usize) -> Range<usize> {
        let segment = self.segment(|segment| segment.first_tile <= tile);
        let first = (tile - segment.first_tile) * STRIP;
        assert!(first < segment.rows.n, "tile {tile} of {}", self.strips());
        segment.first_row + first..segment.first_row + segment.rows.n.min(first + STRIP)
    }

    /// Bytes that one pass over the weight reads.
    pub fn size_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows.size_bytes()).sum()
    }

    /// Bytes of the same rows in the checkpoint.
    pub fn stored_bytes(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows.stored_bytes).sum()
    }

    /// What of its segments decides about the arithmetic of products.
    pub fn weight_classes(&self) -> WeightClasses {
        self.segments.iter().map(|segment| segment.rows.weight_class()).collect()
    }

    /// The tiles of one of `threads` threads: contiguous, in thread order, of about equally many bytes.
    pub fn share(&self, threads: usize, thread: usize) -> Range<usize> {
        let total = self.size_bytes();
        let bound = |thread: usize| {
            let mut left = total * thread / threads;
            for segment in &self.segments {
                let (tiles, bytes) = (segment.rows.tiles(), segment.rows.size_bytes());
                if left < bytes {
                    return segment.first_tile + (left * tiles + bytes / 2) / bytes;
                }
                left -= bytes;
            }
            self.strips()
        };
        bound(thread)..bound(thread + 1)
    }

    /// Asks the memory for the first bytes of `tile`, which are soon multiplied.
    pub fn warm(&self, tile: usize) {
        let segment = self.segment(|segment| segment.first_tile <= tile);
        let bytes = segment.rows.tile(tile - segment.first_tile);
        crate::prefetch::lines(bytes.as_ptr(), bytes.len().min(WARM_BYTES));
    }

    /// Writes row `row` to `out`, `[K]`, exactly as its codec decodes it: an embedding lookup.
    ///
    /// # Panics
    ///
    /// Where there is no such row or `out` has another length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of {}", self.n);
        let segment = self.segment(|segment| segment.first_row <= row);
        segment.rows.decode_row(row - segment.first_row, out);
    }

    /// Computes the outputs of `tiles` for all rows of `map`.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these outputs of these rows until a barrier.
    ///
    /// # Panics
    ///
    /// Where `input` lacks a form that the weights want or has another K, or where `output` is too small.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        input: &Input<'_>,
        map: RowMap<'_>,
        output: &Output<'_>,
        tiles: Range<usize>,
    ) {
        SCRATCH.with_borrow_mut(|scratch| {
            for segment in &self.segments {
                let local = |tile: usize| tile.saturating_sub(segment.first_tile).min(segment.rows.tiles());
                let output = Output { column: output.column + segment.first_row.cast_signed(), ..*output };
                // SAFETY: by the contract.
                unsafe {
                    let tiles = local(tiles.start)..local(tiles.end);
                    segment.rows.multiply(isa, input, map, &output, tiles, scratch);
                }
            }
        });
    }

    /// Computes outputs of `self` for `rows` rows and as many of `up`, and has `finish` make the first of both, a piece of a
    /// row at a time; `tiles` are the first tiles of either and the number of outputs. Those of `up` are kept nowhere.
    ///
    /// False where that cannot be done together, and nothing is.
    ///
    /// # Safety
    ///
    /// As [`multiply`](Self::multiply).
    ///
    /// # Panics
    ///
    /// As [`multiply`](Self::multiply).
    #[expect(unsafe_code, reason = "several threads write one output")]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "rounding is of x86-64"))]
    pub unsafe fn multiply_gated(
        &self,
        up: &Self,
        isa: Isa,
        (input, rows): (&Input<'_>, usize),
        output: &Output<'_>,
        ([gate_tile, up_tile], outputs): ([usize; 2], usize),
        finish: impl Fn(&mut [f32], &[f32]),
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Some((gate_rows, gate_tile)) = self.in_one_segment(gate_tile, outputs)
            && let Some((up_rows, up_tile)) = up.in_one_segment(up_tile, outputs)
            && let Some((proofs, gate)) = gate_rows.rounded(isa, rows)
            && let Some((_, up)) = up_rows.rounded(isa, rows)
        {
            let weights = rounded::Gated { gate, up, first_tiles: [gate_tile, up_tile], outputs };
            SCRATCH.with_borrow_mut(|scratch| {
                let chunk = &mut scratch.rounded.chunk;
                rounded::multiply_gated(proofs, &weights, (input.rounded(), rows), output, chunk, finish);
            });
            return true;
        }
        false
    }

    /// Where `outputs` outputs from tile `tile` on are of one storage format: its rows, and the tile's number among theirs.
    #[cfg(target_arch = "x86_64")]
    fn in_one_segment(&self, tile: usize, outputs: usize) -> Option<(&PackedRows, usize)> {
        let segment = self.segment(|segment| segment.first_tile <= tile);
        let tile = tile - segment.first_tile;
        (tile * STRIP + outputs <= segment.rows.n).then_some((&segment.rows, tile))
    }

    /// `y = x · Wᵀ` with all threads of `team`, `x` quantised or rounded where the weights want it.
    ///
    /// `x` is `[R, K]`, `y` `[R, N]`. Allocates; programs prepare their memory and call
    /// [`multiply`](Self::multiply).
    ///
    /// # Errors
    ///
    /// [`Error::WorkerPanicked`].
    ///
    /// # Panics
    ///
    /// Where `x` and `y` have different numbers of rows.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub fn apply(&self, isa: Isa, team: &Team, x: &[f32], y: &mut [f32]) -> Result<(), Error> {
        let rows = x.len().checked_div(self.k).unwrap_or(0);
        assert_eq!(
            (x.len(), y.len()),
            (rows * self.k, rows * self.n),
            "activations and results of {rows} rows"
        );
        let forms = self.weight_classes().forms(isa, rows);
        let (mut quantized, mut rounded) = (QuantizedRows::default(), RoundedRows::default());
        if forms.int8 {
            quantized.reshape(rows, self.k);
            quantized.quantize(isa, x, 0..rows);
        }
        if forms.bf16 {
            rounded.reshape(rows, self.k);
            rounded.round(isa, x, self.k, 0..rows);
        }
        let input = Input {
            float: Some(FloatRows { values: x, k: self.k, stride: self.k }),
            int8: forms.int8.then(|| quantized.view()),
            bf16: forms.bf16.then(|| rounded.view()),
        };
        let output = Output { values: SharedSlice::new(y), stride: self.n, column: 0 };
        team.run(|thread, barrier| {
            let tiles = self.share(barrier.threads(), thread);
            // SAFETY: shares are disjoint.
            unsafe { self.multiply(isa, &input, RowMap::All(rows), &output, tiles) };
        })
    }

    fn segment(&self, starts_before: impl Fn(&Segment) -> bool) -> &Segment {
        let after = self.segments.partition_point(starts_before);
        &self.segments[after.saturating_sub(1)]
    }
}
