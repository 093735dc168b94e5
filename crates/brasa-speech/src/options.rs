//! How speech is transcribed.

use std::sync::Arc;

use crate::{Result, SpeechError, TextGrammar};

/// The task of the model: transcription, or translation into English.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// Text in the language that is spoken.
    #[default]
    Transcribe,
    /// English text, from speech in any language.
    Translate,
}

/// The times that a transcript has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// No times: every window is 30 s long and gives one segment.
    None,
    /// Times of segments; windows follow them.
    #[default]
    Segments,
    /// Times of segments and of their words.
    Words,
}

/// The options of a transcription. The default is that of OpenAI's command.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscribeOptions {
    /// The language by code or English name; `None` to detect it in the first window.
    pub language: Option<String>,
    /// Transcription or translation.
    pub task: Task,
    /// The times to find.
    pub timestamps: Timestamps,
    /// Temperatures that are tried in order until a text is good enough; 0 takes the likeliest.
    pub temperatures: Vec<f32>,
    /// Texts that are searched at once at temperature 0; 1 is greedy.
    pub beam_size: usize,
    /// How many finished texts end a search, as a multiple of `beam_size`.
    pub patience: f32,
    /// Exponent of the length penalty of Google NMT, by which the sums of log-probabilities of a search are divided; `None`
    /// divides by the number of tokens.
    pub length_penalty: Option<f32>,
    /// Number of texts drawn above temperature 0. The most probable one is kept.
    pub best_of: usize,
    /// Largest ratio of a text's bytes to their compressed size. A text above it repeats itself, and is tried again.
    pub compression_ratio_threshold: Option<f64>,
    /// Least mean log-probability of a text. A text below it is tried again.
    pub logprob_threshold: Option<f64>,
    /// A window is silent if the probability of no speech is above this and the mean log-probability is below
    /// `logprob_threshold`.
    pub no_speech_threshold: Option<f64>,
    /// True to show the model the text before each window.
    pub condition_on_previous_text: bool,
    /// Text that the model reads before the first window, for names, style and spelling. An empty text counts as none.
    pub initial_prompt: Option<String>,
    /// True to put `initial_prompt` before every window.
    pub carry_initial_prompt: bool,
    /// Tokens that never occur; `None` for the checkpoint's own list, or else the vocabulary's annotations.
    pub suppress_tokens: Option<Vec<u32>>,
    /// A grammar that the text of each window follows, instead of `suppress_tokens`. Log-probabilities are those of the model
    /// without the grammar.
    pub grammar: Option<TextGrammar>,
    /// True to forbid texts that begin with a space alone, or end at once.
    pub suppress_blank: bool,
    /// Numbers that are added to the logits of tokens, e.g. of names that are likely to be spoken.
    pub logit_bias: Arc<[(u32, f32)]>,
    /// The latest first timestamp of a window in seconds; `None` or 0 for any, as in OpenAI's command.
    pub max_initial_timestamp_s: Option<f64>,
    /// Most tokens of a window; `None` for half the text context.
    pub max_tokens: Option<usize>,
    /// Seed of the noise above temperature 0.
    pub seed: u64,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            language: None,
            task: Task::Transcribe,
            timestamps: Timestamps::Segments,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            beam_size: 5,
            patience: 1.0,
            length_penalty: None,
            best_of: 5,
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            initial_prompt: None,
            carry_initial_prompt: false,
            suppress_tokens: None,
            grammar: None,
            suppress_blank: true,
            logit_bias: Arc::new([]),
            max_initial_timestamp_s: Some(1.0),
            max_tokens: None,
            seed: 0,
        }
    }
}

/// Seconds of a window.
const WINDOW_S: f64 = 30.0;

/// Most texts that are searched or drawn at once.
pub const MOST_TEXTS: usize = 32;

impl TranscribeOptions {
    /// Checks that the options make sense.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Options`], naming the option.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(SpeechError::Options { what });
        if self.temperatures.is_empty() {
            return bad("no temperature is given".into());
        }
        if let Some(t) = self.temperatures.iter().find(|t| !t.is_finite() || **t < 0.0 || **t > 10.0) {
            return bad(format!("temperature {t}, expected a number from 0 to 10"));
        }
        for (name, texts) in [("beam size", self.beam_size), ("best of", self.best_of)] {
            if !(1..=MOST_TEXTS).contains(&texts) {
                return bad(format!("{name} {texts}, expected a number from 1 to {MOST_TEXTS}"));
            }
        }
        if !self.patience.is_finite() || self.patience <= 0.0 || self.patience > 100.0 {
            return bad(format!("patience {}, expected a number above 0", self.patience));
        }
        if let Some(penalty) = self.length_penalty
            && !(0.0..=1.0).contains(&penalty)
        {
            return bad(format!("length penalty {penalty}, expected a number from 0 to 1"));
        }
        if self.grammar.is_some() && self.suppress_tokens.is_some() {
            return bad("tokens that never occur beside a grammar, which says what may occur".into());
        }
        if let Some(latest) = self.max_initial_timestamp_s
            && !(0.0..=WINDOW_S).contains(&latest)
        {
            return bad(format!("a first timestamp of {latest} s at the latest, expected 0 to {WINDOW_S}"));
        }
        if self.max_tokens == Some(0) {
            return bad("a window of at most 0 tokens".into());
        }
        if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return bad(format!("a bias of {bias} for token {token}"));
        }
        Ok(())
    }
}
