//! Drafts from the text itself: the tokens that followed earlier occurrences of its end.

use super::index::SuffixIndex;
use super::trust::Trust;
use super::{Draft, LEAST_HOPE};

/// Most tokens of a text that are indexed. The index of a longer text begins anew with the last half of this many tokens.
const MOST_TOKENS: usize = 1 << 16;

/// Most tokens that are indexed at once, so that other requests do not wait for a long prompt's index.
const MOST_AT_ONCE: usize = 2048;

/// The index of one generation's text, and the trust in its guesses.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    index: SuffixIndex,
    /// Tokens of the text that are indexed so far.
    read: usize,
    trust: Trust,
    /// The guess of the next token, with its class.
    guess: Option<(u32, usize)>,
}

impl Lookup {
    /// Indexes tokens of `text` that are not indexed yet. True once all are.
    pub(crate) fn read(&mut self, text: &[u32]) -> bool {
        if self.index.tokens() >= MOST_TOKENS {
            self.index = SuffixIndex::default();
            self.read = text.len().saturating_sub(MOST_TOKENS / 2);
        }
        let new = &text[self.read.min(text.len())..];
        let new = &new[..new.len().min(MOST_AT_ONCE)];
        if !new.is_empty() {
            for &token in new {
                self.index.push(token);
            }
            self.read += new.len();
            self.guess_next();
        }
        self.read == text.len()
    }

    /// Learns whether the guess for the token after the first `length` tokens was right.
    pub(crate) fn see(&mut self, length: usize, token: u32) {
        if self.read != length {
            return;
        }
        if let Some((guess, class)) = self.guess {
            self.trust.learn(class, guess == token);
        }
        self.index.push(token);
        self.read += 1;
        self.guess_next();
    }

    /// Records that `dropped` tokens left the text, so that lengths refer to the shortened text.
    pub(crate) fn shorten(&mut self, dropped: usize) {
        self.read = self.read.saturating_sub(dropped);
    }

    /// Probability with which the first draft is expected to be drawn; 0 without a guess.
    pub(crate) fn hope(&self) -> f32 {
        self.guess.map_or(0.0, |(_, class)| self.trust.of(class))
    }

    /// Adds at most `most` drafts to `draft`.
    pub(crate) fn draft(&self, most: usize, draft: &mut Draft) {
        let (mut place, mut hope) = (self.index.end(), 1.0);
        while draft.tokens.len() < most
            && let Some(follower) = self.index.follower(place)
        {
            hope *= self.trust.of(Trust::class(follower.place.length - 1, follower.share));
            if hope < LEAST_HOPE {
                return;
            }
            draft.tokens.push(follower.token);
            draft.hopes.push(hope);
            place = follower.place;
        }
    }

    fn guess_next(&mut self) {
        let follower = self.index.follower(self.index.end());
        self.guess = follower
            .map(|follower| (follower.token, Trust::class(follower.place.length - 1, follower.share)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafts(lookup: &Lookup, most: usize) -> Draft {
        let mut draft = Draft::default();
        lookup.draft(most, &mut draft);
        draft
    }

    #[test]
    fn a_text_that_copies_is_drafted_and_one_that_does_not_is_not() {
        let mut lookup = Lookup::default();
        let text: Vec<u32> = (0..100).collect();
        assert!(lookup.read(&text));
        // Behind a single token a little is hoped for, and more the longer the text copies.
        lookup.see(100, 10);
        let hope = lookup.hope();
        (11..40).zip(101..).for_each(|(token, length)| lookup.see(length, token));
        assert_eq!(drafts(&lookup, 5).tokens, [40, 41, 42, 43, 44]);
        assert!(lookup.hope() > hope && lookup.hope() > 0.85);
        let hopes = drafts(&lookup, 5).hopes;
        assert!(hopes.is_sorted_by(|more, less| more >= less), "{hopes:?}");
        // Noise.
        let random = &mut brasa_graph::testing::Random::new(1);
        (130..400).for_each(|length| lookup.see(length, random.below(97) as u32));
        assert!(lookup.hope() < 0.2, "{}", lookup.hope());
    }

    #[test]
    fn long_prompts_are_read_in_parts_and_the_index_stays_small() {
        let mut lookup = Lookup::default();
        let mut text: Vec<u32> = (0..MOST_AT_ONCE as u32 + 5).collect();
        assert!(!lookup.read(&text));
        lookup.see(text.len(), 3);
        text.push(3);
        assert!(lookup.read(&text));
        assert_eq!(drafts(&lookup, 2).tokens, [4, 5]);
        text.extend((0..2 * MOST_TOKENS as u32).map(|token| token % 50_000));
        while !lookup.read(&text) {}
        assert!(lookup.index.tokens() <= MOST_TOKENS + MOST_AT_ONCE);
    }
}
