//! Flags of the commands that show how a model reads a text: `tokenize`, `inspect`, `logits`, `embed`, `rerank`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;

use super::{CacheType, LoadArguments, PromptArguments, SourceArguments};
use crate::suggested::{DEVICES, Suggested};
use crate::values::{self, positive};

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
    /// Pre-tokenizer by its GGUF name, for files without a known one
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
    /// Print the graph, and the program that a device makes of it: the operations, and on a GPU their kernels and the forms of values
    #[arg(long, group = "on_device")]
    pub graph: bool,
    /// List every tensor
    #[arg(long)]
    pub tensors: bool,
    /// Print the memory that the model takes on a device, whether it fits, and which types would fit
    #[arg(long, group = "on_device", conflicts_with_all = ["graph", "tensors"])]
    pub fit: bool,
    /// Device of --fit and --graph: cpu, cuda (NVIDIA GPU 0; cuda:N for number N), or auto, a GPU if there is one [default: auto]
    #[arg(long, value_name = "NAME", value_parser = Suggested(DEVICES), hide_possible_values = true, requires = "on_device", conflicts_with = "attention")]
    pub device: Option<String>,
    /// Most memory of a GPU for --fit, such as 14GiB [default: all]
    #[arg(long, value_name = "SIZE", value_parser = values::size, allow_negative_numbers = true, requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub gpu_memory: Option<NonZeroU64>,
    /// Context length that --fit assumes, in tokens [default: the model's own limit, at most 131,072]
    #[arg(short, long = "ctx-size", value_name = "N", value_parser = positive, allow_negative_numbers = true, requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub context: Option<usize>,
    /// Type of keys and values that --fit assumes [default: f16]
    #[arg(long, value_enum, value_name = "TYPE", requires = "fit", conflicts_with_all = ["graph", "attention"])]
    pub cache_type: Option<CacheType>,
    /// For each token of a text (-p, --file) show the earlier tokens that these attention heads weigh most: LAYER for all heads of a
    /// layer or LAYER:HEAD for one, counted from 0, several separated by commas; or all
    #[arg(long, value_name = "L:H", value_parser = values::heads, conflicts_with_all = ["graph", "tensors", "fit"])]
    pub attention: Option<values::Heads>,
    /// The text to look into
    #[arg(short, long, value_name = "TEXT", requires = "attention")]
    pub prompt: Option<String>,
    /// Read the text from a file; - for standard input
    #[arg(long, value_name = "FILE", requires = "attention", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Draw what --attention shows as a picture: one square a head, a row and a column for each token
    #[arg(long, value_name = "FILE.svg", requires = "attention")]
    pub svg: Option<PathBuf>,
    /// Replace FILE.svg if it exists
    #[arg(long, requires = "svg")]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
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
    /// Take each line as JSON: a text, or an object with a `text`
    #[arg(long, conflicts_with = "lines")]
    pub jsonl: bool,
    /// Print how alike the texts are: the cosine of each pair
    #[arg(long, conflicts_with = "out")]
    pub similarity: bool,
    /// How one vector is made of the states of a text's tokens; none gives the vector of each token [default: as the
    /// model says, else the mean for an encoder, the last for a language model]
    #[arg(long, value_enum, value_name = "WAY", hide_possible_values = false)]
    pub pooling: Option<PoolingName>,
    /// Put the model's prompt of this name before each text, e.g. query
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Cut texts that are too long, in place of refusing them
    #[arg(long)]
    pub truncate: bool,
    /// Cut vectors to N elements, one of the lengths that the model declares
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub dimensions: Option<usize>,
    /// Save the vectors as f32 [texts, elements] in NumPy's format; with --pooling none as [tokens, elements]
    #[arg(long, value_name = "FILE.npy")]
    pub out: Option<PathBuf>,
    /// Replace FILE.npy if it exists
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Keep the vectors' own lengths; otherwise they are scaled to length 1
    #[arg(long)]
    pub raw: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArguments,
}

/// `brasa rerank`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct RerankArguments {
    /// Documents [default: each line of -f or of standard input that is not empty]
    #[arg(value_name = "DOCUMENT", conflicts_with_all = ["file", "jsonl"])]
    pub documents: Vec<String>,
    /// The query that documents are to answer
    #[arg(short, long, value_name = "TEXT")]
    pub query: String,
    /// Read documents from a file, one a line; - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take each line as JSON: a text, or an object with a `text`
    #[arg(long)]
    pub jsonl: bool,
    /// Print only the best N
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub top: Option<usize>,
    /// Criterion for a relevant document, in a sentence, for a language model that judges [default: it answers a search]
    #[arg(long, value_name = "TEXT")]
    pub instruction: Option<String>,
    /// Cut texts that are too long, in place of refusing them; for cross-encoders
    #[arg(long)]
    pub truncate: bool,
    /// Print raw scores, not mapped to 0…1: a cross-encoder's logit, a language model's ln p(yes) - ln p(no)
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
    /// The state of the first token
    Cls,
    /// The states of all tokens, a vector each
    None,
}

impl From<PoolingName> for brasa::Pooling {
    fn from(name: PoolingName) -> Self {
        match name {
            PoolingName::Last => Self::Last,
            PoolingName::Mean => Self::Mean,
            PoolingName::Cls => Self::First,
            PoolingName::None => Self::None,
        }
    }
}
