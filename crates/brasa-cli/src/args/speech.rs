//! Flags of `brasa transcribe`. A flag that whisper.cpp or openai-whisper has too has its name.

use std::path::PathBuf;

use brasa::audio::transcript::TranscriptFormat;
use brasa::audio::{SampleFormat, VoiceDetector};
use brasa::speech::MOST_TEXTS;
use clap::Args;

use super::{PrecisionName, SourceArguments};
use crate::suggested::{DEVICES, Suggested};
use crate::values::{self, positive};

/// `brasa transcribe`
#[derive(Debug, Clone, Args)]
#[command(override_usage = "brasa transcribe [OPTIONS] MODEL FILE...\n       \
                            brasa transcribe [OPTIONS] MODEL --stream")]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct TranscribeArguments {
    /// Model (unless -m or -hf names it), then files of sound; - for standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// A file of sound (may be repeated)
    #[arg(short, long = "file", value_name = "FILE", hide_short_help = true)]
    pub named_files: Vec<PathBuf>,
    /// Language by code or English name [default: auto, the first one heard]
    #[arg(short, long, value_name = "NAME", value_parser = values::language)]
    pub language: Option<values::Language>,
    /// Write English, whatever is spoken
    #[arg(long)]
    pub translate: bool,
    /// Form of the transcript
    #[arg(long, visible_alias = "output-format", value_name = "FORM", default_value = "text", value_parser = values::transcript_format())]
    pub format: TranscriptFormat,
    /// Write JSON: --format json, unless --format names another form of JSON
    #[arg(long)]
    pub json: bool,
    /// Show times in text
    #[arg(long)]
    pub timestamps: bool,
    /// Find the times of words; text has a line for each
    #[arg(long, visible_alias = "word-timestamps")]
    pub words: bool,
    /// Write transcripts into this folder [default: one to standard output, several beside their files]
    #[arg(short, long, visible_alias = "output-dir", value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Replace transcripts that exist
    #[arg(long)]
    pub force: bool,
    /// Transcribe while somebody speaks: standard input, or one FILE
    #[arg(long)]
    pub stream: bool,
    /// Seconds of sound between two updates of --stream
    #[arg(long, value_name = "S", default_value = "1", value_parser = values::step, requires = "stream", hide_short_help = true)]
    pub step: f32,
    /// Take the input as samples of one channel without a header: u8, s16, s24, s32, f32 or f64
    #[arg(long, value_name = "FORM", value_parser = values::sample_format)]
    pub raw: Option<SampleFormat>,
    /// Samples a second of --raw, and of a --stream without a header [default: 16000]
    #[arg(short, long, value_name = "HZ")]
    pub rate: Option<u32>,
    #[command(flatten)]
    pub search: SearchArguments,
    #[command(flatten)]
    pub source: SourceArguments,
    /// Threads [default: as many as this process may use]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Device: auto, cpu, cuda, or cuda:N for one GPU [default: cpu]
    #[arg(long, value_name = "NAME", value_parser = Suggested(DEVICES), hide_possible_values = true)]
    pub device: Option<String>,
    /// Precision of the arithmetic
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PrecisionName::Fast, hide_short_help = true)]
    pub precision: PrecisionName,
    /// Refuse checkpoints with unknown configuration keys or unused tensors
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
    /// Report more on standard error
    #[arg(short, long)]
    pub verbose: bool,
}

impl TranscribeArguments {
    /// Takes the model from the positional words, if no flag names one.
    pub fn name_model(&mut self) {
        if self.source.model.is_none() && self.source.hf_repo.is_none() && !self.files.is_empty() {
            self.source.model = Some(self.files.remove(0));
        }
        self.files.append(&mut self.named_files);
    }
}

