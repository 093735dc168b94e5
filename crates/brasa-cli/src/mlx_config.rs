//! Configurations of `mlx_lm.lora` (MLX-LM 0.32) as options of `brasa train`, for those that the command line does not set.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

use crate::args::{Arguments, LossName};
use crate::failure::Failure;
use crate::input;
use crate::paint::When;

/// Keys of a configuration that Brasa supports.
const KEYS: [&str; 25] = [
    "model",
    "train",
    "fine_tune_type",
    "optimizer",
    "optimizer_config",
    "data",
    "seed",
    "num_layers",
    "batch_size",
    "iters",
    "val_batches",
    "learning_rate",
    "steps_per_report",
    "steps_per_eval",
    "adapter_path",
    "save_every",
    "test",
    "test_batches",
    "max_seq_length",
    "grad_checkpoint",
    "grad_accumulation_steps",
    "lr_schedule",
    "lora_parameters",
    "mask_prompt",
    "resume_adapter_file",
];

/// Keys of a configuration that Brasa does not support: the reason, and the values that have no effect.
const OTHERS: [(&str, &str, &[&str]); 5] = [
    ("clear_cache_threshold", "nothing is cached between updates", &["0"]),
    ("report_to", "metrics.jsonl has every update", &[]),
    ("project_name", "metrics.jsonl has every update", &[]),
    ("trust_remote_code", "no code of a model is run", &["false"]),
    ("config", "a configuration names no other", &[]),
];

/// Appends the options in the `--config` file to the arguments, and MLX-LM's defaults if `--config` or `--loss mlx` asks for them.
///
/// # Errors
///
/// [`Failure::Usage`] for a file that is not a configuration, and for a key or value that Brasa does not support, naming it.
pub fn extend(mut arguments: Vec<OsString>, color: When) -> Result<Vec<OsString>, Failure> {
    if !arguments.iter().any(|word| word == "train") {
        return Ok(arguments);
    }
    // Errors and requests for help are answered by the parser's second turn.
    let Ok(matches) = Arguments::parser(color).try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some(matches) = matches.subcommand_matches("train") else { return Ok(arguments) };
    let path = matches.get_one::<PathBuf>("config").cloned();
    if path.is_none() && matches.get_one::<LossName>("loss") != Some(&LossName::Mlx) {
        return Ok(arguments);
    }
    let at = |problem: String| match &path {
        Some(path) => Failure::Usage(format!("{}: {problem}", path.display())),
        None => Failure::Usage(problem),
    };
    let keys = path.as_deref().map(file).transpose()?.unwrap_or_default();
    let config = Config { keys: keys.into_iter().filter(|(_, value)| !value.is_null()).collect() };
    config.check().map_err(at)?;
    let mut words = Words { matches, words: Vec::new() };
    config.words(&mut words).map_err(at)?;
    arguments.extend(words.words);
    Ok(arguments)
}

/// The keys of a file.
fn file(path: &Path) -> Result<Map<String, Value>, Failure> {
    let at = |problem: &dyn Display| Failure::Usage(format!("{}: {problem}", path.display()));
    let text = input::text(path)?;
    let documents = Yaml::load_from_str(&text).map_err(|error| at(&error))?;
    match documents.first().map(json_of).transpose().map_err(|problem| at(&problem))? {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(keys)) if documents.len() == 1 => Ok(keys),
        Some(_) => Err(at(&"expected one mapping of keys to values")),
    }
}

