//! The loops over strips and rows, one file for each [`Route`](super::route::Route).
//!
//! Each takes [`Products`], the results that are wanted, and calls [`kernels`](super::kernels).
#![expect(unsafe_code, reason = "several threads write one output")]

#[cfg(target_arch = "x86_64")]
pub(super) mod bf16;
pub(super) mod decoded;
#[cfg(target_arch = "x86_64")]
pub(super) mod few_on_tiles;
pub(super) mod floats;
pub(super) mod panels;
#[cfg(target_arch = "x86_64")]
pub(super) mod panels_on_tiles;
pub(super) mod planes;
pub(super) mod residuals;
#[cfg(target_arch = "x86_64")]
pub(super) mod turned;

use std::ops::Range;

use super::layout::{LANES, Lanes};
use super::operands::{Input, Output, RowMap};
use crate::Isa;
use crate::quantize::QuantizedRow;
#[cfg(target_arch = "x86_64")]
use crate::rounded::{RoundedRows, RoundedView};

/// The products that are wanted: some rows of activations times some strips.
#[derive(Clone)]
pub(super) struct Products<'a> {
    pub isa: Isa,
    pub input: &'a Input<'a>,
    pub map: RowMap<'a>,
    output: &'a Output<'a>,
    /// Outputs of all strips of the weight.
    pub n: usize,
    pub strips: Range<usize>,
}

impl<'a> Products<'a> {
    /// The outputs of `strips` for the mapped rows; all strips of the weight make `n`.
    ///
    /// # Safety
    ///
    /// No other thread accesses these outputs while the result lives.
    pub unsafe fn new(
        isa: Isa,
        input: &'a Input<'a>,
        map: RowMap<'a>,
        output: &'a Output<'a>,
        n: usize,
        strips: Range<usize>,
    ) -> Self {
        Self { isa, input, map, output, n, strips }
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

    /// The mapped rows as bf16. Rows that are not in their order are gathered into `memory`.
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

    /// The memory for the results of a row and consecutive strips.
    ///
    /// # Safety
    ///
    /// No two such pieces of memory overlap while they live.
    pub unsafe fn results(&self, row: usize, strips: Range<usize>) -> &'a mut [f32] {
        let columns = strips.start * LANES..self.n.min(strips.end * LANES);
        // SAFETY: by this contract and that of `new`.
        unsafe { self.output.row(self.map.y(row), columns) }
    }

    /// Reads the results of a row and a strip; missing outputs are zero.
    fn load(&self, row: usize, strip: usize) -> Lanes {
        // SAFETY: gone before other memory is asked for.
        let results = unsafe { self.results(row, strip..strip + 1) };
        <&Lanes>::try_from(&*results).copied().unwrap_or_else(|_| {
            let mut lanes = [0.0; LANES];
            lanes[..results.len()].copy_from_slice(results);
            lanes
        })
    }

    /// Writes the results of a row and a strip.
    fn store(&self, row: usize, strip: usize, lanes: &Lanes) {
        // SAFETY: gone before other memory is asked for.
        let results = unsafe { self.results(row, strip..strip + 1) };
        match <&mut Lanes>::try_from(&mut *results) {
            Ok(whole) => *whole = *lanes,
            Err(_) => store_part(results, lanes),
        }
    }

    /// Writes the results of a row and consecutive strips.
    fn store_run<'s>(&self, row: usize, strips: &Range<usize>, lanes: impl Iterator<Item = &'s Lanes>) {
        // SAFETY: gone before other memory is asked for.
        let results = unsafe { self.results(row, strips.clone()) };
        let (whole, rest) = results.as_chunks_mut::<LANES>();
        let mut lanes = lanes.take(strips.len());
        for (to, lanes) in whole.iter_mut().zip(&mut lanes) {
            *to = *lanes;
        }
        if let Some(lanes) = lanes.next() {
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }

    /// Takes rows of activations for a kernel call.
    ///
    /// Writes them field by field: an array that is built and then moved is read before it is written, which cost a tenth of
    /// a prompt's products.
    #[inline(always)]
    fn gather_int8(&self, rows: &Range<usize>, x: &mut [QuantizedRow<'a>]) {
        for (x, row) in x.iter_mut().zip(rows.clone()) {
            let QuantizedRow { codes, blocks } = self.int8_row(row);
            x.codes = codes;
            x.blocks = blocks;
        }
    }
}

/// Apart, so that storing all lanes stays one vector: side by side both become a call with a length.
#[cold]
#[inline(never)]
fn store_part(results: &mut [f32], lanes: &Lanes) {
    results.copy_from_slice(&lanes[..results.len()]);
}

/// The bytes of consecutive strips.
fn strip_run<'a>(packed: &'a [u8], strip_bytes: usize, strips: &Range<usize>) -> &'a [u8] {
    &packed[strips.start * strip_bytes..strips.end * strip_bytes]
}
