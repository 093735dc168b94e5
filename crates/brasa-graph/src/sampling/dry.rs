//! DRY: penalties on tokens that would continue a repetition.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Penalties on tokens that would continue a repetition: "don't repeat yourself".
///
/// Suppose that the latest *n* tokens occurred before, with *n* at least `allowed_length`. The token that followed them
/// there would continue the repetition, and its logit falls by `multiplier · base^(n − allowed_length)`, with the
/// largest such *n*. A breaker ends a repetition: *n* is at most the number of tokens behind the last breaker.
///
/// P. E. Weidmann 2024, text-generation-webui, pull request 5677; breakers as llama.cpp defines them.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Factor of every penalty; 0 turns DRY off.
    pub multiplier: f32,
    /// Base of the penalty: each token of a repetition beyond `allowed_length` multiplies the penalty by it. A base
    /// below 1 turns DRY off.
    pub base: f32,
    /// Number of repeated tokens from which a continuation is penalised. At this length the penalty is `multiplier`;
    /// shorter repetitions are free.
    pub allowed_length: usize,
    /// Number of latest tokens, prompt included, in which DRY looks for repetitions; `None` for all. 0 turns DRY off.
    pub last_n: Option<usize>,
    /// Sequences of tokens that end a repetition.
    pub breakers: DryBreakers,
}

impl Default for Dry {
    /// llama.cpp's default parameters, without breakers. The multiplier is 0, so DRY is off.
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            last_n: Some(64),
            breakers: DryBreakers::default(),
        }
    }
}

impl Dry {
    /// True if the parameters allow a penalty.
    pub fn is_on(&self) -> bool {
        self.multiplier > 0.0 && self.base >= 1.0 && self.last_n != Some(0)
    }

    /// The token ids that would continue a repetition in `history`, each with the penalty to subtract from its logit,
    /// in ascending order of ids.
    ///
    /// A token that is a breaker by itself has no penalty. The search takes time proportional to the tokens in the
    /// window.
    pub fn penalties(&self, history: &[u32]) -> Vec<(u32, f32)> {
        let window = self.last_n.unwrap_or(usize::MAX).min(history.len());
        let window = &history[history.len() - window..];
        if !self.is_on() || window.len() <= self.allowed_length {
            return Vec::new();
        }
        let longest = self.breakers.tokens_behind(window);
        if longest < self.allowed_length {
            return Vec::new();
        }
        let mut lengths: Vec<(u32, usize)> = suffix_lengths(window)
            .into_iter()
            .zip(&window[1..])
            .map(|(length, &next)| (next, length.min(longest)))
            .filter(|&(next, length)| length >= self.allowed_length && !self.breakers.breaks_alone(next))
            .collect();
        // If a token would continue several repetitions, the longest counts.
        lengths.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        lengths.dedup_by_key(|&mut (id, _)| id);
        lengths.into_iter().map(|(id, length)| (id, self.penalty(length))).collect()
    }

    /// The penalty of a token that continues a repetition of `length` tokens: a product in f64, rounded once, and at
    /// most the largest f32.
    fn penalty(&self, length: usize) -> f32 {
        const LN_OF_LARGEST: f32 = 88.722_84;
        let mut exponent = i32::try_from(length - self.allowed_length).unwrap_or(i32::MAX);
        if self.base > 1.000_001 {
            let most = (LN_OF_LARGEST / self.base.ln()) as i32;
            exponent = exponent.min(most.max(1));
        }
        let penalty = (f64::from(self.multiplier) * f64::from(self.base).powi(exponent)) as f32;
        // An infinite penalty would forbid the token.
        penalty.min(f32::MAX)
    }
}

/// Sequences of token ids that end a repetition for [`Dry`].
///
/// There may be many sequences, since each token that contains the text of a breaker is one. Clones share the
/// sequences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryBreakers {
    /// For each first token of a sequence, the rests of all sequences that begin with this token.
    tails: Arc<BTreeMap<u32, Vec<Vec<u32>>>>,
}

