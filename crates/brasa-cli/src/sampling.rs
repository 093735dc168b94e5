//! Generation options from flags, else the checkpoint's recommendation, else defaults.

use brasa::grammar::Literals;
use brasa::sampling::SamplingParams;
use brasa::{ContextPolicy, GenerateOptions, Grammar, Model};

use crate::args::{PolicyName, SamplingArguments};
use crate::failure::Failure;
use crate::{input, interrupt, output, values};

/// Generation options for `model`.
///
/// # Errors
///
/// [`Failure::Usage`], naming the flag; [`Failure::Failed`] for a grammar that cannot be read or used; [`Failure::Interrupted`]
/// if Ctrl-C was pressed meanwhile.
pub fn options(arguments: &SamplingArguments, model: &Model) -> Result<GenerateOptions, Failure> {
    let mut defaults =
        SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..SamplingParams::default() };
    model.recommended_sampling().apply(&mut defaults);
    arguments.rules.apply(&mut defaults);
    if defaults.dry.is_on() {
        defaults.dry.breakers = model.dry_breakers(&arguments.rules.breakers())?;
    }
    let sampling = SamplingParams {
        temperature: arguments.temperature.unwrap_or(defaults.temperature),
        top_k: arguments.top_k.unwrap_or(defaults.top_k),
        top_p: arguments.top_p.unwrap_or(defaults.top_p),
        min_p: arguments.min_p.unwrap_or(defaults.min_p),
        repeat_penalty: arguments.repeat_penalty.unwrap_or(defaults.repeat_penalty),
        repeat_last_n: arguments.repeat_last_n,
        frequency_penalty: arguments.frequency_penalty,
        presence_penalty: arguments.presence_penalty,
        logit_bias: arguments.logit_bias.clone(),
        seed: arguments.seed.unwrap_or_else(fresh_seed),
        order: arguments.order().unwrap_or_default(),
        ..defaults
    };
    let context_policy = match arguments.context_policy.unwrap_or(PolicyName::Error) {
        PolicyName::Error => ContextPolicy::Error,
        PolicyName::Stop => ContextPolicy::Stop,
        PolicyName::Slide => ContextPolicy::Slide { keep: arguments.keep },
    };
    interrupt::check()?;
    // A grammar may take long, and cannot be stopped.
    let ends = interrupt::ends_at_once();
    let mask = grammar(arguments)?.map(|grammar| model.grammar(&grammar)).transpose()?;
    drop(ends);
    for warning in mask.iter().flat_map(|mask| mask.warnings()) {
        output::note(&format!("warning: {warning}"));
    }
    let options = GenerateOptions {
        sampling,
        max_tokens: arguments.n,
        stop_strings: arguments.stop.clone(),
        ignore_eos: arguments.ignore_eos,
        context_policy,
        mask,
        ..GenerateOptions::default()
    };
    options.validate().map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(options)
}

/// The grammar that answers must follow; `None` for no grammar.
fn grammar(arguments: &SamplingArguments) -> Result<Option<Grammar>, Failure> {
    let SamplingArguments { json_schema, json_schema_file, grammar, grammar_file, .. } = arguments;
    let file = |path: &Option<_>| path.as_deref().map(input::text).transpose();
    let schema = match file(json_schema_file)? {
        None => values::given(json_schema.as_ref()),
        text => text,
    };
    if let Some(text) = schema {
        let mut schema = serde_json::from_str(&text)
            .map_err(|error| Failure::Usage(format!("--json-schema: not JSON: {error}")))?;
        Literals::of(text.as_bytes()).put_back(&mut schema);
        return Ok(Some(Grammar::JsonSchema(schema)));
    }
    let text = match file(grammar_file)? {
        None => values::given(grammar.as_ref()),
        text => text,
    };
    Ok(text.map(Grammar::from_text))
}

/// A random seed.
pub fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
