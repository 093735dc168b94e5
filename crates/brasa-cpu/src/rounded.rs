//! Rows of activations rounded to bf16, in tiles of 16 rows and 32 inputs.
//!
//! A **group** is 16 rows. It has a tile for every 32 inputs, so a matrix unit reads a kilobyte in one piece. Inputs beyond
//! K are zero; missing rows of the last group may hold anything.
#![expect(unsafe_code, reason = "threads fill disjoint rows of shared memory")]

use std::ops::Range;

use crate::Isa;
use crate::shared::SharedSlice;
pub(crate) use crate::tile_row::ROWS;
pub use crate::tile_row::TileRow;
use crate::tile_row::{BF16_INPUTS, Bf16Rows};

/// Memory for rounded rows `[R, K]`, used again from step to step.
#[derive(Clone, Debug, Default)]
pub struct RoundedRows {
    /// Tiles of a group.
    steps: usize,
    /// All rows, ordered by group, tile and row of the tile.
    rows: Vec<TileRow>,
}

/// Rounded rows, for reading.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "kernels that read them are for x86-64"))]
pub struct RoundedView<'a> {
    steps: usize,
    tiles: &'a [Bf16Rows],
}

/// Rounded rows that several threads fill, to be read after a barrier.
#[derive(Clone, Copy, Debug)]
pub struct SharedRounded<'a> {
    steps: usize,
    rows: SharedSlice<'a, TileRow>,
}

/// Number of [`TileRow`]s that `rows` rows of `k` inputs take.
pub(crate) const fn tile_rows(rows: usize, k: usize) -> usize {
    rows.next_multiple_of(ROWS) * k.div_ceil(BF16_INPUTS)
}

/// Index of tile `step` of row `row` among all rows of tiles.
const fn place(steps: usize, row: usize, step: usize) -> usize {
    (row / ROWS * steps + step) * ROWS + row % ROWS
}

impl RoundedRows {
    /// Makes room for `rows` rows of `k` inputs. Allocates only if the memory was never that large.
    pub fn reshape(&mut self, rows: usize, k: usize) {
        self.steps = k.div_ceil(BF16_INPUTS);
        self.rows.resize(tile_rows(rows, k), TileRow::ZERO);
    }

    /// Rounds rows `rows` of `x` `[R, K]` into the rows of these numbers.
    pub fn round(&mut self, isa: Isa, x: &[f32], k: usize, rows: Range<usize>) {
        for row in rows {
            self.round_row(isa, row, &x[row * k..][..k]);
        }
    }

    /// Rounds `x` into row `row`.
    ///
    /// # Panics
    ///
    /// If there is no such row, or `x` does not have K inputs.
    pub fn round_row(&mut self, isa: Isa, row: usize, x: &[f32]) {
        // SAFETY: `self` is borrowed mutably, nobody else reads or writes.
        unsafe { self.shared().round_row(isa, row, x) };
    }

    /// The tiles of row `row`, in the order of inputs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles_of_row(&mut self, row: usize) -> impl Iterator<Item = &mut [u16; BF16_INPUTS]> {
        let first = place(self.steps, row, 0);
        self.rows[first..].iter_mut().step_by(ROWS).take(self.steps).map(|tile| &mut tile.0)
    }

    /// The tiles of group `group`, in the order of inputs.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles_mut(&mut self, group: usize) -> &mut [Bf16Rows] {
        let tiles = bytemuck::cast_slice_mut::<TileRow, Bf16Rows>(&mut self.rows);
        &mut tiles[group * self.steps..][..self.steps]
    }

    /// Copies `rows` rows of `from`; row `index` becomes a copy of row `row(index)`.
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

    /// Views all rows.
    pub fn view(&self) -> RoundedView<'_> {
        RoundedView { steps: self.steps, tiles: bytemuck::cast_slice(&self.rows) }
    }
}

impl<'a> SharedRounded<'a> {
    /// Rows of `k` inputs over memory that is already shared.
    pub(crate) fn over(k: usize, rows: SharedSlice<'a, TileRow>) -> Self {
        Self { steps: k.div_ceil(BF16_INPUTS), rows }
    }

    /// Rounds `x` into row `row`.
    ///
    /// # Safety
    ///
    /// Nothing else reads or writes this row meanwhile.
    ///
    /// # Panics
    ///
    /// If there is no such row, or `x` does not have K inputs.
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

    /// Views the first `rows` rows.
    ///
    /// # Safety
    ///
    /// No thread writes the elements while the result lives.
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

    /// The tiles of group `group`, in the order of inputs.
    pub(crate) fn tiles(&self, group: usize) -> &'a [Bf16Rows] {
        &self.tiles[group * self.steps..][..self.steps]
    }
}

/// Rounds to the nearest bf16, ties to even; NaN stays NaN.
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