fn json_of(node: &Yaml<'_>) -> Result<Value, String> {
    Ok(match node {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(value)) => json!(value),
        Yaml::Value(Scalar::Integer(value)) => json!(value),
        Yaml::Value(Scalar::FloatingPoint(value)) => json!(value.into_inner()),
        // Booleans of YAML 1.1, which MLX-LM's parser reads as such.
        Yaml::Value(Scalar::String(text)) => match text.to_ascii_lowercase().as_str() {
            "yes" | "on" => json!(true),
            "no" | "off" => json!(false),
            _ => json!(text),
        },
        Yaml::Sequence(items) => Value::Array(items.iter().map(json_of).collect::<Result<_, _>>()?),
        Yaml::Mapping(pairs) => {
            let pair = |(key, value): (&Yaml<'_>, &Yaml<'_>)| match json_of(key)? {
                Value::String(key) => Ok((key, json_of(value)?)),
                key => Err(format!("the key {key} is no text")),
            };
            Value::Object(pairs.iter().map(pair).collect::<Result<_, _>>()?)
        }
        _ => return Err("tags and aliases are not read".into()),
    })
}

/// A configuration without keys that are null.
struct Config {
    keys: Map<String, Value>,
}

impl Config {
    /// Refuses keys that Brasa does not support.
    fn check(&self) -> Result<(), String> {
        for (key, value) in &self.keys {
            if KEYS.contains(&key.as_str()) {
                continue;
            }
            match OTHERS.iter().find(|(name, ..)| name == key) {
                Some((_, _, silent)) if silent.contains(&value.to_string().as_str()) => {}
                Some((_, why, _)) => return Err(format!("`{key}` is not followed: {why}")),
                None => return Err(format!("there is no key `{key}`; there are {}", KEYS.join(", "))),
            }
        }
        if self.keys.get("train") == Some(&json!(false)) {
            return Err("`train: false`: `brasa train` trains; `brasa perplexity` measures a text".into());
        }
        for switch in ["train", "test", "grad_checkpoint", "mask_prompt"] {
            self.switch(switch)?;
        }
        Ok(())
    }

