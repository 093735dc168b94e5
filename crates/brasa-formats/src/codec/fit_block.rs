//! Fitting of 256-element blocks, whose sub-blocks store small integers times one half as their scales.
//!
//! First every sub-block gets the scale that it would like; the largest of these sets the scale of scales d. Then
//! three steps alternate while the error falls: each sub-block tries the integers around its wish and keeps the
//! one with the least error; every element takes its nearest code; d follows by least squares from all integers
//! and codes.

use super::Half;
use super::fit::{Levels, Line, Offsets, extreme, fit_line, fit_scale, inverse, quantise, sum};

/// The most rounds of the three steps.
const ROUNDS: usize = 3;

/// `x ≈ d · scale · level`.
#[derive(Clone, Copy)]
pub(super) struct ScaledFit<const SUBS: usize> {
    pub d: Half,
    pub scales: [i8; SUBS],
    /// Levels in element order.
    pub levels: [f32; 256],
}

/// Fits sub-blocks of N elements whose scales are integers in −half…half − 1. N · SUBS = 256.
pub(super) fn fit_scaled<const N: usize, const SUBS: usize>(
    levels: impl Levels,
    half: f32,
    x: &[f32; 256],
    w: &[f32; 256],
) -> ScaledFit<SUBS> {
    let (xs, ws) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
    let wishes: [f32; SUBS] = std::array::from_fn(|s| fit_scale(levels, &xs[s], &ws[s]));
    let mut best = ScaledFit { d: Half::default(), scales: [0; SUBS], levels: [0.0; 256] };
    let mut least = sum::<256>(|i| w[i] * x[i] * x[i]);
    let mut d = Half::from_scale(-extreme(&wishes) / half);
    for _ in 0..ROUNDS {
        let step = d.to_f32();
        let mut fit = ScaledFit { d, ..best };
        let mut error = 0.0;
        for (s, levels_out) in fit.levels.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            let wish = (wishes[s] * inverse(step)).clamp(-half, half - 1.0).round();
            let mut least = f32::INFINITY;
            for scale in [wish, wish - 1.0, wish + 1.0] {
                if scale < -half || scale >= half {
                    continue;
                }
                let (codes, error) = quantise(levels, &xs[s], &ws[s], step * scale);
                if error < least {
                    least = error;
                    fit.scales[s] = scale as i8;
                    *levels_out = codes;
                }
            }
            error += least;
        }
        if error >= least {
            break;
        }
        (best, least) = (fit, error);
        let (mut product, mut square) = (0.0, 0.0);
        for (s, codes) in best.levels.as_chunks::<N>().0.iter().enumerate() {
            let scale = f32::from(best.scales[s]);
            product += scale * sum::<N>(|i| ws[s][i] * codes[i] * xs[s][i]);
            square += scale * scale * sum::<N>(|i| ws[s][i] * codes[i] * codes[i]);
        }
        let next = Half::from_scale(product * inverse(square));
        if next == d {
            break;
        }
        d = next;
    }
    best
}

/// `x ≈ d · scale · q − dmin · min`.
#[derive(Clone, Copy)]
pub(super) struct OffsetFit<const SUBS: usize> {
    pub d: Half,
    pub dmin: Half,
    pub scales: [u8; SUBS],
    pub mins: [u8; SUBS],
    /// Codes in element order.
    pub codes: [f32; 256],
}

/// Fits sub-blocks of N elements with codes 0…`highest`, scales and minima 0…`highest_scale`. N · SUBS = 256.
pub(super) fn fit_offset<const N: usize, const SUBS: usize>(
    highest: f32,
    highest_scale: f32,
    x: &[f32; 256],
    w: &[f32; 256],
) -> OffsetFit<SUBS> {
    let (xs, ws) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
    let wishes: [Line; SUBS] =
        std::array::from_fn(|s| fit_line(highest, Offsets::NotPositive, &xs[s], &ws[s]));
    let zero = Half::default();
    let mut best = OffsetFit { d: zero, dmin: zero, scales: [0; SUBS], mins: [0; SUBS], codes: [0.0; 256] };
    let mut least = sum::<256>(|i| w[i] * x[i] * x[i]);
    let largest = |value: fn(&Line) -> f32| wishes.iter().map(value).fold(0.0, f32::max);
    let mut d = Half::from_scale(largest(|line| line.scale) / highest_scale);
    let mut dmin = Half::from_scale(largest(|line| -line.offset) / highest_scale);
    for _ in 0..ROUNDS {
        let (step, step_min) = (d.to_f32(), dmin.to_f32());
        let mut fit = OffsetFit { d, dmin, ..best };
        let mut error = 0.0;
        for (s, codes_out) in fit.codes.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            let wish = (wishes[s].scale * inverse(step)).clamp(0.0, highest_scale).round();
            let wish_min = (-wishes[s].offset * inverse(step_min)).clamp(0.0, highest_scale).round();
            let mut least = f32::INFINITY;
            for scale in [wish, wish - 1.0, wish + 1.0] {
                for min in [wish_min, wish_min - 1.0, wish_min + 1.0] {
                    if scale < 0.0 || min < 0.0 || scale > highest_scale || min > highest_scale {
                        continue;
                    }
                    let line = Line { scale: step * scale, offset: -(step_min * min) };
                    let (codes, error) = line.quantise(highest, &xs[s], &ws[s]);
                    if error < least {
                        least = error;
                        (fit.scales[s], fit.mins[s]) = (scale as u8, min as u8);
                        *codes_out = codes;
                    }
                }
            }
            error += least;
        }
        if error >= least {
            break;
        }
        (best, least) = (fit, error);
        let (next, next_min) = solve_steps(&best, xs, ws);
        if (next, next_min) == (d, dmin) {
            break;
        }
        (d, dmin) = (next, next_min);
    }
    best
}

/// d and dmin by least squares, all integers and codes fixed.
fn solve_steps<const N: usize, const SUBS: usize>(
    fit: &OffsetFit<SUBS>,
    xs: &[[f32; N]],
    ws: &[[f32; N]],
) -> (Half, Half) {
    // Unknowns d and dmin of x ≈ d·a − dmin·m, a = scale · q.
    let (mut sum_aa, mut sum_am, mut sum_mm, mut sum_ax, mut sum_mx) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (s, q) in fit.codes.as_chunks::<N>().0.iter().enumerate() {
        let (x, w) = (&xs[s], &ws[s]);
        let (scale, min) = (f32::from(fit.scales[s]), f32::from(fit.mins[s]));
        let sum_w = sum::<N>(|i| w[i]);
        let sum_q = sum::<N>(|i| w[i] * q[i]);
        sum_aa += scale * scale * sum::<N>(|i| w[i] * q[i] * q[i]);
        sum_am += scale * min * sum_q;
        sum_mm += min * min * sum_w;
        sum_ax += scale * sum::<N>(|i| w[i] * q[i] * x[i]);
        sum_mx += min * sum::<N>(|i| w[i] * x[i]);
    }
    let determinant = sum_aa * sum_mm - sum_am * sum_am;
    let (d, dmin) = if determinant > 1e-6 * sum_aa * sum_mm {
        ((sum_ax * sum_mm - sum_mx * sum_am) / determinant, (sum_ax * sum_am - sum_mx * sum_aa) / determinant)
    } else {
        (sum_ax * inverse(sum_aa), 0.0)
    };
    if d > 0.0 && dmin >= 0.0 { (Half::from_scale(d), Half::from_scale(dmin)) } else { (fit.d, fit.dmin) }
}
