//! Magnitude spectrum of 256 samples behind a Hann window. The network's first layer computes it as a convolution.

use std::f64::consts::TAU;

/// Samples of a column.
pub(super) const COLUMN: usize = 256;
/// Magnitudes of a column.
pub(super) const BINS: usize = COLUMN / 2 + 1;

/// Complex numbers, real parts apart from imaginary ones.
#[derive(Clone)]
struct Numbers {
    re: [f32; COLUMN],
    im: [f32; COLUMN],
}

/// A discrete Fourier transform of 256 numbers, of two real columns at once.
pub(super) struct Spectrum {
    hann: [f32; COLUMN],
    /// `exp(−2πi·k/256)` for the first half of all `k`.
    cos: [f32; COLUMN / 2],
    sin: [f32; COLUMN / 2],
}

impl Spectrum {
    pub(super) fn new() -> Self {
        let turn = |k: usize| TAU * k as f64 / COLUMN as f64;
        Self {
            hann: std::array::from_fn(|k| (0.5 - 0.5 * turn(k).cos()) as f32),
            cos: std::array::from_fn(|k| turn(k).cos() as f32),
            sin: std::array::from_fn(|k| -turn(k).sin() as f32),
        }
    }

    /// Magnitudes of two columns, `out` `[2, 129]`.
    pub(super) fn magnitudes(&self, first: &[f32], second: &[f32], out: &mut [f32]) {
        let windowed = |column: &[f32]| std::array::from_fn(|at| column[at] * self.hann[at]);
        let mut z = Numbers { re: windowed(first), im: windowed(second) };
        let mut other = Numbers { re: [0.0; COLUMN], im: [0.0; COLUMN] };
        // Stockham's form of radix 2: eight passes, and no bits to be reversed.
        let (mut groups, mut stride) = (COLUMN / 2, 1);
        while groups > 0 {
            self.pass(&z, &mut other, groups, stride);
            std::mem::swap(&mut z, &mut other);
            (groups, stride) = (groups / 2, stride * 2);
        }
        let (one, two) = out.split_at_mut(BINS);
        for k in 0..BINS {
            let mirror = (COLUMN - k) % COLUMN;
            let (a, b, c, d) = (z.re[k], z.im[k], z.re[mirror], z.im[mirror]);
            let magnitude = |re: f32, im: f32| 0.5 * (re * re + im * im).sqrt();
            one[k] = magnitude(a + c, b - d);
            two[k] = magnitude(b + d, c - a);
        }
    }

    fn pass(&self, from: &Numbers, to: &mut Numbers, groups: usize, stride: usize) {
        let half = COLUMN / 2;
        for group in 0..groups {
            let (cos, sin) = (self.cos[group * stride], self.sin[group * stride]);
            let (at, to_at) = (group * stride, 2 * group * stride);
            let (re_a, im_a) = (&from.re[at..at + stride], &from.im[at..at + stride]);
            let (re_b, im_b) = (&from.re[at + half..][..stride], &from.im[at + half..][..stride]);
            let (re_sum, re_turned) = to.re[to_at..][..2 * stride].split_at_mut(stride);
            let (im_sum, im_turned) = to.im[to_at..][..2 * stride].split_at_mut(stride);
            for q in 0..stride {
                let (re, im) = (re_a[q] - re_b[q], im_a[q] - im_b[q]);
                (re_sum[q], im_sum[q]) = (re_a[q] + re_b[q], im_a[q] + im_b[q]);
                (re_turned[q], im_turned[q]) = (re * cos - im * sin, re * sin + im * cos);
            }
        }
    }
}
