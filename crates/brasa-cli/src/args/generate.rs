//! How to write a text: `run`, `chat` and `generate`.

use std::path::PathBuf;

use brasa::ProbeKind;
use clap::{Args, ValueEnum};

use super::{LoadArguments, SamplingArguments};
use crate::values;

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
    /// Print events in place of the text, one JSON object a line, the answer last: token, entropy, residual, …
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = values::probe(), conflicts_with = "server", hide_short_help = true)]
    pub probe: Vec<ProbeKind>,
    /// Numbers of the layers, counted from 0, whose events the probes heads, residual, coherence and router print [default: all
    /// layers]
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
    /// Save the prompt's keys and values in a file, and reuse those in it; of a chat, the whole conversation's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub prompt_cache: Option<PathBuf>,
    /// Save the answer's keys and values in the file too
    #[arg(long, hide_short_help = true)]
    pub prompt_cache_all: bool,
    /// Reuse the file's keys and values, and never write the file
    #[arg(long, hide_short_help = true)]
    pub prompt_cache_ro: bool,
}

/// How to guess tokens ahead.
#[derive(Debug, Clone, Args)]
pub struct DraftArguments {
    /// Guess tokens that repeat earlier text: the same answer, sooner if it copies from the prompt
    #[arg(long, hide_short_help = true)]
    pub lookup: bool,
    /// Small model with the same tokens that guesses the model's next ones (-md): the same answer, sooner
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub model_draft: Option<PathBuf>,
    /// Most tokens guessed at once, including those that a grammar forces; 0 for none
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub draft_max: usize,
    /// Fewest tokens guessed at once
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub draft_min: usize,
}

/// A running server that computes the answer.
#[derive(Debug, Clone, Args)]
pub struct RemoteArguments {
    /// Ask the server at URL (its key in BRASA_API_KEY); -m then names one of its models
    #[arg(long, value_name = "URL", hide_short_help = true, conflicts_with_all = [
        "hf_repo", "context", "threads", "device", "gpu_memory", "precision", "deterministic", "cache_type_k", "cache_type_v", "chunk",
        "lora", "strict", "pre", "chat_template", "chat_template_file", "lookup", "model_draft", "draft_max", "draft_min",
    ])]
    pub server: Option<String>,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Switch {
    On,
    Off,
}
