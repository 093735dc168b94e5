//! The sampling that a model's makers recommend: `generation_config.json` beside safetensors, `general.sampling.…` in
//! GGUF. One table names each setting in both containers, for reading and for writing.

use brasa_formats::{Checkpoint, Metadata, gguf};
use brasa_graph::sampling::{SamplingError, SamplingParams};
use serde_json::{Map, Value, json};

use crate::metadata::{finite, shortened};
use crate::source::as_json;
use crate::{ModelError, Result};

/// Sampling settings that a checkpoint recommends. A setting that the checkpoint does not name is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RecommendedSampling {
    /// Divides the logits; 0 takes the likeliest token. `do_sample: false` in `generation_config.json` reads as 0.
    pub temperature: Option<f32>,
    /// Tokens to keep; 0 keeps all.
    pub top_k: Option<usize>,
    /// Probability that the kept tokens reach together; 1 keeps all.
    pub top_p: Option<f32>,
    /// Least probability of a kept token, relative to the likeliest; 0 keeps all.
    pub min_p: Option<f32>,
    /// Divides the positive logits of tokens that occurred and multiplies their negative logits; 1 has no effect.
    pub repeat_penalty: Option<f32>,
    /// Settings of the checkpoint that are ignored, as `key = value`: typical-p, and settings that Brasa does not have.
    pub passed_over: Vec<String>,
}

const CONFIG: &str = "generation_config.json";
const PREFIX: &str = "general.sampling.";
const DO_SAMPLE: &str = "do_sample";

/// A sampling setting: its names in both containers, and its field in the recommendation.
struct Setting {
    /// The name in `generation_config.json`.
    hf: &'static str,
    /// The name in GGUF, after `general.sampling.`.
    gguf: &'static str,
    kind: Kind,
}

enum Kind {
    Count {
        slot: fn(&mut RecommendedSampling) -> &mut Option<usize>,
    },
    Number {
        slot: fn(&mut RecommendedSampling) -> &mut Option<f32>,
        place: fn(&mut SamplingParams) -> &mut f32,
    },
}

/// The settings, in the order in which llama.cpp's converter writes them.
const SETTINGS: [Setting; 5] = [
    Setting { hf: "top_k", gguf: "top_k", kind: Kind::Count { slot: |s| &mut s.top_k } },
    Setting {
        hf: "top_p",
        gguf: "top_p",
        kind: Kind::Number { slot: |s| &mut s.top_p, place: |p| &mut p.top_p },
    },
    Setting {
        hf: "min_p",
        gguf: "min_p",
        kind: Kind::Number { slot: |s| &mut s.min_p, place: |p| &mut p.min_p },
    },
    Setting {
        hf: "temperature",
        gguf: "temp",
        kind: Kind::Number { slot: |s| &mut s.temperature, place: |p| &mut p.temperature },
    },
    Setting {
        hf: "repetition_penalty",
        gguf: "penalty_repeat",
        kind: Kind::Number { slot: |s| &mut s.repeat_penalty, place: |p| &mut p.repeat_penalty },
    },
];

