//! The power spectrum of 400 real samples, for several frames at once.
//!
//! 400 real numbers are 200 complex ones, whose DFT takes four passes of radix 5, 5, 4 and 2 (Stockham's autosort form;
//! Van Loan 1992, "Computational Frameworks for the Fast Fourier Transform", §1.7); one more pass separates the two halves.
//! A number here is the same number of eight frames: every operation is one on vectors, whatever the radix, and each
//! frame gets the same bits in any lane.

#![allow(clippy::inline_always, reason = "a call in an inner loop passes vectors through memory")]
#![allow(
    clippy::redundant_closure,
    reason = "a function that is passed by name is not inlined, which takes twice the time"
)]

use std::f64::consts::TAU;
use std::ops::{Add, Mul, Sub};

use super::{DFT_BINS, FRAME_LEN};

/// Frames that are transformed together: two vectors of the oldest x86-64 and of aarch64, which is a tenth faster than one.
pub(super) const LANES: usize = 8;

const HALF: usize = FRAME_LEN / 2;

/// One number of each frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lanes(pub(super) [f32; LANES]);

impl Lanes {
    #[inline(always)]
    pub(super) fn map(self, mut f: impl FnMut(f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane])))
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Add for Lanes {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
}

impl Sub for Lanes {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
}

impl Mul<f32> for Lanes {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        self.map(|a| a * factor)
    }
}

/// A complex number of each frame.
#[derive(Clone, Copy, Debug, Default)]
struct Complex {
    re: Lanes,
    im: Lanes,
}

impl Complex {
    /// −i · self.
    #[inline(always)]
    fn turned_back(self) -> Self {
        Self { re: self.im, im: self.re * -1.0 }
    }

    #[inline(always)]
    fn times(self, [re, im]: [f32; 2]) -> Self {
        Self { re: self.re * re - self.im * im, im: self.re * im + self.im * re }
    }

    fn power(self) -> Lanes {
        self.re.zip(self.im, |re, im| re * re + im * im)
    }
}

impl Add for Complex {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Sub for Complex {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }
}

impl Mul<f32> for Complex {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        Self { re: self.re * factor, im: self.im * factor }
    }
}

/// Window and roots of unity, each computed in f64.
#[derive(Clone, Debug)]
pub(super) struct Spectrum {
    /// Hann's window with a period of 400 samples.
    window: Vec<f32>,
    /// The 200th roots of unity, from 1 clockwise.
    roots: Vec<[f32; 2]>,
    /// The 400th roots of unity, from 1 clockwise to −1.
    half_roots: Vec<[f32; 2]>,
}

/// Scratch memory of the transform, so that frames allocate nothing.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    a: Vec<Complex>,
    b: Vec<Complex>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        let zeros = vec![Complex::default(); HALF];
        Self { a: zeros.clone(), b: zeros }
    }
}

impl Spectrum {
    pub(super) fn new() -> Self {
        let window =
            (0..FRAME_LEN).map(|n| (0.5 - 0.5 * (TAU * n as f64 / FRAME_LEN as f64).cos()) as f32).collect();
        let root = |k: usize, n: usize| {
            let (sin, cos) = (TAU * k as f64 / n as f64).sin_cos();
            [cos as f32, -sin as f32]
        };
        Self {
            window,
            roots: (0..HALF).map(|k| root(k, HALF)).collect(),
            half_roots: (0..=HALF).map(|k| root(k, FRAME_LEN)).collect(),
        }
    }

    /// Writes `|X[k]|²` of windowed frames, one frame a lane.
    ///
    /// A frame begins `hop` samples after the previous frame, the first at the start of `samples`.
    pub(super) fn power(
        &self,
        samples: &[f32],
        hop: usize,
        scratch: &mut Scratch,
        power: &mut [Lanes; DFT_BINS],
    ) {
        let Scratch { a, b } = scratch;
        let samples = &samples[..(LANES - 1) * hop + FRAME_LEN];
        for ((n, z), window) in a.iter_mut().enumerate().zip(self.window.chunks_exact(2)) {
            let at = |lane: usize, odd: usize| samples[lane * hop + 2 * n + odd] * window[odd];
            z.re = Lanes(std::array::from_fn(|lane| at(lane, 0)));
            z.im = Lanes(std::array::from_fn(|lane| at(lane, 1)));
        }
        self.pass(a, b, 1, |x| radix_5(x));
        self.pass(b, a, 5, |x| radix_5(x));
        self.pass(a, b, 25, |x| radix_4(x));
        self.pass(b, a, 100, |x| radix_2(x));
        for (k, power) in power.iter_mut().enumerate() {
            // Even samples' DFT E and odd samples' DFT O, of Z = E + iO with E and O of real samples.
            let (z, mirror) = (a[k % HALF], a[(HALF - k) % HALF]);
            let even = Complex { re: z.re + mirror.re, im: z.im - mirror.im };
            let odd = Complex { re: z.re - mirror.re, im: z.im + mirror.im }.turned_back();
            *power = ((even + odd.times(self.half_roots[k])) * 0.5).power();
        }
    }

    /// One pass: `stride` interleaved transforms of `200 / stride` numbers become `R` times as many, each `R` times as short.
    #[inline(always)]
    fn pass<const R: usize>(
        &self,
        from: &[Complex],
        to: &mut [Complex],
        stride: usize,
        butterfly: impl Fn([Complex; R]) -> [Complex; R],
    ) {
        let part = HALF / stride / R;
        for p in 0..part {
            for q in 0..stride {
                let sums = butterfly(std::array::from_fn(|j| from[q + stride * (p + part * j)]));
                for (k, sum) in sums.into_iter().enumerate() {
                    // exp(−2πi·pk / (200 / stride)), whose index stays below 200.
                    to[q + stride * (R * p + k)] =
                        if p * k == 0 { sum } else { sum.times(self.roots[p * k * stride]) };
                }
            }
        }
    }
}

#[inline(always)]
fn radix_2([a, b]: [Complex; 2]) -> [Complex; 2] {
    [a + b, a - b]
}

#[inline(always)]
fn radix_4([a, b, c, d]: [Complex; 4]) -> [Complex; 4] {
    let (sum, difference) = (a + c, a - c);
    let (other_sum, turned) = (b + d, (b - d).turned_back());
    [sum + other_sum, difference + turned, sum - other_sum, difference - turned]
}

#[inline(always)]
fn radix_5([x0, x1, x2, x3, x4]: [Complex; 5]) -> [Complex; 5] {
    // Cosine and sine of 72° and 144°.
    const COS: [f32; 2] = [0.309_017, -0.809_017];
    const SIN: [f32; 2] = [0.951_056_5, 0.587_785_25];
    let (sum_14, sum_23) = (x1 + x4, x2 + x3);
    let (difference_14, difference_23) = (x1 - x4, x2 - x3);
    let even_1 = x0 + sum_14 * COS[0] + sum_23 * COS[1];
    let even_2 = x0 + sum_14 * COS[1] + sum_23 * COS[0];
    let odd_1 = (difference_14 * SIN[0] + difference_23 * SIN[1]).turned_back();
    let odd_2 = (difference_14 * SIN[1] - difference_23 * SIN[0]).turned_back();
    [x0 + sum_14 + sum_23, even_1 + odd_1, even_2 + odd_2, even_2 - odd_2, even_1 - odd_1]
}
