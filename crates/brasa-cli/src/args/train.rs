//! Fine-tuning: `train`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{PrecisionName, SourceArguments};
use crate::suggested::{DEVICES, Suggested};
use crate::values::{adafactor, betas, lr_schedule, own_alpha, own_rank, positive, size};
use brasa::train::optimizer::{Adafactor, MlxSchedule};

/// `brasa train`
#[derive(Debug, Clone, Args)]
#[allow(missing_docs)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct TrainArguments {
    /// Model, in place of -m
    #[arg(value_name = "MODEL", conflicts_with_all = ["model", "hf_repo"])]
    pub path: Option<PathBuf>,
    #[command(flatten)]
    pub source: SourceArguments,
    /// Examples: a folder with train.jsonl (and valid.jsonl, test.jsonl), or a file; .csv too
    #[arg(long, value_name = "PATH", required_unless_present_any = ["plot", "config"])]
    pub data: Option<PathBuf>,
    /// YAML file of mlx_lm.lora; MLX-LM's defaults for all other settings
    #[arg(short, long, value_name = "FILE", conflicts_with = "plot")]
    pub config: Option<PathBuf>,
    /// Folder for results, metrics and checkpoint
    #[arg(long, alias = "adapter-path", value_name = "DIR", default_value = "adapter", value_hint = clap::ValueHint::DirPath)]
    pub out: PathBuf,
    /// Go on from the checkpoint in the folder
    #[arg(long)]
    pub resume: bool,
    /// Load the finished adapter into the `brasa serve --lora-dir` at URL, whose key is in BRASA_API_KEY
    #[arg(long, value_name = "URL", conflicts_with = "plot", hide_short_help = true)]
    pub server: Option<String>,
    /// The adapter's name at the server [default: that of its folder]
    #[arg(long, value_name = "NAME", requires = "server", hide_short_help = true)]
    pub serve_as: Option<String>,
    /// Load each new best adapter into the server while the run goes on
    #[arg(long, requires = "server", hide_short_help = true)]
    pub serve_best: bool,
    /// Longest time for the server to load an adapter, which stays in its folder
    #[arg(long, value_name = "SECONDS", requires = "server", default_value_t = 60, hide_short_help = true,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub serve_within: u64,
    /// Compare the runs in these folders, in place of training
    #[arg(long, value_name = "RUN", num_args = 1.., conflicts_with = "data", value_hint = clap::ValueHint::DirPath)]
    pub plot: Vec<PathBuf>,
    /// File of the curves that --plot compares
    #[arg(long, value_name = "FILE", requires = "plot")]
    pub svg: Option<PathBuf>,

    /// Passes over the examples
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 3, conflicts_with = "steps", help_heading = "Course")]
    pub epochs: usize,
    /// Updates, in place of passes
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course")]
    pub steps: Option<usize>,
    /// Batches of all updates, as MLX-LM counts
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with_all = ["epochs", "steps"], help_heading = "Course", hide = true)]
    pub iters: Option<usize>,
    /// Tokens computed at once, of as many examples as fit
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 512, help_heading = "Course")]
    pub batch_tokens: usize,
    /// Most examples of a batch
    #[arg(long, alias = "batch-size", value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub batch_examples: Option<usize>,
    /// Batches of an update
    #[arg(long, alias = "grad-accumulation-steps", value_name = "N", value_parser = positive, default_value_t = 1, help_heading = "Course", hide_short_help = true)]
    pub accumulate: usize,
    /// Compute results again for the gradient, in place of keeping them: less memory, more time [WHAT: blocks unless it is named]
    #[arg(long, alias = "grad-checkpoint", value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "blocks", help_heading = "Course", hide_short_help = true)]
    pub recompute: Option<RecomputeName>,
    /// Updates between two evaluations on valid.jsonl [default: a tenth of all]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub evaluate_every: Option<usize>,
    /// Batches between two evaluations, as MLX-LM counts
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "evaluate_every", help_heading = "Course", hide = true)]
    pub steps_per_eval: Option<usize>,
    /// Most batches of an evaluation on valid.jsonl [default: all]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub val_batches: Option<usize>,
    /// Most batches of the evaluation on test.jsonl [default: all]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub test_batches: Option<usize>,
    /// Updates between two lines with the mean loss since the last line [default: a tenth of all if there is no progress bar]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub report_every: Option<usize>,
    /// Batches between two lines that tell the loss, as MLX-LM counts
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "report_every", help_heading = "Course", hide = true)]
    pub steps_per_report: Option<usize>,
    /// Accepted for MLX-LM's command lines: this command always trains
    #[arg(long = "train", help_heading = "Course", hide = true)]
    pub is_training: bool,
    /// Accepted for MLX-LM's command lines: the loss on test.jsonl is always measured if the file is there
    #[arg(long = "test", help_heading = "Course", hide = true)]
    pub is_testing: bool,
    /// Updates between two checkpoints
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 100, help_heading = "Course", hide_short_help = true)]
    pub save_every: usize,
    /// End after N evaluations in a row without a new best
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Course", hide_short_help = true)]
    pub patience: Option<usize>,
    /// Seed of the order of examples and of the adapter's first values
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Course", hide_short_help = true)]
    pub seed: u64,

    /// Loss to minimise
    #[arg(long, value_enum, value_name = "NAME", default_value_t = LossName::Tokens, help_heading = "Course", hide_short_help = true)]
    pub loss: LossName,
    /// For --loss dpo: how strictly the model keeps to its old answers [default: 0.1]
    #[arg(long, value_name = "X", help_heading = "Course", hide_short_help = true)]
    pub beta: Option<f64>,

    /// Kind of adapter, or full for none
    #[arg(long, alias = "fine-tune-type", value_enum, value_name = "HOW", default_value_t = MethodName::Lora, help_heading = "Adapter", hide_short_help = true)]
    pub method: MethodName,
    /// Rank of the adapter
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 8, help_heading = "Adapter")]
    pub rank: usize,
    /// Strength α of the adapter: its output is multiplied by α/rank, with --method rslora by α/√rank [default: twice the rank]
    #[arg(long, value_name = "X", help_heading = "Adapter", hide_short_help = true)]
    pub alpha: Option<f32>,
    /// Layers: names such as q_proj and /expressions/, separated by commas; all, experts [default: all, with --method full every parameter]
    #[arg(long, value_name = "NAMES", help_heading = "Adapter")]
    pub targets: Option<String>,
    /// Begin with the values of this adapter, in any form
    #[arg(
        long,
        alias = "resume-adapter-file",
        value_name = "PATH",
        help_heading = "Adapter",
        hide_short_help = true
    )]
    pub from: Option<PathBuf>,
    /// Rank of the layers with a name or /expression/ as for --targets (may be repeated)
    #[arg(long, value_name = "NAME=N", value_parser = own_rank, help_heading = "Adapter", hide_short_help = true)]
    pub rank_of: Vec<(String, usize)>,
    /// Another α for the layers with this name or /expression/, written as in --targets: q_proj=32 (may be repeated) [default:
    /// --alpha]
    #[arg(long, value_name = "NAME=X", value_parser = own_alpha, help_heading = "Adapter", hide_short_help = true)]
    pub alpha_of: Vec<(String, f32)>,
    /// Against overfitting: in each update set this share of the numbers that the adapter reads to zero at random, from 0 (none) to
    /// below 1
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Adapter", hide_short_help = true)]
    pub dropout: f32,
    /// Against overfitting: add random noise of this strength to the embeddings of tokens while training (NEFTune's α); 0 for none, 5
    /// is usual
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Adapter", hide_short_help = true)]
    pub neftune: f32,
    /// Learn only the last N blocks of the model
    #[arg(long, alias = "num-layers", value_name = "N", value_parser = positive, help_heading = "Adapter", hide_short_help = true)]
    pub last_blocks: Option<usize>,
    /// Element type in which products read the adapter's matrices; what is learned stays f32
    #[arg(long, alias = "lora-dtype", value_enum, value_name = "TYPE", default_value_t = DtypeName::F32, help_heading = "Adapter", hide_short_help = true)]
    pub adapter_dtype: DtypeName,
    /// Element type of the matrices in the adapter's files [default: that of --adapter-dtype]
    #[arg(long, value_enum, value_name = "TYPE", help_heading = "Adapter", hide_short_help = true)]
    pub save_dtype: Option<DtypeName>,
    /// Form of the adapter's files
    #[arg(long, value_enum, value_name = "FORM", default_value_t = FormName::Peft, help_heading = "Adapter", hide_short_help = true)]
    pub form: FormName,
    /// For --method full: most bytes of a file of the model, such as 5GB or 500MB [default: the base's files]
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true, help_heading = "Adapter", hide_short_help = true)]
    pub max_shard_size: Option<NonZeroU64>,

    /// Learning rate [default: 2e-4, with --method full 2e-5]
    #[arg(long, alias = "learning-rate", value_name = "X", help_heading = "Optimizer")]
    pub lr: Option<f64>,
    /// Course of the learning rate
    #[arg(long, value_enum, value_name = "FORM", default_value_t = ScheduleName::Cosine, help_heading = "Optimizer", hide_short_help = true)]
    pub schedule: ScheduleName,
    /// Updates at the beginning in which the learning rate rises [default: a twentieth of all]
    #[arg(long, value_name = "N", help_heading = "Optimizer", hide_short_help = true)]
    pub warm_up: Option<u64>,
    /// Optimizer
    #[arg(long, value_enum, value_name = "NAME", default_value_t = OptimizerName::Adamw, help_heading = "Optimizer", hide_short_help = true)]
    pub optimizer: OptimizerName,
    /// Settings of adafactor as MLX-LM's YAML has them, as JSON: {"scale_parameter": …, …}
    #[arg(long, value_name = "JSON", value_parser = adafactor, help_heading = "Optimizer", hide_short_help = true)]
    pub adafactor: Option<Adafactor>,
    /// Course of the learning rate as MLX-LM's YAML has it, as JSON: {"name": …, "arguments": […]}
    #[arg(long, value_name = "JSON", value_parser = lr_schedule, help_heading = "Optimizer", hide_short_help = true)]
    pub lr_schedule: Option<MlxSchedule>,
    /// Weight decay
    #[arg(long, value_name = "X", default_value_t = 0.0, help_heading = "Optimizer", hide_short_help = true)]
    pub weight_decay: f64,
    /// Momentum of sgd and muon [default: 0, of muon 0.95]
    #[arg(long, value_name = "X", help_heading = "Optimizer", hide_short_help = true)]
    pub momentum: Option<f64>,
    /// Let sgd and muon look ahead along the momentum [default: false, of muon true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, help_heading = "Optimizer", hide_short_help = true)]
    pub nesterov: Option<bool>,
    /// How slowly Adam's running means of gradients, and of squared gradients, forget: two numbers from 0 to below 1
    #[arg(long, value_name = "X,X", value_parser = betas, default_value = "0.9,0.999", help_heading = "Optimizer", hide_short_help = true)]
    pub betas: (f64, f64),
    /// Added to the root of Adam's mean square
    #[arg(
        long,
        value_name = "X",
        default_value_t = 1e-8,
        help_heading = "Optimizer",
        hide_short_help = true
    )]
    pub eps: f64,
    /// Correct Adam's running means for having begun at 0, as Adam's authors do: without it the first updates are of another size
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true, help_heading = "Optimizer", hide_short_help = true)]
    pub bias_correction: bool,
    /// Largest norm of a gradient, which is scaled down to it; 0 for any
    #[arg(long, value_name = "X", default_value_t = 1.0, help_heading = "Optimizer", hide_short_help = true)]
    pub clip: f64,

    /// Tokens that are learned
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = LearnName::Answers, help_heading = "Examples")]
    pub learn: LearnName,
    /// Turns of a conversation
    #[arg(long, value_enum, value_name = "HOW", default_value_t = TurnsName::Together, help_heading = "Examples", hide_short_help = true)]
    pub turns: TurnsName,
    /// Longest example in tokens [default: what fits into a batch]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Examples", hide_short_help = true)]
    pub max_seq_length: Option<usize>,
    /// Folder that keeps token ids of examples for later runs
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, help_heading = "Examples", hide_short_help = true)]
    pub token_cache: Option<PathBuf>,
    /// MLX-LM's name for --learn from-last: learn the assistant's last answer and what the template puts behind it, not the prompt
    #[arg(long, conflicts_with = "learn", help_heading = "Examples", hide = true)]
    pub mask_prompt: bool,
    /// Examples that are too long
    #[arg(long, value_enum, value_name = "HOW", default_value_t = LongName::Refuse, help_heading = "Examples", hide_short_help = true)]
    pub long: LongName,
    /// Jinja chat template to use in place of the model's
    #[arg(long, value_name = "FILE", help_heading = "Examples", hide_short_help = true)]
    pub chat_template_file: Option<PathBuf>,

    /// Device that computes: cpu, cuda (NVIDIA GPU 0; cuda:N for number N), or auto, a GPU that works or else the CPU
    #[arg(long, value_name = "NAME", default_value = "cpu", value_parser = Suggested(DEVICES), hide_possible_values = true, help_heading = "Device", hide_short_help = true)]
    pub device: String,
    /// Most memory of a GPU, such as 14GiB [default: all]
    #[arg(long, value_name = "SIZE", value_parser = size, allow_negative_numbers = true, help_heading = "Device", hide_short_help = true)]
    pub gpu_memory: Option<NonZeroU64>,
    /// Threads [default: as many as this process may use]
    #[arg(short, long, value_name = "N", value_parser = positive, allow_negative_numbers = true, help_heading = "Device")]
    pub threads: Option<usize>,
    /// Precision of the arithmetic
    #[arg(long, value_enum, value_name = "HOW", default_value_t = PrecisionName::Fast, help_heading = "Device", hide_short_help = true)]
    pub precision: PrecisionName,
}

