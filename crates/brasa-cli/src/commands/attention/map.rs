//! The attention of one head for a text.

/// The attention of one head.
pub struct Map {
    /// The layer's number.
    pub layer: usize,
    /// The head's number.
    pub head: usize,
    /// `[tokens, tokens]`: row i holds the shares of all tokens in the attention of token i.
    pub weights: Vec<f32>,
    /// Entropy of each row in nats.
    pub entropy: Vec<f32>,
}
