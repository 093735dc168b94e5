//! Top-n-sigma, typical-p, XTC and dynamic temperature: the stages that need sums over all tokens that are left.

use super::candidates::{Candidates, pack};
use super::exp::{Shares, exp_nonpositive, ln_positive};
use super::sampler::Survivors;
use super::{SamplingParams, Stage};

/// The tokens that a phase leaves, as a range of sort keys ([`pack`]), and the factor of their logits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// Tokens with smaller keys are removed.
    pub lowest: u64,
    /// Tokens with larger keys are removed.
    pub highest: u64,
    /// Factor of the logits: the inverse of the temperature.
    pub scale: f32,
}

/// The smallest key of a logit above −∞.
const ABOVE_INFINITY: u64 = 0x0080_0000 << 32;

impl Left {
    /// The tokens of logits `z` that filters have left, with the factor `scale`. `max` is the largest logit; if
    /// `max · scale` is not finite, the likeliest token alone is left, with the factor 1.
    pub(super) fn of(
        candidates: &mut Candidates,
        z: &[f32],
        max: f32,
        survivors: Survivors,
        scale: f32,
    ) -> Self {
        let (few, scale) = match survivors {
            _ if !(max * scale).is_finite() => (Some(1), 1.0),
            Survivors::All => (None, scale),
            Survivors::First(few) => (Some(few), scale),
        };
        let last = few.and_then(|few| candidates.get(z, few - 1));
        Self { lowest: last.map_or(ABOVE_INFINITY, |(z, id)| pack(z, id)), highest: u64::MAX, scale }
    }

    /// True if the token `id` with logit `z` is left. NaN and −∞ never are.
    pub(super) fn has(&self, z: f32, id: u32) -> bool {
        let key = pack(z, id);
        !z.is_nan() && self.lowest <= key && key <= self.highest
    }
}

/// The operands of a stage that ends a phase.
pub(super) struct Closing<'a> {
    pub candidates: &'a mut Candidates,
    pub params: &'a SamplingParams,
    /// The logits; `max` is the largest of them.
    pub z: &'a [f32],
    pub max: f32,
    /// The tokens that the phase's filters have left.
    pub survivors: Survivors,
    /// The temperature that the phase's filters have set.
    pub temperature: f32,
}