    fn switch(&self, key: &str) -> Result<bool, String> {
        match self.keys.get(key) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| format!("`{key}: {value}`: expected true or false")),
        }
    }

    /// A whole number; −1 is `None`.
    fn whole(&self, key: &str, default: u64) -> Result<Option<u64>, String> {
        match self.keys.get(key) {
            None => Ok(Some(default)),
            Some(value) if value.as_i64() == Some(-1) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(format!("`{key}: {value}`: expected a whole number")),
            },
        }
    }

    fn count(&self, key: &str, default: u64) -> Result<u64, String> {
        let value = self.whole(key, default)?.filter(|count| *count > 0);
        value.ok_or_else(|| format!("`{key}`: expected a whole number from 1"))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, String> {
        let value = self.keys.get(key);
        value
            .map(|value| value.as_str().ok_or_else(|| format!("`{key}: {value}`: expected a text")))
            .transpose()
    }

    /// A mapping that may only have the keys `known`.
    fn table(&self, key: &str, known: &[&str]) -> Result<Map<String, Value>, String> {
        let table = match self.keys.get(key) {
            None => return Ok(Map::new()),
            Some(Value::Object(table)) => table.clone(),
            Some(other) => return Err(format!("`{key}: {other}`: expected keys and values")),
        };
        check_keys(key, &table, known)?;
        Ok(table)
    }

    /// Adds the options that the configuration sets, with MLX-LM's defaults.
    fn words(&self, words: &mut Words<'_>) -> Result<(), String> {
        if let Some(model) = self.text("model")?
            && !["path", "model", "hf_repo"].iter().any(|id| words.is_set(id))
        {
            let option = if Path::new(model).exists() { "model" } else { "hf_repo" };
            words.set(option, model);
        }
        if let Some(data) = self.text("data")? {
            words.set("data", data);
        }
        words.set("out", self.text("adapter_path")?.unwrap_or("adapters"));
        words.set("form", "mlx");
        words.set("method", self.text("fine_tune_type")?.unwrap_or("lora"));
        words.set("seed", self.count_or_zero("seed")?);
        if !["epochs", "steps"].iter().any(|id| words.is_set(id)) {
            words.set("iters", self.count("iters", 1000)?);
        }
        if !words.is_set("evaluate_every") {
            words.set("steps_per_eval", self.count("steps_per_eval", 200)?);
        }
        if !words.is_set("report_every") {
            words.set("steps_per_report", self.count("steps_per_report", 10)?);
        }
        for (key, default) in [("val_batches", 25), ("test_batches", 500)] {
            if let Some(batches) = self.whole(key, default)? {
                words.set(key, batches);
            }
        }
        let accumulation = self.count("grad_accumulation_steps", 1)?;
        words.set("accumulate", accumulation);
        words.set("save_every", (self.count("save_every", 100)? / accumulation).max(1));
        let (batch, longest) = (self.count("batch_size", 4)?, self.count("max_seq_length", 2048)?);
        words.set("batch_examples", batch);
        words.set("max_seq_length", longest);
        words.set("batch_tokens", batch.saturating_mul(longest));
        words.set("long", "cut");
        if let Some(blocks) = self.whole("num_layers", 16)? {
            words.set("last_blocks", blocks);
        }
        if self.switch("grad_checkpoint")? {
            words.switch("recompute");
        }
        if !words.is_set("mask_prompt") {
            words.set("learn", if self.switch("mask_prompt")? { "from-last" } else { "all" });
        }
        if let Some(path) = self.text("resume_adapter_file")? {
            words.set("from", path);
        }
        if words.value("method").as_deref().or(self.text("fine_tune_type")?) != Some("full") {
            self.adapter(words)?;
        }
        self.optimizer(words)
    }

    fn count_or_zero(&self, key: &str) -> Result<u64, String> {
        self.whole(key, 0)?.ok_or_else(|| format!("`{key}`: expected a whole number from 0"))
    }

    fn adapter(&self, words: &mut Words<'_>) -> Result<(), String> {
        let own = self.table("lora_parameters", &["keys", "rank", "scale", "dropout", "alpha"])?;
        if own.contains_key("alpha") {
            return Err("`lora_parameters.alpha`: MLX-LM knows `scale`, which is alpha/rank".into());
        }
        let number = |key: &str, default: f64| match own.get(key) {
            None => Ok(default),
            Some(value) => {
                value.as_f64().ok_or_else(|| format!("`lora_parameters.{key}: {value}`: expected a number"))
            }
        };
        if !own.is_empty() && !own.contains_key("scale") {
            return Err("`lora_parameters` without `scale`, which MLX-LM asks for too".into());
        }
        let (rank, scale) = (number("rank", 8.0)?, number("scale", 20.0)?);
        words.set("rank", rank);
        let rank = words.value("rank").and_then(|rank| rank.parse().ok()).unwrap_or(rank);
        words.set("alpha", scale * rank);
        words.set("dropout", number("dropout", 0.0)?);
        if let Some(keys) = own.get("keys") {
            let keys: Option<Vec<&str>> =
                keys.as_array().and_then(|keys| keys.iter().map(Value::as_str).collect());
            let keys = keys.ok_or("`lora_parameters.keys`: expected a list of names")?;
            words.set("targets", keys.join(","));
        }
        Ok(())
    }

    fn optimizer(&self, words: &mut Words<'_>) -> Result<(), String> {
        let chosen = words.value("optimizer");
        let name = match &chosen {
            Some(name) => name.as_str(),
            None => self.text("optimizer")?.unwrap_or("adam"),
        };
        let known: &[&str] = match name {
            "adam" => &["betas", "eps", "bias_correction"],
            // The second is Brasa's own, which a command line sets beside a configuration.
            "adamw" | "adamw-8bit" => &["betas", "eps", "bias_correction", "weight_decay"],
            "sgd" => &["momentum", "weight_decay", "nesterov", "dampening"],
            "muon" => &["momentum", "weight_decay", "nesterov", "ns_steps"],
            "adafactor" => &[
                "eps",
                "clip_threshold",
                "decay_rate",
                "beta_1",
                "weight_decay",
                "scale_parameter",
                "relative_step",
                "warmup_init",
            ],
            _ => return Err(format!("`optimizer: {name}`: there are adam, adamw, sgd, muon and adafactor")),
        };
        words.set("optimizer", name);
        let all = self.table("optimizer_config", &["adam", "adamw", "sgd", "muon", "adafactor"])?;
        let own = match all.get(name) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(own)) => own.clone(),
            Some(other) => {
                return Err(format!("`optimizer_config.{name}: {other}`: expected keys and values"));
            }
        };
        check_keys(&format!("optimizer_config.{name}"), &own, known)?;
        if name == "adafactor" && !own.is_empty() {
            words.set("adafactor", Value::Object(own.clone()));
        }
        let known = if name == "adafactor" { &[][..] } else { known };
        let wrong = |key: &str| format!("`optimizer_config.{name}.{key}: {}` is not followed", own[key]);
        for (key, silent) in [("dampening", 0.0), ("ns_steps", 5.0)] {
            if own.get(key).is_some_and(|value| value.as_f64() != Some(silent)) {
                return Err(wrong(key));
            }
        }
        let defaults = match name {
            "adam" => vec![("bias_correction", json!(false))],
            "adamw" | "adamw-8bit" => vec![("bias_correction", json!(false)), ("weight_decay", json!(0.01))],
            "muon" => {
                vec![("momentum", json!(0.95)), ("nesterov", json!(true)), ("weight_decay", json!(0.01))]
            }
            _ => Vec::new(),
        };
        let defaults =
            defaults.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>();
        for key in known.iter().filter(|key| !["dampening", "ns_steps"].contains(key)) {
            let Some(value) = own.get(*key).or_else(|| defaults.get(*key)) else { continue };
            match value {
                Value::Bool(value) => words.set(key, value),
                Value::Number(value) => words.set(key, value),
                Value::Array(pair) if *key == "betas" && pair.len() == 2 => {
                    words.set(key, format!("{},{}", pair[0], pair[1]));
                }
                _ => return Err(wrong(key)),
            }
        }
        words.set("clip", 0);
        let rate = self.keys.get("learning_rate").map_or(Some(1e-5), Value::as_f64);
        let rate = rate
            .ok_or_else(|| format!("`learning_rate: {}`: expected a number", self.keys["learning_rate"]))?;
        let is_own = ["lr", "schedule", "warm_up"].iter().any(|id| words.is_set(id));
        if let Some(schedule) = self.keys.get("lr_schedule").filter(|_| !is_own) {
            words.set("lr_schedule", schedule);
        } else {
            words.set("lr", rate);
            words.set("schedule", "constant");
            words.set("warm_up", 0);
        }
        Ok(())
    }
}

fn check_keys(of: &str, table: &Map<String, Value>, known: &[&str]) -> Result<(), String> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("there is no key `{of}.{key}`; there are {}", known.join(", "))),
        None => Ok(()),
    }
}

/// Options that are added to the command line.
struct Words<'a> {
    matches: &'a ArgMatches,
    words: Vec<OsString>,
}

impl Words<'_> {
    fn is_set(&self, id: &str) -> bool {
        self.matches.value_source(id) == Some(ValueSource::CommandLine)
    }

    /// The value of an option, if the command line sets it.
    fn value(&self, id: &str) -> Option<String> {
        let raw = self.matches.get_raw(id).filter(|_| self.is_set(id))?.next()?;
        Some(raw.to_string_lossy().into_owned())
    }

    /// Sets an option, unless the command line sets it.
    fn set(&mut self, id: &str, value: impl Display) {
        if !self.is_set(id) {
            self.words.push(format!("--{}={value}", id.replace('_', "-")).into());
        }
    }

    fn switch(&mut self, id: &str) {
        if !self.is_set(id) {
            self.words.push(format!("--{}", id.replace('_', "-")).into());
        }
    }
}
