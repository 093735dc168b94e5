//! PEFT's adapters: `α` and rank for all layers, with patterns for those that differ.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::RegexBuilder;
use serde_json::{Map, Value, json};

use super::pair::{Part, Parts, check_magnitudes, first_and_dora};
use super::{AdapterFile, AdapterForm, LowRankPair, write_directory};
use crate::error::{Fault, Printable};
use crate::{Existing, Result, Tensor};

pub(super) const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";
const MOST_PATTERNS: usize = 10_000;
const LARGEST_PATTERN_BYTES: usize = 1 << 18;

/// Keys that do not change an adapter's computation: bookkeeping, training, and facts that its tensors tell themselves.
const HARMLESS: &[&str] = &[
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
];

/// Keys with values besides null, false and empty ones that change nothing.
const NEUTRAL: &[(&str, &[&str])] =
    &[("bias", &["none"]), ("init_lora_weights", &["gaussian", "eva", "orthogonal"])];

pub(super) fn read(
    config_path: &Path,
    config: &Value,
    path: &Path,
    tensors: Vec<Tensor>,
) -> Result<AdapterFile> {
    check_config(config_path, config)?;
    let scales = Scales::new(config_path, config)?;
    let mut parts = Parts::default();
    for tensor in tensors {
        let name = tensor.name.clone();
        if name.ends_with(".base_layer.weight") {
            // The frozen matrix of an adapted head, which PEFT saves beside its pair.
            continue;
        }
        let endings = [
            (".lora_A.weight", Part::A),
            (".lora_B.weight", Part::B),
            (".lora_magnitude_vector", Part::Magnitude),
        ];
        let found = name.strip_prefix(PREFIX).and_then(|name| {
            endings.into_iter().find_map(|(ending, part)| Some((name.strip_suffix(ending)?, part)))
        });
        let Some((layer, part)) = found else {
            let problem = if name.contains(".lora_embedding_") {
                "a low-rank pair of an embedding is not supported"
            } else if name.contains("lora_") {
                "a part of an adapter that is not supported"
            } else {
                "a whole trained tensor (`modules_to_save`) is not supported"
            };
            return Err(Fault::new(path, problem).of(name).unsupported());
        };
        parts.add(path, layer, part, tensor)?;
    }
    let names: Vec<String> = parts.names().map(String::from).collect();
    let own = scales.by_layer(config_path, &names)?;
    let pairs = parts.pairs(path, |name, rank| scales.scale(path, name, rank, own.get(name)))?;
    let is_dora = config.get("use_dora").is_some_and(|dora| dora == true);
    check_magnitudes(path, &pairs, is_dora)?;
    let base = config.get("base_model_name_or_path").and_then(Value::as_str).map(String::from);
    Ok(AdapterFile { form: AdapterForm::Peft, architecture: None, base, num_layers: None, pairs })
}

/// Refuses every setting that would change the product `scale · B·A`.
fn check_config(path: &Path, config: &Value) -> Result<()> {
    let refuse = |key: &str, value: &Value, expected: &str| {
        let problem = format!("{} is not supported, expected {expected}", Printable(&value.to_string()));
        Err(Fault::new(path, problem).of(key).unsupported())
    };
    let kind = config.get("peft_type").unwrap_or(&Value::Null);
    if kind != "LORA" {
        return refuse("peft_type", kind, "\"LORA\"");
    }
    for (key, value) in config.as_object().into_iter().flatten() {
        if HARMLESS.contains(&key.as_str()) {
            continue;
        }
        let neutral = NEUTRAL.iter().find(|(known, _)| known == key).map_or(&[][..], |(_, values)| values);
        let is_neutral = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Bool(true) => matches!(&**key, "init_lora_weights"),
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::String(text) => neutral.contains(&text.as_str()),
            Value::Number(_) => false,
        };
        if !is_neutral {
            let others: Vec<String> = neutral.iter().map(|text| format!("{text:?}")).collect();
            let expected = if others.is_empty() { "no value".to_owned() } else { others.join(" or ") };
            return refuse(key, value, &expected);
        }
    }
    Ok(())
}

/// Rank and `α`, of all layers and of those that patterns name.
struct Scales {
    rank: f64,
    alpha: f64,
    by_root: bool,
    rank_patterns: Vec<(String, f64)>,
    alpha_patterns: Vec<(String, f64)>,
}

/// The settings of one layer, from PEFT's patterns of names.
#[derive(Clone, Copy, Default)]
struct Own {
    rank: Option<f64>,
    alpha: Option<f64>,
}