impl Closing<'_> {
    /// Runs `stage`; returns the tokens that it leaves.
    pub(super) fn left(mut self, stage: Stage) -> Left {
        let shares = Shares::new(self.max, self.temperature);
        let scale = shares.inverse_temperature();
        let mut left = Left::of(self.candidates, self.z, self.max, self.survivors, scale);
        if !(self.max * scale).is_finite() {
            return left;
        }
        match stage {
            Stage::TopNSigma => {
                let least = self.least_of_top_n_sigma();
                if !least.is_nan() {
                    left.lowest = left.lowest.max(pack(least, u32::MAX));
                }
            }
            Stage::TypicalP => {
                if let Some((first, last)) = self.typical(shares) {
                    (left.highest, left.lowest) = (first, last);
                }
            }
            Stage::Xtc => left.highest = self.first_behind_xtc(shares),
            Stage::Temperature => {
                let temperature = self.dynamic_temperature(shares);
                let scale = Shares::new(self.max, temperature).inverse_temperature();
                left = Left::of(self.candidates, self.z, self.max, self.survivors, scale);
            }
            Stage::Penalties | Stage::Dry | Stage::TopK | Stage::TopP | Stage::TopPOfAll | Stage::MinP => {
                unreachable!("{stage:?} ends no phase")
            }
        }
        left
    }

    /// The tree sum of `value(z)` over the survivors' logits `z`.
    fn sum(&mut self, value: impl Fn(f32) -> f32) -> f32 {
        match self.survivors {
            Survivors::All => self.candidates.sum_of_all(self.z, value),
            Survivors::First(few) => self.candidates.sum_of(self.z, few, value),
        }
    }

    /// The number of survivors.
    fn count(&mut self) -> usize {
        match self.survivors {
            Survivors::All => self.z.iter().filter(|&&z| z > f32::NEG_INFINITY).count(),
            Survivors::First(few) => self.candidates.available(self.z, few),
        }
    }

    /// The survivor at `rank`; `None` if there are fewer.
    fn get(&mut self, rank: usize) -> Option<(f32, u32)> {
        match self.survivors {
            Survivors::First(few) if rank >= few => None,
            _ => self.candidates.get(self.z, rank),
        }
    }

    /// The tree sums `(S, W)` over the survivors: of shares, and of exponent · share. A share of 0 adds 0 to both.
    fn mass_and_weighted(&mut self, shares: Shares) -> (f32, f32) {
        let mass = self.sum(|z| shares.of(z));
        let weighted = self.sum(|z| {
            let share = shares.of(z);
            if share > 0.0 { share * shares.exponent(z) } else { 0.0 }
        });
        (mass, weighted)
    }

    /// The smallest logit that top-n-sigma keeps; NaN if it keeps all.
    fn least_of_top_n_sigma(&mut self) -> f32 {
        let (max, count) = (self.max, self.count() as f32);
        let mean = self.sum(|z| z - max) / count;
        let variance = self.sum(|z| {
            let distance = (z - max) - mean;
            distance * distance
        }) / count;
        max - self.params.top_n_sigma * variance.sqrt()
    }

    /// The key of the first survivor that XTC keeps.
    fn first_behind_xtc(&mut self, shares: Shares) -> u64 {
        let target = self.params.xtc_threshold * self.sum(|z| shares.of(z));
        let mut first = u64::MAX;
        for rank in 0.. {
            match self.get(rank) {
                Some((z, id)) if shares.of(z) >= target => first = pack(z, id),
                _ => break,
            }
        }
        first
    }

    /// The dynamic temperature, from the survivors' entropy.
    fn dynamic_temperature(&mut self, shares: Shares) -> f32 {
        let SamplingParams { temperature, dynatemp_range: range, dynatemp_exponent: exponent, .. } =
            *self.params;
        let count = self.count();
        if count < 2 {
            return 1.0;
        }
        let (mass, weighted) = self.mass_and_weighted(shares);
        let entropy = ln_positive(mass) - weighted / mass;
        let relative = (entropy / ln_positive(count as f32)).clamp(0.0, 1.0);
        let (least, most) = ((temperature - range).max(0.0), temperature + range);
        least + (most - least) * power(relative, exponent)
    }

    /// The keys of the first and the last survivor that typical-p keeps; `None` if it keeps all.
    fn typical(&mut self, shares: Shares) -> Option<(u64, u64)> {
        let (mass, weighted) = self.mass_and_weighted(shares);
        let (mean, target) = (weighted / mass, self.params.typical_p * mass);
        self.candidates.forget();
        let mut first = 0;
        while self.get(first).is_some_and(|(z, _)| shares.exponent(z) >= mean) {
            first += 1;
        }
        let mut nearest = Nearest { mean, shares, starts: Vec::new(), start: first, end: first };
        // First an estimate in f64, then tree sums decide. Sums never fall as tokens are added.
        let mut sum = 0.0;
        while sum <= f64::from(target) {
            let Some(z) = nearest.grow(self) else { break };
            sum += f64::from(shares.of(z));
        }
        while nearest.sum(self, nearest.starts.len()) <= target {
            nearest.grow(self)?;
        }
        // The first `low` are too few, the first `high` are not.
        let (mut low, mut high, mut stride) = (0, nearest.starts.len(), 1);
        while high > stride {
            let fewer = high - stride;
            if nearest.sum(self, fewer) <= target {
                low = fewer;
                break;
            }
            (high, stride) = (fewer, 2 * stride);
        }
        while low + 1 < high {
            let middle = low.midpoint(high);
            if nearest.sum(self, middle) > target {
                high = middle;
            } else {
                low = middle;
            }
        }
        let start = nearest.starts[high - 1];
        let mut key = |rank| self.get(rank).map(|(z, id)| pack(z, id));
        Some((key(start)?, key(start + high - 1)?))
    }
}

/// Takes survivors in order of their distance from a mean exponent. The tokens taken so far are neighbours in the order
/// of tokens.
struct Nearest {
    mean: f32,
    shares: Shares,
    /// The smallest rank among the nearest 1, 2, 3, … tokens.
    starts: Vec<usize>,
    /// First rank that is taken, and the first rank behind the taken ones.
    start: usize,
    end: usize,
}

impl Nearest {
    /// Takes the next token and returns its logit; `None` if all are taken. At equal distances, the token above the
    /// mean comes first.
    fn grow(&mut self, closing: &mut Closing<'_>) -> Option<f32> {
        let distance = |z: f32| (self.shares.exponent(z) - self.mean).abs();
        let above = self.start.checked_sub(1).and_then(|rank| closing.get(rank)).map(|(z, _)| z);
        let below = closing.get(self.end).map(|(z, _)| z);
        let taken = match (above, below) {
            (Some(above), Some(below)) if distance(below) < distance(above) => below,
            (Some(above), _) => {
                self.start -= 1;
                self.starts.push(self.start);
                return Some(above);
            }
            (None, below) => below?,
        };
        self.end += 1;
        self.starts.push(self.start);
        Some(taken)
    }

    /// The tree sum of the shares of the nearest `count` tokens; 0 for none.
    fn sum(&self, closing: &mut Closing<'_>, count: usize) -> f32 {
        let Some(&start) = count.checked_sub(1).and_then(|place| self.starts.get(place)) else { return 0.0 };
        closing.candidates.sum_of_ranks(closing.z, start..start + count, |z| self.shares.of(z))
    }
}

/// `xʸ = exp(y·ln x)` for `x` from 0 to 1 and `y ≥ 0`, with the exponential and the logarithm of sampling.
fn power(x: f32, y: f32) -> f32 {
    match (x > 0.0, y > 0.0) {
        (_, false) => 1.0,
        (false, true) => 0.0,
        (true, true) => exp_nonpositive(y * ln_positive(x)),
    }
}
