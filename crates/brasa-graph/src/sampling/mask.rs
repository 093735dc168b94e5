//! The interface between a grammar and draws: the mask of tokens that may come next.

use super::SamplingError;

/// The set of tokens that may follow a text, requested before every draw.
///
/// A mask belongs to one sequence. The mask receives every drawn token through [`accept`](Self::accept), so it may compute ahead
/// on a thread of its own between two calls of [`fill`](Self::fill).
pub trait TokenMask: Send {
    /// Writes the ids that may follow the accepted text and `drafts`: bit `id % 32` of `words[id / 32]`.
    ///
    /// `words` has `⌈vocab_size / 32⌉` words of unspecified contents. A mask without a set bit makes the draw fail with
    /// [`SamplingError::NoToken`].
    ///
    /// # Errors
    ///
    /// [`SamplingError::Mask`]: the mask cannot be computed. The draw fails with this error, and the row ends.
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError>;

    /// Appends a drawn token to the accepted text. [`fill`](Self::fill) has allowed the token. A mask that fails here returns the
    /// error from the next call of [`fill`](Self::fill).
    fn accept(&mut self, id: u32);

    /// Appends to `tokens` the tokens that must follow the accepted text because no others may come, as far as known without
    /// waiting. These tokens are used as guesses, which affect the time of a text and nothing else.
    fn forced(&mut self, tokens: &mut Vec<u32>) {
        let _ = tokens;
    }
}
