//! Plain Rust: every machine, and the oracle of the vector kernels.

use super::super::layout::LANES;
use super::super::scales::Lanes;
use super::{FloatLayout, PHASES};

pub(super) fn multiply_tile(layout: &FloatLayout, tile: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    let mut sums = vec![[[0.0_f32; LANES]; PHASES]; x.len()];
    for k in 0..layout.k {
        let weights: Lanes = std::array::from_fn(|lane| layout.weight(tile, lane, k));
        for (x, sums) in x.iter().zip(&mut sums) {
            for (sum, weight) in sums[k % PHASES].iter_mut().zip(weights) {
                *sum = weight.mul_add(x[k], *sum);
            }
        }
    }
    for ([s0, s1, s2, s3], out) in sums.iter().zip(out) {
        *out = std::array::from_fn(|lane| (s0[lane] + s1[lane]) + (s2[lane] + s3[lane]));
    }
}