/// Settings of `generation_config.json` that change what is drawn, each with the value that has no effect.
fn foreign() -> [(&'static str, Value); 8] {
    [
        ("diversity_penalty", json!(0)),
        ("encoder_repetition_penalty", json!(1)),
        ("epsilon_cutoff", json!(0)),
        ("eta_cutoff", json!(0)),
        ("no_repeat_ngram_size", json!(0)),
        ("num_beams", json!(1)),
        ("penalty_alpha", json!(0)),
        ("typical_p", json!(1)),
    ]
}

impl RecommendedSampling {
    /// Reads the recommended sampling of a checkpoint, from either container. A checkpoint without one recommends nothing.
    ///
    /// # Errors
    ///
    /// [`ModelError::BadValue`] for a setting of the wrong kind or out of range, naming key and value;
    /// [`ModelError::Config`] for a `generation_config.json` that cannot be read or is no JSON object.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.metadata() {
            Metadata::Gguf(metadata) => Self::from_gguf(metadata),
            Metadata::Config(_) => {
                let text = checkpoint.sidecar_text(CONFIG);
                match text.map_err(|error| ModelError::Config { what: error.to_string() })? {
                    Some(text) => Self::from_generation_config(&text),
                    None => Ok(Self::default()),
                }
            }
        }
    }

    /// Reads the text of a `generation_config.json`.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] for text that is no JSON object, [`ModelError::BadValue`] for a bad setting.
    pub fn from_generation_config(text: &str) -> Result<Self> {
        let config: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| ModelError::Config { what: format!("{CONFIG}: {error}") })?;
        let key = |name: &str| format!("{CONFIG}: {name}");
        let mut found = Self::default();
        for setting in &SETTINGS {
            if let Some(value) = config.get(setting.hf).filter(|value| !value.is_null()) {
                found.read(setting, value, || key(setting.hf))?;
            }
        }
        match config.get(DO_SAMPLE) {
            None | Some(Value::Null | Value::Bool(true)) => {}
            // transformers then takes the likeliest token, whatever else the file says.
            Some(Value::Bool(false)) => found.temperature = Some(0.0),
            Some(other) => return Err(bad(key(DO_SAMPLE), other, "true or false")),
        }
        for (name, neutral) in foreign() {
            if let Some(value) = config.get(name).filter(|value| !value.is_null())
                && value.as_f64() != neutral.as_f64()
            {
                found.passed_over.push(format!("{} = {}", key(name), shortened(value)));
            }
        }
        Ok(found)
    }

    /// Reads the `general.sampling.…` keys of a GGUF file.
    ///
    /// # Errors
    ///
    /// [`ModelError::BadValue`] for a setting of the wrong kind or out of range.
    pub fn from_gguf(metadata: &gguf::Metadata) -> Result<Self> {
        let mut found = Self::default();
        for (key, value) in metadata.iter() {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            let value = as_json(value);
            match SETTINGS.iter().find(|setting| setting.gguf == name) {
                Some(setting) => found.read(setting, &value, || key.into())?,
                None => found.passed_over.push(format!("{key} = {}", shortened(&value))),
            }
        }
        Ok(found)
    }

    /// Puts the recommended settings into `params`. Settings without a recommendation stay as they are.
    pub fn apply(&self, params: &mut SamplingParams) {
        params.temperature = self.temperature.unwrap_or(params.temperature);
        params.top_k = self.top_k.unwrap_or(params.top_k);
        params.top_p = self.top_p.unwrap_or(params.top_p);
        params.min_p = self.min_p.unwrap_or(params.min_p);
        params.repeat_penalty = self.repeat_penalty.unwrap_or(params.repeat_penalty);
    }

    /// Writes the settings as `general.sampling.…` keys.
    pub fn write_gguf(&self, metadata: &mut gguf::Metadata) {
        let mut settings = self.clone();
        for setting in &SETTINGS {
            let value = match setting.kind {
                // llama.cpp reads a signed number of 32 bits.
                Kind::Count { slot } => {
                    slot(&mut settings).map(|count| i32::try_from(count).unwrap_or(0).into())
                }
                Kind::Number { slot, .. } => slot(&mut settings).map(gguf::Value::from),
            };
            if let Some(value) = value {
                metadata.insert(format!("{PREFIX}{}", setting.gguf), value);
            }
        }
    }

    fn read(&mut self, setting: &Setting, value: &Value, key: impl Fn() -> String) -> Result<()> {
        match setting.kind {
            Kind::Count { slot } => {
                let expected = "a whole number; 0 or -1 keeps all tokens";
                let count = value.as_f64().filter(|x| x.fract() == 0.0 && (-1.0..=2e9).contains(x));
                let count = count.ok_or_else(|| bad(key(), value, expected))?;
                *slot(self) = Some(count.max(0.0) as usize);
            }
            Kind::Number { slot, place } => {
                let number = finite(value).ok_or_else(|| bad(key(), value, "a finite number"))?;
                let mut params = SamplingParams::default();
                *place(&mut params) = number;
                if let Err(SamplingError::Parameter { expected, .. }) = params.validate() {
                    return Err(bad(key(), value, expected));
                }
                *slot(self) = Some(number);
            }
        }
        Ok(())
    }
}

fn bad(key: String, value: &Value, expected: &str) -> ModelError {
    ModelError::BadValue { key, found: shortened(value), expected: expected.into() }
}