impl Scales {
    fn new(path: &Path, config: &Value) -> Result<Self> {
        let number = |key: &str| {
            config
                .get(key)
                .and_then(Value::as_f64)
                .ok_or_else(|| Fault::new(path, "expected a number").of(key).missing())
        };
        let flag = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Fault::new(path, "expected true or false").of(key).malformed()),
        };
        let patterns = |key: &str| {
            let expected = || Fault::new(path, "expected an object of numbers").of(key).malformed();
            let map = match config.get(key) {
                None | Some(Value::Null) => return Ok(Vec::new()),
                Some(map) => map.as_object().ok_or_else(expected)?,
            };
            if map.len() > MOST_PATTERNS {
                let problem = format!("{} patterns, expected at most {MOST_PATTERNS}", map.len());
                return Err(Fault::new(path, problem).of(key).unsupported());
            }
            let pair =
                |(key, value): (&String, &Value)| Ok((key.clone(), value.as_f64().ok_or_else(expected)?));
            map.iter().map(pair).collect::<Result<Vec<_>>>()
        };
        flag("use_dora")?;
        Ok(Self {
            rank: number("r")?,
            alpha: number("lora_alpha")?,
            by_root: flag("use_rslora")?,
            rank_patterns: patterns("rank_pattern")?,
            alpha_patterns: patterns("alpha_pattern")?,
        })
    }

    /// The settings of each layer by PEFT's patterns. The first pattern that matches a layer counts.
    fn by_layer<'a>(&self, path: &Path, layers: &'a [String]) -> Result<BTreeMap<&'a str, Own>> {
        let mut all: BTreeMap<&str, Own> = BTreeMap::new();
        for (key, patterns) in
            [("rank_pattern", &self.rank_patterns), ("alpha_pattern", &self.alpha_patterns)]
        {
            for (pattern, number) in patterns {
                let whole = format!(r"\A(?:.*\.)?(?:{pattern})\z");
                let regex =
                    RegexBuilder::new(&whole).size_limit(LARGEST_PATTERN_BYTES).build().map_err(|_| {
                        let problem = format!("\"{}\" is no pattern that is understood", Printable(pattern));
                        Fault::new(path, problem).of(key).unsupported()
                    })?;
                for layer in layers.iter().filter(|layer| regex.is_match(layer)) {
                    let own = all.entry(layer).or_default();
                    let slot = if key == "rank_pattern" { &mut own.rank } else { &mut own.alpha };
                    slot.get_or_insert(*number);
                }
            }
        }
        Ok(all)
    }

    fn scale(&self, path: &Path, layer: &str, rank: usize, own: Option<&Own>) -> Result<f32> {
        let own = own.copied().unwrap_or_default();
        let expected = own.rank.unwrap_or(self.rank);
        #[expect(clippy::float_cmp, reason = "a rank is a whole number")]
        if expected != rank as f64 {
            let problem = format!("A has {rank} rows, but its rank is {expected} by adapter_config.json");
            return Err(Fault::new(path, problem).of(layer).malformed());
        }
        let divisor = if self.by_root { expected.sqrt() } else { expected };
        Ok((own.alpha.unwrap_or(self.alpha) / divisor) as f32)
    }
}

pub(super) fn write(adapter: &AdapterFile, path: &Path, existing: Existing) -> Result<()> {
    let (first, is_dora) = first_and_dora(path, &adapter.pairs, "PEFT")?;
    if let Some(stack) = adapter.pairs.iter().find(|pair| pair.experts().is_some()) {
        let fault = Fault::new(path, "PEFT has no form for a stack of experts").of(stack.name.as_str());
        return Err(fault.hint("write MLX or GGUF").unwritable());
    }
    let (rank, alpha) = (first.rank(), alpha_of(first));
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    let mut tensors = Vec::new();
    for pair in &adapter.pairs {
        if pair.rank() != rank {
            ranks.insert(pair.name.clone(), pair.rank().into());
        }
        if alpha_of(pair) != alpha {
            alphas.insert(pair.name.clone(), alpha_of(pair));
        }
        let named = |ending: &str, tensor: &Tensor| Tensor {
            name: format!("{PREFIX}{}.{ending}", pair.name),
            ..tensor.clone()
        };
        tensors.push(named("lora_A.weight", &pair.a));
        tensors.push(named("lora_B.weight", &pair.b));
        tensors.extend(pair.magnitude.as_ref().map(|tensor| named("lora_magnitude_vector", tensor)));
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "inference_mode": true,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": targets(adapter),
        "bias": "none",
        "fan_in_fan_out": false,
        "modules_to_save": null,
        "use_dora": is_dora,
        "use_rslora": false,
    });
    write_directory(path, WEIGHTS, "pt", &tensors, &config, existing)
}

/// `scale · r`, as a whole number if it is one.
fn alpha_of(pair: &LowRankPair) -> Value {
    let alpha = f64::from(pair.scale) * pair.rank() as f64;
    if alpha.fract() == 0.0 && alpha.abs() < 1e9 { (alpha as i64).into() } else { alpha.into() }
}

/// The names of the adapted modules: only the last part of the name if that module is adapted in every layer, otherwise the whole
/// name.
fn targets(adapter: &AdapterFile) -> BTreeSet<&str> {
    let mut by_end: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for pair in &adapter.pairs {
        by_end.entry(pair.name.rsplit('.').next().unwrap_or_default()).or_default().push(&pair.name);
    }
    let mut targets = BTreeSet::new();
    for (end, names) in by_end {
        if Some(names.len()) == adapter.num_layers {
            targets.insert(end);
        } else {
            targets.extend(names);
        }
    }
    targets
}
