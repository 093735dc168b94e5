//! The most probable tokens in order, sorted only as far as needed.

use std::ops::Range;

use super::exp::Shares;
use super::largest::{BLOCK, first_of_largest, maxima};
use super::tree::{FewValues, tree_sum_of};

/// Distances below the largest logit at which tokens are collected once the maxima of blocks are used up, nearest first. With
/// usual logits the first level holds tens to thousands of 150,000 tokens.
const DISTANCES: [f32; 3] = [8.0, 16.0, 32.0];

/// Fewest tokens that are collected at a time.
const LEAST: usize = 64;

/// Most tokens that are summed as a short list, without the zeros of all other tokens.
const FEW: usize = 1024;

/// Tokens in order of falling logits, equal ones by rising id.
///
/// Tokens are collected level by level, and within a level a growing prefix is selected and sorted. The first levels reach down
/// to the `n`-th largest of the blocks' largest logits: at least `n` tokens lie above that logit, but few more, and most blocks
/// need not be read.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Sort keys: the logit's bits in an order-preserving form above the id's complement, so that falling keys are the
    /// order above. The first `sorted` are the largest of all, in order.
    keys: Vec<u64>,
    sorted: usize,
    /// The largest logit of each block.
    maxima: Vec<f32>,
    /// Scratch copy of `maxima` in which the n-th largest is selected.
    selected: Vec<f32>,
    max: f32,
    /// All tokens with at least this logit have been collected; −∞ once all tokens have been.
    from: Option<f32>,
    /// Shares of the first candidates, at most [`FEW`].
    few: FewValues,
    /// Shares by token id; 0 for tokens that are not summed.
    values: Vec<f32>,
    /// Sums of the blocks of `values`.
    sums: Vec<f32>,
}

impl Candidates {
    /// Starts with the logits `z`. Returns the largest logit and the lowest id that has it, as
    /// [`largest`](super::largest::largest) does.
    pub(super) fn reset(&mut self, z: &[f32]) -> (f32, u32) {
        self.keys.clear();
        self.maxima.clear();
        self.maxima.extend(maxima(z));
        let (max, id) = first_of_largest(self.maxima.iter().copied(), z);
        (self.sorted, self.from, self.max) = (0, None, max);
        (max, id)
    }

    /// The token at `rank`, counted from 0, among the logits of `z` above −∞; `None` if there are fewer. `z` must be the logits
    /// of the last reset.
    pub(super) fn get(&mut self, z: &[f32], rank: usize) -> Option<(f32, u32)> {
        while rank >= self.keys.len() && self.from != Some(f32::NEG_INFINITY) {
            self.collect(z, rank + 1);
        }
        if rank >= self.keys.len() {
            return None;
        }
        if rank >= self.sorted {
            self.sort(rank + 1);
        }
        Some(unpack(self.keys[rank]))
    }

    /// The tree sum of all tokens' shares.
    pub(super) fn mass_of_all(&mut self, z: &[f32], shares: Shares) -> f32 {
        tree_sum_of(z, &mut self.sums, |&z| shares.of(z))
    }

    /// The tree sum of `value(z)` over all logits `z` above −∞.
    pub(super) fn sum_of_all(&mut self, z: &[f32], value: impl Fn(f32) -> f32) -> f32 {
        tree_sum_of(z, &mut self.sums, |&z| if z > f32::NEG_INFINITY { value(z) } else { 0.0 })
    }

    /// The tree sum of `value(z)` over the logits `z` of the first `count` tokens in order.
    pub(super) fn sum_of(&mut self, z: &[f32], count: usize, value: impl Fn(f32) -> f32) -> f32 {
        let count = self.available(z, count);
        self.few.clear();
        self.sum_of_ranks(z, 0..count, value)
    }

    /// The tree sum of `value(z)` over the logits `z` of the tokens at `ranks`, which must be sorted already.
    ///
    /// The next call reuses the values of this one. Call [`forget`](Self::forget) before a sum with another `value`.
    pub(super) fn sum_of_ranks(&mut self, z: &[f32], ranks: Range<usize>, value: impl Fn(f32) -> f32) -> f32 {
        let Self { keys, few, values, sums, .. } = self;
        let tokens =
            |ranks: Range<usize>| keys[ranks].iter().map(|&key| unpack(key)).map(|(z, id)| (id, value(z)));
        if ranks.end <= FEW {
            if few.len() < ranks.end {
                few.set(tokens(0..ranks.end));
            }
            return few.sum_of_ranks(ranks);
        }
        values.clear();
        values.resize(z.len(), 0.0);
        tokens(ranks).for_each(|(id, value)| values[id as usize] = value);
        tree_sum_of(values, sums, |&value| value)
    }

    /// Forgets the values that [`sum_of_ranks`](Self::sum_of_ranks) has kept.
    pub(super) fn forget(&mut self) {
        self.few.clear();
    }

