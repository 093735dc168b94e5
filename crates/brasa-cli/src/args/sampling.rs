//! How tokens are drawn and when to stop.

use std::path::PathBuf;

use brasa::sampling::SamplingOrder;
use clap::{Args, ValueEnum};

use super::RuleArguments;
use crate::values::{self, Limit, Seed};

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
    /// Draw from the K most probable tokens; 0 or -1 for all [default: the model's, else 40]
    #[arg(long, value_name = "K", value_parser = values::top_k, allow_negative_numbers = true)]
    pub top_k: Option<usize>,
    /// Draw from the most probable tokens that reach probability P; 0 for the likeliest, 1 for all [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = values::top_p, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Leave out tokens less probable than P times the best; 0 for none [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = values::min_p, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Typical-p, top-n-sigma, XTC, dynamic temperature and DRY.
    #[command(flatten)]
    pub rules: RuleArguments,
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
    /// Samplers in their order, llama.cpp's names with ; between them: penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature; others are off
    #[arg(long, value_name = "NAMES", value_parser = values::samplers, conflicts_with = "sampling_order", hide_short_help = true)]
    pub samplers: Option<SamplingOrder>,
    /// Order of the samplers, by its name
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
    /// Make the answer follow this grammar, in GBNF or, behind a first line %llguidance {}, in Lark
    #[arg(long, value_name = "GRAMMAR", group = "grammar_source", hide_short_help = true)]
    pub grammar: Option<String>,
    /// Make the answer follow the grammar in a file
    #[arg(long, value_name = "FILE", group = "grammar_source", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// Go on when the model ends its answer
    #[arg(long, hide_short_help = true)]
    pub ignore_eos: bool,
    /// Policy when the context is full [default: error; a chat drops its oldest turns]
    #[arg(long, value_enum, value_name = "POLICY")]
    pub context_policy: Option<PolicyName>,
    /// Leading tokens that stay when the context slides
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub keep: usize,
}

impl SamplingArguments {
    /// The order of the samplers; `None` if no flag names one.
    pub fn order(&self) -> Option<SamplingOrder> {
        self.samplers.or(match self.sampling_order {
            OrderName::TemperatureFirst => None,
            OrderName::LlamaCpp => Some(SamplingOrder::LLAMA_CPP),
            OrderName::Mlx => Some(SamplingOrder::MLX),
            OrderName::Akunu => Some(SamplingOrder::AKUNU),
        })
    }
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

/// Named orders of samplers. Penalties and DRY come first in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// temperature, top-n-sigma, top-p, top-k, typical-p, min-p, XTC
    TemperatureFirst,
    /// top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature: llama.cpp's
    LlamaCpp,
    /// top-n-sigma, typical-p, top-p, min-p, XTC, top-k, temperature: MLX-LM's
    Mlx,
    /// temperature, top-k, min-p, top-p of the whole vocabulary, top-n-sigma, typical-p, XTC
    Akunu,
}
