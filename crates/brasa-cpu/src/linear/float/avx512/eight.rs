//! Eight rows times two tiles at a time.
//!
//! A weight is converted once for all rows and an activation loaded once for both tiles, which matters where conversions
//! take the place of multiplications: a Xeon (Emerald Rapids) makes 128 GFLOP/s of F16 so with weights in the cache, and 109
//! with four rows and one tile at a time, while an EPYC (Zen 4) converts beside its multiplications. The sixteen sums of one
//! phase are in registers while a slab of inputs goes by, those of the other phases in the first cache.

use std::arch::x86_64::*;
use std::array::from_fn;

use super::super::super::layout::LANES;
use super::super::super::scales::Lanes;
use super::super::kinds::Kind;
use super::super::{FloatLayout, MAX_ROWS, MAX_TILES, PHASES};
use super::one;
use crate::prefetch::{LINE_BYTES, PrefetchPolicy};

pub(super) const ROWS: usize = MAX_ROWS;
pub(super) const TILES: usize = MAX_TILES;
/// Inputs of a slab, a multiple of [`PHASES`]: their weights and activations stay in the first cache from phase to phase.
const SLAB: usize = 128;

/// The running sums of a phase.
type Sums<const T: usize> = [[__m512; ROWS]; T];

/// # Safety
///
/// `tiles` are T tiles of the layout, which is of type K; `x` has eight rows of its inputs, `out` eight for each tile.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn kernel<K: Kind, const T: usize>(
    layout: &FloatLayout,
    tiles: &[u8],
    x: &[&[f32]],
    out: &mut [Lanes],
) {
    let k = layout.k;
    // SAFETY: by the contract.
    let (tiles, x) = unsafe {
        let tiles: [_; T] = from_fn(|tile| tiles.as_ptr().add(tile * layout.tile_bytes()));
        let x: [_; ROWS] = from_fn(|row| x.get_unchecked(row).as_ptr());
        (tiles, x)
    };
    let mut sums = [[[_mm512_setzero_ps(); ROWS]; T]; PHASES];
    for start in (0..k).step_by(SLAB) {
        let inputs = SLAB.min(k - start);
        for (phase, sums) in sums.iter_mut().enumerate() {
            // Each phase asks for its share of the slab that comes so much later.
            let asked = (start + inputs / PHASES * phase) * LANES * K::FLOAT.bytes();
            let steps = (inputs + PHASES - 1 - phase) / PHASES;
            // SAFETY: inputs `start..start + inputs` are within tiles and rows.
            unsafe { add_steps::<K, T>(sums, &tiles, &x, start + phase, steps, asked) };
        }
    }
    let [s0, s1, s2, s3] = sums;
    for tile in 0..T {
        for row in 0..ROWS {
            let [s0, s1, s2, s3] = [&s0, &s1, &s2, &s3].map(|sums| sums[tile][row]);
            let sum = _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
            // SAFETY: `out` has these rows of 16 floats.
            unsafe { _mm512_storeu_ps(out.get_unchecked_mut(tile * ROWS + row).as_mut_ptr(), sum) };
        }
    }
}

/// Adds the products of every fourth input from `at` on, and asks for what comes behind `asked` bytes of the tiles. A
/// function of its own, lest sums of other phases take its registers.
///
/// # Safety
///
/// The inputs of `steps` steps are within tiles of type K and rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_steps<K: Kind, const T: usize>(
    sums: &mut Sums<T>,
    tiles: &[*const u8; T],
    x: &[*const f32; ROWS],
    at: usize,
    steps: usize,
    asked: usize,
) {
    let (tiles, x, mut now) = (*tiles, *x, *sums);
    let ahead = PrefetchPolicy::for_rows(ROWS);
    let step_bytes = LANES * K::FLOAT.bytes();
    for step in 0..steps {
        let (at, asked) = (at + step * PHASES, asked + step * step_bytes);
        if asked.is_multiple_of(LINE_BYTES) {
            for tile in tiles {
                ahead.prefetch(tile.wrapping_add(asked), LINE_BYTES);
            }
        }
        // SAFETY: by the contract.
        unsafe {
            let weights = tiles.map(|tile| one::<K>(tile, at));
            for (row, x) in x.iter().enumerate() {
                let x = _mm512_set1_ps(*x.add(at));
                for (sums, &weights) in now.iter_mut().zip(&weights) {
                    sums[row] = _mm512_fmadd_ps(weights, x, sums[row]);
                }
            }
        }
    }
    *sums = now;
}

#[cfg(test)]
mod tests {
    use super::super::super::kinds::with_kind;
    use super::*;
    use crate::Isa;
    use crate::linear::layout::Float;

    #[test]
    fn two_tiles_and_eight_rows_give_the_same_bits_as_one_tile_and_four() {
        let Some(proof) = Isa::choices().into_iter().find_map(|isa| match isa {
            Isa::Avx512(proof) => Some(proof),
            _ => None,
        }) else {
            return;
        };
        for float in [Float::F32, Float::F16, Float::BF16] {
            for k in [1, 2, 3, 4, 6, 127, 128, 129, 131, 260, 515] {
                let layout = FloatLayout { float, k };
                // No bit pattern below 0x3f00 is infinite or none, in any of the formats.
                let mut state = k as u32;
                let mut noise = || {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 8
                };
                let tiles: Vec<u8> = (0..TILES * layout.tile_bytes())
                    .map(|at| if at % 2 == 1 { (noise() % 0x3f) as u8 | 0x30 } else { noise() as u8 })
                    .collect();
                let x: Vec<f32> = (0..ROWS * k).map(|_| noise() as f32 / (1 << 23) as f32 - 1.0).collect();
                let x: Vec<&[f32]> = x.chunks_exact(k).collect();
                let (mut found, mut alone, mut expected) =
                    ([[0.0; LANES]; 16], [[2.0; LANES]; 16], [[1.0; LANES]; 16]);
                // SAFETY: the proof; two tiles, eight rows, sixteen results.
                with_kind!(layout, K => unsafe { kernel::<K, TILES>(&layout, &tiles, &x, &mut found) });
                let each = tiles.chunks_exact(layout.tile_bytes());
                let results = alone.chunks_exact_mut(ROWS).zip(expected.chunks_exact_mut(ROWS));
                for (tile, (alone, expected)) in each.zip(results) {
                    // SAFETY: the proof; a tile, eight rows, eight results.
                    with_kind!(layout, K => unsafe { kernel::<K, 1>(&layout, tile, &x, alone) });
                    for (x, expected) in x.chunks_exact(4).zip(expected.chunks_exact_mut(4)) {
                        super::super::multiply_tiles(proof, &layout, tile, x, expected);
                    }
                }
                assert_eq!(
                    found.map(|lanes| lanes.map(f32::to_bits)),
                    expected.map(|lanes| lanes.map(f32::to_bits)),
                    "{float:?}, {k} inputs"
                );
                assert_eq!(
                    alone.map(|lanes| lanes.map(f32::to_bits)),
                    expected.map(|lanes| lanes.map(f32::to_bits)),
                    "{float:?}, {k} inputs, one tile at a time"
                );
            }
        }
    }
}