    /// The entropy in nats of softmax of `z`, whose largest logit is `max`: `ln Σ eˣ − Σ x·eˣ / Σ eˣ`, where `x = z − max`.
    /// Infinite logits share all the probability evenly.
    pub(super) fn entropy(&mut self, z: &[f32], max: f32) -> f32 {
        if !max.is_finite() {
            return (z.iter().filter(|&&z| z >= max).count().max(1) as f32).ln();
        }
        let shares = Shares::new(max, 1.0);
        let mass = self.mass_of_all(z, shares);
        let weighted = tree_sum_of(z, &mut self.sums, |&z| {
            let share = shares.of(z);
            // A forbidden token's −∞ has no share, and 0 · −∞ is no number.
            if share > 0.0 { share * shares.exponent(z) } else { 0.0 }
        });
        mass.ln() - weighted / mass
    }

    /// The tree sum of the first `count` tokens' shares.
    pub(super) fn mass(&mut self, z: &[f32], count: usize, shares: Shares) -> f32 {
        let count = self.available(z, count);
        self.few.clear();
        self.sum_of_first(z, count, shares)
    }

    /// The smallest number of first tokens with a tree sum of shares of at least `target`: at least 1, at most `most`, and `most`
    /// if that sum is not reached.
    pub(super) fn reach(&mut self, z: &[f32], most: usize, shares: Shares, target: f32) -> usize {
        self.few.clear();
        // The first `low` are too few, the first `high` are not. Sums never fall as tokens are added, so the answer lies
        // between, and most often beside the guess.
        let guess = self.guess(z, most, shares, target);
        let (mut low, mut high, mut stride) = (guess, guess, 1);
        if self.sum_of_first(z, guess, shares) >= target {
            loop {
                low = high.saturating_sub(stride);
                if low == 0 || self.sum_of_first(z, low, shares) < target {
                    break;
                }
                (high, stride) = (low, 2 * stride);
            }
        } else {
            loop {
                high = self.available(z, most.min(low + stride));
                if high == low {
                    return most;
                }
                if self.sum_of_first(z, high, shares) >= target {
                    break;
                }
                (low, stride) = (high, 2 * stride);
            }
        }
        while low + 1 < high {
            let middle = low.midpoint(high);
            if self.sum_of_first(z, middle, shares) >= target {
                high = middle;
            } else {
                low = middle;
            }
        }
        high
    }

    /// An estimate of the number that [`reach`](Self::reach) finds, at least 1. Shares are summed one by one in f64. The estimate
    /// saves time and does not affect the result.
    fn guess(&mut self, z: &[f32], most: usize, shares: Shares, target: f32) -> usize {
        let (mut sum, target) = (0.0, f64::from(target));
        for rank in 0..most {
            let Some((z, _)) = self.get(z, rank) else { return rank };
            sum += f64::from(shares.of(z));
            if sum >= target {
                return rank + 1;
            }
        }
        most
    }

    /// Sorts the first `count` tokens; returns how many of them there are.
    pub(super) fn available(&mut self, z: &[f32], count: usize) -> usize {
        match count.checked_sub(1) {
            Some(last) if self.get(z, last).is_none() => {
                self.sort(self.keys.len());
                self.keys.len()
            }
            _ => count,
        }
    }

    /// The tree sum of the first `count` tokens' shares. At least `count` tokens must be sorted.
    fn sum_of_first(&mut self, z: &[f32], count: usize, shares: Shares) -> f32 {
        self.sum_of_ranks(z, 0..count, |z| shares.of(z))
    }

    /// Collects the tokens of the next level, so that about `wanted` tokens or more are there.
    fn collect(&mut self, z: &[f32], wanted: usize) {
        let above = self.from;
        let from = self.next_from(wanted.max(4 * self.keys.len()).max(LEAST));
        self.from = Some(from);
        self.keys.reserve(if self.keys.capacity() == 0 { z.len() } else { 0 });
        for (block, z) in z.chunks(BLOCK).enumerate().filter(|(block, _)| self.maxima[*block] >= from) {
            for (lane, &z) in z.iter().enumerate() {
                if z >= from && above.is_none_or(|above| z < above) && z > f32::NEG_INFINITY {
                    self.keys.push(pack(z, (block * BLOCK + lane) as u32));
                }
            }
        }
    }

    /// The lower end of the next level: below the last level, and low enough for `count` tokens if the blocks' maxima show how
    /// low that is.
    fn next_from(&mut self, count: usize) -> f32 {
        self.selected.clone_from(&self.maxima);
        let nth = (count <= self.selected.len())
            .then(|| *self.selected.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1);
        let distant = DISTANCES.map(|distance| self.max - distance);
        let lower = |&from: &f32| self.from.is_none_or(|last| from < last);
        nth.into_iter().chain(distant).find(lower).unwrap_or(f32::NEG_INFINITY)
    }

