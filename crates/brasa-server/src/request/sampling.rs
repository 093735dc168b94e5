//! Generation options from the fields of a request, else the model's recommendation, else defaults.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use brasa::engine::EngineError;
use brasa::sampling::{Distribution, Dry, Logprobs, SamplingError, SamplingOrder, SamplingParams, Stage};
use brasa::{CacheScope, ContextPolicy, DRY_BREAKERS, Error, GenerateOptions, Model, RequestOptions};
use serde_json::Value;

use crate::http::error::{ApiError, Result};
use crate::http::ids;
use crate::request::adapters;
use crate::request::fields::{self, Fields};
use crate::request::token_limits;
use crate::state::App;

/// Most stop strings of a request.
const MOST_STOPS: usize = 64;
/// Longest stop string, in bytes.
const LONGEST_STOP: usize = 4096;
/// Most biased tokens of a request.
const MOST_BIASES: usize = 4096;
/// Most bytes of all texts in a logit bias.
const MOST_BIASED_BYTES: usize = 64 << 10;
/// Most alternatives of a token that are listed.
pub(crate) const MOST_TOP_LOGPROBS: usize = 20;

/// Sampling for requests without settings of their own: the model's recommendation, else llama.cpp's defaults.
pub(crate) fn defaults(model: &Model) -> SamplingParams {
    let mut sampling = SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repeat_last_n: Some(64),
        ..SamplingParams::default()
    };
    model.recommended_sampling().apply(&mut sampling);
    sampling
}

/// Reads the options that all forms of the API share. Token limits and log-probabilities have different names in each form, and
/// are set by the caller.
pub(crate) fn options(fields: &mut Fields, app: &App, model: &Model) -> Result<GenerateOptions> {
    let mut sampling = defaults(model);
    let dry = &mut sampling.dry;
    let numbers: [(&str, &mut f32); 14] = [
        ("typical_p", &mut sampling.typical_p),
        ("top_n_sigma", &mut sampling.top_n_sigma),
        ("xtc_probability", &mut sampling.xtc_probability),
        ("xtc_threshold", &mut sampling.xtc_threshold),
        ("dynatemp_range", &mut sampling.dynatemp_range),
        ("dynatemp_exponent", &mut sampling.dynatemp_exponent),
        ("dry_multiplier", &mut dry.multiplier),
        ("dry_base", &mut dry.base),
        ("temperature", &mut sampling.temperature),
        ("top_p", &mut sampling.top_p),
        ("min_p", &mut sampling.min_p),
        ("repeat_penalty", &mut sampling.repeat_penalty),
        ("frequency_penalty", &mut sampling.frequency_penalty),
        ("presence_penalty", &mut sampling.presence_penalty),
    ];
    for (name, place) in numbers {
        if let Some(number) = fields.number(name)? {
            *place = number;
        }
    }
    // llama.cpp's clients send -1 for no limit.
    sampling.top_n_sigma = sampling.top_n_sigma.max(0.0);
    read_dry(fields, model, &mut sampling.dry)?;
    // vLLM's name for the repeat penalty.
    if let Some(number) = fields.number("repetition_penalty")? {
        sampling.repeat_penalty = number;
    }
    if let Some(limit) = fields.limit("top_k")? {
        sampling.top_k = limit.tokens().unwrap_or(0);
    }
    if let Some(limit) = fields.limit("repeat_last_n")? {
        sampling.repeat_last_n = limit.tokens();
    }
    if let Some(tokens) = fields.count("min_tokens", 0, model.context())? {
        sampling.min_tokens = tokens;
    }
    sampling.seed = seed(fields)?;
    sampling.logit_bias = logit_bias(fields, model)?;
    read_samplers(fields, &mut sampling)?;
    let options = GenerateOptions {
        sampling,
        stop_strings: stops(fields)?,
        stop_ids: token_limits::stop_ids(fields, model)?,
        mask: token_limits::read(fields, model)?,
        ignore_eos: fields.switch("ignore_eos")?.unwrap_or(false),
        context_policy: ContextPolicy::Stop,
        request: request(fields, app, model)?,
        ..GenerateOptions::default()
    };
    options.validate().map_err(ApiError::from)?;
    options.sampling.validate_ids(model.vocab_size()).map_err(EngineError::from)?;
    Ok(options)
}

