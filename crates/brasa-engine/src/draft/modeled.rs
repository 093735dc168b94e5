//! Trust in a draft model, learned from its guesses for one text and handed to the next text.

use super::trust::Class;

/// Initial trust in guesses of any probability.
const TRUST: f32 = 0.6;

/// Initial trust, by the probability that the draft model gives to its guess: pairs of an upper bound of that probability and the
/// trust.
const BY_PROBABILITY: [(f32, f32); 5] = [(0.3, 0.2), (0.6, 0.45), (0.85, 0.65), (0.97, 0.8), (1.0, 0.92)];

/// Tokens that are drawn without guesses after a draft model's guesses did not pay, the first time.
const LEAST_REST: usize = 16;
/// Most tokens that are drawn without guesses at a time.
const MOST_REST: usize = 512;

/// Trust in a draft model's guesses for one text, learned as tokens are drawn, and its guesses for the next tokens.
#[derive(Clone, Debug)]
pub(crate) struct Modeled {
    classes: [Class; BY_PROBABILITY.len()],
    /// The outcome of guesses of all classes together.
    all: Class,
    /// Guesses of the next tokens, the next one last, each with its class.
    ahead: Vec<(u32, usize)>,
    /// Tokens to be drawn before a draft model whose guesses did not pay is used again.
    rest: usize,
    next_rest: usize,
    /// Tokens to be drawn before a draft model that has no room for the text is used again.
    without_room: usize,
}

impl Default for Modeled {
    fn default() -> Self {
        Self {
            classes: BY_PROBABILITY.map(|(_, trust)| Class::new(trust)),
            all: Class::new(TRUST),
            ahead: Vec::new(),
            rest: 0,
            next_rest: LEAST_REST,
            without_room: 0,
        }
    }
}

impl Modeled {
    /// The trust with which another text begins, learned from this one.
    pub(crate) fn for_another_text(&self) -> Self {
        Self { ahead: Vec::new(), without_room: 0, ..self.clone() }
    }

    /// The probability that a guess which is not made yet will be drawn, if all guesses before it are drawn.
    pub(crate) fn hope(&self) -> f32 {
        self.all.trust()
    }

    /// The probability that a guess will be drawn to which the draft model gives `probability`, if all guesses before it are
    /// drawn.
    pub(crate) fn hope_of(&self, probability: f32) -> f32 {
        self.classes[class(probability)].trust()
    }

    /// Replaces the guesses of the next tokens by `guesses`, each with the draft model's probability.
    pub(crate) fn expect(&mut self, guesses: impl DoubleEndedIterator<Item = (u32, f32)>) {
        self.ahead.clear();
        self.ahead.extend(guesses.rev().map(|(token, probability)| (token, class(probability))));
    }

    /// Learns from a token that was drawn.
    pub(crate) fn see(&mut self, token: u32) {
        self.rest = self.rest.saturating_sub(1);
        self.without_room = self.without_room.saturating_sub(1);
        if let Some((guess, class)) = self.ahead.pop() {
            self.classes[class].learn(guess == token);
            self.all.learn(guess == token);
            if guess != token {
                self.ahead.clear();
            }
        }
    }

    /// Tokens to be drawn before the draft model is used again; 0 if its guesses pay or are to be tried. A model whose guesses do
    /// not pay is used nevertheless if the number of guesses is not `adaptive`.
    pub(crate) fn rest(&self, adaptive: bool) -> usize {
        if adaptive { self.rest.max(self.without_room) } else { self.without_room }
    }

    /// Records that the draft model has no room for the text, and pauses its use.
    pub(crate) fn has_no_room(&mut self) {
        self.without_room = MOST_REST;
    }

    /// The number of guesses to request if `paying` guesses would pay. If none would, one guess is requested, so that trust goes
    /// on to be learned, and then none for a pause that grows each time.
    pub(crate) fn ask_for(&mut self, paying: usize) -> usize {
        if paying > 0 {
            self.next_rest = LEAST_REST;
        } else {
            self.rest = self.next_rest;
            self.next_rest = (self.next_rest * 2).min(MOST_REST);
        }
        paying.max(1)
    }
}

/// The class of a guess to which the draft model gives `probability`.
fn class(probability: f32) -> usize {
    let bounds = BY_PROBABILITY.iter().take(BY_PROBABILITY.len() - 1);
    bounds.take_while(|(bound, _)| probability > *bound).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_is_learned_of_each_probability() {
        let mut modeled = Modeled::default();
        for _ in 0..100 {
            // Sure guesses come true, vague ones do not; what follows a wrong guess says nothing.
            modeled.expect([(1, 0.99), (2, 0.4), (3, 0.99)].into_iter());
            for token in [1, 9, 9] {
                modeled.see(token);
            }
        }
        assert!(modeled.hope_of(0.98) > 0.95 && modeled.hope_of(0.5) < 0.05);
        assert!((0.45..0.55).contains(&modeled.hope()), "{}", modeled.hope());
        assert!(modeled.hope_of(f32::NAN) < modeled.hope_of(1.0));
    }

    #[test]
    fn a_model_that_loses_is_asked_ever_more_seldom() {
        let mut modeled = Modeled::default();
        let mut rests = Vec::new();
        for _ in 0..8 {
            assert_eq!((modeled.rest(true), modeled.ask_for(0)), (0, 1));
            rests.push(modeled.rest(true));
            (0..modeled.rest(true)).for_each(|_| modeled.see(1));
        }
        assert_eq!(rests, [16, 32, 64, 128, 256, 512, 512, 512]);
        assert_eq!((modeled.ask_for(4), modeled.rest(true)), (4, 0));
        modeled.ask_for(0);
        assert_eq!(modeled.rest(true), 16);
        assert_eq!((modeled.rest(false), modeled.for_another_text().rest(true)), (0, 16));
        modeled.has_no_room();
        assert_eq!((modeled.rest(true), modeled.rest(false)), (512, 512));
        assert_eq!(modeled.for_another_text().rest(true), 16);
    }
}
