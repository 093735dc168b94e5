//! One window of sound to text: searches at rising temperatures until a text is good enough.
//!
//! A task asks for rows and takes their logits, and knows no device, so that tasks of several windows share steps.

mod beam;
mod draw;
mod drive;
mod text;

pub use drive::run_tasks;
pub use text::{Criteria, WindowText};

use std::sync::Arc;

use brasa_graph::step::Outs;

use crate::grammar::TextMask;
use crate::numbers::probability;
use crate::recogniser::{Recogniser, Rows, TextId, WindowId};
use crate::rules::Rules;
use crate::vocabulary::SpeechVocabulary;
use crate::{Result, Timestamps, TranscribeOptions};
use beam::Beam;
use draw::Draws;

/// The model, options and tokens that all windows of a transcription share.
#[derive(Debug)]
pub struct Procedure {
    /// The options of the transcription.
    pub options: TranscribeOptions,
    /// The model's vocabulary.
    pub vocabulary: SpeechVocabulary,
    /// Which tokens may come next.
    pub rules: Rules,
    /// Most tokens of a text, its prompt included.
    pub text_context: usize,
}

/// The text of one window while it is searched for.
pub struct WindowTask {
    procedure: Arc<Procedure>,
    /// The tokens before the drawn ones.
    prompt: Vec<u32>,
    /// The position of the start of the transcript in `prompt`.
    sot: usize,
    /// Changes the seed of the draws, so that different windows draw differently.
    noise: u64,
    window: WindowId,
    /// The prompt on the device, from which each attempt starts, and the logits of its last row.
    base: Option<(TextId, Vec<f32>)>,
    no_speech_prob: f64,
    /// Number of the temperature that is tried.
    attempt: usize,
    search: Option<Search>,
    grammar: Option<TextMask>,
    best: Option<WindowText>,
    finished: bool,
}

/// A search at one temperature.
enum Search {
    Draws(Draws),
    Beam(Beam),
}

/// A text that a search has not given up.
#[derive(Clone, Debug)]
pub(crate) struct Hypothesis {
    /// The tokens that were drawn after the prompt.
    pub drawn: Drawn,
    /// The text on the device; `None` once it has ended.
    pub text: Option<TextId>,
}

/// Tokens that a search has drawn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drawn {
    /// The tokens after the prompt, without the end.
    pub tokens: Vec<u32>,
    /// The log-probability of each token among those that the rules allow.
    pub logprobs: Vec<f32>,
    /// Sum of the log-probabilities, of the end token too.
    pub sum_logprob: f32,
}

impl Drawn {
    /// Appends a token with its `logprob`; the end token only adds its log-probability.
    pub fn push(&mut self, token: u32, logprob: f32, end: u32) {
        self.sum_logprob += logprob;
        if token != end {
            self.tokens.push(token);
            self.logprobs.push(logprob);
        }
    }
}

impl WindowTask {
    /// Makes a task for an encoded window. `previous`: tokens of the text before it. `start`: the start of the transcript, language
    /// and task. `noise` distinguishes the draws of different windows.
    pub fn new(
        procedure: Arc<Procedure>,
        window: WindowId,
        previous: &[u32],
        start: &[u32],
        noise: u64,
    ) -> Self {
        let tokens = procedure.vocabulary.tokens();
        let mut prompt = Vec::new();
        if !previous.is_empty() {
            prompt.push(tokens.sot_prev);
            let most = (procedure.text_context / 2).saturating_sub(1);
            prompt.extend_from_slice(&previous[previous.len() - previous.len().min(most)..]);
        }
        let sot = prompt.len();
        prompt.extend_from_slice(start);
        if procedure.options.timestamps == Timestamps::None {
            prompt.push(tokens.no_timestamps);
        }
        let grammar = procedure
            .options
            .grammar
            .as_ref()
            .map(|grammar| grammar.start(tokens, procedure.options.timestamps));
        Self {
            grammar,
            procedure,
            prompt,
            sot,
            noise,
            window,
            base: None,
            no_speech_prob: 0.0,
            attempt: 0,
            search: None,
            best: None,
            finished: false,
        }
    }

    /// True once there is a text.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// The text that was found.
    pub fn into_text(self) -> Option<WindowText> {
        self.best.filter(|_| self.finished)
    }