/// Reads `dry_allowed_length`, `dry_penalty_last_n` and `dry_sequence_breakers` into `dry`. Makes tokens of the
/// breakers only if DRY is on.
fn read_dry(fields: &mut Fields, model: &Model, dry: &mut Dry) -> Result<()> {
    if let Some(length) = fields.count("dry_allowed_length", 0, usize::MAX)? {
        dry.allowed_length = length;
    }
    if let Some(limit) = fields.limit("dry_penalty_last_n")? {
        dry.last_n = limit.tokens();
    }
    let name = fields.name("dry_sequence_breakers");
    let texts = fields.optional::<Vec<String>>("dry_sequence_breakers")?;
    let texts = texts.unwrap_or_else(|| DRY_BREAKERS.map(str::to_owned).to_vec());
    if dry.is_on() {
        dry.breakers = model.dry_breakers(&texts).map_err(|error| match error {
            Error::Engine(EngineError::Sampling(error @ SamplingError::Breaker { .. })) => {
                ApiError::field(&name, format!("`{name}`: {error}"))
            }
            error => error.into(),
        })?;
    }
    Ok(())
}

/// The options of running a request: the operator's time limit, and the adapters, salt and priority of its fields.
fn request(fields: &mut Fields, app: &App, model: &Model) -> Result<RequestOptions> {
    Ok(RequestOptions {
        deadline: app.deadline(),
        cache_scope: CacheScope { adapter: adapters::scope(fields, app, model)?, ..scope(fields)? },
        cache_prompt: fields.switch("cache_prompt")?,
        priority: priority(fields, app)?,
        ..RequestOptions::default()
    })
}

/// Requests log-probabilities of the model's own distribution, with `top` alternatives for each token.
pub(crate) fn logprobs(top: usize) -> Logprobs {
    Logprobs { top, of: Distribution::Raw }
}

/// The priority of a request, if the operator lets requests set it; else 0.
fn priority(fields: &mut Fields, app: &App) -> Result<i32> {
    if !app.options.allow_priority {
        fields.refuse("priority", "this server lets no request go before the others")?;
    }
    let is_one = |number| i32::try_from(number).is_ok();
    let found = fields.whole("priority", is_one, "of 32 bits with sign")?;
    Ok(found.and_then(|number| i32::try_from(number).ok()).unwrap_or(0))
}

/// The seed of a request; a new random one if it names none, or names -1 as in llama.cpp.
fn seed(fields: &mut Fields) -> Result<u64> {
    Ok(given_seed(fields)?.unwrap_or_else(ids::fresh))
}

/// The seed that a request names; a new random one for a negative number.
pub(crate) fn given_seed(fields: &mut Fields) -> Result<Option<u64>> {
    let is_one = |number| (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number);
    let found = fields.whole("seed", is_one, "below 2^64, or -1 for a new seed")?;
    Ok(found.map(|seed| u64::try_from(seed).unwrap_or_else(|_| ids::fresh())))
}

/// Stop strings, as one text or a list.
fn stops(fields: &mut Fields) -> Result<Vec<String>> {
    let name = fields.name("stop");
    let stops = match fields.value("stop") {
        None => Vec::new(),
        // Scripts write so what they do not have.
        Some(Value::String(stop)) if stop.is_empty() => Vec::new(),
        Some(Value::String(stop)) => vec![stop],
        Some(value) => serde_json::from_value::<Vec<String>>(value)
            .map_err(|_| ApiError::field(&name, format!("`{name}` has to be a text or a list of texts")))?,
    };
    check_stops(&name, &stops)?;
    Ok(stops)
}

/// Refuses stop strings that are too many, too long or empty.
pub(crate) fn check_stops(name: &str, stops: &[String]) -> Result<()> {
    if stops.len() > MOST_STOPS {
        let message = format!("`{name}` has {} entries, at most {MOST_STOPS} are possible", stops.len());
        return Err(ApiError::field(name, message));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
        let message = format!("`{name}`: a stop text has to have 1 to {LONGEST_STOP} bytes");
        return Err(ApiError::field(name, message));
    }
    Ok(())
}

