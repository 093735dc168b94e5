//! Drafts: guessed tokens that are computed together, and kept as far as they are drawn.
//!
//! A row of a text costs a step little beside the weights that the step reads anyway. So a decoding request may have several rows: its
//! last token, and drafts of the tokens behind it. Each row's token is drawn as in plain decoding: by its own logits, its own position's
//! noise, a history and a mask that hold the tokens before it. As long as a drawn token equals the draft, the next row is what plain
//! decoding would have computed; behind the first that differs, rows are forgotten. So the text is the plain text, at any temperature, and
//! drafts decide about time alone (Leviathan et al. 2023, arXiv:2211.17192, accept with a probability instead).
//!
//! Drafts are what a grammar forces ([`forced`]), or come out of the text itself ([`lookup`]: suffixes with frequencies, as in
//! SuffixDecoding, Oliaro et al. 2024, arXiv:2411.04975), or from a draft model ([`drafter`](crate::drafter), [`modeled`]). The
//! probability that a draft is drawn is learned ([`trust`]), and [`schedule`](crate::schedule) weighs it against the cost of
//! further rows.
//!
//! A draft has no second branch. The keys of another branch lie further from the text than those of plain decoding, so its sums have another
//! order and its rows other last bits. They could not be kept without computing them again, which is all that the branch would have saved.

mod forced;
mod index;
pub(crate) mod lookup;
mod modeled;
mod trust;

pub(crate) use forced::Forced;
pub(crate) use lookup::Lookup;
pub(crate) use modeled::Modeled;

/// Least probability of being drawn (*hope*) at which a draft is worth a row.
pub(crate) const LEAST_HOPE: f32 = 0.02;

/// Guesses of the tokens behind a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draft {
    /// The tokens.
    pub(crate) tokens: Vec<u32>,
    /// For each token, the probability that it and those before it are drawn.
    pub(crate) hopes: Vec<f32>,
    /// For each token that a draft model guessed, the probability that the model gave to it.
    pub(crate) probabilities: Vec<f32>,
}

impl Draft {
    /// Removes all drafts.
    pub(crate) fn clear(&mut self) {
        self.cut(0);
    }

    /// Appends a draft of a draft model.
    pub(crate) fn push(&mut self, token: u32, hope: f32, probability: f32) {
        self.tokens.push(token);
        self.hopes.push(hope);
        self.probabilities.push(probability);
    }

    /// Keeps the first `count` drafts.
    pub(crate) fn cut(&mut self, count: usize) {
        self.tokens.truncate(count);
        self.hopes.truncate(count);
        self.probabilities.truncate(count);
    }
}
