//! Products of rows and columns that are rounded to int16.
//!
//! A row or column is scaled to the length 32,767, √Σx² over its elements, and rounded. So no sum of products of two of them
//! leaves an int32 (Cauchy–Schwarz), and sums are exact. An element keeps about 13 bits where bf16 keeps 8, and pairs are
//! multiplied as fast.
#![expect(unsafe_code, reason = "instructions behind proofs that the processor has them")]
#![allow(
    clippy::wildcard_imports,
    clippy::cast_ptr_alignment,
    reason = "intrinsics come by the dozen; loads need no alignment"
)]

use std::arch::x86_64::*;

use crate::isa::Avx512;
use crate::simd::{LANES, Simd, read, transpose_words};
use crate::tile_row::{BF16_INPUTS, Bf16Rows, ROWS};
use crate::tiles::{Bf16Weights, Sums};

/// The length of a rounded row or column.
const LENGTH: f32 = 32_767.0;

/// Rounds a row to `tiles`, 32 elements each, and returns what its rounded elements are to be multiplied with.
#[inline]
pub(crate) fn round_row<'a>(
    _: Avx512,
    x: &[f32],
    tiles: impl Iterator<Item = &'a mut [u16; BF16_INPUTS]>,
) -> f32 {
    // SAFETY: the proof.
    unsafe { row(x, tiles) }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn row<'a>(x: &[f32], tiles: impl Iterator<Item = &'a mut [u16; BF16_INPUTS]>) -> f32 {
    let mut squares = _mm512_setzero_ps();
    for x in x.chunks(LANES) {
        let x = load_some(x);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    let length = _mm512_reduce_add_ps(squares).sqrt();
    let factor = _mm512_set1_ps(if length == 0.0 { 0.0 } else { LENGTH / length });
    for (x, tile) in x.chunks(BF16_INPUTS).zip(tiles) {
        let (first, second) = x.split_at(x.len().min(LANES));
        for (x, to) in [first, second].into_iter().zip(tile.as_chunks_mut::<LANES>().0) {
            let codes = _mm512_cvtps_epi32(_mm512_mul_ps(load_some(x), factor));
            // SAFETY: 16 codes are written.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(codes)) };
        }
    }
    length / LENGTH
}

/// Up to 16 elements, and zeroes.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_some(x: &[f32]) -> __m512 {
    let mask = ((1_u32 << x.len().min(LANES)) - 1) as u16;
    // SAFETY: no more elements are read than there are.
    unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr()) }
}

/// Rounds 16 columns of `count` elements to `tiles`, 32 elements each, and returns what the rounded elements of each column are to be
/// multiplied with. `element(e)` is element e of all columns.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn round_columns(
    simd: Avx512,
    count: usize,
    element: impl Fn(usize) -> __m512,
    tiles: &mut [Bf16Weights],
) -> [f32; LANES] {
    let mut squares = _mm512_setzero_ps();
    for e in 0..count {
        let x = element(e);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    let lengths = _mm512_sqrt_ps(squares);
    let some = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(lengths, _mm512_setzero_ps());
    let factors = _mm512_maskz_div_ps(some, _mm512_set1_ps(LENGTH), lengths);
    let low = _mm512_set1_epi32(0xffff);
    for (tile, pairs) in tiles.iter_mut().enumerate() {
        for (pair, to) in pairs.iter_mut().enumerate() {
            let [first, second] = [0, 1].map(|odd| {
                let e = tile * BF16_INPUTS + 2 * pair + odd;
                let x = if e < count { element(e) } else { _mm512_setzero_ps() };
                _mm512_cvtps_epi32(_mm512_mul_ps(x, factors))
            });
            let both = _mm512_or_si512(_mm512_and_si512(first, low), _mm512_slli_epi32::<16>(second));
            // SAFETY: 64 bytes are written.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), both) };
        }
    }
    let mut scales = [0.0; LANES];
    simd.store(_mm512_div_ps(lengths, _mm512_set1_ps(LENGTH)), &mut scales);
    scales
}

/// Makes tiles of rows of tiles of columns.
pub(crate) fn turn(_: Avx512, columns: &[Bf16Weights], rows: &mut [Bf16Rows]) {
    for (columns, rows) in columns.iter().zip(rows) {
        // SAFETY: the proof; a row of either tile is a vector.
        unsafe {
            let pairs = transpose_words(columns.each_ref().map(|pair| read(pair.as_ptr().cast())));
            for (row, pairs) in rows.iter_mut().zip(pairs) {
                _mm512_storeu_si512(row.as_mut_ptr().cast(), pairs);
            }
        }
    }
}

/// Writes the products of the first `factors.len()` of 16 rows with 16 columns, times these factors of the rows and `scales` of
/// the columns.
///
/// # Panics
///
/// If there are not as many tiles of rows as of columns, or more than 16 rows.
pub(crate) fn multiply(
    _: Avx512,
    rows: &[Bf16Rows],
    factors: &[f32],
    columns: &[Bf16Weights],
    scales: &[f32; LANES],
    out: &mut Sums<f32>,
) {
    let mut of_rows = [0.0; ROWS];
    of_rows[..factors.len()].copy_from_slice(factors);
    assert_eq!(rows.len(), columns.len(), "tiles of rows and columns");
    // SAFETY: the proof; there are as many tiles of rows as of columns.
    unsafe {
        match factors.len() {
            ..=4 => kernel::<4>(rows, &of_rows, columns, scales, out),
            5..=8 => kernel::<8>(rows, &of_rows, columns, scales, out),
            9..=12 => kernel::<12>(rows, &of_rows, columns, scales, out),
            _ => kernel::<16>(rows, &of_rows, columns, scales, out),
        }
    }
}

/// Writes the products of the first R rows.
///
/// # Safety
///
/// `rows` and `columns` are equally long.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const R: usize>(
    rows: &[Bf16Rows],
    factors: &[f32; ROWS],
    columns: &[Bf16Weights],
    scales: &[f32; LANES],
    out: &mut Sums<f32>,
) {
    let mut sums = [_mm512_setzero_si512(); R];
    for (rows, columns) in rows.iter().zip(columns) {
        let (rows, columns) = (rows.as_ptr().cast::<i32>(), columns.as_ptr());
        for pair in 0..ROWS {
            // SAFETY: a tile of columns is 16 vectors, a row of a tile 16 pairs.
            unsafe {
                let columns = read(columns.add(pair).cast());
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(read(rows.add(row * ROWS + pair)));
                    *sum = _mm512_dpwssd_epi32(*sum, columns, x);
                }
            }
        }
    }
    // SAFETY: 16 floats.
    let scales = unsafe { _mm512_loadu_ps(scales.as_ptr()) };
    for ((sum, &factor), out) in sums.iter().zip(factors).zip(&mut out.0) {
        let scales = _mm512_mul_ps(scales, _mm512_set1_ps(factor));
        let products = _mm512_mul_ps(_mm512_cvtepi32_ps(*sum), scales);
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), products) };
    }
}