/// Biases: `{"15043": 1.5}`, `[[15043, 1.5], [7, false], [" text", -1]]`, or a list of objects `{"id", "bias"}`.
fn logit_bias(fields: &mut Fields, model: &Model) -> Result<Vec<(u32, f32)>> {
    let name = fields.name("logit_bias");
    let Some(value) = fields.value("logit_bias") else { return Ok(Vec::new()) };
    let wrong = |what: &Value| {
        ApiError::field(
            &name,
            format!("`{name}`: {what} is no token with its bias, expected a number from -100 to 100"),
        )
    };
    let pairs: Vec<(Value, Value)> = match value {
        Value::Object(map) => map.into_iter().map(|(token, bias)| (id_or_text(token), bias)).collect(),
        Value::Array(items) => items
            .into_iter()
            .map(|item| match item {
                Value::Array(pair) => <[Value; 2]>::try_from(pair)
                    .map(|[token, bias]| (token, bias))
                    .map_err(|pair| wrong(&Value::Array(pair))),
                other => Err(wrong(&other)),
            })
            .collect::<Result<_>>()?,
        other => return Err(wrong(&other)),
    };
    let too_many = || {
        ApiError::field(
            &name,
            format!("`{name}` has more than {MOST_BIASES} tokens, the most that are possible"),
        )
    };
    if pairs.len() > MOST_BIASES {
        return Err(too_many());
    }
    let texts = pairs.iter().filter_map(|(token, _)| token.as_str());
    if texts.map(str::len).sum::<usize>() > MOST_BIASED_BYTES {
        let message =
            format!("`{name}` has texts of more than {MOST_BIASED_BYTES} bytes, the most that are possible");
        return Err(ApiError::field(&name, message));
    }
    let mut biases = Vec::with_capacity(pairs.len());
    for (token, bias) in pairs {
        let bias = match &bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            Value::Number(number) => {
                number.as_f64().filter(|bias| bias.abs() <= 100.0).ok_or_else(|| wrong(&bias))? as f32
            }
            other => return Err(wrong(other)),
        };
        match &token {
            Value::Number(_) => {
                biases.push((fields::token_id(&token).ok_or_else(|| wrong(&token))?, bias));
            }
            Value::String(text) => {
                use brasa::tokenizer::{AddSpecial, ParseSpecial};
                let ids = model.tokenizer().encode(text, AddSpecial::No, ParseSpecial::Yes)?;
                biases.extend(ids.into_iter().map(|id| (id, bias)));
            }
            other => return Err(wrong(other)),
        }
        // A text is as many tokens as it has.
        if biases.len() > MOST_BIASES {
            return Err(too_many());
        }
    }
    Ok(biases)
}

/// The key of an object as a token: an id if it is a number, otherwise a text.
fn id_or_text(key: String) -> Value {
    key.parse::<u32>().map_or(Value::String(key), Value::from)
}

/// Reads `samplers`, llama.cpp's list of samplers in order, by name or by letter. Samplers that are not in the list are off.
fn read_samplers(fields: &mut Fields, sampling: &mut SamplingParams) -> Result<()> {
    let name = fields.name("samplers");
    let Some(value) = fields.value("samplers") else { return Ok(()) };
    let wrong = |why: &dyn std::fmt::Display| ApiError::field(&name, format!("`{name}`: {why}"));
    let mut names: Vec<String> = match value {
        Value::String(letters) => letters
            .chars()
            .map(|letter| {
                let known = SamplingOrder::name_of_letter(letter).map(str::to_owned);
                known.ok_or_else(|| wrong(&format!("{letter:?} is the letter of no sampler")))
            })
            .collect::<Result<_>>()?,
        names => serde_json::from_value(names)
            .map_err(|_| wrong(&"expected a list of names, or letters in a text"))?,
    };
    // llama.cpp's sampler for gaps lets through what is likely by far; editors name it always.
    let listed = names.len();
    names.retain(|name| name != "infill");
    let fills = names.len() < listed;
    let order = |names: &[String]| {
        SamplingOrder::from_names(names.iter().map(String::as_str)).map_err(|error| wrong(&error))
    };
    sampling.order = order(&names)?;
    if fills {
        if !sampling.order.has(Stage::Temperature) {
            names.push(Stage::Temperature.name().to_owned());
            sampling.order = order(&names)?;
        }
        sampling.temperature = 0.0;
    }
    Ok(())
}

/// The cache scope from the request's salt. Requests with different salts never share cached keys and values.
fn scope(fields: &mut Fields) -> Result<CacheScope> {
    let salt = fields.optional::<String>("cache_salt")?;
    let salt = salt.map_or(0, |salt| BuildHasherDefault::<DefaultHasher>::default().hash_one(salt) | 1);
    Ok(CacheScope { salt, ..CacheScope::default() })
}
