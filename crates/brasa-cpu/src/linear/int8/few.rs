//! Up to 16 rows on a tile unit, while weights stream by.
//!
//! A block of weights is unpacked into the first cache, two blocks before a tile is loaded from there, since tiles cannot be
//! loaded from what vectors have yet to store; its sums are scaled when those of the next blocks are in the making. Eight
//! rows cost 24 vector instructions a block so, beside unpacking, where dot products of vectors would cost 64 more.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::layout::{Codes, LANES, Layout, Scales, Shape, WIDE_BLOCK_BYTES};
use super::super::scales::BlockScales;
use super::avx512::{Widen, unpack};
use super::kinds::{Kind, with_kind};
use super::panel::{PanelBlock, for_each_block};
use super::tiles::{BlockSums, Dots, RowTiles, Unit, panel_offset};
use crate::isa::Avx512;
use crate::prefetch::PrefetchPolicy;
use crate::tiles::{Int8MatrixUnit, ROWS, SLOTS, Sums, Tiles};

/// Blocks that wait to be multiplied, and unpacked ones in all, until their scales have been used.
const WAITING: usize = 2;
const UNPACKED: usize = 8;

/// What multiplies tiles of one layout with up to 16 rows, on this thread.
pub(in super::super) struct FewProducts<'a> {
    _proof: Avx512,
    unit: Unit,
    layout: &'a Layout,
    rows: &'a RowTiles,
    ring: Ring,
    /// True where eight rows are all.
    eight: bool,
}

/// Blocks on their way.
struct Ring {
    codes: [PanelBlock; UNPACKED],
    scales: [BlockScales; UNPACKED],
    dots: Dots,
}

impl<'a> FewProducts<'a> {
    /// Sets the thread's tiles up for `count` rows.
    ///
    /// # Panics
    ///
    /// Where they are more than 16, or have other blocks than the layout.
    pub(in super::super) fn new(
        proof: Avx512,
        tiles: Tiles,
        layout: &'a Layout,
        rows: &'a RowTiles,
        count: usize,
    ) -> Self {
        assert!(count <= ROWS, "{count} rows");
        rows.check(layout, 0..1);
        assert_eq!(rows.blocks(), layout.blocks, "blocks of rows");
        let eight = count <= 8;
        let unit = Unit::new(tiles, layout, if eight { 8 } else { ROWS });
        let ring = Ring {
            codes: [PanelBlock([0; WIDE_BLOCK_BYTES]); UNPACKED],
            scales: [const { BlockScales::ZERO }; UNPACKED],
            dots: [Sums([[0; LANES]; ROWS]); SLOTS],
        };
        Self { _proof: proof, unit, layout, rows, ring, eight }
    }

    /// The products of all rows with consecutive packed tiles.
    ///
    /// # Panics
    ///
    /// Where there are other than as many results as tiles.
    pub(in super::super) fn multiply(&mut self, tiles: &[u8], out: &mut [Sums<f32>]) {
        let Self { layout, eight, .. } = *self;
        assert_eq!(tiles.len(), out.len() * layout.tile_bytes(), "bytes of tiles");
        // SAFETY: the proof; rows and tiles were found to have the blocks of the layout.
        with_kind!(layout, K => unsafe {
            if eight { kernel::<K, 8>(self, tiles, out) } else { kernel::<K, ROWS>(self, tiles, out) }
        });
    }
}

/// # Safety
///
/// `tiles` are tiles of the layout, which is of kind K; there are as many `out`. The unit is set up for N rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn kernel<K: Kind, const N: usize>(of: &mut FewProducts<'_>, tiles: &[u8], out: &mut [Sums<f32>]) {
    let FewProducts { unit, layout, rows, ring, .. } = of;
    let Ring { codes, scales, dots } = ring;
    let layout = &K::layout(layout);
    let parts = K::SHAPE.scales_per_block();
    let offset = _mm512_set1_epi8(panel_offset(layout).cast_signed());
    let (ahead, lag) = (PrefetchPolicy::for_rows(N), SLOTS / parts);
    for (tile, out) in tiles.chunks_exact(layout.tile_bytes()).zip(out) {
        let mut acc = [_mm512_setzero_ps(); ROWS];
        macro_rules! go_on {
            ($unpacked:expr, $codes:expr, $scales:expr, $dots:expr) => {{
                let unpacked: usize = $unpacked;
                if let Some(block) = unpacked.checked_sub(WAITING + lag).filter(|block| *block < layout.blocks) {
                    let slot = parts * block % SLOTS;
                    let BlockScales { scale, min } = &$scales[block % UNPACKED];
                    let sums = BlockSums {
                        parts,
                        dots: [&$dots[slot], &$dots[slot + parts - 1]],
                        scales: [&scale[0], &scale[parts - 1]],
                        mins: K::SHAPE.has_min().then_some([&min[0], &min[parts - 1]]),
                    };
                    // SAFETY: the features of this kernel; rows have this block, with scales and minima for its shape.
                    unsafe { sums.add::<N>(rows, block, &mut acc) };
                }
                if let Some(block) = unpacked.checked_sub(WAITING).filter(|block| *block < layout.blocks) {
                    for part in 0..parts {
                        let slot = (parts * block + part) % SLOTS;
                        let (a, b) = (rows.codes_of(block), &$codes[block % UNPACKED].0);
                        if matches!((K::SHAPE, K::CODES), (Shape::WholeMin, Codes::Bits8)) {
                            unit.dot::<true>(slot, part, a, b, &mut $dots[slot]);
                        } else {
                            unit.dot::<false>(slot, part, a, b, &mut $dots[slot]);
                        }
                    }
                }
            }};
        }
        for_each_block(layout, tile, 0..layout.blocks, ahead, |block, packed| {
            packed.scales::<Widen>(layout.scales, &mut scales[block % UNPACKED]);
            let to = codes[block % UNPACKED].0.as_mut_ptr();
            // SAFETY: `packed` is a block of kind K, `to` is eight vectors.
            unsafe {
                for (group, weights) in unpack::<K>(packed.planes.as_ptr()).into_iter().enumerate() {
                    _mm512_store_si512(to.add(64 * group).cast(), _mm512_sub_epi8(weights, offset));
                }
            }
            go_on!(block, codes, scales, dots);
        });
        for block in layout.blocks..layout.blocks + WAITING + lag {
            go_on!(block, codes, scales, dots);
        }
        for (acc, out) in acc[..N].iter().zip(&mut out.0) {
            // SAFETY: 16 floats.
            unsafe { _mm512_store_ps(out.as_mut_ptr(), *acc) };
        }
    }
}
