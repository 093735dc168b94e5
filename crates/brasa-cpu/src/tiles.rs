//! Products of tiles: what AMX and its emulation in software have in common.
//!
//! A tile is a register of up to 16 rows of 64 bytes. A product takes tiles `a`, 16 rows of activations, and `b`, the
//! weights of 16 outputs with four (int8) or two (bf16) inputs a lane, and makes 16 × 16 sums. Kernels are written for
//! `Int8MatrixUnit` and `Bf16MatrixUnit`. The processor's own unit and its emulation implement both, so that layouts and edges
//! are tested on machines without AMX.

mod amx;
mod emulated;

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

use crate::tile_row::TileRow;

pub(crate) use crate::tile_row::{BF16_INPUTS, Bf16Rows, ROWS};
pub use amx::Amx;
pub(crate) use amx::{AmxInt8, AmxThread, CHAINS};
pub(crate) use emulated::{EmulatedBf16, EmulatedInt8};

/// The unit that multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiles {
    /// The processor.
    Amx(Amx),
    /// Plain Rust, for tests.
    Emulated,
}

/// 16 rows of activations, 32 inputs each.
pub(crate) type Codes = [[i8; 32]; ROWS];
/// A block of weights: 8 groups of 4 inputs, of 16 outputs each.
pub(crate) type Weights = [u8; 512];
/// 16 pairs of inputs, of 16 outputs each.
pub(crate) type Bf16Weights = [[[u16; 2]; 16]; ROWS];

/// Results of a product: row of activations by output.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Sums<T>(pub [[T; 16]; ROWS]);

/// Tiles of bf16 that begin on cache lines: no row of theirs is loaded in two parts.
#[derive(Clone, Debug)]
pub(crate) struct TileMemory<T> {
    lines: Vec<TileRow>,
    tile: PhantomData<T>,
}

impl<T> Default for TileMemory<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), tile: PhantomData }
    }
}

impl<T> TileMemory<T> {
    /// Makes room for `tiles` tiles. They hold zeros or what was there before.
    pub(crate) fn reserve(&mut self, tiles: usize) {
        let lines = tiles * size_of::<T>() / size_of::<TileRow>();
        if self.lines.len() < lines {
            self.lines.resize(lines, TileRow::ZERO);
        }
    }
}

impl<T: Pod> Deref for TileMemory<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.lines)
    }
}

impl<T: Pod> DerefMut for TileMemory<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.lines)
    }
}

/// Products of int8 that may be under way at once.
pub(crate) const SLOTS: usize = 4;

/// The matrix unit of a thread, set up for products of int8 over a block of inputs in one part or in two.
pub(crate) trait Int8MatrixUnit {
    /// Computes `c = a · b` over the inputs of part `part`. Calls with different slots overlap.
    ///
    /// # Panics
    ///
    /// If there is no such slot or part.
    fn dot<const UNSIGNED: bool>(&self, slot: usize, part: usize, a: &Codes, b: &Weights, c: &mut Sums<i32>);
}

/// Most groups of rows, and most panels, of a product of bf16: with 2 × 2 sums a tile of either operand is loaded for
/// every two products.
pub(crate) const BF16_SIDE: usize = 2;

/// The matrix unit of a thread, set up for products of bf16.
pub(crate) trait Bf16MatrixUnit {
    /// Computes `c[p][g] = a[g] · b[p]` over all tiles, or adds it to `c` with ADD. Rows of `c` beyond the first `rows` are left
    /// undefined.
    ///
    /// # Panics
    ///
    /// If [`Bf16Factors::check`] does.
    fn sum_bf16<const ADD: bool>(&self, factors: Bf16Factors<'_>, c: &mut [&mut [Sums<f32>]]);
}

/// Factors of products of bf16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Factors<'a> {
    /// Tiles of 16 rows, by group.
    pub a: &'a [&'a [Bf16Rows]],
    /// Rows of all groups that are wanted.
    pub rows: usize,
    /// Tiles of 16 outputs, by panel.
    pub b: &'a [&'a [Bf16Weights]],
}

impl Bf16Factors<'_> {
    /// The number of tiles of every operand, on which products into `c` rely.
    ///
    /// # Panics
    ///
    /// If operands have different numbers of tiles, sums for a group and panel are missing, or there are more than
    /// [`BF16_SIDE`] of either.
    pub(crate) fn check(&self, c: &[&mut [Sums<f32>]]) -> usize {
        let Self { a, b, .. } = self;
        assert!(
            a.len() <= BF16_SIDE && b.len() <= BF16_SIDE,
            "{} groups of rows, {} panels",
            a.len(),
            b.len()
        );
        assert!(c.len() == b.len() && c.iter().all(|c| c.len() == a.len()), "sums of groups and panels");
        let steps = b.first().map_or(0, |panel| panel.len());
        assert!(a.iter().all(|rows| rows.len() == steps), "tiles of rows and of weights");
        assert!(b.iter().all(|panel| panel.len() == steps), "tiles of panels");
        steps
    }
}