    fn sort(&mut self, wanted: usize) {
        let end = wanted.max(4 * self.sorted).max(LEAST).min(self.keys.len());
        let rest = &mut self.keys[self.sorted..];
        let count = end - self.sorted;
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        }
        rest[..count].sort_unstable_by(|a, b| b.cmp(a));
        self.sorted = end;
    }
}

/// The sort key of logit `z` of token `id`. Descending keys are in the order of tokens: largest logit first, then
/// lowest id.
pub(super) fn pack(z: f32, id: u32) -> u64 {
    // Adding 0.0 makes −0.0 equal 0.0.
    let bits = (z + 0.0).to_bits();
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

fn unpack(key: u64) -> (f32, u32) {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered };
    (f32::from_bits(bits), !(key as u32))
}

#[cfg(test)]
mod tests {
    use super::super::tree::tree_sum;
    use super::*;
    use crate::testing::Random;

    #[test]
    fn order_is_by_logit_then_id() {
        let mut random = Random::new(5);
        for scale in [0.01, 1.0, 30.0, 1e30] {
            // Coarse values, so that there are ties.
            let z: Vec<f32> = (0..5000).map(|_| (random.normal() * 50.0).round() / 50.0 * scale).collect();
            let mut expected: Vec<(f32, u32)> = z.iter().map(|z| z + 0.0).zip(0..).collect();
            expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut candidates = Candidates::default();
            assert_eq!(candidates.reset(&z), (expected[0].0, expected[0].1));
            for (rank, &(z_expected, id)) in expected.iter().enumerate() {
                let found = candidates.get(&z, rank);
                assert_eq!(found.map(|(_, id)| id), Some(id), "scale {scale}, rank {rank}, {z_expected}");
            }
            assert_eq!(candidates.get(&z, z.len()), None);
        }
    }

    #[test]
    fn forbidden_and_broken_tokens_are_no_candidates() {
        let z = [f32::NEG_INFINITY, -1e30, f32::NAN, 2.0, -0.0, 0.0];
        let mut candidates = Candidates::default();
        candidates.reset(&z);
        let ids: Vec<u32> = (0..).map_while(|rank| candidates.get(&z, rank)).map(|(_, id)| id).collect();
        assert_eq!(ids, [3, 4, 5, 1]);
        // Infinite ones come first.
        let z = [-1.0, f32::INFINITY, f32::NAN, 7.0, f32::INFINITY];
        candidates.reset(&z);
        let ids: Vec<u32> = (0..).map_while(|rank| candidates.get(&z, rank)).map(|(_, id)| id).collect();
        assert_eq!(ids, [1, 4, 3, 0]);
    }

    /// Few tokens and many are summed in different ways, to the same bits.
    #[test]
    fn as_many_tokens_are_taken_as_the_sum_needs() {
        let mut random = Random::new(6);
        for (len, scale) in [(5, 1.0), (300, 3.0), (9000, 0.01), (9000, 1.0), (9000, 9.0)] {
            let z: Vec<f32> = (0..len).map(|_| (random.normal() * 9.0).round() / 9.0 * scale).collect();
            let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let shares = Shares::new(max, 0.9);
            let mut candidates = Candidates::default();
            candidates.reset(&z);
            let order: Vec<usize> =
                (0..len).map_while(|rank| candidates.get(&z, rank)).map(|(_, id)| id as usize).collect();
            let of_first = |count: usize| {
                let mut values = vec![0.0; len];
                order[..count].iter().for_each(|&id| values[id] = shares.of(z[id]));
                tree_sum(&values)
            };
            let all = of_first(len);
            candidates.reset(&z);
            assert_eq!(candidates.mass_of_all(&z, shares).to_bits(), all.to_bits());
            for count in [1, 2, 64, 65, 1024, 1025, 5000].into_iter().filter(|&count| count <= len) {
                assert_eq!(
                    candidates.mass(&z, count, shares).to_bits(),
                    of_first(count).to_bits(),
                    "{count} of {len}"
                );
            }
            for p in [1e-45, 0.001, 0.3, 0.9, 0.999, 1.0] {
                for most in [1, 50, 64, 2000, usize::MAX] {
                    candidates.reset(&z);
                    let found = candidates.reach(&z, most, shares, p * all);
                    let short = |count: usize| of_first(count) < p * all;
                    assert!(found <= most && (found == most || !short(found)), "{found} for {p} of {len}");
                    assert!(found == 1 || short(found - 1), "{found} for {p} of {len}");
                }
            }
            // More than there is.
            assert_eq!(candidates.reach(&z, 50, shares, 2.0 * all), 50);
            assert_eq!(candidates.reach(&z, usize::MAX, shares, 2.0 * all), usize::MAX);
        }
    }
}
