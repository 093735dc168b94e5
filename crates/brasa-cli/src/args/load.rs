//! Arguments that choose a model and the way to load it.

use std::num::NonZeroU64;
use std::path::PathBuf;

use brasa::{AdapterSource, KvType};
use clap::{Args, ValueEnum};

use crate::suggested::{DEVICES, Suggested};
use crate::values::{self, positive};

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

impl SourceArguments {
    /// The model's name in messages.
    pub fn name(&self) -> String {
        if let Some(repo) = &self.hf_repo {
            return repo.clone();
        }
        self.model.as_ref().map_or_else(|| crate::bundled::NAME.into(), |path| path.display().to_string())
    }
}

/// Arguments that choose a model and the way to load it.
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
    /// Device that computes: cpu, cuda (NVIDIA GPU 0; cuda:N for number N), or auto, a GPU that works or else the CPU [default: auto]
    #[arg(long, value_name = "NAME", value_parser = Suggested(DEVICES), hide_possible_values = true)]
    pub device: Option<String>,
    /// Most memory of a GPU, such as 14GiB [default: all]
    #[arg(long, value_name = "SIZE", value_parser = values::size, allow_negative_numbers = true, hide_short_help = true)]
    pub gpu_memory: Option<NonZeroU64>,
    /// Precision of the arithmetic
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PrecisionName::Fast, hide_short_help = true)]
    pub precision: PrecisionName,
    /// Make results independent of other requests and of how prompts are cut, bit for bit: no prompts in bf16
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
    /// LoRA adapter of PEFT, MLX-LM or llama.cpp, applied at SCALE times its own scale (may be repeated)
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = values::adapter, hide_short_help = true)]
    pub lora: Vec<AdapterSource>,
    /// Refuse checkpoints with unknown configuration keys or unused tensors
    #[arg(long, hide_short_help = true)]
    pub strict: bool,
    /// Pre-tokenizer by its GGUF name, for files without a known one
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub pre: Option<String>,
    /// Chat template in place of the model's, by a name such as chatml or llama3, or in Jinja
    #[arg(long, value_name = "NAME", value_parser = values::chat_template, conflicts_with = "chat_template_file", hide_short_help = true)]
    pub chat_template: Option<String>,
    /// Jinja chat template to use in place of the model's
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,
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