/// How texts are searched for.
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct SearchArguments {
    /// Candidate texts of the beam search; 1 is fastest (-bs)
    #[arg(long, visible_alias = "beam-size", value_name = "N", default_value_t = 5, value_parser = texts())]
    pub beam: u8,
    /// Cut files at their pauses, and transcribe N pieces of up to 30 s at once, independently of each other
    #[arg(long, visible_alias = "batch-size", value_name = "N", default_value_t = 1, value_parser = values::batch, conflicts_with = "stream")]
    pub batch: usize,
    /// How pauses are found: model, a small network that detects voices; energy, by loudness; or off [default: energy with --batch, off without]
    #[arg(long, value_name = "HOW", value_parser = values::voice(), hide_short_help = true)]
    pub vad: Option<VoiceDetector>,
    /// Text before the sound: names, spelling, style
    #[arg(long, visible_alias = "initial-prompt", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Show the model the prompt before every window, not the first alone
    #[arg(long, visible_alias = "carry-initial-prompt", requires = "prompt", hide_short_help = true)]
    pub carry_prompt: bool,
    /// Words that are likely to be spoken, separated by commas
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    pub hotwords: Vec<String>,
    /// Added to the logits of the hotwords' first tokens
    #[arg(long, value_name = "X", default_value_t = 3.0, value_parser = values::finite, allow_negative_numbers = true, requires = "hotwords", hide_short_help = true)]
    pub hotword_bias: f32,
    /// Temperature of the first try; 0 takes the likeliest
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T", default_value_t = 0.0, value_parser = values::temperature, hide_short_help = true)]
    pub temperature: f32,
    /// Increase of the temperature for each new try, up to 1; 0 for a single try
    #[arg(long, visible_alias = "temperature-increment-on-fallback", value_name = "T", default_value_t = 0.2, value_parser = values::temperature, hide_short_help = true)]
    pub temperature_inc: f32,
    /// Texts that are drawn above temperature 0, of which the likeliest is kept (-bo)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = texts(), hide_short_help = true)]
    pub best_of: u8,
    /// Finished texts that end a search, as a multiple of --beam
    #[arg(long, value_name = "X", default_value_t = 1.0, hide_short_help = true)]
    pub patience: f32,
    /// Exponent of the length that divides a text's score, 0 to 1 [default: compare mean scores]
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub length_penalty: Option<f32>,
    /// Treat a window as silent if the probability of no speech is above this
    #[arg(long, visible_aliases = ["no-speech", "no-speech-thold"], value_name = "P", default_value_t = 0.6, value_parser = values::finite, hide_short_help = true)]
    pub no_speech_threshold: f32,
    /// Try again if the mean log-probability is lower
    #[arg(long, visible_alias = "logprob-thold", value_name = "X", default_value_t = -1.0, value_parser = values::finite, allow_negative_numbers = true, hide_short_help = true)]
    pub logprob_threshold: f32,
    /// Try again if the text compresses better than this ratio, since it then repeats itself
    #[arg(long, value_name = "X", default_value_t = 2.4, value_parser = values::finite, hide_short_help = true)]
    pub compression_ratio_threshold: f32,
    /// The latest first timestamp of a window in seconds; 0 for any
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = values::finite, hide_short_help = true)]
    pub max_initial_timestamp: f32,
    /// Do not show the model the text before each window
    #[arg(long, hide_short_help = true)]
    pub no_context: bool,
    /// Find no times: a segment for each 30 s
    #[arg(long, conflicts_with_all = ["timestamps", "words", "stream"], hide_short_help = true)]
    pub without_timestamps: bool,
    /// Ids of tokens that are never written [default: the vocabulary's annotations]
    #[arg(long, value_name = "IDS", value_delimiter = ',', hide_short_help = true)]
    pub suppress_tokens: Option<Vec<u32>>,
    /// Make the text of each window follow this grammar, in GBNF or, behind a first line %llguidance {}, in Lark
    #[arg(long, value_name = "GRAMMAR", group = "text_grammar", conflicts_with_all = ["suppress_tokens", "stream"], hide_short_help = true)]
    pub grammar: Option<String>,
    /// Make the text of each window follow the grammar in a file
    #[arg(long, value_name = "FILE", group = "text_grammar", conflicts_with_all = ["suppress_tokens", "stream"], hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// Most tokens of a window [default: half the model's context]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub max_tokens: Option<usize>,
    /// Seed of the draws above temperature 0
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub seed: u64,
}

/// Parses a number of texts that are searched or drawn at once.
fn texts() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=MOST_TEXTS as i64)
}
