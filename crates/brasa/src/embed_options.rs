//! Options of vectors of texts, for language models and encoders.

use brasa_models::Pooling;

use crate::RequestOptions;

/// The length of an embedding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EmbeddingNorm {
    /// Scaled to a Euclidean length of 1, so that the product of two is the cosine of their angle.
    #[default]
    Euclidean,
    /// As the model's last norm leaves it.
    None,
}

/// How to embed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbedOptions {
    /// How the states of a text's tokens become one vector; `None` for the [model's own way](crate::Model::pooling). With
    /// [`Pooling::None`] the result is `[tokens, hidden_size]`: the states of all tokens, one behind the other, each scaled as
    /// `norm` says, without the checkpoint's dense layers.
    pub pooling: Option<Pooling>,
    /// The length of the result.
    pub norm: EmbeddingNorm,
    /// Number of elements of the result, if it is cut before it is scaled. Only lengths that the checkpoint
    /// [declares](crate::Encoder::matryoshka_dimensions).
    pub dimensions: Option<usize>,
    /// Options of the request. An encoder honours the deadline alone, since it caches nothing and computes texts in turn.
    pub request: RequestOptions,
}

/// Options of turning a text into tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokensOptions {
    /// Name of a [prompt](crate::Encoder::prompts) to put before the text; `None` for the checkpoint's default, if it has one.
    pub prompt: Option<String>,
    /// True to cut the end of a text that is too long. If false, such a text is an error.
    pub truncate: bool,
}
