//! Plain Rust: every machine, and the oracle of the vector kernels.

use super::super::blocks::Panel;
use super::super::float_layout::FloatLayout;
use super::super::formats::Shape;
use super::super::layout::{BLOCK, LANES, Lanes, Layout};
use super::PHASES;
use crate::quantize::QuantizedRow;

/// Writes the products of a packed strip with all rows of `x`.
pub(super) fn multiply_strip(layout: &Layout, strip: &[u8], x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    let mut panel = Panel::default();
    panel.reserve(layout, &(0..layout.blocks), false);
    panel.fill(layout, strip);
    multiply_panel(layout, &panel, x, out);
}

/// Adds the products of a panel with all rows of `x`. Overwrites `out` if the panel is the first.
pub(super) fn multiply_panel(layout: &Layout, panel: &Panel, x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    if panel.first == 0 {
        out.fill([0.0; LANES]);
    }
    let offset = i32::from(layout.codes.offset());
    for (at, block) in panel.blocks().enumerate() {
        for (x, out) in x.iter().zip(&mut *out) {
            let (meta, codes) = (x.blocks[block], &x.codes[block * BLOCK..][..BLOCK]);
            let [first, second] = meta.half_sums.map(i32::from);
            for (lane, acc) in out.iter_mut().enumerate() {
                let dot = |inputs: std::ops::Range<usize>| {
                    inputs.fold(0, |sum, input| {
                        let weight = panel.codes[at].0[(input / 4 * LANES + lane) * 4 + input % 4];
                        sum + i32::from(weight) * i32::from(codes[input])
                    })
                };
                let scale = |index: usize| panel.scales[index].0[lane];
                let min = |index: usize| panel.mins[index].0[lane];
                *acc = match layout.shape {
                    Shape::Whole => {
                        let dot = dot(0..32) - offset * meta.sum;
                        (dot as f32).mul_add(scale(at) * meta.scale, *acc)
                    }
                    Shape::WholeMin => {
                        let acc = (dot(0..32) as f32).mul_add(scale(at) * meta.scale, *acc);
                        min(at).mul_add(meta.scaled_sum, acc)
                    }
                    Shape::Halves => {
                        let dots = [dot(0..16) - offset * first, dot(16..32) - offset * second];
                        combine(dots, [scale(2 * at), scale(2 * at + 1)], meta.scale, *acc)
                    }
                    Shape::HalvesMin => {
                        let dots = [dot(0..16), dot(16..32)];
                        let acc = combine(dots, [scale(2 * at), scale(2 * at + 1)], meta.scale, *acc);
                        let acc = min(2 * at).mul_add(meta.scale * first as f32, acc);
                        min(2 * at + 1).mul_add(meta.scale * second as f32, acc)
                    }
                };
            }
        }
    }
}

fn combine(dots: [i32; 2], scales: [f32; 2], activation_scale: f32, acc: f32) -> f32 {
    let both = (dots[1] as f32).mul_add(scales[1], dots[0] as f32 * scales[0]);
    both.mul_add(activation_scale, acc)
}

/// Writes the products of a strip of floats with all rows of `x`.
pub(super) fn multiply_floats(layout: &FloatLayout, strip: &[u8], x: &[&[f32]], out: &mut [Lanes]) {
    let mut sums = vec![[[0.0_f32; LANES]; PHASES]; x.len()];
    for k in 0..layout.k {
        let weights: Lanes = std::array::from_fn(|lane| layout.weight(strip, lane, k));
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
