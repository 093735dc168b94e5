//! Up to 16 rows times codes on tiles of int8, while weights stream from memory.
//!
//! A block of weights is unpacked into the first cache, two blocks before a tile is loaded from there, since tiles cannot be
//! loaded from memory that vectors have yet to store; its sums are scaled when those of the next blocks are in the making. Eight
//! rows cost 24 vector instructions a block so, beside unpacking, where dot products of vectors would cost 64 more.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::blocks::{PanelBlock, Spans};
use super::super::formats::{Kind, Shape, Width, with_kind};
use super::super::kernels::codes::unpack;
use super::super::kernels::tiles::{BlockSums, Dots, NO_DOTS, RowTiles, Unit};
use super::super::kernels::vectors::Vectors;
use super::super::layout::{LANES, Layout};
use super::super::ranges::parts;
use super::super::scales::BlockScales;
use super::{Products, strip_run};
use crate::isa::Avx512;
use crate::prefetch::PrefetchPolicy;
use crate::tiles::{Int8MatrixUnit, ROWS, SLOTS, Sums, Tiles};

/// Strips that the rows meet at once: calls and results cost little beside them.
const RUN: usize = 8;
/// Blocks that wait to be multiplied.
const WAITING: usize = 2;
/// Unpacked blocks in all, until their scales have been used.
const UNPACKED: usize = 8;

/// Writes the wanted products; `rows` is scratch memory.
pub(in super::super) fn multiply(
    proof: Avx512,
    tiles: Tiles,
    wanted: &Products<'_>,
    layout: &Layout,
    weights: &[u8],
    rows: &mut RowTiles,
) {
    let count = wanted.rows();
    assert!(count <= ROWS, "{count} rows");
    rows.gather(layout.shape, count, &(0..layout.blocks), |row| wanted.int8_row(row));
    rows.check(layout, 0..1);
    let half_full = count <= ROWS / 2;
    let mut pipeline = Pipeline {
        unit: Unit::new(tiles, layout, if half_full { ROWS / 2 } else { ROWS }),
        codes: [PanelBlock::ZERO; UNPACKED],
        scales: [const { BlockScales::ZERO }; UNPACKED],
        dots: NO_DOTS,
    };
    let mut results = [Sums([[0.0; LANES]; LANES]); RUN];
    for strips in parts(wanted.strips.clone(), RUN) {
        let packed = strip_run(weights, layout.strip_bytes(), &strips);
        let results = &mut results[..strips.len()];
        // SAFETY: the proof; rows and strips have the blocks of the layout; there is a result for each strip.
        with_kind!(layout, K => unsafe {
            if half_full {
                kernel::<K, { ROWS / 2 }>(proof, &mut pipeline, layout, rows, packed, results);
            } else {
                kernel::<K, ROWS>(proof, &mut pipeline, layout, rows, packed, results);
            }
        });
        for row in 0..count {
            wanted.store_run(row, &strips, results.iter().map(|sums| &sums.0[row]));
        }
    }
}

/// Blocks on their way through the matrix unit.
struct Pipeline {
    unit: Unit,
    codes: [PanelBlock; UNPACKED],
    scales: [BlockScales; UNPACKED],
    dots: Dots,
}

/// # Safety
///
/// `strips` are strips of the layout, which is of kind K; there are as many `out`. `rows` have the layout's blocks. The unit is set
/// up for N rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn kernel<K: Kind, const N: usize>(
    proof: Avx512,
    pipeline: &mut Pipeline,
    layout: &Layout,
    rows: &RowTiles,
    strips: &[u8],
    out: &mut [Sums<f32>],
) {
    let Pipeline { unit, codes, scales, dots } = pipeline;
    let layout = &layout.known::<K>();
    let parts = K::SHAPE.scales_per_block();
    let (policy, lag) = (PrefetchPolicy::for_rows(N), SLOTS / parts);
    for (strip, out) in strips.chunks_exact(layout.strip_bytes()).zip(out) {
        let mut acc = [_mm512_setzero_ps(); ROWS];
        // Scales the sums of an earlier block, and multiplies one that waits.
        macro_rules! go_on {
            ($unpacked:expr) => {{
                let unpacked: usize = $unpacked;
                if let Some(block) = unpacked.checked_sub(WAITING + lag).filter(|block| *block < layout.blocks) {
                    let slot = parts * block % SLOTS;
                    let BlockScales { scale, min } = &scales[block % UNPACKED];
                    let sums = BlockSums {
                        parts,
                        dots: [&dots[slot], &dots[slot + parts - 1]],
                        scales: [&scale[0], &scale[parts - 1]],
                        mins: K::SHAPE.has_min().then_some([&min[0], &min[parts - 1]]),
                    };
                    // SAFETY: the features of this kernel; rows have this block, with scales and minima for its shape.
                    unsafe { sums.add::<N>(rows, block, &mut acc) };
                }
                if let Some(block) = unpacked.checked_sub(WAITING).filter(|block| *block < layout.blocks) {
                    for part in 0..parts {
                        let slot = (parts * block + part) % SLOTS;
                        let (a, b) = (rows.codes_of(0, block), &codes[block % UNPACKED].0);
                        if matches!((K::SHAPE, K::WIDTH), (Shape::WholeMin | Shape::HalvesMin, Width::Eight)) {
                            unit.dot::<true>(slot, part, a, b, &mut dots[slot]);
                        } else {
                            unit.dot::<false>(slot, part, a, b, &mut dots[slot]);
                        }
                    }
                }
            }};
        }
        for span in Spans::new(layout, strip, 0..layout.blocks, policy) {
            for (block, packed) in span {
                packed.scales::<K>(proof, layout.scales, &mut scales[block % UNPACKED]);
                let to = codes[block % UNPACKED].0.as_mut_ptr();
                // SAFETY: `packed` is a block of kind K, `to` is eight vectors.
                unsafe {
                    let weights = unpack::<_, K>(proof, packed.planes.as_ptr(), !K::SHAPE.has_min());
                    for (group, weights) in weights.into_iter().enumerate() {
                        proof.store_codes(weights, to.add(64 * group));
                    }
                }
                go_on!(block);
            }
        }
        for block in layout.blocks..layout.blocks + WAITING + lag {
            go_on!(block);
        }
        for (acc, out) in acc[..N].iter().zip(&mut out.0) {
            // SAFETY: 16 floats.
            unsafe { _mm512_store_ps(out.as_mut_ptr(), *acc) };
        }
    }
}
