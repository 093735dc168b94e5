//! Flags. A flag that llama.cpp has too has its name.

mod defaults;
mod files;
mod generate;
mod load;
mod look;
mod measure;
mod rules;
mod sampling;
mod serve;
mod speech;
mod train;

use std::ffi::OsString;

use clap::{Arg, ArgAction, ColorChoice, CommandFactory, Parser, Subcommand};

use crate::paint::When;

pub use defaults::DefaultsArguments;
pub use files::{DiscoverArguments, DoctorArguments, PullArguments, QuantizeArguments};
pub use generate::{
    DraftArguments, GenerateArguments, PromptArguments, PromptCacheArguments, RemoteArguments, RunArguments,
    Switch,
};
pub use load::{CacheType, HubArguments, LoadArguments, PrecisionName, SetupArguments, SourceArguments};
pub use look::{
    EmbedArguments, InspectArguments, LogitsArguments, PoolingName, RerankArguments, TokenizeArguments,
};
pub use measure::{BenchArguments, EvalArguments, PerplexityArguments, TableFormat};
pub use rules::RuleArguments;
pub use sampling::{PolicyName, SamplingArguments};
pub use serve::ServeArguments;
pub use speech::TranscribeArguments;
pub use train::{
    DtypeName, FormName, LearnName, LongName, LossName, MethodName, OptimizerName, RecomputeName,
    ScheduleName, TrainArguments, TurnsName,
};

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
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always (in files and pipes too) or never [default: auto]
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = When::Auto, hide_default_value = true, hide_possible_values = true, hide_short_help = true)]
    pub color: When,
}

/// The commands.
#[expect(clippy::large_enum_variant, reason = "there is one, for as long as the program runs")]
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
    /// Turn speech in sound files, or live from a microphone's pipe, into text or subtitles
    Transcribe(TranscribeArguments),
    /// Rank documents by how well they answer a query
    Rerank(RerankArguments),
    /// Convert a checkpoint to a (quantised) GGUF file
    Quantize(QuantizeArguments),
    /// Fine-tune a model: learn a low-rank adapter from examples
    Train(TrainArguments),
    /// Measure prompt and generation speed
    Bench(BenchArguments),
    /// Test a model in a minute: speed, cached prompts, equal answers to equal requests
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

/// Options of `run` that the program's short help shows besides its commands.
const SHORT_HELP: [&str; 7] = ["prompt", "n", "temperature", "model", "hf_repo", "context", "color"];

impl Arguments {
    /// The command line's parser, with or without colours in help and errors. The short help of the program leaves most options
    /// to the help of `run`, so that it fits a screen.
    pub fn parser(color: When) -> clap::Command {
        let color = match color {
            When::Auto => ColorChoice::Auto,
            When::Always => ColorChoice::Always,
            When::Never => ColorChoice::Never,
        };
        // A chat prints no JSON object and says so if it is asked for one.
        let root =
            Self::command().mut_subcommand("chat", |chat| chat.mut_arg("json", |json| json.hide(true)));
        // No model of speech is built in.
        let root = root.mut_subcommand("transcribe", |transcribe| {
            transcribe.mut_arg("model", |model| {
                model.help("Model of speech: a folder of Hugging Face or MLX, a GGUF file, or a ggml-*.bin of whisper.cpp")
            })
        });
        // A word that is no option becomes `--model` before the parser sees it.
        let with_model =
            ["run", "chat", "generate", "perplexity", "tokenize", "logits", "embed", "bench", "serve"];
        let root = with_model.into_iter().fold(root, |root, name| {
            let rest = match name {
                "serve" => "[MODEL]...",
                "perplexity" => "--file <FILE> [MODEL]",
                _ => "[MODEL]",
            };
            root.mut_subcommand(name, |command| {
                command.override_usage(format!("brasa {name} [OPTIONS] {rest}"))
            })
        });
        root.color(color).mut_args(|argument| {
            let is_shown = SHORT_HELP.contains(&argument.get_id().as_str());
            if is_shown { argument } else { argument.hide_short_help(true) }
        })
    }

    /// The parser for a command line with these words.
    ///
    /// The long help of `serve` has one line for each option, since it would not fit on two screens otherwise.
    pub fn parser_of(words: &[OsString], color: When) -> clap::Command {
        let parser = Self::parser(color);
        let is_asked = |word: &str| words.iter().any(|other| other == word);
        if !(is_asked("serve") && is_asked("--help")) {
            return parser;
        }
        let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
        // The heading of the last options is not for it.
        let help = help.help_heading(None::<&'static str>);
        parser.mut_subcommand("serve", |serve| {
            serve.mut_args(|option| option.hide_short_help(false)).disable_help_flag(true).arg(help)
        })
    }

    /// The flags that name the model, if the command opens a model.
    ///
    /// `None` if the command uses a server instead.
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
            Some(Command::Transcribe(arguments)) => {
                arguments.name_model();
                Some(&mut arguments.source)
            }
            Some(Command::Rerank(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Bench(arguments)) => Some(&mut arguments.load.source),
            Some(Command::Train(arguments)) => {
                if let Some(path) = arguments.path.take() {
                    arguments.source.model = Some(path);
                }
                Some(&mut arguments.source)
            }
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
