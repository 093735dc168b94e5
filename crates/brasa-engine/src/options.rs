//! Options of a generation.

use std::time::Instant;

use brasa_graph::sampling::SamplingParams;

use crate::{CacheScope, EngineError};

/// How to generate. The default takes the most probable token, is unlimited, and stops at the model's own end tokens.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` until the context is full.
    pub max_tokens: Option<usize>,
    /// Tokens that end the generation; the stopping token is not part of the answer.
    pub stop_ids: Vec<u32>,
    /// Texts that end the generation; the answer ends before them.
    pub stop_strings: Vec<String>,
    /// Goes on at end tokens and stop strings alike.
    pub ignore_eos: bool,
    /// Requests of a higher priority are served first. A request that was overtaken eight times goes before all others.
    pub priority: i32,
    /// Gives up after this instant.
    pub deadline: Option<Instant>,
    /// Behaviour when the context is full.
    pub context_policy: ContextPolicy,
    /// Most fragments that wait for their reader, at least 1. A generation that has made as many pauses until half of
    /// them have been read; others go on meanwhile.
    pub run_ahead: usize,
    /// Keys and values are reused only among requests of an equal scope.
    pub cache_scope: CacheScope,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: None,
            stop_ids: Vec::new(),
            stop_strings: Vec::new(),
            ignore_eos: false,
            priority: 0,
            deadline: None,
            context_policy: ContextPolicy::default(),
            run_ahead: 1024,
            cache_scope: CacheScope::default(),
        }
    }
}

/// Behaviour when generation reaches the end of the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContextPolicy {
    /// Report [`EngineError::ContextFull`]; the tokens so far stay valid.
    #[default]
    Error,
    /// Finish with [`FinishReason::ContextFull`](crate::FinishReason::ContextFull).
    Stop,
    /// Keep the first `keep` tokens and the more recent half of the others, and go on.
    ///
    /// If the device can move cached keys (rotary positions alone, keys of f32 or f16, a context of more than a page beyond
    /// `keep`), whole pages of 256 tokens are dropped, and `keep` is rounded up to pages. That costs next to nothing, and
    /// the rest still remembers the dropped text. Otherwise the rest is computed afresh: exact for the shortened text, at
    /// the cost of a prefill each time.
    Slide {
        /// Leading tokens that always stay, e.g. the system prompt.
        keep: usize,
    },
}

impl GenerateOptions {
    /// Checks the options as far as possible without a model.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`], [`EngineError::Sampling`], naming the option and its value.
    pub fn validate(&self) -> Result<(), EngineError> {
        if self.stop_strings.iter().any(String::is_empty) {
            return Err(EngineError::Options(
                "a stop string is empty: it would end every answer at once".into(),
            ));
        }
        if self.run_ahead == 0 {
            return Err(EngineError::Options("run_ahead is 0: no text could ever arrive".into()));
        }
        Ok(self.sampling.validate()?)
    }
}
