//! Flags. A flag that llama.cpp has too has its name.

mod serve;

use std::ffi::OsString;
use std::path::PathBuf;

use brasa::{KvType, ProbeKind};
use clap::{Arg, ArgAction, Args, ColorChoice, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::paint::When;
use crate::suggested::{DEVICES, INSTRUCTION_SETS, Suggested, TYPES};
use crate::values::{self, Limit, Seed, positive};

pub use serve::ServeArguments;

/// Runs language models on the machine you have.
///
/// Without a command, chats. Without a model, uses the small dictionary assistant that is built in.
#[derive(Debug, Parser)]
#[command(
    name = "brasa",
    version,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    max_term_width = 100
)]
pub struct Arguments {
    /// The command; `run` if none is named.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `run`.
    #[command(flatten)]
    pub run: RunArguments,
    /// Colours: auto, always or never [default: auto]
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = When::Auto, hide_default_value = true, hide_possible_values = true, hide_short_help = true)]
    pub color: When,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Chat, or answer one question (-p)
    Run(RunArguments),
    /// Chat, also line by line through a pipe; -p is the first message
    Chat(RunArguments),
    /// Continue a raw text
    Generate(GenerateArguments),
    /// Download a model from Hugging Face's hub
    Pull(PullArguments),
    /// Show a text's token ids, or the text of token ids
    Tokenize(TokenizeArguments),
    /// Show a model's configuration, tensors and graph
    Inspect(InspectArguments),
    /// List the models below a folder
    Discover(DiscoverArguments),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArguments),
    /// Show or save the logits after given tokens
    Logits(LogitsArguments),
    /// Make vectors of texts, or compare texts by them
    Embed(EmbedArguments),
    /// Convert a checkpoint to a (quantised) GGUF file
    Quantize(QuantizeArguments),
    /// Measure prompt and generation speed
    Bench(BenchArguments),
    /// Measure speed and reuse, and check that equal answers are equal, in a minute
    Eval(EvalArguments),
    /// Serve models over HTTP, in the forms of OpenAI, Anthropic and llama.cpp
    Serve(ServeArguments),
    /// Check this machine, and that the built-in model answers
    Doctor(DoctorArguments),
    /// Print a completion script for a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// Options of `run` that the short help of the program shows beside its commands.
const SHORT_HELP: [&str; 10] = [
    "prompt",
    "file",
    "system_prompt",
    "n",
    "temperature",
    "model",
    "hf_repo",
    "context",
    "verbose",
    "color",
];

impl Arguments {
    /// The parser, which paints its help and its errors or does not. The short help of the program leaves most options to the help of `run`, so that it fits a screen.
    pub fn parser(color: When) -> clap::Command {
        let color = match color {
            When::Auto => ColorChoice::Auto,
            When::Always => ColorChoice::Always,
            When::Never => ColorChoice::Never,
        };
        // A chat prints no JSON object and says so if it is asked for one.
        let root =
            Self::command().mut_subcommand("chat", |chat| chat.mut_arg("json", |json| json.hide(true)));
        root.color(color).mut_args(|argument| {
            let is_shown = SHORT_HELP.contains(&argument.get_id().as_str());
            if is_shown { argument } else { argument.hide_short_help(true) }
        })
    }

    /// The parser for these words of the command line.
    ///
    /// The long help of `serve` has a line for an option, since it would not fit two screens otherwise.
    pub fn parser_of(words: &[OsString], color: When) -> clap::Command {
        let parser = Self::parser(color);
        let is_asked = |word: &str| words.iter().any(|other| other == word);
        if !(is_asked("serve") && is_asked("--help")) {
            return parser;
        }
        let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
        parser.mut_subcommand("serve", |serve| {
            serve.mut_args(|option| option.hide_short_help(false)).disable_help_flag(true).arg(help)
        })
    }

