//! A weight of several segments, ready to be multiplied.

use std::cell::RefCell;
use std::ops::Range;

use brasa_graph::WeightPart;
use brasa_graph::device::Precision;

use super::buffer::Packer;
use super::layout::LANES;
#[cfg(target_arch = "x86_64")]
use super::loops::{bf16, turned};
use super::operands::{FloatRows, Input, Output, RowMap};
use super::route::WeightClasses;
use super::rows::{PackedRows, Scratch};
use super::some_inputs::FloatStrips;
use crate::matrix::PanelRows;
use crate::quantize::QuantizedRows;
use crate::rounded::{RoundedRows, RoundedView};
use crate::shared::SharedSlice;
use crate::{Error, Isa, Team};

/// Outputs of a strip.
pub const STRIP: usize = LANES;

/// Columns of [`PackedLinear::multiply_turned`] come in multiples of this.
pub const TURNED_COLUMNS: usize = 32;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Bytes that are prefetched before an operation begins: enough to set the processor's prefetcher going.
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
    first_strip: usize,
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
        Self::of(name, parts, |part| PackedRows::new(part, precision, packer))
    }

    /// Packs stacked `parts` for f32 activations. Like [`new`](Self::new), but rows that would be multiplied with int8 or bf16
    /// activations are decoded to f32 once. For small weights that decide something, such as routers.
    ///
    /// # Errors
    ///
    /// [`Error::BadWeight`] and [`Error::OutOfMemory`], like [`new`](Self::new).
    pub fn in_f32(
        name: &str,
        parts: &[WeightPart],
        precision: Precision,
        packer: &Packer<'_>,
    ) -> Result<Self, Error> {
        Self::of(name, parts, |part| PackedRows::in_f32(part, precision, packer))
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
            let segment = Segment { first_row: this.n, first_strip: this.strips(), rows };
            this.n += segment.rows.n;
            this.segments.push(segment);
        }
        Ok(this)
    }

    /// Number of outputs.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Number of strips. Each segment begins with a fresh strip.
    pub fn strips(&self) -> usize {
        self.segments.last().map_or(0, |last| last.first_strip + last.rows.strips())
    }

    /// The outputs of a strip, at most [`STRIP`].
    ///
    /// # Panics
    ///
    /// If there is no such strip.
    pub fn strip_outputs(&self, strip: usize) -> Range<usize> {
        let segment = self.segment(|segment| segment.first_strip <= strip);
        let first = (strip - segment.first_strip) * STRIP;
        assert!(first < segment.rows.n, "strip {strip} of {}", self.strips());
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

    /// The classes of its segments, which decide about the arithmetic of products.
    pub fn weight_classes(&self) -> WeightClasses {
        self.segments.iter().map(|segment| segment.rows.weight_class()).collect()
    }

    /// The strips of one of `threads` threads: contiguous, in thread order, of about equally many bytes.
    pub fn share(&self, threads: usize, thread: usize) -> Range<usize> {
        let total = self.size_bytes();
        let bound = |thread: usize| {
            let mut left = total * thread / threads;
            for segment in &self.segments {
                let (strips, bytes) = (segment.rows.strips(), segment.rows.size_bytes());
                if left < bytes {
                    return segment.first_strip + (left * strips + bytes / 2) / bytes;
                }
                left -= bytes;
            }
            self.strips()
        };
        bound(thread)..bound(thread + 1)
    }

    /// Prefetches the first bytes of `strip`.
    pub fn warm(&self, strip: usize) {
        let segment = self.segment(|segment| segment.first_strip <= strip);
        let bytes = segment.rows.strip(strip - segment.first_strip);
        crate::prefetch::lines(bytes.as_ptr(), bytes.len().min(WARM_BYTES));
    }

    /// The packed strips, if all of them are plain floats of one segment.
    pub fn float_strips(&self) -> Option<FloatStrips<'_>> {
        match &self.segments[..] {
            [one] => one.rows.float_strips(),
            _ => None,
        }
    }

    /// Decodes row `row` into `out`, `[K]`, exactly as its codec does: an embedding lookup.
    ///
    /// # Panics
    ///
    /// If there is no such row or `out` has another length.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n, "row {row} of {}", self.n);
        let segment = self.segment(|segment| segment.first_row <= row);
        segment.rows.decode_row(row - segment.first_row, out);
    }

    /// Writes `columns` of `rows`, exactly as their codecs decode them, as the panels of a product's second factor whose summed elements
    /// are the rows. `memory` is for a row.
    ///
    /// # Panics
    ///
    /// If there are no such rows or columns, if columns begin within a tile of [`TURNED_COLUMNS`], or if `memory` is too small.
    pub(super) fn fill_panels<const L: usize>(
        &self,
        isa: Isa,
        rows: &Range<usize>,
        columns: &Range<usize>,
        memory: &mut [f32],
        to: &mut PanelRows<'_, L>,
    ) {
        assert!(
            rows.end <= self.n && columns.start.is_multiple_of(TURNED_COLUMNS),
            "rows {rows:?} of {} from column {} on",
            self.n,
            columns.start
        );
        for segment in &self.segments {
            let local = |row: usize| row.saturating_sub(segment.first_row).min(segment.rows.n);
            let part = local(rows.start)..local(rows.end);
            if !part.is_empty() {
                let at = segment.first_row + part.start - rows.start;
                segment.rows.fill_panels(isa, part, columns, memory, (at, to));
            }
        }
    }

    /// Computes the outputs of `strips` for all rows of `map`.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these outputs of these rows until a barrier.
    ///
    /// # Panics
    ///
    /// If `input` lacks a form that the weights read or has another K, or if `output` is too small.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        input: &Input<'_>,
        map: RowMap<'_>,
        output: &Output<'_>,
        strips: Range<usize>,
    ) {
        SCRATCH.with_borrow_mut(|scratch| {
            for segment in &self.segments {
                let local =
                    |strip: usize| strip.saturating_sub(segment.first_strip).min(segment.rows.strips());
                let output = Output { column: output.column + segment.first_row.cast_signed(), ..*output };
                // SAFETY: by the contract.
                unsafe {
                    let strips = local(strips.start)..local(strips.end);
                    segment.rows.multiply(isa, input, map, &output, strips, scratch);
                }
            }
        });
    }

    /// Computes some outputs of `self`, the gate, and as many of `up`, for `rows` rows. `finish` gets both for a piece of a row, and
    /// replaces the gate's by the result; the outputs of `up` are not stored.
    ///
    /// `first_strips` are the first strips of gate and up. Returns false, and computes nothing, if the two cannot be computed
    /// together.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these outputs of these rows until a barrier.
    ///
    /// # Panics
    ///
    /// If `input` lacks a form that the weights read or has another K, or if `output` is too small.
    #[expect(unsafe_code, reason = "several threads write one output")]
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "rounding is of x86-64"))]
    pub unsafe fn multiply_gated(
        &self,
        up: &Self,
        isa: Isa,
        (input, rows): (&Input<'_>, usize),
        output: &Output<'_>,
        (first_strips, outputs): ([usize; 2], usize),
        finish: impl Fn(&mut [f32], &[f32]),
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if let Some((gate_rows, gate_strip)) = self.in_one_segment(first_strips[0], outputs)
            && let Some((up_rows, up_strip)) = up.in_one_segment(first_strips[1], outputs)
            && let Some((proofs, gate)) = gate_rows.rounded(isa, rows)
            && let Some((_, up)) = up_rows.rounded(isa, rows)
        {
            let weights = bf16::Gated { gate, up, first_strips: [gate_strip, up_strip], outputs };
            SCRATCH.with_borrow_mut(|scratch| {
                let chunk = &mut scratch.rounded.chunk;
                bf16::multiply_gated(proofs, &weights, (input.rounded(), rows), output, chunk, finish);
            });
            return true;
        }
        false
    }

    /// True if `rows` rows are multiplied with the other side of the weight in bf16, by [`multiply_turned`](Self::multiply_turned).
    pub fn turns(&self, isa: Isa, rows: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.turned(isa, rows).is_some();
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = (isa, rows);
            false
        }
    }

    /// The segments as turned strips, or `None` if a segment is not turned.
    #[cfg(target_arch = "x86_64")]
    fn turned(&self, isa: Isa, rows: usize) -> Option<(bf16::Proofs, Vec<turned::Strips<'_>>)> {
        let segments = self.segments.iter().map(|segment| {
            let (proofs, weights) = segment.rows.turned(isa, rows)?;
            let (first_output, count) = (segment.first_row, segment.rows.strips());
            let strips = turned::Strips { weights, first_output, count };
            first_output.is_multiple_of(STRIP).then_some((proofs, strips))
        });
        let segments: Vec<_> = segments.collect::<Option<_>>()?;
        let &(proofs, _) = segments.first()?;
        Some((proofs, segments.into_iter().map(|(_, strips)| strips).collect()))
    }

    /// Computes `columns` of `x[r,k] = Σ_n y[r,n] · w[n,k]` for `rows` rows of `y`, which has N inputs: the other side of the weight.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes these columns of these rows until a barrier.
    ///
    /// # Panics
    ///
    /// If such products are not [in bf16](Self::turns), columns are no whole tiles of 32, `y` has another N, or `output` is too
    /// small.
    #[expect(unsafe_code, reason = "several threads write one output")]
    pub unsafe fn multiply_turned(
        &self,
        isa: Isa,
        (y, rows): (RoundedView<'_>, usize),
        columns: Range<usize>,
        output: &Output<'_>,
    ) {
        assert!(
            columns.start.is_multiple_of(TURNED_COLUMNS)
                && columns.end.is_multiple_of(TURNED_COLUMNS)
                && columns.end <= self.k,
            "columns {columns:?} of {}",
            self.k
        );
        #[cfg(target_arch = "x86_64")]
        if let Some((proofs, strips)) = self.turned(isa, rows) {
            assert_eq!(y.steps(), self.n.div_ceil(TURNED_COLUMNS), "tiles of rows of {}", self.n);
            return SCRATCH.with_borrow_mut(|scratch| {
                turned::multiply(proofs, &strips, (y, rows), &columns, output, &mut scratch.turned);
            });
        }
        let _ = (isa, y, output);
        unreachable!("{rows} rows times the other side of a weight in bf16")
    }

    /// The rows that make `outputs` outputs from strip `strip` on, and the strip's number among theirs. `None` if the outputs are of
    /// several segments.
    #[cfg(target_arch = "x86_64")]
    fn in_one_segment(&self, strip: usize, outputs: usize) -> Option<(&PackedRows, usize)> {
        let segment = self.segment(|segment| segment.first_strip <= strip);
        let strip = strip - segment.first_strip;
        (strip * STRIP + outputs <= segment.rows.n).then_some((&segment.rows, strip))
    }

    /// Computes `y = x · Wᵀ` with all threads of `team`. Quantises or rounds `x` as the weights need it.
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
    /// If `x` and `y` have different numbers of rows.
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
            let strips = self.share(barrier.threads(), thread);
            // SAFETY: shares are disjoint.
            unsafe { self.multiply(isa, &input, RowMap::All(rows), &output, strips) };
        })
    }

    fn segment(&self, starts_before: impl Fn(&Segment) -> bool) -> &Segment {
        let after = self.segments.partition_point(starts_before);
        &self.segments[after.saturating_sub(1)]
    }
}
