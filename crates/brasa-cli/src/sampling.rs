//! Generation options from flags, the checkpoint's recommendation and defaults, in that order.

use brasa::sampling::{SamplingOrder, SamplingParams};
use brasa::{ContextPolicy, GenerateOptions, Model};

use crate::args::{OrderName, PolicyName, SamplingArguments};
use crate::failure::Failure;

/// Generation options for `model`.
///
/// # Errors
///
/// [`Failure::Usage`], naming the flag.
pub fn options(arguments: &SamplingArguments, model: &Model) -> Result<GenerateOptions, Failure> {
    let recommended = |key: &str| model.generation_config().get(key).and_then(serde_json::Value::as_f64);
    let float = |flag: Option<f32>, key, default| {
        flag.unwrap_or(recommended(key).map_or(default, |value| value as f32))
    };
    // A checkpoint that says `do_sample: false` and nothing else wants the most probable token.
    let greedy = model.generation_config().get("do_sample").and_then(serde_json::Value::as_bool)
        == Some(false)
        && recommended("temperature").is_none();
    let sampling = SamplingParams {
        temperature: float(arguments.temperature, "temperature", if greedy { 0.0 } else { 0.8 }),
        top_k: arguments.top_k.unwrap_or(recommended("top_k").map_or(40, |k| k as usize)),
        top_p: float(arguments.top_p, "top_p", 0.95),
        min_p: float(arguments.min_p, "min_p", 0.05),
        repeat_penalty: float(arguments.repeat_penalty, "repetition_penalty", 1.0),
        repeat_last_n: usize::try_from(arguments.repeat_last_n).ok(),
        frequency_penalty: arguments.frequency_penalty,
        presence_penalty: arguments.presence_penalty,
        logit_bias: arguments.logit_bias.iter().map(|text| bias(text)).collect::<Result<_, _>>()?,
        seed: arguments.seed.unwrap_or_else(fresh_seed),
        order: match arguments.sampling_order {
            OrderName::TemperatureFirst => SamplingOrder::TemperatureFirst,
            OrderName::LlamaCpp => SamplingOrder::LlamaCpp,
            OrderName::Mlx => SamplingOrder::Mlx,
            OrderName::Akunu => SamplingOrder::Akunu,
        },
        ..SamplingParams::default()
    };
    let max_tokens = match arguments.n {
        -1 => None,
        n => Some(
            usize::try_from(n).map_err(|_| Failure::Usage(format!("-n {n}: a number of tokens, or -1")))?,
        ),
    };
    let context_policy = match arguments.context_policy {
        PolicyName::Error => ContextPolicy::Error,
        PolicyName::Stop => ContextPolicy::Stop,
        PolicyName::Slide => ContextPolicy::Slide { keep: arguments.keep },
    };
    let options = GenerateOptions {
        sampling,
        max_tokens,
        stop_strings: arguments.stop.clone(),
        ignore_eos: arguments.ignore_eos,
        context_policy,
        ..GenerateOptions::default()
    };
    options.validate().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(options)
}

/// `15043+1` or `15043-0.5` or `15043-inf`.
fn bias(text: &str) -> Result<(u32, f32), Failure> {
    let parse = || {
        let sign = text.find(['+', '-'])?;
        Some((text[..sign].parse().ok()?, text[sign..].parse::<f32>().ok().filter(|bias| !bias.is_nan())?))
    };
    parse().ok_or_else(|| {
        Failure::Usage(format!("--logit-bias {text}: expected ID+BIAS or ID-BIAS, e.g. 15043+1"))
    })
}

/// A seed that differs from run to run.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