    /// The flags that name the model, if the command opens one.
    ///
    /// With a server the command opens none.
    pub fn source_mut(&mut self) -> Option<&mut SourceArguments> {
        let remote = match &self.command {
            None => Some(&self.run.remote),
            Some(Command::Run(arguments) | Command::Chat(arguments)) => Some(&arguments.remote),
            Some(Command::Generate(arguments)) => Some(&arguments.remote),
            _ => None,
        };
        if remote.is_some_and(|remote| remote.server.is_some()) {
            return None;
        }
        match &mut self.command {
            None => Some(&mut self.run.load.source),
            Some(Command::Run(arguments) | Command::Chat(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Generate(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Tokenize(arguments)) => Some(&mut arguments.source),
            Some(Command::Inspect(arguments)) => {
                if let Some(path) = arguments.path.take() {
                    arguments.source.model = Some(path);
                }
                Some(&mut arguments.source)
            }
            Some(Command::Perplexity(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Logits(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Embed(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Bench(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Eval(arguments)) => {
                if let Some(path) = arguments.path.take() {
                    arguments.load.source.model = Some(path);
                }
                Some(&mut arguments.load.source)
            }
            _ => None,
        }
    }
}

/// Which model.
#[derive(Debug, Clone, Args)]
pub struct SourceArguments {
    /// Model: a GGUF file, or a folder with a Hugging Face or MLX checkpoint
    /// [default: the built-in one]
    #[arg(short, long, value_name = "PATH", conflicts_with = "hf_repo")]
    pub model: Option<PathBuf>,
    /// Model of Hugging Face's hub, USER/REPO[:QUANT], downloaded if it is not there (-hf)
    #[arg(long, value_name = "USER/REPO")]
    pub hf_repo: Option<String>,
    #[command(flatten)]
    pub hub: HubArguments,
}

/// Which model, and how to load it.
#[derive(Debug, Clone, Args)]
pub struct LoadArguments {
    #[command(flatten)]
    pub source: SourceArguments,
    #[command(flatten)]
    pub setup: SetupArguments,
    /// Report more on standard error
    #[arg(short, long)]
    pub verbose: bool,
}

/// How to load a model.
#[derive(Debug, Clone, Args)]
pub struct SetupArguments {
    /// Context length in tokens [default: the model's, at most 131072]
    #[arg(short, long = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub context: Option<usize>,
    /// Threads [default: as many as this process may use]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Device: auto, cpu, cuda, or cuda:N for one GPU [default: auto]
    #[arg(long, value_name = "NAME", value_parser = Suggested(DEVICES), hide_possible_values = true)]
    pub device: Option<String>,
    /// Precision of the arithmetic
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PrecisionName::Fast, hide_short_help = true)]
    pub precision: PrecisionName,
    /// Give the same bits in any company of requests and for any chunks of a prompt: no prompts in bf16
    #[arg(long, hide_short_help = true)]
    pub deterministic: bool,
    /// Element type of cached keys (-ctk) [default: f16; f32 in reference precision]
    #[arg(long, value_enum, value_name = "TYPE", value_delimiter = ',', hide_short_help = true)]
    pub cache_type_k: Vec<CacheType>,
    /// Element type of cached values (-ctv); must be that of the keys
    #[arg(long, value_enum, value_name = "TYPE", value_delimiter = ',', hide_short_help = true)]
    pub cache_type_v: Vec<CacheType>,
    /// Prompt tokens computed at once (-ub) [default: 512 on a CPU, 2048 on a GPU]
    #[arg(long = "ubatch-size", value_name = "N", value_parser = positive, allow_negative_numbers = true, hide_short_help = true)]
    pub chunk: Option<usize>,
    /// Refuse checkpoints with unknown configuration keys or unused tensors
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
    /// Pre-tokenizer by its GGUF name, for files that name none or an unknown one
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub pre: Option<String>,
    /// Jinja chat template to use in place of the model's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,
}

/// How to guess tokens ahead.
#[derive(Debug, Clone, Args)]
pub struct DraftArguments {
    /// Guess ahead what the text repeats: the same answer sooner where it copies from the prompt
    #[arg(long, hide_short_help = true)]
    pub lookup: bool,
    /// Small model with the same tokens that guesses ahead what the model says (-md): the same answer sooner
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub model_draft: Option<PathBuf>,
    /// Most tokens guessed at once, those that a grammar forces among them; 0 for none
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub draft_max: usize,
    /// Fewest tokens guessed at once
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub draft_min: usize,
}

/// A running server that computes the answer.
#[derive(Debug, Clone, Args)]
pub struct RemoteArguments {
    /// Ask the server at URL, whose key is in BRASA_API_KEY; -m is then its name of a model
    #[arg(long, value_name = "URL", hide_short_help = true, conflicts_with_all = [
        "hf_repo", "context", "threads", "device", "precision", "deterministic", "cache_type_k", "cache_type_v", "chunk",
        "strict", "pre", "chat_template_file", "lookup", "model_draft", "draft_max", "draft_min",
    ])]
    pub server: Option<String>,
}

/// How to reach the hub.
#[derive(Debug, Clone, Args)]
pub struct HubArguments {
    /// GGUF file of the repository (-hff) [default: Q4_K_M, else Q8_0, else the first]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub hf_file: Option<String>,
    /// Token for the hub (-hft) [default: HF_TOKEN, or the one of `hf auth login`]
    #[arg(long, value_name = "TOKEN", hide_short_help = true)]
    pub hf_token: Option<String>,
    /// Download nothing; take what is in the hub's cache
    #[arg(long, hide_short_help = true)]
    pub offline: bool,
}

impl SourceArguments {
    /// The model's name in messages.
    pub fn name(&self) -> String {
        if let Some(repo) = &self.hf_repo {
            return repo.clone();
        }
        self.model.as_ref().map_or_else(|| crate::bundled::NAME.into(), |path| path.display().to_string())
    }
}

/// Precision of the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionName {
    /// The device's fastest arithmetic within its error bounds
    Fast,
    /// f32 activations, exactly decoded weights, f32 cache
    Reference,
}

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum CacheType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0", alias = "q8")]
    Q8,
}

