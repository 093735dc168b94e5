//! The interface of a grammar to draws: the mask of tokens that may come next.

use super::SamplingError;

/// The tokens that may follow a text, requested before every draw.
///
/// A mask belongs to one sequence. It is told of every token that is drawn, so between two calls of
/// [`fill`](Self::fill) it may compute ahead on a thread of its own.
pub trait TokenMask: Send {
    /// Writes the ids that may follow the accepted text and `drafts`: bit `id % 32` of `words[id / 32]`.
    ///
    /// `words` has `⌈vocab_size / 32⌉` words of unspecified contents. A mask without any bit makes the draw fail with
    /// [`SamplingError::NoToken`].
    ///
    /// # Errors
    ///
    /// [`SamplingError::Mask`]: the mask cannot say what may come. The draw fails with it, and the row ends.
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError>;

    /// Appends a drawn token to the accepted text. The token is one that [`fill`](Self::fill) allowed. A mask that fails here
    /// says so when it is filled next.
    fn accept(&mut self, id: u32);

    /// Appends forced tokens: those that follow the accepted text because no others may come, as far as known without waiting. They
    /// are guesses, which affect the time of a text and nothing else.
    fn forced(&mut self, tokens: &mut Vec<u32>) {
        let _ = tokens;
    }
}
