//! Plain Rust: every machine, and the oracle of the vector kernels.

use super::super::layout::{LANES, Layout, Shape};
use super::super::planes::WideBlock;
use super::super::scales::Lanes;
use super::Panel;
use crate::quantize::QuantizedRow;

pub(super) fn multiply_tile(layout: &Layout, tile: &[u8], x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    let mut panel = Panel::default();
    panel.reserve(layout, &(0..layout.blocks), 0);
    panel.fill(layout, tile);
    multiply_panel(layout, &panel, x, out);
}

pub(super) fn multiply_panel(layout: &Layout, panel: &Panel, x: &[QuantizedRow<'_>], out: &mut [Lanes]) {
    if panel.first == 0 {
        out.fill([0.0; LANES]);
    }
    for (at, wide) in panel.codes.iter().enumerate() {
        accumulate(layout, panel, at, &wide.0, x, out);
    }
}

fn accumulate(
    layout: &Layout,
    panel: &Panel,
    at: usize,
    wide: &WideBlock,
    x: &[QuantizedRow<'_>],
    out: &mut [Lanes],
) {
    let shift = layout.codes.offset_shift();
    for (x, out) in x.iter().zip(out) {
        let block = panel.first + at;
        let (meta, codes) = (x.blocks[block], &x.codes[block * 32..][..32]);
        let [first, second] = meta.half_sums.map(i32::from);
        for (lane, acc) in out.iter_mut().enumerate() {
            let dot = |groups: std::ops::Range<usize>| {
                groups.fold(0, |sum, group| {
                    (0..4).fold(sum, |sum, index| {
                        let weight = wide[(group * LANES + lane) * 4 + index];
                        sum + i32::from(weight) * i32::from(codes[group * 4 + index])
                    })
                })
            };
            let scale = |index: usize| panel.scales[index].0[lane];
            let min = |index: usize| panel.mins[index].0[lane];
            *acc = match layout.shape {
                Shape::Whole => {
                    let dot = dot(0..8) - (meta.sum << shift);
                    (dot as f32).mul_add(scale(at) * meta.scale, *acc)
                }
                Shape::WholeMin => {
                    let acc = (dot(0..8) as f32).mul_add(scale(at) * meta.scale, *acc);
                    min(at).mul_add(meta.scaled_sum, acc)
                }
                Shape::Halves => {
                    let dots = [dot(0..4) - (first << shift), dot(4..8) - (second << shift)];
                    combine(dots, [scale(2 * at), scale(2 * at + 1)], meta.scale, *acc)
                }
                Shape::HalvesMin => {
                    let dots = [dot(0..4), dot(4..8)];
                    let acc = combine(dots, [scale(2 * at), scale(2 * at + 1)], meta.scale, *acc);
                    let acc = min(2 * at).mul_add(meta.scale * first as f32, acc);
                    min(2 * at + 1).mul_add(meta.scale * second as f32, acc)
                }
            };
        }
    }
}

fn combine(dots: [i32; 2], scales: [f32; 2], activation_scale: f32, acc: f32) -> f32 {
    let both = (dots[1] as f32).mul_add(scales[1], dots[0] as f32 * scales[0]);
    both.mul_add(activation_scale, acc)
}
