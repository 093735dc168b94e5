//! The text of a window, and whether it is good enough.

use super::Drawn;
use crate::compression::compression_ratio;
use crate::vocabulary::SpeechVocabulary;
use crate::{Result, TranscribeOptions};

/// The text that was found for a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowText {
    /// Tokens with timestamps, without the end.
    pub tokens: Vec<u32>,
    /// The log-probability of each token among those that the rules allow.
    pub logprobs: Vec<f32>,
    /// The text without space at its ends.
    pub text: String,
    /// Mean log-probability of the tokens, the end included.
    pub avg_logprob: f64,
    /// Probability that the window holds no speech.
    pub no_speech_prob: f64,
    /// The temperature at which it was found.
    pub temperature: f32,
    /// Bytes of the text for each compressed byte.
    pub compression_ratio: f64,
}

impl WindowText {
    /// The best of several texts by their log-probabilities: by mean, or by Google NMT's length penalty.
    pub(crate) fn choose(
        found: &[Drawn],
        vocabulary: &SpeechVocabulary,
        options: &TranscribeOptions,
        temperature: f32,
        no_speech_prob: f64,
    ) -> Result<Self> {
        let score = |Drawn { tokens, sum_logprob, .. }: &Drawn| {
            let length = tokens.len().max(1) as f64;
            let divisor = options
                .length_penalty
                .map_or(length, |penalty| ((5.0 + tokens.len() as f64) / 6.0).powf(f64::from(penalty)));
            f64::from(*sum_logprob) / divisor
        };
        let better =
            |best: usize, next: usize| if score(&found[next]) > score(&found[best]) { next } else { best };
        let best = (0..found.len()).reduce(better).and_then(|best| found.get(best));
        let Drawn { tokens, logprobs, sum_logprob } = best.cloned().unwrap_or_default();
        let text = vocabulary.decode(&tokens)?.trim().to_owned();
        Ok(Self {
            avg_logprob: f64::from(sum_logprob) / (tokens.len() + 1) as f64,
            compression_ratio: compression_ratio(&text),
            tokens,
            logprobs,
            text,
            no_speech_prob,
            temperature,
        })
    }
}

/// Thresholds by which texts are judged.
#[derive(Clone, Copy, Debug)]
pub struct Criteria {
    compression_ratio: Option<f64>,
    logprob: Option<f64>,
    no_speech: Option<f64>,
}

impl Criteria {
    /// The thresholds of `options`.
    pub fn of(options: &TranscribeOptions) -> Self {
        Self {
            compression_ratio: options.compression_ratio_threshold,
            logprob: options.logprob_threshold,
            no_speech: options.no_speech_threshold,
        }
    }

    /// True if the window is to be tried at the next temperature: the text repeats itself or is unlikely, and the window is not
    /// silent.
    pub fn wants_another(&self, text: &WindowText) -> bool {
        let unlikely = self.logprob.is_some_and(|least| text.avg_logprob < least);
        let repeats = self.compression_ratio.is_some_and(|most| text.compression_ratio > most);
        let silent = unlikely && self.no_speech.is_some_and(|most| text.no_speech_prob > most);
        (repeats || unlikely) && !silent
    }

    /// True if the window is skipped as silent.
    pub fn is_silent(&self, text: &WindowText) -> bool {
        let likely = self.logprob.is_some_and(|least| text.avg_logprob > least);
        self.no_speech.is_some_and(|most| text.no_speech_prob > most) && !likely
    }
}