#[cfg(test)]
mod tests {
    use brasa_graph::testing::Random;

    use super::*;
    use crate::rounded::RoundedRows;

    /// Products of 16 queries with 16 keys of `elements` elements, as rounded and as they are.
    fn products(proof: Avx512, elements: usize, x: &mut dyn FnMut() -> f32) -> [Vec<f64>; 2] {
        let queries: Vec<Vec<f32>> = (0..ROWS).map(|_| (0..elements).map(|_| x()).collect()).collect();
        let keys: Vec<[f32; LANES]> = (0..elements).map(|_| std::array::from_fn(|_| x())).collect();
        let mut rounded = RoundedRows::default();
        rounded.reshape(ROWS, elements);
        let factors: Vec<f32> = queries
            .iter()
            .enumerate()
            .map(|(row, q)| round_row(proof, q, rounded.tiles_of_row(row)))
            .collect();
        let mut tiles = vec![[[[0; 2]; LANES]; ROWS]; elements.div_ceil(BF16_INPUTS)];
        let mut out = Sums([[0.0; LANES]; ROWS]);
        // SAFETY: the proof.
        let scales = unsafe { round_columns(proof, elements, |e| proof.load(&keys[e]), &mut tiles) };
        multiply(proof, rounded.view().tiles(0), &factors, &tiles, &scales, &mut out);
        let pairs = || (0..ROWS).flat_map(|row| (0..LANES).map(move |lane| (row, lane)));
        let exact = |(row, lane): (usize, usize)| -> f64 {
            queries[row].iter().zip(&keys).map(|(&q, k)| f64::from(q) * f64::from(k[lane])).sum()
        };
        let found = |(row, lane): (usize, usize)| f64::from(out.0[row][lane]);
        [pairs().map(found).collect(), pairs().map(exact).collect()]
    }

    fn proof() -> Option<Avx512> {
        let proof = Avx512::detect();
        if proof.is_none() {
            println!("no AVX-512 here: nothing is tested");
        }
        proof
    }

    /// Queries and keys that have a large common part. An error of half a code an element is 1.2e-5 of a product, as a standard deviation;
    /// bf16 would make ten times that.
    #[test]
    fn products_keep_thirteen_bits_of_their_factors() {
        let Some(proof) = proof() else { return };
        let mut random = Random::new(3);
        for elements in [8, 16, 40, 64, 128, 256] {
            for scale in [1e-12_f32, 1.0, 1e12] {
                let [found, exact] = products(proof, elements, &mut || scale * (random.normal() + 4.0));
                let largest = exact.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
                for (found, exact) in found.iter().zip(&exact) {
                    let error = (found - exact).abs() / largest;
                    assert!(error < 1e-4, "{elements} elements times {scale}: {found} expected {exact}");
                }
            }
        }
    }

    /// All of a vector in one element, or in two of one pair: the largest codes and sums that there are.
    #[test]
    fn the_largest_sums_do_not_overflow() {
        let Some(proof) = proof() else { return };
        for elements in [32, 256] {
            for nonzero in [1, 2, elements] {
                let mut at = 0;
                let mut x = || {
                    at += 1;
                    // Queries lie row by row, keys element by element.
                    let of_queries = at <= ROWS * elements;
                    let element =
                        if of_queries { (at - 1) % elements } else { (at - 1 - ROWS * elements) / LANES };
                    if element < nonzero { -3.0 } else { 0.0 }
                };
                let [found, exact] = products(proof, elements, &mut x);
                for (found, exact) in found.iter().zip(&exact) {
                    assert!((found - exact).abs() <= 2e-4 * exact, "{nonzero}: {found} expected {exact}");
                }
            }
        }
    }

    #[test]
    fn vectors_of_zeroes_have_products_of_zero() {
        let Some(proof) = proof() else { return };
        let [found, _] = products(proof, 64, &mut || 0.0);
        assert!(found.iter().all(|&x| x == 0.0), "{found:?}");
    }
}