impl TrainArguments {
    /// The highest learning rate.
    pub fn peak_rate(&self) -> f64 {
        self.lr.unwrap_or(if self.method == MethodName::Full { 2e-5 } else { 2e-4 })
    }

    /// Updates between two lines with the loss; `None` if no option sets it.
    pub fn report_updates(&self) -> Option<u64> {
        let batches = self.steps_per_report.map(|batches| (batches / self.accumulate).max(1));
        self.report_every.or(batches).map(|updates| updates as u64)
    }

    /// True if options that are not set have MLX-LM's defaults.
    pub fn has_mlx_defaults(&self) -> bool {
        self.config.is_some() || self.loss == LossName::Mlx
    }
}

/// Which results `brasa train` computes again for the gradient, so that they need not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecomputeName {
    /// Norms, rotated heads and gates, which cost little
    Cheap,
    /// All results within the model's blocks
    Blocks,
}

/// Kinds of adapters, or full fine-tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodName {
    /// Low-rank adapters (of stored weights in any format)
    Lora,
    /// Rank-stabilised low-rank adapters
    Rslora,
    /// Low-rank adapters, with the length of each row learned apart from its direction
    Dora,
    /// No adapter: the model's own parameters, of F32, F16 and BF16
    Full,
}

/// Element types of an adapter's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeName {
    /// 32 bits
    F32,
    /// bfloat16: half the bytes
    Bf16,
}

/// Losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LossName {
    /// The likelihood of every learned token
    Tokens,
    /// The likelihood, batches and defaults of MLX-LM's trainer, to compare curves
    Mlx,
    /// The preference for `chosen` over `rejected` answers (direct preference optimization)
    Dpo,
}

/// Forms of an adapter's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormName {
    /// Hugging Face's PEFT
    Peft,
    /// MLX-LM's
    Mlx,
    /// llama.cpp's: adapter.gguf
    Gguf,
}

/// Courses of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum ScheduleName {
    Constant,
    Linear,
    Cosine,
}

/// Optimizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum OptimizerName {
    Adamw,
    #[value(name = "adamw-8bit")]
    Adamw8bit,
    Adam,
    Sgd,
    Muon,
    Adafactor,
}

/// Tokens that are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LearnName {
    /// All answers of the assistant
    Answers,
    /// The assistant's last turn
    Last,
    /// The assistant's last turn and what the template puts behind it
    FromLast,
    /// Every token
    All,
}

/// Turns of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TurnsName {
    /// A conversation is one example
    Together,
    /// Each answer ends an example of its own
    Apart,
}

/// Examples that are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LongName {
    /// Fail with an error
    Refuse,
    /// Cut their end off
    Cut,
    /// Leave them out
    Skip,
}
