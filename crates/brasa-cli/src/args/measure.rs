//! How well and how fast: `perplexity`, `bench`, `eval`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::LoadArguments;
use crate::suggested::{INSTRUCTION_SETS, Suggested};
use crate::values::{self, positive};

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
    /// MiB to read between repetitions to measure this machine's memory bandwidth; 0 measures no ceilings
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
    /// Text that the model continues in each run [default: a few sentences about dictionaries]
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Read that text from a file; - for standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// Tokens that the model generates in each run, at least 2
    #[arg(short, long = "predict", visible_alias = "n-predict", value_name = "N", default_value_t = 64, value_parser = values::several, allow_negative_numbers = true)]
    pub n: usize,
    /// How often each measurement is repeated; the report has the median and the spread
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = positive, allow_negative_numbers = true)]
    pub runs: usize,
    /// Beginning that is computed once and kept, to measure how much sooner prompts that begin with it answer (may be repeated)
    /// [default: the whole prompt]
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
