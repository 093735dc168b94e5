//! The usual gap between tokens in the last steps.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of steps that are remembered: some seconds.
const STEPS: usize = 256;

/// Fewest steps for a meaningful median.
const FEW: usize = 16;

/// The gaps between the tokens that decoding requests had in the last steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecentGaps {
    /// Gaps in seconds, each with the number of tokens that followed it.
    gaps: VecDeque<(f64, u64)>,
}

impl RecentGaps {
    /// Records that `tokens` tokens came `gap` after the previous tokens.
    pub(crate) fn observe(&mut self, tokens: u64, gap: Duration) {
        if tokens == 0 {
            return;
        }
        if self.gaps.len() == STEPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back((gap.as_secs_f64(), tokens));
    }

    /// The median gap over tokens, in seconds; infinite while too few steps were observed.
    pub(crate) fn median(&self) -> f64 {
        if self.gaps.len() < FEW {
            return f64::INFINITY;
        }
        let mut sorted: Vec<(f64, u64)> = self.gaps.iter().copied().collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let half = sorted.iter().map(|gap| gap.1).sum::<u64>().div_ceil(2);
        let below = sorted.iter().scan(0, |tokens, gap| {
            *tokens += gap.1;
            Some(*tokens)
        });
        let place = below.take_while(|&tokens| tokens < half).count();
        sorted[place].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_tokens_and_not_of_steps() {
        let mut recent = RecentGaps::default();
        for _ in 0..FEW - 1 {
            recent.observe(1, Duration::from_millis(10));
        }
        assert!(recent.median().is_infinite());
        recent.observe(0, Duration::from_secs(9));
        assert!(recent.median().is_infinite(), "a step without tokens is none");
        recent.observe(FEW as u64, Duration::from_millis(40));
        assert!((recent.median() - 0.040).abs() < 1e-9);
        recent.observe(2, Duration::from_millis(20));
        assert!((recent.median() - 0.020).abs() < 1e-9, "17 of 33 tokens came within 20 ms");
        for _ in 0..STEPS {
            recent.observe(1, Duration::from_millis(5));
        }
        assert!((recent.median() - 0.005).abs() < 1e-9, "old steps are forgotten");
    }
}
