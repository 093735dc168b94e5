//! A text encoder as data.

use crate::rope::RopeSpec;
use crate::spec::Activation;

/// A text encoder: a transformer in which each row sees all rows. Holds all settings that its graph needs besides the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// The family that read the configuration, e.g. `bert`.
    pub family: &'static str,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Most tokens of a text.
    pub context_length: usize,
    /// Added to the variance in every layer norm; keeps the division finite.
    pub norm_eps: f32,
    /// Rows of the table of token types, which mark the parts of a text; 0 if the encoder has none.
    pub token_types: usize,
    /// Learned position embeddings; `None` for encoders whose attention encodes positions.
    pub positions: Option<LearnedPositions>,
    /// The places of the layer norms.
    pub norms: EncoderNorms,
    /// The transformer blocks, first to last.
    pub layers: Vec<EncoderLayerSpec>,
    /// The head that computes scores of texts; `None` for encoders that only embed.
    pub classifier: Option<ClassifierSpec>,
}

/// A table with a vector for each position, added to the token embeddings. Devlin et al. 2018, arXiv:1810.04805.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPositions {
    /// Rows of the stored table.
    pub stored: usize,
    /// The row of a text's first token. RoBERTa's table begins with two unused rows.
    pub first: usize,
}

/// The places of an encoder's layer norms. One norm always follows the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncoderNorms {
    /// Norms follow attention and the feed-forward network, each on the sum with the residual stream.
    Post,
    /// Norms as in [`Post`](Self::Post), and a second norm after attention: its normed output is added to the residual stream
    /// again, and normed again.
    PostTwice,
    /// Norms precede attention and the feed-forward network, and one follows the last layer. The first layer's attention reads
    /// the normed embeddings directly.
    Pre,
}

/// One block of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderLayerSpec {
    /// Heads of queries, keys and values.
    pub num_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rotary position embedding; `None` in encoders with learned positions or ALiBi.
    pub rope: Option<RopeSpec>,
    /// True if attention scores decrease with distance: [ALiBi](brasa_graph::op::Mask::Alibi).
    pub alibi: bool,
    /// True if queries and keys pass a layer norm over all heads together.
    pub qk_norm: bool,
    /// A row attends to the rows that are less than this many positions away; `None` for all rows.
    pub window: Option<usize>,
    /// The feed-forward network.
    pub ffn: EncoderFfn,
}

/// The feed-forward network of an encoder's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderFfn {
    /// Elements between the projections.
    pub width: usize,
    /// The activation.
    pub activation: Activation,
    /// True for `down(act(gate(x)) · up(x))`, false for `down(act(up(x)))`.
    pub gated: bool,
    /// The experts that replace the network, each of this width; `None` for one network.
    pub experts: Option<EncoderExperts>,
}

/// Experts of an encoder's network, whose outputs are summed by their shares of a softmax over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderExperts {
    /// Number of experts.
    pub count: usize,
    /// Number of experts that each row is computed by.
    pub per_row: usize,
}

/// A head that computes logits from a text's hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassifierSpec {
    /// Number of logits of a text. A reranker has one.
    pub labels: usize,
    /// The states that the head reads.
    pub pooling: HeadPooling,
    /// The layers between the states and the labels.
    pub form: HeadForm,
}

/// The hidden states that a head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadPooling {
    /// The first row's state. The head is part of the graph.
    First,
    /// The mean of all rows' states. The head is computed outside the graph: [`EncoderModel::head`](crate::EncoderModel::head).
    Mean,
}

/// The layers of a head between the pooled state and the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadForm {
    /// `out(tanh(dense(h)))`, as in BERT.
    Tanh,
    /// `out(norm(act(dense(h))))`, as in ModernBERT.
    Normed(Activation),
}

impl EncoderLayerSpec {
    /// Elements of all heads of a row together.
    pub fn attention_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }
}
