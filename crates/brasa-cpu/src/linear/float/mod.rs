//! F32, F16 and BF16 weights times f32 activations.
//!
//! A tile of 16 rows is stored column by column, so a vector of 16 lanes holds one input's weights of all rows;
//! BF16 keeps pairs of inputs together in each 32-bit lane, as a matrix unit wants them and as shift and mask
//! give them back. Each output has four running sums, of the inputs k ≡ 0, 1, 2, 3 (mod 4), added with fused
//! multiply-add in the order of k and combined as `(s0 + s1) + (s2 + s3)`: enough independent chains to fill
//! the pipeline with one row, and the same order for any number of rows and on every instruction set.
//!
//! Many rows times F16 and BF16 are instead rounded to bf16, where the processor multiplies that twice (AVX-512) to
//! ten times (tiles) as fast and the [instruction set](crate::Isa::with_bf16) says so: another kernel class, within 1e-2
//! of this one.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod kinds;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(super) use bf16::bf16_tiles;

use super::layout::{Float, LANES};
use super::scales::Lanes;
use crate::Isa;

/// Rows of a kernel call at most.
pub(super) const MAX_ROWS: usize = 8;
/// Tiles of one at most.
pub(super) const MAX_TILES: usize = 2;
/// The same where they are many.
pub(super) const ROWS: usize = 6;
/// Running sums of an output.
const PHASES: usize = 4;

/// How many of `left` rows the next kernel call takes: not six and then one or two, which wait for memory.
pub(super) fn rows_at_once(isa: Isa, left: usize) -> usize {
    match left {
        MAX_ROWS if takes_eight(isa) => MAX_ROWS,
        4 | 5 | 7 | 8 => 4,
        ROWS.. => ROWS,
        2 | 3 => 2,
        _ => left,
    }
}

/// True where eight rows are one kernel call, for the reason that the kernel (`avx512::eight`) gives.
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables, reason = "only x86-64 has such a kernel"))]
fn takes_eight(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Isa::Avx512(_) = isa {
        return crate::isa::is_intel();
    }
    false
}

/// The layout of plain floats.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatLayout {
    pub float: Float,
    pub k: usize,
}

impl FloatLayout {
    /// Bytes of a tile.
    pub const fn tile_bytes(&self) -> usize {
        match self.float {
            Float::BF16 => self.k.div_ceil(2) * LANES * 4,
            float => (self.k * LANES * float.bytes()).next_multiple_of(64),
        }
    }

    /// Where the weight of `lane` and input `k` is within a tile.
    pub const fn offset_bytes(&self, lane: usize, k: usize) -> usize {
        match self.float {
            Float::BF16 => (k / 2 * LANES + lane) * 4 + k % 2 * 2,
            float => (k * LANES + lane) * float.bytes(),
        }
    }

    /// Packs up to 16 rows of stored floats; `tile` is zero before.
    pub fn pack_tile(&self, rows: &[&[u8]], tile: &mut [u8]) {
        match self.float {
            Float::F32 => interleave::<4>(rows, tile),
            Float::F16 => interleave::<2>(rows, tile),
            Float::BF16 => {
                interleave::<4>(rows, tile);
                if !self.k.is_multiple_of(2) {
                    for (lane, row) in rows.iter().enumerate() {
                        tile[self.offset_bytes(lane, self.k - 1)..][..2]
                            .copy_from_slice(&row[row.len() - 2..]);
                    }
                }
            }
        }
    }

    /// The weight of `lane` and input `k`.
    #[inline]
    pub fn weight(&self, tile: &[u8], lane: usize, k: usize) -> f32 {
        let stored = &tile[self.offset_bytes(lane, k)..];
        let short = || u16::from_le_bytes([stored[0], stored[1]]);
        match self.float {
            Float::F32 => f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]),
            Float::F16 => half::f16::from_bits(short()).to_f32(),
            Float::BF16 => half::bf16::from_bits(short()).to_f32(),
        }
    }
}

/// Puts words of W bytes side by side, the first of all rows, then the second of all: sixteen streams are read and one is
/// written, which is twice as fast as the other way about. What is left of a row behind its last word stays out.
fn interleave<const W: usize>(rows: &[&[u8]], tile: &mut [u8]) {
    let lines = tile.as_chunks_mut::<W>().0.as_chunks_mut::<LANES>().0.iter_mut();
    if let Ok(rows) = <[&[u8]; LANES]>::try_from(rows) {
        let rows = rows.map(|row| row.as_chunks::<W>().0);
        let words = rows[0].len();
        let rows = rows.map(|row| &row[..words]);
        for (k, line) in lines.enumerate().take(words) {
            for (to, row) in line.iter_mut().zip(&rows) {
                *to = row[k];
            }
        }
    } else {
        for (k, line) in lines.enumerate() {
            for (to, row) in line.iter_mut().zip(rows) {
                if let Some(word) = row.as_chunks::<W>().0.get(k) {
                    *to = *word;
                }
            }
        }
    }
}

/// Products of consecutive packed tiles with `x.len()` rows, as many as [`rows_at_once`] says: for each tile those of all
/// rows.
pub(super) fn multiply_tiles(isa: Isa, layout: &FloatLayout, tiles: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    let each = tiles.chunks_exact(layout.tile_bytes());
    assert!(each.remainder().is_empty(), "{} bytes of tiles", tiles.len());
    assert_eq!(out.len(), each.len() * x.len(), "results of tiles and rows");
    for row in x {
        assert_eq!(row.len(), layout.k, "activations of a row");
    }
    let each = each.zip(out.chunks_exact_mut(x.len()));
    match isa {
        Isa::Scalar => each.for_each(|(tile, out)| scalar::multiply_tile(layout, tile, x, out)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(proof) => each.for_each(|(tile, out)| avx2::multiply_tile(proof, layout, tile, x, out)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(proof) => avx512::multiply_tiles(proof, layout, tiles, x, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(proof) => each.for_each(|(tile, out)| neon::multiply_tile(proof, layout, tile, x, out)),
        #[cfg(target_arch = "aarch64")]
        Isa::Dotprod(proof) => {
            each.for_each(|(tile, out)| neon::multiply_tile(proof.neon(), layout, tile, x, out));
        }
        #[cfg(target_arch = "aarch64")]
        Isa::I8mm(proof) => {
            each.for_each(|(tile, out)| neon::multiply_tile(proof.neon(), layout, tile, x, out));
        }
    }
}
