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
    /// Speech model (unless -m or -hf names it), then sound files; - for standard input
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    pub files: Vec<PathBuf>,
    /// A sound file to transcribe, beside those that are named without -f (may be repeated)
    #[arg(short, long = "file", value_name = "FILE", hide_short_help = true)]
    pub named_files: Vec<PathBuf>,
    /// Spoken language, such as pt or Portuguese [default: the first heard]
    #[arg(short, long, value_name = "NAME", value_parser = values::language)]
    pub language: Option<values::Language>,
    /// Translate: write English, whatever language is spoken
    #[arg(long)]
    pub translate: bool,
    /// File format of the transcript
    #[arg(long, visible_alias = "output-format", value_name = "FORM", default_value = "text", value_parser = values::transcript_format())]
    pub format: TranscriptFormat,
    /// Write JSON: --format json, unless --format names another form of JSON
    #[arg(long)]
    pub json: bool,
    /// With --format text: put the start and end time in front of each segment
    #[arg(long)]
    pub timestamps: bool,
    /// Find the start and end of every word; text then has a line for each
    #[arg(long, visible_alias = "word-timestamps")]
    pub words: bool,
    /// Folder for transcripts [default: of one file to standard output, of several beside their files]
    #[arg(short, long, visible_alias = "output-dir", value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Replace transcripts that exist
    #[arg(long)]
    pub force: bool,
    /// Transcribe live: sound that still comes in, from standard input or FILE
    #[arg(long)]
    pub stream: bool,
    /// With --stream: seconds of new sound after which the text is updated
    #[arg(long, value_name = "S", default_value = "1", value_parser = values::step, requires = "stream", hide_short_help = true)]
    pub step: f32,
    /// The input is raw samples of one channel without a file header, in this type: u8, s16, s24, s32, f32 or f64
    #[arg(long, value_name = "FORM", value_parser = values::sample_format)]
    pub raw: Option<SampleFormat>,
    /// Sample rate in Hz of sound without a file header [default: 16000]
    #[arg(short, long, value_name = "HZ")]
    pub rate: Option<u32>,
    #[command(flatten)]
    pub search: SearchArguments,
    #[command(flatten)]
    pub source: SourceArguments,
    /// Threads [default: as many as this process may use]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Device that computes: cpu, cuda (NVIDIA GPU 0; cuda:N for number N), or auto, a GPU that works or else the CPU [default: cpu]
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
    /// Candidate texts that the search compares at each step; more find better texts, 1 is fastest (-bs)
    #[arg(long, visible_alias = "beam-size", value_name = "N", default_value_t = 5, value_parser = texts())]
    pub beam: u8,
    /// Cut files at their pauses, and transcribe N pieces of up to 30 s at once, independently of each other
    #[arg(long, visible_alias = "batch-size", value_name = "N", default_value_t = 1, value_parser = values::batch, conflicts_with = "stream")]
    pub batch: usize,
    /// How pauses are found: model, a small network that detects voices; energy, by loudness; or off [default: energy with --batch, off without]
    #[arg(long, value_name = "HOW", value_parser = values::voice(), hide_short_help = true)]
    pub vad: Option<VoiceDetector>,
    /// Text that the model is shown as if it came before the sound: names to spell right, punctuation, style
    #[arg(long, visible_alias = "initial-prompt", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Show the model --prompt before every 30 s, not before the first alone
    #[arg(long, visible_alias = "carry-initial-prompt", requires = "prompt", hide_short_help = true)]
    pub carry_prompt: bool,
    /// Words that are likely to be spoken, such as names, between commas
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    pub hotwords: Vec<String>,
    /// How strongly --hotwords are preferred: added to the logits of their first tokens
    #[arg(long, value_name = "X", default_value_t = 3.0, value_parser = values::finite, allow_negative_numbers = true, requires = "hotwords", hide_short_help = true)]
    pub hotword_bias: f32,
    /// Randomness of the first try of a window; 0 takes the likeliest text
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T", default_value_t = 0.0, value_parser = values::temperature, hide_short_help = true)]
    pub temperature: f32,
    /// A window whose text looks wrong (see the thresholds) is tried again with the temperature raised by this, up to 1; 0 for a single
    /// try
    #[arg(long, visible_alias = "temperature-increment-on-fallback", value_name = "T", default_value_t = 0.2, value_parser = values::temperature, hide_short_help = true)]
    pub temperature_inc: f32,
    /// Above temperature 0: texts that are drawn for a window, of which the likeliest is kept (-bo)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = texts(), hide_short_help = true)]
    pub best_of: u8,
    /// End the search of a window once --beam times this many candidate texts are complete
    #[arg(long, value_name = "X", default_value_t = 1.0, hide_short_help = true)]
    pub patience: f32,
    /// How candidates of different lengths compare: scores are divided by their length to this power, 0 to 1; more favours long texts
    /// [default: by the mean score of a token]
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub length_penalty: Option<f32>,
    /// Write nothing for a window whose probability of containing no speech is above this, 0 to 1, unless its text is likely
    #[arg(long, visible_aliases = ["no-speech", "no-speech-thold"], value_name = "P", default_value_t = 0.6, value_parser = values::finite, hide_short_help = true)]
    pub no_speech_threshold: f32,
    /// Try a window again if the mean log-probability of its tokens is below this
    #[arg(long, visible_alias = "logprob-thold", value_name = "X", default_value_t = -1.0, value_parser = values::finite, allow_negative_numbers = true, hide_short_help = true)]
    pub logprob_threshold: f32,
    /// Try a window again if its text compresses by more than this factor, since it then repeats itself
    #[arg(long, value_name = "X", default_value_t = 2.4, value_parser = values::finite, hide_short_help = true)]
    pub compression_ratio_threshold: f32,
    /// Latest time in seconds at which the first segment of a window may begin; 0 for any
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = values::finite, hide_short_help = true)]
    pub max_initial_timestamp: f32,
    /// Transcribe each window without showing the model the text of the windows before it
    #[arg(long, hide_short_help = true)]
    pub no_context: bool,
    /// Find no times within a window: one segment for each 30 s
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
    /// Most text tokens of a window of 30 s [default: half the model's context]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub max_tokens: Option<usize>,
    /// Seed of random draws above temperature 0; the same seed gives the same text
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_short_help = true)]
    pub seed: u64,
}

/// Parses a number of texts that are searched or drawn at once.
fn texts() -> clap::builder::RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=MOST_TEXTS as i64)
}
