//! Interface between an evaluation and whatever generates text.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::{Error, Metrics, ProbeKind, Probes, RunFacts};

/// Text whose keys and values a generation begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalStart {
    /// No keys and values: the whole prompt is computed.
    Fresh,
    /// The text that was [warmed](FastEvalRunner::warm) last.
    Warm,
    /// The [captured](FastEvalRunner::capture) text, in the session that computed it.
    Captured,
    /// The captured text, as it was [restored](FastEvalRunner::restore) last.
    Restored,
    /// The captured text, as it was last loaded from its [bundle](FastEvalRunner::bundle).
    Bundled,
}

/// A request of an evaluation to its runner.
#[derive(Clone, Copy, Debug)]
pub struct EvalRequest<'a> {
    /// The whole prompt.
    pub prompt: &'a [u32],
    /// Tokens to generate; nothing ends the text before.
    pub max_tokens: usize,
    /// Source of the keys and values of the prompt's beginning.
    pub start: EvalStart,
    /// The seed of drawn tokens; `None` for the most probable ones.
    pub seed: Option<u64>,
    /// Events to count.
    pub probes: Option<&'a Probes>,
    /// True if the runner may guess tokens ahead (speculation).
    pub drafts: bool,
}

/// The answer of a runner to an [`EvalRequest`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalAnswer {
    /// The ids of its tokens.
    pub tokens: Vec<u32>,
    /// Times and token counts of the answer.
    pub metrics: Metrics,
    /// Number of events by kind; `None` if no probe was requested, or if the runner has no probes.
    pub events: Option<BTreeMap<ProbeKind, usize>>,
}

/// Saving a bundle to files and loading it: bytes and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trip {
    /// Bytes of all files.
    pub bytes: u64,
    /// Time of saving.
    pub save: Duration,
    /// Time of loading.
    pub load: Duration,
}

/// The callbacks of an evaluation. Methods with a default body are optional.
pub trait FastEvalRunner {
    /// The token ids of a text.
    ///
    /// # Errors
    ///
    /// Any error of the tokenizer.
    fn encode(&mut self, text: &str) -> Result<Vec<u32>, Error>;

    /// Continues a prompt.
    ///
    /// # Errors
    ///
    /// Any error that ends the text before its last token.
    fn generate(&mut self, request: &EvalRequest<'_>) -> Result<EvalAnswer, Error>;

    /// The model, the device and the build.
    fn facts(&self) -> RunFacts;

    /// Everything that keys and values depend on besides the tokens: weights, tokenizer, adapter, arithmetic.
    fn identity(&self) -> Value {
        Value::Null
    }

    /// True if the arithmetic promises that a text is the same in any company and for any chunks of its prompt.
    fn is_exact(&self) -> bool {
        true
    }

    /// The largest resident set of the process so far; `None` if the system does not tell.
    fn peak_memory_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of keys, values and temporaries on the device; `None` if they are not counted.
    ///
    /// # Errors
    ///
    /// A device that is gone.
    fn active_memory_bytes(&mut self) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Continues several prompts together; `None` if the runner cannot do so.
    ///
    /// # Errors
    ///
    /// Any error that ends one of the texts before its last token.
    fn generate_together(
        &mut self,
        _prompts: &[&[u32]],
        _max_tokens: usize,
    ) -> Result<Option<Vec<EvalAnswer>>, Error> {
        Ok(None)
    }

    /// Computes a text's keys and values, for later generations that start [warm](EvalStart::Warm); false if the runner keeps none.
    ///
    /// # Errors
    ///
    /// Any error of computing the text.
    fn warm(&mut self, _text: &[u32]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Computes a text and copies its keys and values from the device. Returns their bytes; `None` if the runner cannot do so.
    ///
    /// # Errors
    ///
    /// Any error of computing or reading the text.
    fn capture(&mut self, _text: &[u32]) -> Result<Option<u64>, Error> {
        Ok(None)
    }

    /// Brings the captured keys and values back to the device; returns the time it took. Called only after a
    /// [`capture`](Self::capture).
    ///
    /// # Errors
    ///
    /// Any error of restoring the text.
    fn restore(&mut self) -> Result<Duration, Error> {
        Err(Error::Options("this runner restores nothing".into()))
    }

    /// Saves the captured text as a bundle and loads it; `None` if the runner cannot do so.
    ///
    /// # Errors
    ///
    /// Any error of the files.
    fn bundle(&mut self) -> Result<Option<Trip>, Error> {
        Ok(None)
    }
}
