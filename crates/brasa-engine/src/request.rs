//! Requests of callers, and the fragments and reasons of ends that they receive.

use brasa_graph::sampling::Draw;

use crate::{GenerateOptions, RequestOptions};

/// Id of a session: keys and values that outlive a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

/// A request for one generation.
pub struct Request {
    /// The whole prompt, special tokens included. The beginning that its session already holds is not computed again.
    pub prompt: Vec<u32>,
    /// How to generate.
    pub options: GenerateOptions,
    /// The model's own end tokens, which end the generation unless the options say otherwise.
    pub end_ids: Vec<u32>,
    /// Decodes tokens to text.
    pub decoder: Box<dyn TextDecoder>,
    /// The session that keeps keys and values from one request to the next; `None` for none.
    pub session: Option<SessionId>,
}

/// The kind of value that a [`ReadRequest`] reports for each token that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadValue {
    /// The logits of the token that follows, `[vocab_size]`.
    Logits,
    /// The hidden state behind the model's last norm, `[hidden_size]`.
    Hidden,
}

/// A request to read a text and report a value for its tokens. It runs beside generations and generates nothing.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Token ids of the whole text, special tokens included.
    pub tokens: Vec<u32>,
    /// The kind of value for each token.
    pub value: ReadValue,
    /// Index of the first token whose value is reported; the values of all later tokens are reported too.
    pub first: usize,
    /// How the request is run.
    pub options: RequestOptions,
}

/// Turns a stream of token ids into text, never emitting half a character.
pub trait TextDecoder: Send {
    /// Takes a token; returns the text that is complete with it.
    fn push(&mut self, token: u32) -> String;

    /// The text of an incomplete character, when no more tokens come.
    fn finish(&mut self) -> String;
}

/// A decoder for callers who want ids alone: all text is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainIds;

impl TextDecoder for PlainIds {
    fn push(&mut self, _: u32) -> String {
        String::new()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// A piece of the answer: a token, and the text that it completed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fragment {
    /// Complete text. Empty inside a character and while a stop string is possible; the last fragment has all text that
    /// was held back for these reasons.
    pub text: String,
    /// The token that was drawn; `None` if the generation ended without one and left held-back text, and in
    /// [reports](crate::GenerateOptions::report_prefill) of a prompt, whose text is empty.
    pub token: Option<Token>,
}

/// One generated token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Token {
    /// Id of the token.
    pub id: u32,
    /// Natural logarithm of the token's probability, if log-probabilities were requested.
    pub logprob: Option<f32>,
    /// The most probable tokens and their log-probabilities, as many as requested.
    pub top: Vec<(u32, f32)>,
    /// Entropy in nats of the model's distribution over all tokens, if requested.
    pub entropy: Option<f32>,
}

impl From<Draw> for Token {
    fn from(draw: Draw) -> Self {
        Self { id: draw.token, logprob: draw.logprob, top: draw.top, entropy: draw.entropy }
    }
}

/// The reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its answer with one of its [end tokens](Request::end_ids).
    End,
    /// One of the request's [stop ids](GenerateOptions::stop_ids) was drawn; this is the id.
    Id(u32),
    /// A stop string was found: its index among the request's [stop strings](GenerateOptions::stop_strings).
    Text(usize),
    /// The answer has reached its limit of tokens.
    Length,
    /// The context was full and the caller had chosen to stop there.
    ContextFull,
    /// The caller cancelled.
    Cancelled,
}

impl FinishReason {
    /// True if the text ended by its own content: an end token, a stop id or a stop string.
    pub fn is_stop(self) -> bool {
        matches!(self, Self::End | Self::Id(_) | Self::Text(_))
    }

    /// The name in machine-readable output: `stop`, `length`, `context_full` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::End | Self::Id(_) | Self::Text(_) => "stop",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::Cancelled => "cancelled",
        }
    }
}
