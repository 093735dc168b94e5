//! Options of `brasa serve` that are defaults for fields of requests.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use super::{RuleArguments, Switch};
use crate::failure::Failure;
use crate::input;
use crate::values::{self, Limit, Seed};

/// Values for requests that do not have them. A field of a request wins.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Defaults of requests, whose own fields win")]
pub struct DefaultsArguments {
    /// Random seed; -1 for a new one each time [default: -1]
    #[arg(short, long, value_name = "N", value_parser = values::seed, allow_negative_numbers = true, hide_short_help = true)]
    pub seed: Option<Seed>,
    /// Temperature; 0 takes the most probable token [default: the model's, else 0.8]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "T", value_parser = values::temperature, allow_negative_numbers = true, hide_short_help = true)]
    pub temperature: Option<f32>,
    /// Draw from the K most probable tokens; 0 for all [default: the model's, else 40]
    #[arg(long, value_name = "K", value_parser = values::count, allow_negative_numbers = true, hide_short_help = true)]
    pub top_k: Option<usize>,
    /// Draw from the most probable tokens that reach probability P [default: the model's, else 0.95]
    #[arg(long, value_name = "P", value_parser = values::top_p, allow_negative_numbers = true, hide_short_help = true)]
    pub top_p: Option<f32>,
    /// Leave out tokens less probable than P times the best [default: the model's, else 0.05]
    #[arg(long, value_name = "P", value_parser = values::min_p, allow_negative_numbers = true, hide_short_help = true)]
    pub min_p: Option<f32>,
    /// Typical-p, top-n-sigma, XTC, dynamic temperature and DRY.
    #[command(flatten)]
    pub rules: RuleArguments,
    /// Make tokens that occurred less likely by this factor [default: the model's, else 1]
    #[arg(long, value_name = "F", value_parser = values::repeat_penalty, allow_negative_numbers = true, hide_short_help = true)]
    pub repeat_penalty: Option<f32>,
    /// Recent tokens that count for the penalties; -1 for all [default: 64]
    #[arg(long, value_name = "N", value_parser = values::limit, allow_negative_numbers = true, hide_short_help = true)]
    pub repeat_last_n: Option<Limit>,
    /// Subtract this from a token's logit for each time it occurred [default: 0]
    #[arg(long, value_name = "F", value_parser = values::penalty, allow_negative_numbers = true, hide_short_help = true)]
    pub frequency_penalty: Option<f32>,
    /// Subtract this from the logit of every token that occurred [default: 0]
    #[arg(long, value_name = "F", value_parser = values::penalty, allow_negative_numbers = true, hide_short_help = true)]
    pub presence_penalty: Option<f32>,
    /// Add BIAS to a token's logit: ID+BIAS or ID-BIAS, e.g. 15043+1 (may be repeated)
    #[arg(short = 'l', long, value_name = "ID±BIAS", value_parser = values::bias, value_delimiter = ',', allow_hyphen_values = true, hide_short_help = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Filters in their order, llama.cpp's names with ; between them; others are off
    #[arg(long, value_name = "NAMES", hide_short_help = true)]
    pub samplers: Option<String>,
    /// End answers before this text (may be repeated) (-r)
    #[arg(long, value_name = "TEXT", value_parser = values::stop, allow_hyphen_values = true, hide_short_help = true)]
    pub stop: Vec<String>,
    /// Go on when the model ends its answer
    #[arg(long, hide_short_help = true)]
    pub ignore_eos: bool,
    /// Make answers JSON of this schema; {} for any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "grammar_source", hide_short_help = true)]
    pub json_schema: Option<String>,
    /// Make answers JSON of the schema in a file (-jf)
    #[arg(long, value_name = "FILE", group = "grammar_source", hide_short_help = true)]
    pub json_schema_file: Option<PathBuf>,
    /// Make answers follow this grammar, in GBNF or, behind a first line %llguidance {}, in Lark
    #[arg(long, value_name = "GRAMMAR", group = "grammar_source", hide_short_help = true)]
    pub grammar: Option<String>,
    /// Make answers follow the grammar in a file
    #[arg(long, value_name = "FILE", group = "grammar_source", hide_short_help = true)]
    pub grammar_file: Option<PathBuf>,
    /// Let models think first, if their templates have a switch for that [default: the template's]
    #[arg(long, value_enum, value_name = "on|off", hide_short_help = true)]
    pub reasoning: Option<Switch>,
    /// How much models think: none, minimal, low, medium, high, xhigh or max [default: the template's]
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    pub reasoning_effort: Option<String>,
    /// Variables of chat templates, a JSON object
    #[arg(long, value_name = "JSON", value_parser = values::object, hide_short_help = true)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl DefaultsArguments {
    /// The values, under the names of requests' fields.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] for a schema that is not JSON; [`Failure::Failed`] for a file that cannot be read.
    pub fn fields(&self) -> Result<Map<String, Value>, Failure> {
        let limit = |limit: Limit| limit.map_or(json!(-1), |number| json!(number));
        let named = [
            ("seed", self.seed.map(|seed| seed.map_or(json!(-1), |seed| json!(seed)))),
            ("temperature", self.temperature.map(values::as_typed)),
            ("top_k", self.top_k.map(Value::from)),
            ("top_p", self.top_p.map(values::as_typed)),
            ("min_p", self.min_p.map(values::as_typed)),
            ("repeat_penalty", self.repeat_penalty.map(values::as_typed)),
            ("repeat_last_n", self.repeat_last_n.map(limit)),
            ("frequency_penalty", self.frequency_penalty.map(values::as_typed)),
            ("presence_penalty", self.presence_penalty.map(values::as_typed)),
            ("logit_bias", (!self.logit_bias.is_empty()).then(|| self.biases())),
            ("samplers", self.samplers.as_deref().map(names)),
            ("stop", (!self.stop.is_empty()).then(|| json!(self.stop))),
            ("ignore_eos", self.ignore_eos.then_some(Value::Bool(true))),
            ("json_schema", self.schema()?),
            ("grammar", self.grammar()?.map(Value::from)),
            ("reasoning_effort", self.reasoning_effort.clone().map(Value::from)),
            ("chat_template_kwargs", self.template_variables()),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Ok(named.chain(self.rules.fields()).map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn biases(&self) -> Value {
        let bias =
            |bias: f32| if bias == f32::NEG_INFINITY { Value::Bool(false) } else { values::as_typed(bias) };
        self.logit_bias.iter().map(|&(id, by)| json!([id, bias(by)])).collect()
    }

    fn schema(&self) -> Result<Option<Value>, Failure> {
        let text = match &self.json_schema_file {
            Some(path) => Some(input::text(path)?),
            None => self.json_schema.clone(),
        };
        let read = |text: String| {
            serde_json::from_str(&text)
                .map_err(|error| Failure::Usage(format!("--json-schema: not JSON: {error}")))
        };
        text.map(read).transpose()
    }

    fn grammar(&self) -> Result<Option<String>, Failure> {
        match &self.grammar_file {
            Some(path) => input::text(path).map(Some),
            None => Ok(self.grammar.clone()),
        }
    }

    fn template_variables(&self) -> Option<Value> {
        let mut variables = self.chat_template_kwargs.clone().unwrap_or_default();
        if let Some(switch) = self.reasoning {
            variables.insert("enable_thinking".into(), Value::Bool(switch == Switch::On));
        }
        (!variables.is_empty()).then_some(Value::Object(variables))
    }
}

/// Splits a list of names, separated by `;` or `,`.
fn names(list: &str) -> Value {
    list.split([';', ',']).map(str::trim).filter(|name| !name.is_empty()).map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use clap::Parser;
    use serde_json::{Value, json};

    use crate::args::{Arguments, Command};

    fn fields(words: &[&str]) -> Value {
        let arguments = Arguments::try_parse_from([&["brasa", "serve"], words].concat()).unwrap();
        let Some(Command::Serve(serve)) = arguments.command else { panic!("serve") };
        Value::Object(serve.defaults.fields().unwrap())
    }

    #[test]
    fn options_become_fields_of_requests() {
        for (words, expected) in [
            (&[][..], json!({})),
            (&["--temp", "0.1", "--top-k", "5"], json!({"temperature": 0.1, "top_k": 5})),
            (&["-s", "-1", "--repeat-last-n", "-1"], json!({"seed": -1, "repeat_last_n": -1})),
            (
                &["--typical", "0.9", "--dry-multiplier", "0.8", "--dry-sequence-breaker", "\\n"],
                json!({"typical_p": 0.9, "dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]}),
            ),
            (&["-l", "7+1.5,8-inf"], json!({"logit_bias": [[7, 1.5], [8, false]]})),
            (&["--samplers", "top_k;min_p"], json!({"samplers": ["top_k", "min_p"]})),
            (
                &["--stop", "a", "--stop", "b", "--ignore-eos"],
                json!({"stop": ["a", "b"], "ignore_eos": true}),
            ),
            (&["-j", "{\"type\":\"object\"}"], json!({"json_schema": {"type": "object"}})),
            (
                &["--reasoning", "off", "--chat-template-kwargs", "{\"x\": 1}"],
                json!({"chat_template_kwargs": {"x": 1, "enable_thinking": false}}),
            ),
            (&["--reasoning-effort", "low"], json!({"reasoning_effort": "low"})),
        ] {
            assert_eq!(fields(words), expected, "{words:?}");
        }
        let wrong = ["brasa", "serve", "--chat-template-kwargs", "[]"];
        assert!(Arguments::try_parse_from(wrong).unwrap_err().to_string().contains("expected a JSON object"));
    }
}
