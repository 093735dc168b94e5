//! Texts for an encoder, and what is computed of them.

/// Sizes that an engine of encoders is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Most tokens of a text, which must fit into one step.
    pub context: usize,
    /// Number of token ids of the model.
    pub vocab_size: usize,
    /// Number of token types, which mark the parts of a text; 0 if the graphs have no such input.
    pub token_types: usize,
    /// Most jobs that run or wait, at least 1.
    pub max_jobs: usize,
}

/// A text to be computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncoderText {
    /// Token ids of the text.
    pub tokens: Vec<u32>,
    /// The token type of each token; empty if all are of type 0.
    pub types: Vec<u32>,
}

/// Selects the program that computes a job: hidden states or logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderOutput {
    /// Hidden states behind the last norm, `[hidden_size]` a row.
    Hidden,
    /// Logits of the head that judges texts, `[labels]` a row.
    Logits,
}

/// Which rows of a text make up its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderRows {
    /// The first row.
    First,
    /// The last row.
    Last,
    /// The mean of all rows, summed in f64.
    Mean,
    /// All rows, one behind the other: `[tokens, width]`.
    All,
}
