//! Least-squares fitting: which scale, offset and codes make a block differ least from its elements.
//!
//! Every encoder minimises `Σ w·(x − x̂)²`, where w are the importances given, or 1. For fixed codes the best
//! scale (and offset) follow in closed form; for a fixed scale the best codes are the nearest ones. What is left
//! is where to start: a handful of ways to map the extreme element onto the end of the code range, each tried and
//! judged. That is the published search of llama.cpp's quantisers; what is added here is that both steps then
//! alternate until nothing gets better, and (in [`super::fit_block`]) that the roundings of the scales themselves
//! are searched.

/// A set of values that codes stand for.
pub(super) trait Levels: Copy {
    /// Replaces each value by the nearest level.
    fn nearest<const N: usize>(self, values: [f32; N]) -> [f32; N];

    /// Levels to try for the extreme element, around the ends of the range of levels.
    fn reaches(self) -> impl Iterator<Item = f32>;
}

/// The integers −half…half − 1.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    /// The most negative level, negated.
    pub half: f32,
}

impl Levels for Integers {
    #[inline]
    fn nearest<const N: usize>(self, values: [f32; N]) -> [f32; N] {
        nearest_integers(values, -self.half, self.half - 1.0)
    }

    fn reaches(self) -> impl Iterator<Item = f32> {
        (-10..=10).map(move |i| -self.half + 0.1 * i as f32)
    }
}

/// The nearest integers in `lowest..=highest`, ties to even.
#[inline]
pub(super) fn nearest_integers<const N: usize>(values: [f32; N], lowest: f32, highest: f32) -> [f32; N] {
    // Adding 1.5 · 2²³ leaves no fraction bits: the addition itself rounds and, unlike a call of a rounding
    // function, is vectorised on every machine.
    const ROUND: f32 = 12_582_912.0;
    values.map(|value| {
        let value = if value > lowest { value } else { lowest };
        let value = if value < highest { value } else { highest };
        (value + ROUND) - ROUND
    })
}

/// The sum of `term` over `0..N`, in a fixed order that vectorises. N is a multiple of 8.
#[inline]
pub(super) fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; 8];
    for at in (0..N).step_by(8) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(at + lane);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The element of largest magnitude.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |extreme: f32, &x| if x.abs() > extreme.abs() { x } else { extreme })
}

/// `1 / scale`, 0 for 0.
#[inline]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The levels nearest to `x / scale`, and `Σ w·(x − scale·level)²`.
#[inline]
pub(super) fn quantise<const N: usize>(
    levels: impl Levels,
    x: &[f32; N],
    w: &[f32; N],
    scale: f32,
) -> ([f32; N], f32) {
    let inverse = inverse(scale);
    let codes = levels.nearest(x.map(|x| x * inverse));
    let error = sum::<N>(|i| {
        let miss = x[i] - scale * codes[i];
        w[i] * miss * miss
    });
    (codes, error)
}

/// The scale for which `x ≈ scale · level` is best.
pub(super) fn fit_scale<const N: usize>(levels: impl Levels, x: &[f32; N], w: &[f32; N]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    // With the best scale p/s, p = Σ wqx and s = Σ wq², the error is Σ wx² − p²/s: the gain p²/s decides.
    let (mut best, mut gain) = (0.0, 0.0);
    let mut improve = |inverse: f32| {
        let codes = levels.nearest(x.map(|x| x * inverse));
        let p = sum::<N>(|i| w[i] * codes[i] * x[i]);
        let s = sum::<N>(|i| w[i] * codes[i] * codes[i]);
        let better = s > 0.0 && p * p > gain * s;
        if better {
            (best, gain) = (p / s, p * p / s);
        }
        better.then_some(best)
    };
    let mut last = None;
    for reach in levels.reaches() {
        last = improve(reach / extreme).or(last);
    }
    for _ in 0..4 {
        match last {
            Some(scale) if scale != 0.0 => last = improve(1.0 / scale),
            _ => break,
        }
    }
    best
}

/// `x ≈ scale · q + offset` with q in 0…highest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub scale: f32,
    pub offset: f32,
}

impl Line {
    /// The nearest codes, and `Σ w·(x − x̂)²`.
    #[inline]
    pub(super) fn quantise<const N: usize>(
        self,
        highest: f32,
        x: &[f32; N],
        w: &[f32; N],
    ) -> ([f32; N], f32) {
        let inverse = inverse(self.scale);
        let codes = nearest_integers(x.map(|x| (x - self.offset) * inverse), 0.0, highest);
        let error = sum::<N>(|i| {
            let miss = x[i] - (self.scale * codes[i] + self.offset);
            w[i] * miss * miss
        });
        (codes, error)
    }
}

/// The offsets that a format can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offsets {
    /// Any.
    Free,
    /// Zero and below: k-quants store a minimum to subtract.
    NotPositive,
}

/// The best line for fixed codes.
fn solve<const N: usize>(x: &[f32; N], w: &[f32; N], q: &[f32; N], offsets: Offsets) -> Option<Line> {
    let sum_w = sum::<N>(|i| w[i]);
    let sum_x = sum::<N>(|i| w[i] * x[i]);
    let sum_q = sum::<N>(|i| w[i] * q[i]);
    let sum_qq = sum::<N>(|i| w[i] * q[i] * q[i]);
    let sum_qx = sum::<N>(|i| w[i] * q[i] * x[i]);
    let determinant = sum_w * sum_qq - sum_q * sum_q;
    if determinant <= 0.0 {
        return None;
    }
    let offset = (sum_qq * sum_x - sum_q * sum_qx) / determinant;
    if offset > 0.0 && offsets == Offsets::NotPositive {
        return Some(Line { scale: sum_qx / sum_qq, offset: 0.0 });
    }
    Some(Line { scale: (sum_w * sum_qx - sum_x * sum_q) / determinant, offset })
}

/// The best line for codes 0…highest.
pub(super) fn fit_line<const N: usize>(highest: f32, offsets: Offsets, x: &[f32; N], w: &[f32; N]) -> Line {
    let mut low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if offsets == Offsets::NotPositive {
        low = low.min(0.0);
    }
    if high <= low {
        return Line { scale: 0.0, offset: low };
    }
    let mut best = Line { scale: (high - low) / highest, offset: low };
    let (mut codes, mut least) = best.quantise(highest, x, w);
    for i in -10..=10 {
        let inverse = (highest + 0.1 * i as f32) / (high - low);
        let trial = nearest_integers(x.map(|x| (x - low) * inverse), 0.0, highest);
        let Some(line) = solve(x, w, &trial, offsets) else { continue };
        let (trial, error) = line.quantise(highest, x, w);
        if error < least {
            (best, codes, least) = (line, trial, error);
        }
    }
    for _ in 0..4 {
        let Some(line) = solve(x, w, &codes, offsets) else { break };
        let (trial, error) = line.quantise(highest, x, w);
        if error >= least {
            break;
        }
        (best, codes, least) = (line, trial, error);
    }
    best
}
