//! Drafts that a grammar forces: tokens at places where its mask allows a single one.

use brasa_graph::sampling::TokenMask;

use super::Draft;
use super::trust::Class;

/// Initial trust in forced drafts. A parser knows forced text before it knows the mask, and may spell the text in other tokens than
/// the mask allows.
const TRUST: f32 = 0.95;

/// The forced tokens that follow one generation's text, and how often forced tokens were drawn.
#[derive(Debug)]
pub(crate) struct Forced {
    trust: Class,
    /// Forced tokens that follow the text, the next one last.
    ahead: Vec<u32>,
}

impl Default for Forced {
    fn default() -> Self {
        Self { trust: Class::new(TRUST), ahead: Vec::new() }
    }
}

impl Forced {
    /// Updates the forced tokens that follow the text, from the mask.
    pub(crate) fn ask(&mut self, mask: &mut dyn TokenMask) {
        self.ahead.clear();
        mask.forced(&mut self.ahead);
        self.ahead.reverse();
    }

    /// True if the mask forces the next token. No other guess is better.
    pub(crate) fn knows(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Learns from a token that was drawn.
    pub(crate) fn see(&mut self, token: u32) {
        if let Some(forced) = self.ahead.pop() {
            self.trust.learn(forced == token);
            if forced != token {
                self.ahead.clear();
            }
        }
    }

    /// Adds at most `most` drafts to `draft`, up to the first token of `ends`, after which nothing is drawn.
    pub(crate) fn draft(&self, most: usize, ends: &[u32], draft: &mut Draft) {
        let mut hope = 1.0;
        for &token in self.ahead.iter().rev().take(most).take_while(|token| !ends.contains(token)) {
            hope *= self.trust.trust();
            draft.tokens.push(token);
            draft.hopes.push(hope);
        }
    }
}

#[cfg(test)]
mod tests {
    use brasa_graph::sampling::SamplingError;

    use super::*;

    /// Forces these tokens.
    struct Only(Vec<u32>);

    impl TokenMask for Only {
        fn fill(&mut self, _: &[u32], _: &mut [u32]) -> Result<(), SamplingError> {
            Ok(())
        }

        fn accept(&mut self, _: u32) {}

        fn forced(&mut self, tokens: &mut Vec<u32>) {
            tokens.extend(&self.0);
        }
    }

    #[test]
    fn forced_tokens_are_drafted_up_to_an_end_and_trusted_as_they_come_true() {
        let (mut forced, mut draft) = (Forced::default(), Draft::default());
        forced.ask(&mut Only(vec![1, 2, 3, 9, 4]));
        forced.draft(7, &[9], &mut draft);
        assert_eq!(draft.tokens, [1, 2, 3]);
        assert!(draft.hopes[0] > 0.9 && draft.hopes.is_sorted_by(|more, less| more > less));
        draft.clear();
        forced.draft(2, &[], &mut draft);
        assert_eq!(draft.tokens, [1, 2]);
        for token in [1, 2, 7] {
            forced.see(token);
        }
        draft.clear();
        forced.draft(7, &[], &mut draft);
        assert!(draft.tokens.is_empty() && !forced.knows(), "behind another token nothing is known");
        for _ in 0..100 {
            forced.ask(&mut Only(vec![1]));
            forced.see(2);
        }
        forced.ask(&mut Only(vec![1]));
        forced.draft(7, &[], &mut draft);
        assert!(draft.hopes[0] < 0.05, "{draft:?}");
    }
}