impl From<CacheType> for KvType {
    fn from(name: CacheType) -> Self {
        match name {
            CacheType::F32 => Self::F32,
            CacheType::F16 => Self::F16,
            CacheType::Bf16 => Self::BF16,
            CacheType::Q8 => Self::Q8,
        }
    }
}

/// How tokens are drawn and when to stop.
#[derive(Debug, Clone, Args)]
pub struct SamplingArguments {
    /// Most tokens to generate; -1 until the model stops or the context is full
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N", default_value = "-1", value_parser = values::limit, allow_negative_numbers = true)]
    pub n: Limit,
    /// Random seed; -1 for a new one each time
    #[arg(short, long, value_name = "N", default_value = "-1", value_parser = values::seed, allow_negative_numbers = true)]
    pub seed: Seed,
    /// Temperature; 0 takes the most probable token [default: the model's, else 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T", value_parser = values::temperature, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from the K most probable tokens; 0 for all [default: the model's, else 40]
    #[arg(long, value_name = "K", value_parser = values::count, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Draw from the most probable tokens that reach probability P; 1 for all [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = values::top_p, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Leave out tokens less probable than P times the best; 0 for none [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = values::min_p, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Make tokens that occurred less likely by this factor [default: the model's, else 1]
    #[arg(long, value_name = "F", value_parser = values::repeat_penalty, allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Recent tokens that count for the penalties; -1 for all
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::limit, allow_negative_numbers = true, hide_short_help = true)]
    pub repeat_last_n: Limit,
    /// Subtract this from a token's logit for each time it occurred
    #[arg(long, value_name = "F", default_value = "0", value_parser = values::penalty, allow_negative_numbers = true, hide_short_help = true)]
    pub frequency_penalty: f32,
    /// Subtract this from the logit of every token that occurred
    #[arg(long, value_name = "F", default_value = "0", value_parser = values::penalty, allow_negative_numbers = true, hide_short_help = true)]
    pub presence_penalty: f32,
    /// Add BIAS to a token's logit: ID+BIAS or ID-BIAS, e.g. 15043+1 (may be repeated)
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = values::bias, allow_hyphen_values = true, hide_short_help = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Order of the filters
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = OrderName::TemperatureFirst, hide_short_help = true)]
    pub sampling_order: OrderName,
    /// End the answer before this text (may be repeated)
    #[arg(long, value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Make the answer JSON of this schema; {} for any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "grammar_source")]
    pub json_schema: Option<String>,
    /// Make the answer JSON of the schema in a file (-jf)
    #[arg(long, value_name = "FILE", group = "grammar_source", hide_short_help = true)]
    pub json_schema_file: Option<PathBuf>,
    /// Make the answer a text of this grammar, in GBNF or, behind a first line %llguidance {}, in Lark
    #[arg(long, value_name = "GRAMMAR", group = "grammar_source", hide_short_help = true)]
    pub grammar: Option<String>,
    /// Make the answer a text of the grammar in a file
    #[arg(long, value_name = "FILE", group = "grammar_source", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// Go on when the model ends its answer
    #[arg(long, hide_short_help = true)]
    pub ignore_eos: bool,
    /// If the context is full: fail, stop, or slide (drop older text and go on) [default: error; a chat drops its oldest turns]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub context_policy: Option<PolicyName>,
    /// Leading tokens that stay when the context slides
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub keep: usize,
}

