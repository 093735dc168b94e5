//! How often guesses come true, learned from the text itself.
//!
//! Every token of an answer is guessed before it is drawn, whether the guess becomes a draft or not. So trust is learned at no cost to
//! the device, in texts without a single draft too.

/// Guesses that the trust of a class is averaged over; older ones fade.
const MEMORY: f32 = 48.0;

/// Weight of a class's initial trust, as a number of guesses.
const PRIOR: f32 = 4.0;

/// Initial trust, by the number of tokens of the context that occurred before: 1, 2, 3, up to 5, up to 8, up to 15, and more.
const BY_LENGTH: [f32; LENGTHS] = [0.2, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85];
const LENGTHS: usize = 7;

/// Factor of the initial trust, by the follower's share: up to a half, up to nine tenths, and more.
const BY_SHARE: [f32; SHARES] = [0.5, 0.8, 1.0];
const SHARES: usize = 3;

/// The outcome of guesses of one kind, by class.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    classes: [Class; LENGTHS * SHARES],
}

/// The outcome of guesses of one class: their number, and how many were right.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Class {
    guesses: f32,
    hits: f32,
}

impl Class {
    /// A class whose initial trust is `trust`.
    pub(crate) fn new(trust: f32) -> Self {
        Self { guesses: PRIOR, hits: trust * PRIOR }
    }

    /// The share of guesses that were right.
    pub(crate) fn trust(self) -> f32 {
        self.hits / self.guesses
    }

    /// Records whether a guess was right.
    pub(crate) fn learn(&mut self, hit: bool) {
        if self.guesses >= MEMORY {
            let kept = 1.0 - 1.0 / MEMORY;
            self.guesses *= kept;
            self.hits *= kept;
        }
        self.guesses += 1.0;
        self.hits += f32::from(u8::from(hit));
    }
}

impl Default for Trust {
    fn default() -> Self {
        let class = |class: usize| Class::new(BY_LENGTH[class / SHARES] * BY_SHARE[class % SHARES]);
        Self { classes: std::array::from_fn(class) }
    }
}

impl Trust {
    /// The class of a follower with this `share` after a context of `length` tokens.
    pub(crate) fn class(length: usize, share: f32) -> usize {
        let lengths = match length {
            0..=3 => length.saturating_sub(1),
            4..=5 => 3,
            6..=8 => 4,
            9..=15 => 5,
            _ => 6,
        };
        let shares = usize::from(share > 0.5) + usize::from(share > 0.9);
        lengths * SHARES + shares
    }

    /// The share of the guesses of `class` that were right.
    pub(crate) fn of(&self, class: usize) -> f32 {
        self.classes[class].trust()
    }

    /// Records whether a guess of `class` was right.
    pub(crate) fn learn(&mut self, class: usize, hit: bool) {
        self.classes[class].learn(hit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_follows_what_comes_true_and_forgets() {
        let mut trust = Trust::default();
        let class = Trust::class(20, 1.0);
        assert!(trust.of(class) > 0.8 && trust.of(Trust::class(1, 0.1)) < 0.2);
        for _ in 0..200 {
            trust.learn(class, false);
        }
        assert!(trust.of(class) < 0.01, "{}", trust.of(class));
        for _ in 0..200 {
            trust.learn(class, true);
        }
        assert!(trust.of(class) > 0.97, "{}", trust.of(class));
    }

    #[test]
    fn classes_are_in_order() {
        let classes: Vec<usize> =
            (1..30).flat_map(|length| [0.2, 0.7, 1.0].map(|share| Trust::class(length, share))).collect();
        assert!(classes.iter().all(|&class| class < LENGTHS * SHARES));
        assert_eq!(classes.iter().max(), Some(&(LENGTHS * SHARES - 1)));
    }
}
