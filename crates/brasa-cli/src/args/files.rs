//! Arguments of commands that find and make files: `pull`, `discover`, `quantize`, `doctor`.

use std::path::PathBuf;

use brasa::AdapterSource;
use clap::Args;

use super::HubArguments;
use crate::suggested::{Suggested, TYPES};
use crate::values::{adapter, positive};

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

/// `brasa quantize`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct QuantizeArguments {
    /// Checkpoint: a folder or a GGUF file
    #[arg(value_name = "IN", required_unless_present = "list")]
    pub input: Option<PathBuf>,
    /// The GGUF file to write; for a Whisper model, a name ending in .bin makes a file of whisper.cpp
    #[arg(value_name = "OUT", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Type, e.g. Q4_K_M or Q8_0
    #[arg(value_name = "TYPE", required_unless_present = "list", value_parser = Suggested(TYPES), hide_possible_values = true)]
    pub kind: Option<String>,
    /// Merge a low-rank adapter into the weights; may be repeated
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = adapter)]
    pub lora: Vec<AdapterSource>,
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

/// `brasa doctor`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
pub struct DoctorArguments {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
