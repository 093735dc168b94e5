//! Options of a generation.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use brasa_graph::sampling::{SamplingParams, TokenMask};

use crate::{CacheScope, EngineError};

/// Most stop strings of a request, and most stop marks.
const MOST_STOP_STRINGS: usize = 256;

/// Most bytes of all stop strings of a request together.
const MOST_STOP_BYTES: usize = 256 << 10;

/// Options of any request: a text to generate, score, embed or look into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOptions {
    /// Requests of a higher priority are served first. A request that was overtaken eight times goes before all others.
    pub priority: i32,
    /// The instant after which the request fails with [`EngineError::DeadlineExceeded`]; `None` for no limit of time.
    pub deadline: Option<Instant>,
    /// Most fragments or rows that wait for their reader, at least 1. A request with that many pauses until half of them have
    /// been read; other requests go on meanwhile.
    pub run_ahead: usize,
    /// True to take the beginning of the prompt from the cache, if an earlier text left it there, and to keep the text for later
    /// ones; false to compute the whole prompt. `None` leaves the choice to the caller of the engine, and means true if the caller
    /// makes none.
    pub cache_prompt: Option<bool>,
    /// The text's adapters, and its group of requests: only requests of equal scope share keys and values.
    pub cache_scope: CacheScope,
}

/// Options of a generation: how tokens are drawn, when the text ends, and how the request is run. The default takes the most
/// probable token, is unlimited, and stops at the model's own end tokens.
#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    /// How the request is run.
    pub request: RequestOptions,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None` for as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Tokens that end the generation; the stopping token is not part of the answer.
    pub stop_ids: Vec<u32>,
    /// Texts that end the generation, at most 256 with 256 KiB in all; the answer ends before them. The stop string that is
    /// complete first ends the text; of several that are complete at once, the longest.
    pub stop_strings: Vec<String>,
    /// Marks that the reader of the text does not see, such as those around thoughts and calls; at most 256. A stop string is not found
    /// in a mark, across one, or in the blank space directly behind one, unless a stop string names the mark.
    pub stop_marks: Vec<String>,
    /// True to go on after the [model's own end tokens](crate::Request::end_ids). Stop ids and stop strings end the generation nevertheless.
    pub ignore_eos: bool,
    /// Behaviour when the context is full.
    pub context_policy: ContextPolicy,
    /// Makes the mask of tokens that may come next, such as a grammar's; `None` allows all.
    pub mask: Option<Arc<dyn MaskSource>>,
    /// How tokens are guessed ahead and computed together. The text stays the same. `None` leaves the choice to the caller of the
    /// engine, and means [`Speculation::MODEL`] if the caller makes none.
    pub speculation: Option<Speculation>,
    /// True for an empty fragment at the beginning of the prompt and after each of its steps.
    /// [`TokenStream::metrics`](crate::TokenStream::metrics) then tells how much of the prompt is computed.
    pub report_prefill: bool,
}

/// Speculation: guessing tokens ahead. Guessed tokens are *drafts*. A step computes them together with the last token, and keeps
/// them as far as they equal the tokens that are drawn.
///
/// Every draw uses its own logits, noise, history and mask, so the text is the one without drafts: bit for bit where the device
/// computes a row alike in any company, as all devices do with [deterministic](brasa_graph::device) arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each source of guesses is a switch of its own")]
pub struct Speculation {
    /// True to guess the tokens that the [mask](GenerateOptions::mask) forces, because a grammar allows a single one. Several of
    /// them are computed in one step in place of a step each.
    pub forced: bool,
    /// True to guess tokens by the engine's draft model, if the engine has one.
    pub model: bool,
    /// True to look for the text's last tokens earlier in the prompt and the answer, and to guess the tokens that followed them
    /// there.
    pub lookup: bool,
    /// Most drafts of a step; 0 for none. A CPU computes up to 8 rows by the same kernels in all modes: a token and 7 drafts.
    pub most: usize,
    /// Fewest drafts of a step. A step for which there are fewer guesses computes none of them.
    pub least: usize,
    /// True to compute the number of drafts that should make tokens come fastest, judged by accepted guesses and times of steps; it
    /// may be none. False to compute every draft that there is.
    pub adaptive: bool,
}

impl Speculation {
    /// No drafts.
    pub const OFF: Self =
        Self { forced: false, model: false, lookup: false, most: 0, least: 0, adaptive: true };

    /// The tokens that a grammar forces, and no other drafts.
    pub const FORCED: Self = Self { forced: true, most: 7, ..Self::OFF };

    /// Guesses the tokens that a grammar forces, and those of a draft model, as many as pay. An engine without a draft model
    /// guesses forced tokens only.
    pub const MODEL: Self = Self { model: true, ..Self::FORCED };

    /// Like [`MODEL`](Self::MODEL), plus drafts from the text itself; the likelier guesses are used.
    pub const LOOKUP: Self = Self { lookup: true, ..Self::MODEL };
}

impl Default for Speculation {
    fn default() -> Self {
        Self::MODEL
    }
}

/// Makes masks, one for each generation; all begin in the same state.
pub trait MaskSource: fmt::Debug + Send + Sync {
    /// A mask for a text without generated tokens yet.
    fn start(&self) -> Box<dyn TokenMask>;

    /// Sentences about requested rules that the masks do not enforce; empty if they enforce all.
    fn warnings(&self) -> &[String] {
        &[]
    }
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self::DEFAULT
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
    /// `keep`), whole pages of 256 tokens are dropped, and `keep` is rounded up to pages. That costs next to nothing, and the
    /// keys and values of the rest still depend on the dropped text. Otherwise the rest is computed afresh: exact for the
    /// shortened text, at the cost of a prefill each time.
    Slide {
        /// Leading tokens that always stay, e.g. the system prompt.
        keep: usize,
    },
}

impl RequestOptions {
    /// A request of the usual priority and scope, without a deadline.
    pub const DEFAULT: Self = Self {
        priority: 0,
        deadline: None,
        run_ahead: 1024,
        cache_prompt: None,
        cache_scope: CacheScope { model: 0, adapter: 0, salt: 0 },
    };

    /// True if the request takes part in sharing keys and values.
    pub(crate) fn caches(&self) -> bool {
        self.cache_prompt.unwrap_or(true)
    }

    /// Checks the options as far as possible without a model.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`], naming the option and its value.
    pub fn validate(&self) -> Result<(), EngineError> {
        if self.run_ahead == 0 {
            return Err(EngineError::Options("run_ahead is 0: no text could ever arrive".into()));
        }
        Ok(())
    }
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
        let bytes: usize = self.stop_strings.iter().map(String::len).sum();
        if self.stop_strings.len() > MOST_STOP_STRINGS || bytes > MOST_STOP_BYTES {
            return Err(EngineError::Options(format!(
                "{} stop strings with {bytes} bytes, at most {MOST_STOP_STRINGS} with {MOST_STOP_BYTES} bytes are possible",
                self.stop_strings.len()
            )));
        }
        let marks = self.stop_marks.len();
        if marks > MOST_STOP_STRINGS || self.stop_marks.iter().any(|mark| mark.is_empty() || mark.len() > 256)
        {
            return Err(EngineError::Options(format!(
                "{marks} marks, expected at most {MOST_STOP_STRINGS} of 1 to 256 bytes"
            )));
        }
        self.request.validate()?;
        Ok(self.sampling.validate()?)
    }
}
