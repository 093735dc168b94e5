//! The operator's defaults for fields that a request does not have.

use brasa::{GenerateOptions, Model};
use serde_json::Map;

use crate::http::error::Result;
use crate::options::ServerOptions;
use crate::request::constraint::Constraint;
use crate::request::conversation::Conversation;
use crate::request::fields::Fields;
use crate::request::sampling;
use crate::state::App;

/// Fields that may have a default. All forms of requests that generate text read them.
const FIELDS: &[&str] = &[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "seed",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "samplers",
    "stop",
    "ignore_eos",
    "grammar",
    "json_schema",
    "chat_template_kwargs",
    "reasoning_effort",
];

/// Fails with a message if a default has a name that is no such field.
pub(crate) fn check_names(options: &ServerOptions) -> std::result::Result<(), String> {
    match options.request_defaults.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        Some(name) => {
            Err(format!("a default for `{name}`: the fields with defaults are {}", FIELDS.join(", ")))
        }
        None => Ok(()),
    }
}

/// Reads the defaults as if a request for `model` had them, to check them. Blocks, since a grammar is compiled.
///
/// # Errors
///
/// The error that requests without these fields would get.
pub(crate) fn check(app: &App, model: &Model) -> Result<()> {
    let mut fields = fields(app);
    Conversation::begin(&mut fields)?;
    if let Some(constraint) = Constraint::read(&mut fields, None)? {
        constraint.compile(model)?;
    }
    sampling::options(&mut fields, app, model).map(drop)
}

/// The options of a request without any field. The seed is 0 unless the operator sets one.
pub(crate) fn options(app: &App, model: &Model) -> Result<GenerateOptions> {
    let mut fields = fields(app);
    let mut options = sampling::options(&mut fields, app, model)?;
    if !app.options.request_defaults.contains_key("seed") {
        options.sampling.seed = sampling::defaults(model).seed;
    }
    options.max_tokens = app.options.default_max_tokens;
    Ok(options)
}

fn fields(app: &App) -> Fields {
    Fields::new(Map::new()).with_defaults(app.options.request_defaults.clone())
}
