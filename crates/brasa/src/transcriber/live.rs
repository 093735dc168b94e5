//! Speech to text while it is spoken.

use brasa_audio::transcript::Word;
use brasa_audio::{SAMPLE_RATE, VoiceDetector, VoiceFollower};
use brasa_speech::{Agreement, Timestamps, TranscribeOptions};

use super::Transcriber;
use crate::Error;

/// Seconds of sound beyond which the sound is cut at the end of the last kept word, so that each call transcribes less again.
const LONGEST_S: f64 = 15.0;
/// Most seconds of sound that are transcribed again. Beyond, all words are kept as they are.
const MOST_S: f64 = 28.0;
/// Seconds of a pause after which all words before it are kept.
const PAUSE_S: f64 = 0.5;
/// Seconds of a pause that stay in the sound, because the detector notices the beginning of speech late.
const LEAD_S: f64 = 1.0;
/// Differences of times below this many seconds are rounding errors.
const NOTHING_S: f64 = 1e-3;
/// Most characters of earlier text that the model receives as a prompt.
const CONTEXT_CHARS: usize = 200;

/// The text of a sound that is still going on. See [`Transcriber::live`].
pub struct Live {
    transcriber: Transcriber,
    options: TranscribeOptions,
    /// Samples from `start_s` on.
    samples: Vec<f32>,
    /// Seconds of sound before `samples`, whose words are final.
    start_s: f64,
    agreement: Agreement,
    voice: VoiceFollower,
    /// The end of the sound, in seconds, when it was last transcribed.
    looked_s: f64,
}

/// The new part of a live text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveUpdate {
    /// New words that are final.
    pub kept: Vec<Word>,
    /// Words after the final ones that may still be revised.
    pub pending: Vec<Word>,
}

impl LiveUpdate {
    /// The text of the new final words.
    pub fn kept_text(&self) -> String {
        self.kept.iter().map(|word| word.text.as_str()).collect()
    }

    /// The text that may still be revised.
    pub fn pending_text(&self) -> String {
        self.pending.iter().map(|word| word.text.as_str()).collect()
    }
}

impl Live {
    pub(super) fn new(transcriber: Transcriber, options: TranscribeOptions) -> Self {
        let options = TranscribeOptions { timestamps: Timestamps::Words, ..options };
        let voice = VoiceFollower::new(VoiceDetector::Off);
        let agreement = Agreement::default();
        Self { transcriber, options, samples: Vec::new(), start_s: 0.0, agreement, voice, looked_s: 0.0 }
    }

    /// Leaves pauses out: they are not transcribed, and after half a second of pause all words are certain. Call it before the
    /// first sample.
    #[must_use]
    pub fn with_voice(self, detector: VoiceDetector) -> Self {
        Self { voice: VoiceFollower::new(detector), ..self }
    }

    /// Takes further samples at 16 kHz, and transcribes the sound again. Pass about a second at a time: each call costs as much
    /// as transcribing a window of 30 s.
    ///
    /// # Errors
    ///
    /// The errors of [`Transcriber::transcribe`]. `samples` are part of the sound nevertheless.
    pub fn push(&mut self, samples: &[f32]) -> Result<LiveUpdate, Error> {
        self.samples.extend_from_slice(samples);
        self.voice.push(samples);
        let end_s = self.start_s + self.seconds();
        let seconds = |sample: usize| sample as f64 / f64::from(SAMPLE_RATE);
        let speech = self.voice.spans();
        let mut speech = speech.iter().map(|span| (seconds(span.start), seconds(span.end)));
        let Some((first_s, mut last_s)) = speech.find(|(_, end_s)| *end_s > self.start_s + NOTHING_S) else {
            let kept = self.agreement.finish();
            self.cut(end_s - LEAD_S);
            return Ok(LiveUpdate { kept, pending: Vec::new() });
        };
        last_s = speech.next_back().map_or(last_s, |(_, end_s)| end_s);
        self.cut(first_s);
        let pauses = last_s + PAUSE_S <= end_s;
        let mut kept = Vec::new();
        // Where the last look heard all that was said, another one would find the same words at other times.
        if !pauses || self.looked_s < last_s {
            let heard = if pauses { in_samples(last_s - self.start_s) } else { self.samples.len() };
            let words = self.words(&self.samples[..heard.min(self.samples.len())])?;
            kept = self.agreement.insert(words);
            self.looked_s = end_s;
        }
        let seconds = self.seconds();
        if pauses {
            kept.extend(self.agreement.finish());
            self.cut(last_s);
        } else if seconds > LONGEST_S && self.agreement.end_s() > self.start_s {
            self.cut(self.agreement.end_s());
        } else if seconds > MOST_S {
            kept.extend(self.agreement.finish());
            self.cut(self.start_s + seconds);
        }
        Ok(LiveUpdate { kept, pending: self.agreement.pending().to_vec() })
    }

    /// Ends the sound; returns the rest of the text.
    pub fn finish(mut self) -> LiveUpdate {
        LiveUpdate { kept: self.agreement.finish(), pending: Vec::new() }
    }

    /// All final words so far.
    pub fn kept(&self) -> &[Word] {
        self.agreement.kept()
    }

    /// Seconds of the samples.
    fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(SAMPLE_RATE)
    }

    /// The words of `samples`, with times in seconds from the beginning of the sound.
    fn words(&self, samples: &[f32]) -> Result<Vec<Word>, Error> {
        let options = TranscribeOptions { initial_prompt: self.context(), ..self.options.clone() };
        let transcript = self.transcriber.transcribe_samples(samples, options)?.finish()?;
        let words = transcript.segments.into_iter().flat_map(|segment| segment.words.unwrap_or_default());
        let moved = |word: Word| Word {
            start_s: word.start_s + self.start_s,
            end_s: word.end_s + self.start_s,
            ..word
        };
        Ok(words.map(moved).collect())
    }

    /// The text before the samples, after the caller's prompt.
    fn context(&self) -> Option<String> {
        let own = self.options.initial_prompt.as_deref().unwrap_or_default();
        if !self.options.condition_on_previous_text {
            return self.options.initial_prompt.clone();
        }
        let before = self.agreement.kept().iter().filter(|word| word.end_s <= self.start_s);
        let text: String = before.map(|word| word.text.as_str()).collect();
        let from = text.char_indices().rev().nth(CONTEXT_CHARS - 1).map_or(0, |(at, _)| at);
        let context = format!("{own} {}", text[from..].trim());
        let context = context.trim();
        (!context.is_empty()).then(|| context.to_owned())
    }

    /// Drops the sound before `end_s`.
    fn cut(&mut self, end_s: f64) {
        let over = in_samples(end_s - self.start_s).min(self.samples.len());
        self.samples.drain(..over);
        self.start_s += over as f64 / f64::from(SAMPLE_RATE);
        self.voice.forget((self.start_s * f64::from(SAMPLE_RATE)) as usize);
    }
}

/// The number of samples in this many seconds; 0 if `seconds` is negative.
fn in_samples(seconds: f64) -> usize {
    (seconds * f64::from(SAMPLE_RATE)).round().max(0.0) as usize
}