/// Behaviour when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// Fail after the text so far
    Error,
    /// End the answer
    Stop,
    /// Drop the older half of the text and go on
    Slide,
}

/// Order of the sampling filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// temperature, top-p, top-k, min-p
    TemperatureFirst,
    /// top-k, top-p, min-p, temperature: llama.cpp's
    LlamaCpp,
    /// top-p, min-p, top-k, temperature: MLX-LM's
    Mlx,
    /// temperature, top-k, min-p, top-p
    Akunu,
}

/// The prompt, and where it comes from.
#[derive(Debug, Clone, Args)]
pub struct PromptArguments {
    /// The prompt
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Read the prompt from a file, byte for byte; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Read \n, \t, \r, \", \' and \\ in the prompt as escapes
    #[arg(short, long)]
    pub escape: bool,
}

/// A file for keys and values.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_field_names, reason = "the names of llama.cpp's options")]
pub struct PromptCacheArguments {
    /// Keep the prompt's keys and values in a file, and begin with those that are there; of a chat, the conversation's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub prompt_cache: Option<PathBuf>,
    /// Keep the answer's in the file too
    #[arg(long, hide_short_help = true)]
    pub prompt_cache_all: bool,
    /// Read the file and never write it
    #[arg(long, hide_short_help = true)]
    pub prompt_cache_ro: bool,
}

/// `brasa run`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct RunArguments {
    #[command(flatten)]
    pub prompt: PromptArguments,
    /// System prompt (-sys)
    #[arg(long, value_name = "TEXT")]
    pub system_prompt: Option<String>,
    /// Read the system prompt from a file (-sysf)
    #[arg(long, value_name = "FILE", conflicts_with = "system_prompt", hide_short_help = true)]
    pub system_prompt_file: Option<PathBuf>,
    #[command(flatten)]
    pub prompt_cache: PromptCacheArguments,
    /// Let the model think first, if its template has a switch for that [default: the template's]
    #[arg(long, value_enum, value_name = "on|off")]
    pub reasoning: Option<Switch>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub drafts: DraftArguments,
    #[command(flatten)]
    pub load: LoadArguments,
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Switch {
    On,
    Off,
}

/// `brasa generate`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct GenerateArguments {
    #[command(flatten)]
    pub prompt: PromptArguments,
    #[command(flatten)]
    pub prompt_cache: PromptCacheArguments,
    /// The prompt as token ids, used as they are
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    pub ids: Option<Vec<u32>>,
    /// Recognise special tokens in the prompt's text
    #[arg(long)]
    pub parse_special: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Print what happens instead of the text, a JSON object a line: token, entropy, residual, …; the answer is the last
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = values::probe(), conflicts_with = "server", hide_short_help = true)]
    pub probe: Vec<ProbeKind>,
    /// Layers that heads, residual, coherence and router are of [default: all]
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "probe", value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub probe_layers: Vec<usize>,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub drafts: DraftArguments,
    #[command(flatten)]
    pub load: LoadArguments,
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// `brasa pull`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct PullArguments {
    /// Repository, and the type of GGUF file to take if there are several
    #[arg(value_name = "USER/REPO[:QUANT]")]
    pub repo: String,
    #[command(flatten)]
    pub hub: HubArguments,
}

