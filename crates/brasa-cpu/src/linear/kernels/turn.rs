//! Tiles of bf16 weights for products with a transposed weight: outputs become inputs.
//!
//! A packed tile holds 16 outputs and 32 inputs. Turned, its outputs are summed: it makes half of the 32 summed elements of two
//! panels of 16 columns. That is 64 shuffles of words and 16 of halves, a fortieth of the time that 512 rows are multiplied with it.
#![expect(unsafe_code, reason = "vector loads through pointers")]
#![allow(clippy::wildcard_imports, reason = "intrinsics come by the dozen")]

use std::arch::x86_64::*;

use super::super::blocks::PackedBlock;
use super::super::float_layout::FloatLayout;
use super::super::formats::{Float, with_kind};
use super::super::layout::{LANES, Layout};
use super::super::scales::BlockScales;
use super::to_bf16::{round_block, round_halves};
use crate::isa::{Avx512, Avx512Bf16};
use crate::simd::{read, transpose_words};
use crate::tiles::{BF16_INPUTS, Bf16Weights, ROWS};

/// Half of the pairs of a tile.
pub(in super::super) type HalfTile = [[[u16; 2]; LANES]; ROWS / 2];

/// Tile `block` of a strip of floats, which has whole tiles; in `memory` if it is not stored so.
pub(in super::super) fn tile_of_floats<'a>(
    proof: Avx512,
    _: Avx512Bf16,
    layout: &FloatLayout,
    strip: &'a [u8],
    block: usize,
    memory: &'a mut Bf16Weights,
) -> &'a Bf16Weights {
    let bytes = BF16_INPUTS * LANES * 2;
    let stored = &strip[block * bytes..][..bytes];
    match layout.float {
        Float::BF16 => &bytemuck::cast_slice(stored)[0],
        Float::F16 => {
            // SAFETY: the proofs.
            unsafe { round_halves(proof, BF16_INPUTS, stored, std::slice::from_mut(memory)) };
            memory
        }
        Float::F32 => unreachable!("F32 weights are multiplied as they are"),
    }
}

/// Tile `block` of a strip of codes, in `memory`.
pub(in super::super) fn tile_of_codes<'a>(
    proof: Avx512,
    _: Avx512Bf16,
    layout: &Layout,
    strip: &[u8],
    block: usize,
    memory: &'a mut Bf16Weights,
) -> &'a Bf16Weights {
    assert!(block < layout.blocks, "block {block} of {}", layout.blocks);
    let mut unpacked = BlockScales::ZERO;
    with_kind!(layout, K => {
        let layout = &layout.known::<K>();
        let packed = PackedBlock::of_strip(layout, strip, block);
        packed.scales::<K>(proof, layout.scales, &mut unpacked);
        // SAFETY: the proofs; `packed` is a block of kind K with its scales.
        unsafe { round_block::<K>(proof, &packed, &unpacked, memory) };
    });
    memory
}

/// Turns a tile into halves of tiles of its first 16 and its last 16 inputs.
pub(in super::super) fn turn(_: Avx512, tile: &Bf16Weights, halves: [&mut HalfTile; 2]) {
    // SAFETY: the proof.
    unsafe { turned(tile, halves) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn turned(tile: &Bf16Weights, [first, last]: [&mut HalfTile; 2]) {
    // Lane by lane elements of two outputs: the first sixteen inputs, and the others.
    const SIDE_BY_SIDE: [[u16; BF16_INPUTS]; 2] = {
        let mut order = [[0; BF16_INPUTS]; 2];
        let mut lane = 0;
        while lane < LANES {
            let mut half = 0;
            while half < 2 {
                let input = (half * LANES + lane) as u16;
                (order[half][2 * lane], order[half][2 * lane + 1]) = (input, input + BF16_INPUTS as u16);
                half += 1;
            }
            lane += 1;
        }
        order
    };
    // SAFETY: a tile is 16 vectors, half of one 8.
    unsafe {
        let outputs = transpose_words(std::array::from_fn(|pair| read(tile[pair].as_ptr().cast())));
        let orders = SIDE_BY_SIDE.map(|order| read::<__m512i>(order.as_ptr().cast()));
        for pair in 0..ROWS / 2 {
            let (a, b) = (outputs[2 * pair], outputs[2 * pair + 1]);
            let low = _mm512_permutex2var_epi16(a, orders[0], b);
            let high = _mm512_permutex2var_epi16(a, orders[1], b);
            _mm512_storeu_si512(first[pair].as_mut_ptr().cast(), low);
            _mm512_storeu_si512(last[pair].as_mut_ptr().cast(), high);
        }
    }
}