impl DryBreakers {
    /// Breakers from `sequences` of token ids. Empty sequences are left out, and equal ones count once.
    pub fn new<'a>(sequences: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut tails: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
        for sequence in sequences {
            let [head, tail @ ..] = sequence else { continue };
            let tails = tails.entry(*head).or_default();
            if !tails.iter().any(|known| known == tail) {
                tails.push(tail.to_vec());
            }
        }
        Self { tails: Arc::new(tails) }
    }

    /// All sequences of token ids, in ascending order.
    pub fn sequences(&self) -> Vec<Vec<u32>> {
        let of_head = |(&head, tails): (&u32, &Vec<Vec<u32>>)| -> Vec<Vec<u32>> {
            tails.iter().map(|tail| [&[head], &tail[..]].concat()).collect()
        };
        let mut all: Vec<Vec<u32>> = self.tails.iter().flat_map(of_head).collect();
        all.sort_unstable();
        all
    }

    /// True if the token `id` alone is a breaker.
    fn breaks_alone(&self, id: u32) -> bool {
        self.tails.get(&id).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Number of tokens behind the last breaker in `window`; all tokens if there is no breaker. If several breakers
    /// begin at one token, the longest counts.
    fn tokens_behind(&self, window: &[u32]) -> usize {
        for (place, head) in window.iter().enumerate().rev() {
            let behind = &window[place + 1..];
            let tails = self.tails.get(head).into_iter().flatten();
            let longest = tails.filter(|tail| behind.starts_with(tail)).map(Vec::len).max();
            if let Some(longest) = longest {
                return behind.len() - longest;
            }
        }
        window.len()
    }
}

/// For each token of `window` but the last: the number of tokens, ending with this token, that equal the last tokens of
/// `window`. Gusfield's Z algorithm, run from the end.
fn suffix_lengths(window: &[u32]) -> Vec<usize> {
    let count = window.len();
    let at = |back: usize| window[count - 1 - back];
    // `lengths[back]` belongs to the token `back` places before the last. The tokens from `left` up to `right` places
    // before the last are known to equal the latest ones.
    let mut lengths = vec![0; count];
    let (mut left, mut right) = (0, 0);
    for back in 1..count {
        let mut length = if back < right { lengths[back - left].min(right - back) } else { 0 };
        while back + length < count && at(length) == at(back + length) {
            length += 1;
        }
        if back + length > right {
            (left, right) = (back, back + length);
        }
        lengths[back] = length;
    }
    lengths[1..].reverse();
    lengths.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn dry(allowed_length: usize, breakers: &[&[u32]]) -> Dry {
        Dry {
            multiplier: 1.0,
            base: 2.0,
            allowed_length,
            last_n: None,
            breakers: DryBreakers::new(breakers.iter().copied()),
        }
    }

    #[test]
    fn suffixes_are_those_of_brute_force() {
        let mut random = Random::new(9);
        for _ in 0..2000 {
            let letters = 1 + random.below(4);
            let window: Vec<u32> = (0..=random.below(40)).map(|_| random.below(letters) as u32).collect();
            let expected: Vec<usize> = (0..window.len() - 1)
                .map(|last| {
                    let (mut early, mut late) = (window[..=last].iter().rev(), window.iter().rev());
                    std::iter::from_fn(|| (early.next()? == late.next()?).then_some(())).count()
                })
                .collect();
            assert_eq!(suffix_lengths(&window), expected, "{window:?}");
        }
    }

    /// a b c c b c y a b c: after `a b c` came c, after `b c` came y.
    #[test]
    fn continuations_of_repetitions_are_penalised() {
        let history = [0, 1, 2, 2, 1, 2, 24, 0, 1, 2];
        assert_eq!(dry(2, &[]).penalties(&history), [(2, 2.0), (24, 1.0)]);
        assert_eq!(dry(1, &[]).penalties(&history), [(1, 1.0), (2, 4.0), (24, 2.0)]);
        assert_eq!(dry(4, &[]).penalties(&history), []);
        // Behind a breaker a repetition begins anew, and a breaker is never penalised.
        assert_eq!(dry(2, &[&[0]]).penalties(&history), [(2, 1.0), (24, 1.0)]);
        assert_eq!(dry(2, &[&[1]]).penalties(&history), []);
        assert_eq!(dry(2, &[&[24]]).penalties(&history), [(2, 2.0)]);
        // The longer of two breakers that begin alike.
        assert_eq!(dry(1, &[&[0], &[0, 1]]).penalties(&history), [(1, 1.0), (2, 1.0), (24, 1.0)]);
        assert_eq!(Dry { last_n: Some(3), ..dry(1, &[]) }.penalties(&history), []);
        assert_eq!(Dry { last_n: Some(0), ..dry(0, &[]) }.penalties(&history), []);
        assert_eq!(Dry { base: 0.5, ..dry(1, &[]) }.penalties(&history), []);
        assert_eq!(dry(1, &[]).penalties(&[]), []);
    }

    #[test]
    fn long_repetitions_do_not_overflow() {
        let history = vec![7; 5000];
        let [(7, penalty)] = dry(2, &[]).penalties(&history)[..] else { panic!("one token") };
        assert!(penalty.is_finite() && penalty > 1e37, "{penalty}");
    }

    #[test]
    fn sequences_come_back() {
        let sequences: [&[u32]; 4] = [&[3], &[], &[3, 1], &[3]];
        let breakers = DryBreakers::new(sequences);
        assert_eq!(breakers.sequences(), [vec![3], vec![3, 1]]);
    }
}