/// `brasa tokenize`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct TokenizeArguments {
    #[command(flatten)]
    pub source: SourceArguments,
    #[command(flatten)]
    pub prompt: PromptArguments,
    /// Turn these ids into text instead
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    pub decode: Option<Vec<u32>>,
    /// Add no special token at all
    #[arg(long)]
    pub no_bos: bool,
    /// Recognise special tokens in the text
    #[arg(long)]
    pub parse_special: bool,
    /// Pre-tokenizer by its GGUF name, for files that name none or an unknown one
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `brasa inspect`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct InspectArguments {
    /// Model [default: the built-in one]
    #[arg(value_name = "PATH", conflicts_with_all = ["model", "hf_repo"])]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub source: SourceArguments,
    /// Print the graph, and the program that this machine makes of it
    #[arg(long)]
    pub graph: bool,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print the memory that the model takes on a device, whether it fits, and what would
    #[arg(long, conflicts_with_all = ["graph", "tensors"])]
    pub fit: bool,
    /// Device of --fit: auto, cpu, cuda, cuda:N [default: auto]
    #[arg(long, value_name = "NAME", value_parser = Suggested(DEVICES), hide_possible_values = true, requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub device: Option<String>,
    /// Tokens of a text of --fit [default: the model's own limit, at most 131,072]
    #[arg(short, long = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true, requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub context: Option<usize>,
    /// Type of keys and values of --fit [default: f16]
    #[arg(long, value_enum, value_name = "TYPE", requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub cache_type: Option<CacheType>,
    /// Show what attention looks at in a text (-p, --file): LAYER or LAYER:HEAD from 0 on, several with commas, or all
    #[arg(long, value_name = "L:H", value_parser = values::heads, conflicts_with_all = ["graph", "tensors", "fit"])]
    pub attention: Option<values::Heads>,
    /// The text to look into
    #[arg(short, long, value_name = "TEXT", requires = "attention")]
    pub prompt: Option<String>,
    /// Read the text from a file; - for standard input
    #[arg(long, value_name = "FILE", requires = "attention", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Draw the attention as a heat map
    #[arg(long, value_name = "FILE.svg", requires = "attention")]
    pub svg: Option<PathBuf>,
    /// Replace FILE.svg if it exists
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `brasa discover`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct DiscoverArguments {
    /// Folder to search
    #[arg(value_name = "DIR", default_value = ".", value_hint = clap::ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `brasa perplexity`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct PerplexityArguments {
    /// The text
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// `brasa logits`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct LogitsArguments {
    #[command(flatten)]
    pub prompt: PromptArguments,
    /// Token ids, used as they are
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', conflicts_with_all = ["prompt", "file"])]
    pub ids: Option<Vec<u32>>,
    /// How many of the most probable next tokens to show
    #[arg(long, value_name = "K", default_value_t = 8)]
    pub top: usize,
    /// Save all logits as f32 [rows, vocabulary] in NumPy's format
    #[arg(long, value_name = "FILE.npy")]
    pub out: Option<PathBuf>,
    /// Replace FILE.npy if it exists
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// `brasa embed`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct EmbedArguments {
    #[command(flatten)]
    pub prompt: PromptArguments,
    /// Take each line that is not empty as a text of its own
    #[arg(long)]
    pub lines: bool,
    /// Print how alike the texts are: the cosine of each pair
    #[arg(long, requires = "lines")]
    pub similarity: bool,
    /// How the states of a text's tokens become one vector [default: as the model says, else last]
    #[arg(long, value_enum, value_name = "WAY", hide_possible_values = false)]
    pub pooling: Option<PoolingName>,
    /// Leave vectors as long as the model makes them; otherwise their length is 1
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// `--pooling`
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum PoolingName {
    /// The state of the last token
    Last,
    /// The mean of all states
    Mean,
}

impl From<PoolingName> for brasa::Pooling {
    fn from(name: PoolingName) -> Self {
        match name {
            PoolingName::Last => Self::Last,
            PoolingName::Mean => Self::Mean,
        }
    }
}

/// `brasa quantize`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct QuantizeArguments {
    /// Checkpoint: a folder or a GGUF file
    #[arg(value_name = "IN", required_unless_present = "list")]
    pub input: Option<PathBuf>,
    /// The GGUF file to write
    #[arg(value_name = "OUT", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Type, e.g. Q4_K_M or Q8_0
    #[arg(value_name = "TYPE", required_unless_present = "list", value_parser = Suggested(TYPES), hide_possible_values = true)]
    pub kind: Option<String>,
    /// List the types
    #[arg(long)]
    pub list: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    pub force: bool,
    /// Pre-tokenizer by its GGUF name, for tokenizers that are not recognised
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
    /// Threads [default: as many as this process may use]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub threads: Option<usize>,
    /// Report every tensor on standard error
    #[arg(short, long)]
    pub verbose: bool,
}

/// `brasa bench`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct BenchArguments {
    /// Prompt lengths to measure; 0 for none
    #[arg(short = 'p', long = "n-prompt", value_name = "N", value_delimiter = ',', default_value = "512", value_parser = values::measured, allow_negative_numbers = true)]
    pub prompt: Vec<usize>,
    /// Generation lengths to measure; 0 for none
    #[arg(short, long = "n-gen", value_name = "N", value_delimiter = ',', default_value = "128", value_parser = values::measured, allow_negative_numbers = true)]
    pub n: Vec<usize>,
    /// Tokens already in the context before each measurement
    #[arg(short, long = "n-depth", value_name = "N", value_delimiter = ',', default_value = "0", value_parser = values::measured, allow_negative_numbers = true)]
    pub depth: Vec<usize>,
    /// Sequences that generate together (-npl)
    #[arg(long = "n-parallel", value_name = "N", value_delimiter = ',', default_value = "1", value_parser = positive, allow_negative_numbers = true)]
    pub parallel: Vec<usize>,
    /// Instruction sets to measure, e.g. avx2,avx512 [default: the best, or BRASA_ISA]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = Suggested(INSTRUCTION_SETS), hide_possible_values = true)]
    pub isa: Vec<String>,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = positive, allow_negative_numbers = true)]
    pub repetitions: usize,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TableFormat::Md)]
    pub output: TableFormat,
    /// MiB that the probe of this machine's read bandwidth reads between repetitions; 0 measures no ceilings
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = values::measured, allow_negative_numbers = true, hide_short_help = true)]
    pub probe_mib: usize,
    /// Also print the time of each operation of a prompt and of a decode step
    #[arg(long)]
    pub profile: bool,
    /// Draw the profile as a bar chart; implies --profile
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Replace FILE.svg if it exists
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// Measure the time from starting the program to the first byte of an answer instead
    #[arg(long, conflicts_with_all = ["profile", "svg", "depth", "parallel"])]
    pub startup: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// `brasa eval`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct EvalArguments {
    /// Model [default: the built-in one]
    #[arg(value_name = "PATH", conflicts_with_all = ["model", "hf_repo"])]
    pub path: Option<PathBuf>,
    /// The text to continue [default: a few sentences about dictionaries]
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Read the text from a file; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Tokens of each answer, at least 2
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N", default_value_t = 64, value_parser = values::several, allow_negative_numbers = true)]
    pub n: usize,
    /// Runs of each measurement
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = positive, allow_negative_numbers = true)]
    pub runs: usize,
    /// Text that prompts begin with, kept in the cache (may be repeated) [default: the whole prompt]
    #[arg(long, value_name = "TEXT")]
    pub cache_prompt: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// Output format of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum TableFormat {
    Md,
    Json,
    Csv,
}

/// `brasa doctor`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
