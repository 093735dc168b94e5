//! How long the parts of a transcription take.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use brasa_audio::Features;
use serde_json::{Map, Value};

use crate::Result;
use crate::recogniser::{CrossScores, Recogniser, Rows, Shape, TextId, WindowId};

/// Times that the parts of a transcription took.
///
/// The total also holds times that no part counts: choosing tokens between two steps, finding pauses, and waiting for a model that
/// other transcriptions use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranscriptionTimes {
    /// Reading the sound to its end, before the first window. The sound may have come slowly.
    pub read: Duration,
    /// Mel features of the windows, with the second reading of the sound.
    pub mel: Duration,
    /// Steps of the encoder.
    pub encode: Duration,
    /// Steps of the decoder in which a text begins: they compute prompts.
    pub prompt: Duration,
    /// All other steps of the decoder: one token of every text that is searched.
    pub decode: Duration,
    /// Scores of the heads that align words with the sound.
    pub align: Duration,
    /// The whole transcription, without the time between two calls of its iterator.
    pub total: Duration,
}

impl TranscriptionTimes {
    /// The total divided by the length of the sound: below 1, it is transcribed faster than it is spoken. `None` for an empty sound.
    pub fn real_time_factor(&self, duration_s: f64) -> Option<f64> {
        (duration_s > 0.0).then(|| self.total.as_secs_f64() / duration_s)
    }

    /// Milliseconds of each part, `read_ms` to `total_ms`, and `real_time_factor`, which is null for an empty sound.
    pub fn to_json(&self, duration_s: f64) -> Value {
        let milliseconds = |time: Duration| time.as_micros() as f64 / 1000.0;
        let parts = self.named().map(|(name, time)| (format!("{name}_ms"), milliseconds(time).into()));
        let mut object = Map::from_iter(parts);
        object.insert("real_time_factor".into(), self.real_time_factor(duration_s).into());
        Value::Object(object)
    }

    /// Each part and the total by name, in the order of the work.
    pub fn named(&self) -> [(&'static str, Duration); 7] {
        let &Self { read, mel, encode, prompt, decode, align, total } = self;
        [
            ("read", read),
            ("mel", mel),
            ("encode", encode),
            ("prompt", prompt),
            ("decode", decode),
            ("align", align),
            ("total", total),
        ]
    }
}

/// A recogniser that adds what each of its calls takes to the times of a transcription.
pub struct Timed<'a> {
    recogniser: &'a mut dyn Recogniser,
    times: &'a mut TranscriptionTimes,
    /// Texts without a token.
    begun: BTreeSet<TextId>,
}

impl<'a> Timed<'a> {
    /// Passes all calls on to `recogniser`.
    pub fn new(recogniser: &'a mut dyn Recogniser, times: &'a mut TranscriptionTimes) -> Self {
        Self { recogniser, times, begun: BTreeSet::new() }
    }
}

impl Recogniser for Timed<'_> {
    fn shape(&self) -> Shape {
        self.recogniser.shape()
    }

    fn encode(&mut self, windows: &[&Features]) -> Result<Vec<WindowId>> {
        let started = Instant::now();
        let found = self.recogniser.encode(windows);
        self.times.encode += started.elapsed();
        found
    }

    fn forget(&mut self, window: WindowId) {
        self.recogniser.forget(window);
    }

    fn begin(&mut self, window: WindowId) -> Result<TextId> {
        let text = self.recogniser.begin(window)?;
        self.begun.insert(text);
        Ok(text)
    }

    fn fork(&mut self, text: TextId) -> Result<TextId> {
        self.recogniser.fork(text)
    }

    fn end(&mut self, text: TextId) {
        self.begun.remove(&text);
        self.recogniser.end(text);
    }

    fn run(&mut self, rows: &[Rows]) -> Result<&[f32]> {
        let mut has_prompt = false;
        for rows in rows {
            has_prompt |= self.begun.remove(&rows.text);
        }
        let started = Instant::now();
        let found = self.recogniser.run(rows);
        let part = if has_prompt { &mut self.times.prompt } else { &mut self.times.decode };
        *part += started.elapsed();
        found
    }

    fn cross_scores(&mut self, window: WindowId, tokens: &[u32]) -> Result<CrossScores> {
        let started = Instant::now();
        let found = self.recogniser.cross_scores(window, tokens);
        self.times.align += started.elapsed();
        found
    }
}
