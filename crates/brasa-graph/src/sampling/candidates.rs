//! The likeliest tokens in order, sorted only as far as somebody asks.

/// Distances below the largest logit at which tokens are collected, nearest first. With usual logits the first holds
/// tens to thousands of 150,000.
const LEVELS: [f32; 4] = [8.0, 16.0, 32.0, f32::INFINITY];

/// Tokens by falling logit, equal ones by rising id.
///
/// Tokens are collected level by level, and within a level a growing prefix is selected and sorted.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Sort keys: the logit's bits in an order-preserving form above the id's complement, so that falling keys are the
    /// order above. The first `sorted` are the largest of all, in order.
    keys: Vec<u64>,
    sorted: usize,
    level: usize,
    max: f32,
}

impl Candidates {
    /// Begins anew; `max` is the largest logit.
    pub(super) fn reset(&mut self, max: f32) {
        self.keys.clear();
        (self.sorted, self.level, self.max) = (0, 0, max);
    }

    /// The token at `rank`, counted from 0, among those of `z` above −∞; `z` is the same at every call after a reset.
    pub(super) fn get(&mut self, z: &[f32], rank: usize) -> Option<(f32, u32)> {
        while rank >= self.keys.len() && self.level < LEVELS.len() {
            self.collect(z);
        }
        if rank >= self.keys.len() {
            return None;
        }
        if rank >= self.sorted {
            self.sort(rank + 1);
        }
        Some(unpack(self.keys[rank]))
    }

    /// The sum of the first `few` tokens' shares.
    pub(super) fn mass(&mut self, z: &[f32], few: usize, share: impl Fn(f32) -> f64) -> f64 {
        (0..few).map_while(|rank| self.get(z, rank)).map(|(z, _)| share(z)).sum()
    }

    /// How many of the first `few` tokens it takes for their shares to reach `target`.
    pub(super) fn reach(&mut self, z: &[f32], few: usize, share: impl Fn(f32) -> f64, target: f64) -> usize {
        let mut sum = 0.0;
        for rank in 0..few {
            let Some((z, _)) = self.get(z, rank) else { return rank };
            sum += share(z);
            if sum >= target {
                return rank + 1;
            }
        }
        few
    }

    /// Adds the tokens of the next level.
    fn collect(&mut self, z: &[f32]) {
        // Before the first level nothing has been collected: its upper bound takes in the largest.
        let above = if self.level == 0 { f32::INFINITY } else { self.max - LEVELS[self.level - 1] };
        let from = self.max - LEVELS[self.level];
        self.level += 1;
        self.keys.reserve(if self.keys.capacity() == 0 { z.len() } else { 0 });
        for (id, &z) in z.iter().enumerate() {
            if z >= from && z < above && z > f32::NEG_INFINITY {
                self.keys.push(pack(z, id as u32));
            }
        }
    }

    fn sort(&mut self, wanted: usize) {
        let end = wanted.max(4 * self.sorted).max(64).min(self.keys.len());
        let rest = &mut self.keys[self.sorted..];
        let count = end - self.sorted;
        if count < rest.len() {
            rest.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        }
        rest[..count].sort_unstable_by(|a, b| b.cmp(a));
        self.sorted = end;
    }
}

fn pack(z: f32, id: u32) -> u64 {
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
    use super::*;
    use crate::testing::Random;

    #[test]
    fn order_is_by_logit_then_id() {
        let mut random = Random::new(5);
        for scale in [0.01, 1.0, 30.0, 1e30] {
            // Coarse values, so that there are ties.
            let z: Vec<f32> = (0..5000).map(|_| (random.normal() * 50.0).round() / 50.0 * scale).collect();
            let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut expected: Vec<(f32, u32)> = z.iter().map(|z| z + 0.0).zip(0..).collect();
            expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut candidates = Candidates::default();
            candidates.reset(max);
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
        candidates.reset(2.0);
        let ids: Vec<u32> = (0..).map_while(|rank| candidates.get(&z, rank)).map(|(_, id)| id).collect();
        assert_eq!(ids, [3, 4, 5, 1]);
    }
}
