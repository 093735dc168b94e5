//! Rows of activations rounded to bf16, in tiles of 16 rows and 32 inputs.
//!
//! A **group** is 16 rows; it has a tile for every 32 inputs, so that a tile unit reads a kilobyte in one piece. Inputs
//! beyond K are zero; rows that are missing of the last group may be anything.
#![expect(unsafe_code, reason = "threads fill disjoint rows of shared memory")]

use std::ops::Range;

use crate::Isa;
use crate::shared::SharedSlice;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Inputs of a tile.
pub(crate) const BF16_INPUTS: usize = 32;

/// A row of a tile, on a cache line of its own: a tile unit would load one that lies on two in two parts.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub struct TileRow([u16; BF16_INPUTS]);

impl TileRow {
    /// Zeroes.
    pub(crate) const ZERO: Self = Self([0; BF16_INPUTS]);
}

/// 16 rows of activations, 32 inputs each.
pub(crate) type Bf16Rows = [[u16; BF16_INPUTS]; ROWS];

/// Memory for rounded rows `[R, K]`, reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct RoundedRows {
    /// Tiles of a group.
    steps: usize,
    /// By group, tile and row.
    rows: Vec<TileRow>,
}

/// Rounded rows, for reading.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels that read them are for x86-64"))]
pub struct RoundedView<'a> {
    steps: usize,
    tiles: &'a [Bf16Rows],
}

/// Rounded rows that several threads fill, and read after a barrier.
#[derive(Clone, Copy, Debug)]
pub struct SharedRounded<'a> {
    steps: usize,
    rows: SharedSlice<'a, TileRow>,
}

/// Rows of tiles that `rows` rows of `k` inputs take.
pub(crate) const fn tile_rows(rows: usize, k: usize) -> usize {
    rows.next_multiple_of(ROWS) * k.div_ceil(BF16_INPUTS)
}

/// Where a row of a tile lies.
const fn place(steps: usize, row: usize, step: usize) -> usize {
    (row / ROWS * steps + step) * ROWS + row % ROWS
}

impl RoundedRows {
    /// Makes room for `rows` rows of `k` inputs; allocates only where it never was that large.
    pub fn reshape(&mut self, rows: usize, k: usize) {
        self.steps = k.div_ceil(BF16_INPUTS);
        self.rows.resize(tile_rows(rows, k), TileRow::ZERO);
    }

    /// Rounds `rows` rows of `x` `[R, K]` into the rows of the same number.
    pub fn round(&mut self, isa: Isa, x: &[f32], k: usize, rows: Range<usize>) {
        for row in rows {
            self.round_row(isa, row, &x[row * k..][..k]);
        }
    }

    /// Rounds `x` into row `row`.
    ///
    /// # Panics
    ///
    /// Where there is no such row, or `x` has other inputs.
    pub fn round_row(&mut self, isa: Isa, row: usize, x: &[f32]) {
        // SAFETY: `self` is borrowed mutably, nobody else reads or writes.
        unsafe { self.shared().round_row(isa, row, x) };
    }

    /// Takes `rows` rows of others, `row(index)` being their numbers there.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn gather(&mut self, from: RoundedView<'_>, rows: usize, row: impl Fn(usize) -> usize) {
        self.reshape(rows, from.steps * BF16_INPUTS);
        let others: &[TileRow] = bytemuck::cast_slice(from.tiles);
        for index in 0..rows {
            let other = row(index);
            for step in 0..from.steps {
                self.rows[place(from.steps, index, step)] = others[place(from.steps, other, step)];
            }
        }
    }

    /// A handle through which several threads fill disjoint rows.
    pub fn shared(&mut self) -> SharedRounded<'_> {
        SharedRounded { steps: self.steps, rows: SharedSlice::new(&mut self.rows) }
    }

    /// All rows.
    pub fn view(&self) -> RoundedView<'_> {
        RoundedView { steps: self.steps, tiles: bytemuck::cast_slice(&self.rows) }
    }
}

impl<'a> SharedRounded<'a> {
    /// Rows of `k` inputs in memory that is shared already.
    pub(crate) fn over(k: usize, rows: SharedSlice<'a, TileRow>) -> Self {
        Self { steps: k.div_ceil(BF16_INPUTS), rows }
    }

    /// Rounds `x` into row `row`.
    ///
    /// # Safety
    ///
    /// No one else uses this row meanwhile.
    ///
    /// # Panics
    ///
    /// Where there is no such row, or `x` has other inputs.
    pub unsafe fn round_row(&self, isa: Isa, row: usize, x: &[f32]) {
        assert_eq!(x.len().div_ceil(BF16_INPUTS), self.steps, "tiles of a row of {}", x.len());
        for (step, x) in x.chunks(BF16_INPUTS).enumerate() {
            let at = place(self.steps, row, step);
            // SAFETY: by the contract.
            let to = unsafe { self.rows.get_mut(at..at + 1) };
            if let Some(x) = x.as_array() {
                round_chunk(isa, x, &mut to[0].0);
            } else {
                let mut padded = [0.0; BF16_INPUTS];
                padded[..x.len()].copy_from_slice(x);
                round_chunk(isa, &padded, &mut to[0].0);
            }
        }
    }

    /// The first `rows` rows.
    ///
    /// # Safety
    ///
    /// No one writes them while the result lives.
    pub unsafe fn view(&self, rows: usize) -> RoundedView<'a> {
        // SAFETY: by the contract.
        let rows = unsafe { self.rows.get(0..rows.next_multiple_of(ROWS) * self.steps) };
        RoundedView { steps: self.steps, tiles: bytemuck::cast_slice(rows) }
    }
}

#[cfg(target_arch = "x86_64")]
impl<'a> RoundedView<'a> {
    /// Tiles of a group.
    pub(crate) const fn steps(&self) -> usize {
        self.steps
    }

    /// The tiles of a group.
    pub(crate) fn tiles(&self, group: usize) -> &'a [Bf16Rows] {
        &self.tiles[group * self.steps..][..self.steps]
    }
}

/// To the nearest, ties to even; NaN stays NaN.
#[inline]
fn round_chunk(isa: Isa, x: &[f32; BF16_INPUTS], to: &mut [u16; BF16_INPUTS]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) if let Some(proof) = proof.bf16() => crate::bf16::round_inputs(proof, x, to),
        _ => {
            for (to, x) in to.iter_mut().zip(x) {
                *to = half::bf16::from_f32(*x).to_bits();
            }
        }
    }
}