    /// The rows that the search needs next; none if it is finished.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn wants(&mut self, recogniser: &mut dyn Recogniser) -> Result<Vec<Rows>> {
        if self.finished {
            return Ok(Vec::new());
        }
        let Some((base, _)) = &self.base else {
            let text = recogniser.begin(self.window)?;
            self.base = Some((text, Vec::new()));
            let outs = Outs::Rows([self.sot as u32, self.prompt.len() as u32 - 1].into());
            return Ok(vec![Rows { text, tokens: self.prompt.clone(), outs }]);
        };
        let hypotheses = match &mut self.search {
            None => return Ok(Vec::new()),
            Some(Search::Draws(draws)) => &mut draws.hypotheses,
            Some(Search::Beam(beam)) => &mut beam.hypotheses,
        };
        let mut rows = Vec::new();
        for hypothesis in hypotheses.iter_mut().filter(|hypothesis| !hypothesis.drawn.tokens.is_empty()) {
            let Some(text) = hypothesis.text else { continue };
            // The first token of an attempt leaves the prompt as it is for further ones.
            let text = if text == *base { recogniser.fork(text)? } else { text };
            hypothesis.text = Some(text);
            let drawn = &hypothesis.drawn.tokens;
            let tokens = drawn[drawn.len() - 1..].to_vec();
            rows.push(Rows { text, tokens, outs: Outs::Last });
        }
        Ok(rows)
    }

    /// Takes the logits of the rows that [`wants`](Self::wants) named, in order.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn accept(&mut self, logits: &[&[f32]], recogniser: &mut dyn Recogniser) -> Result<()> {
        let waiting = self.base.as_ref().is_some_and(|(_, first)| first.is_empty());
        if waiting {
            let [start, last] = logits else { unreachable!("two rows of a prompt") };
            self.no_speech_prob = probability(start, self.procedure.vocabulary.tokens().no_speech);
            if let Some((_, first)) = &mut self.base {
                *first = last.to_vec();
            }
            return self.begin_attempt(recogniser);
        }
        self.advance(logits, recogniser)
    }

    fn begin_attempt(&mut self, recogniser: &mut dyn Recogniser) -> Result<()> {
        let Some((base, first)) = self.base.clone() else { return Ok(()) };
        let options = &self.procedure.options;
        let temperature = options.temperatures[self.attempt];
        self.search = Some(if temperature == 0.0 && options.beam_size > 1 {
            Search::Beam(Beam::new(base, options.beam_size, options.patience))
        } else {
            let texts = if temperature == 0.0 { 1 } else { options.best_of };
            let seed = options.seed ^ self.noise.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            Search::Draws(Draws::new(base, texts, temperature, seed.wrapping_add(self.attempt as u64)))
        });
        let rows = match &self.search {
            Some(Search::Draws(draws)) => vec![&first[..]; draws.hypotheses.len()],
            _ => vec![&first[..]],
        };
        self.advance(&rows, recogniser)
    }

    /// Adds one token to every hypothesis that continues.
    fn advance(&mut self, logits: &[&[f32]], recogniser: &mut dyn Recogniser) -> Result<()> {
        let procedure = Arc::clone(&self.procedure);
        let (base, _) = self.base.as_ref().expect("a search starts from a prompt");
        let context = &mut Context { procedure: &procedure, base: *base, grammar: self.grammar.as_mut() };
        let (ended, drawn) = match self.search.as_mut().expect("a search") {
            Search::Draws(draws) => draws.advance(logits, context, recogniser)?,
            Search::Beam(beam) => beam.advance(logits, context, recogniser)?,
        };
        let most = procedure.options.max_tokens.unwrap_or(procedure.text_context / 2);
        if ended || drawn >= most || self.prompt.len() + drawn > procedure.text_context {
            self.end_attempt(recogniser)?;
        }
        Ok(())
    }

    fn end_attempt(&mut self, recogniser: &mut dyn Recogniser) -> Result<()> {
        let options = &self.procedure.options;
        let temperature = options.temperatures[self.attempt];
        let found = match self.search.take() {
            Some(Search::Draws(draws)) => draws.finish(self.base_text(), recogniser),
            Some(Search::Beam(beam)) => beam.finish(self.base_text(), recogniser),
            None => Vec::new(),
        };
        let text = WindowText::choose(
            &found,
            &self.procedure.vocabulary,
            options,
            temperature,
            self.no_speech_prob,
        )?;
        let again = Criteria::of(options).wants_another(&text);
        self.best = Some(text);
        self.attempt += 1;
        if again && self.attempt < options.temperatures.len() {
            return self.begin_attempt(recogniser);
        }
        self.abandon(recogniser);
        self.finished = true;
        Ok(())
    }

    /// Most rows that the next step may need.
    pub(crate) fn most_rows(&self) -> usize {
        if self.base.is_none() { self.prompt.len() } else { self.most_outs() }
    }

    /// Most rows with logits that the next step may need.
    pub(crate) fn most_outs(&self) -> usize {
        match &self.search {
            Some(Search::Draws(draws)) => draws.hypotheses.len(),
            Some(Search::Beam(beam)) => beam.hypotheses.len(),
            None => 2,
        }
    }

    fn base_text(&self) -> Option<TextId> {
        self.base.as_ref().map(|(text, _)| *text)
    }

    /// Releases all memory on the device and ends the task.
    pub fn abandon(&mut self, recogniser: &mut dyn Recogniser) {
        match self.search.take() {
            Some(Search::Draws(draws)) => _ = draws.finish(self.base_text(), recogniser),
            Some(Search::Beam(beam)) => _ = beam.finish(self.base_text(), recogniser),
            None => {}
        }
        if let Some((base, _)) = self.base.take() {
            recogniser.end(base);
        }
    }
}

/// The state that a search needs for its next step.
pub(crate) struct Context<'a> {
    pub procedure: &'a Procedure,
    /// The prompt on the device.
    pub base: TextId,
    /// Grammar that the window's text must follow.
    pub grammar: Option<&'a mut TextMask>,
}

impl Context<'_> {
    /// Forbids the tokens that a grammar does not allow after `drawn`.
    pub fn hold_to_grammar(&mut self, logits: &mut [f32], drawn: &[u32]) -> Result<()> {
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.apply(logits, drawn))
    }
}

/// Ends a text unless it is the prompt itself.
pub(crate) fn end_own(text: Option<TextId>, base: Option<TextId>, recogniser: &mut dyn Recogniser) {
    if let Some(text) = text.filter(|&text| Some(text) != base) {
        recogniser.end(text);
    }
}
