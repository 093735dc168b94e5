//! Transcripts, and the forms of files that they are written in.

mod subtitles;

use std::fmt::Write;
use std::str::FromStr;

use serde_json::{Value, json};

/// The text of a whole sound, in segments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// Transcription or translation.
    pub task: Task,
    /// The language in English and small letters: `english`.
    pub language: String,
    /// The length of the sound in seconds.
    pub duration_s: f64,
    /// Sentences or parts of them, in order.
    pub segments: Vec<Segment>,
}

/// Whether the text is in the language that was spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Task {
    /// The language that was spoken.
    #[default]
    Transcribe,
    /// Translate into English, from any language.
    Translate,
}

/// A part of a transcript with its times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segment {
    /// Start of the window that the segment comes from, in frames of 10 ms.
    pub seek: u32,
    /// Seconds from the beginning of the sound.
    pub start_s: f64,
    /// Seconds from the beginning of the sound.
    pub end_s: f64,
    /// The text as the model wrote it, usually with a space in front.
    pub text: String,
    /// Tokens of the text, timestamps included.
    pub tokens: Vec<u32>,
    /// The log-probability of each token among those that the rules allowed in its place; empty if not computed.
    pub logprobs: Vec<f32>,
    /// The temperature at which the text was drawn.
    pub temperature: f64,
    /// The mean log-probability of the tokens.
    pub avg_logprob: f64,
    /// Bytes of the text per byte of its compressed form; texts that go round in circles have much.
    pub compression_ratio: f64,
    /// The probability that the window holds no speech.
    pub no_speech_prob: f64,
    /// Words with their times, if requested.
    pub words: Option<Vec<Word>>,
}

/// A word with its times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Word {
    /// The word with its punctuation, usually with a space in front.
    pub text: String,
    /// Seconds from the beginning of the sound.
    pub start_s: f64,
    /// Seconds from the beginning of the sound.
    pub end_s: f64,
    /// The mean probability of the word's tokens, each among all tokens of text.
    pub probability: f64,
}

/// A form of a transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TranscriptFormat {
    /// A line for each segment.
    Text,
    /// `SubRip` subtitles.
    Srt,
    /// `WebVTT` subtitles.
    Vtt,
    /// `{"text": …}`, as OpenAI's API answers.
    Json,
    /// JSON with segments, and with words if there are any, as OpenAI's API answers.
    VerboseJson,
    /// Milliseconds and text, separated by commas, as whisper.cpp writes it.
    Csv,
    /// Milliseconds and text, separated by tabs, as openai-whisper writes it.
    Tsv,
    /// Lyrics, as whisper.cpp writes them but for the name in the first line.
    Lrc,
}

impl TranscriptFormat {
    /// All formats, with the names that [`FromStr`] takes.
    pub const ALL: [(&'static str, Self); 8] = [
        ("text", Self::Text),
        ("srt", Self::Srt),
        ("vtt", Self::Vtt),
        ("json", Self::Json),
        ("verbose_json", Self::VerboseJson),
        ("csv", Self::Csv),
        ("tsv", Self::Tsv),
        ("lrc", Self::Lrc),
    ];

    /// The extension of a file of this format, without its dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Json | Self::VerboseJson => "json",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Lrc => "lrc",
        }
    }
}

impl FromStr for TranscriptFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| format).ok_or_else(|| {
            let names = Self::ALL.map(|(name, _)| name).join(", ");
            format!("{name:?} is no format of a transcript, expected one of {names}")
        })
    }
}

impl Transcript {
    /// All text in one line, without space at its ends.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }

    /// The whole content of a file of this format; ends with a line break.
    pub fn to_format(&self, format: TranscriptFormat) -> String {
        match format {
            TranscriptFormat::Text => self.lines("", |out, segment| writeln!(out, "{}", segment.text.trim())),
            TranscriptFormat::Srt => subtitles::srt(&self.segments),
            TranscriptFormat::Vtt => subtitles::vtt(&self.segments),
            TranscriptFormat::Json => format!("{}\n", json!({ "text": self.text() })),
            TranscriptFormat::VerboseJson => format!("{}\n", self.to_verbose_json()),
            TranscriptFormat::Csv => self.lines("start,end,text\n", |out, segment| {
                let text = segment.text.replace('"', "\"\"");
                writeln!(out, "{},{},\"{text}\"", milliseconds(segment.start_s), milliseconds(segment.end_s))
            }),
            TranscriptFormat::Tsv => self.lines("start\tend\ttext\n", |out, segment| {
                let text = segment.text.trim().replace('\t', " ");
                writeln!(out, "{}\t{}\t{text}", milliseconds(segment.start_s), milliseconds(segment.end_s))
            }),
            TranscriptFormat::Lrc => self.lines("[by:brasa]\n", |out, segment| {
                let hundredths = milliseconds(segment.start_s) / 10;
                let (minutes, rest) = (hundredths / 6000, hundredths % 6000);
                writeln!(out, "[{minutes:02}:{:02}.{:02}]{}", rest / 100, rest % 100, segment.text)
            }),
        }
    }

    fn lines(&self, head: &str, write: impl Fn(&mut String, &Segment) -> std::fmt::Result) -> String {
        let mut out = head.to_owned();
        for segment in &self.segments {
            write(&mut out, segment).expect("a string takes everything");
        }
        out
    }

    /// The value of [`TranscriptFormat::VerboseJson`]: task, language, duration, text, segments, and words if there are any.
    pub fn to_verbose_json(&self) -> Value {
        let segment = |(id, segment): (usize, &Segment)| {
            json!({
                "id": id,
                "seek": segment.seek,
                "start": segment.start_s,
                "end": segment.end_s,
                "text": segment.text,
                "tokens": segment.tokens,
                "temperature": segment.temperature,
                "avg_logprob": segment.avg_logprob,
                "compression_ratio": segment.compression_ratio,
                "no_speech_prob": segment.no_speech_prob,
            })
        };
        let mut answer = json!({
            "task": match self.task {
                Task::Transcribe => "transcribe",
                Task::Translate => "translate",
            },
            "language": self.language,
            "duration": self.duration_s,
            "text": self.text(),
            "segments": self.segments.iter().enumerate().map(segment).collect::<Vec<_>>(),
        });
        if self.segments.iter().any(|segment| segment.words.is_some()) {
            let words = self.segments.iter().flat_map(|segment| segment.words.iter().flatten());
            let word = |word: &Word| {
                json!({
                    "word": word.text.trim(),
                    "start": word.start_s,
                    "end": word.end_s,
                    "probability": word.probability,
                })
            };
            answer["words"] = words.map(word).collect();
        }
        answer
    }
}

/// Whole milliseconds, halves to the even one, as Python rounds.
fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round_ties_even() as u64
}
