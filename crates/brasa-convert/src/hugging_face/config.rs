//! Reading `config.json`.

use serde_json::{Map, Value};

use super::family::Family;
use crate::{ConvertError, Result};

/// No head is wider.
pub const MOST_HEAD_DIM: u32 = 1 << 16;

/// The settings of the language model, with defaults filled in.
#[derive(Clone, Debug)]
pub struct Config {
    pub family: Family,
    /// Lower-case name of the model class, such as `mixtral`.
    pub model_type: String,
    keys: Map<String, Value>,
}

impl Config {
    /// Multimodal checkpoints keep the language model under `text_config`, which wins over the outer keys.
    pub fn new(config: &Value) -> Result<Self> {
        let Some(outer) = config.as_object() else {
            return Err(ConvertError::config("(root)", "expected an object"));
        };
        let mut keys = outer.clone();
        if let Some(Value::Object(text)) = outer.get("text_config") {
            keys.extend(text.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        let family = Family::of(outer).or_else(|_| Family::of(&keys))?;
        let model_type = keys.get("model_type").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(Self { family, model_type, keys })
    }

    /// The value of `key`, or the family's default; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<Value> {
        let given = self.keys.get(key).filter(|value| !value.is_null()).cloned();
        // A key that says `null` says that there is no such thing, not that the default holds.
        let silent = !self.keys.contains_key(key);
        given.or_else(|| silent.then(|| self.family.default_of(&self.model_type, key)).flatten())
    }

    /// A non-negative integer.
    pub fn integer(&self, key: &str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number
            .map(Some)
            .ok_or_else(|| ConvertError::config(key, format!("found {value}, expected an integer")))
    }

    /// An integer that has to be there.
    pub fn require(&self, key: &str) -> Result<u32> {
        self.integer(key)?.ok_or_else(|| ConvertError::config(key, "missing"))
    }

    /// An integer that has to be there, and that lists are made from: at most `most`.
    pub fn bounded(&self, key: &str, most: u32) -> Result<u32> {
        let number = self.require(key)?;
        if number > most {
            return Err(ConvertError::config(key, format!("found {number}, expected at most {most}")));
        }
        Ok(number)
    }

    /// The number of layers.
    pub fn layers(&self) -> Result<u32> {
        self.bounded("num_hidden_layers", 4096)
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value
            .as_f64()
            .map(Some)
            .ok_or_else(|| ConvertError::config(key, format!("found {value}, expected a number")))
    }

    /// A switch that is off where it is not given.
    pub fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(|value| value.as_bool()).unwrap_or(false)
    }

    /// `true` for every layer whose attention slides, from `layer_types`.
    pub fn sliding_layers(&self) -> Option<Vec<bool>> {
        let types = self.get("layer_types")?;
        let types = types.as_array()?;
        Some(types.iter().map(|kind| kind.as_str() == Some("sliding_attention")).collect())
    }

    /// Elements of one head.
    pub fn head_dim(&self) -> Result<u32> {
        if self.integer("head_dim")?.is_some() {
            return self.bounded("head_dim", MOST_HEAD_DIM);
        }
        Ok(self.bounded("hidden_size", 1 << 24)? / self.require("num_attention_heads")?.max(1))
    }

    /// Key and value heads; as many as query heads where it is not given.
    pub fn kv_heads(&self) -> Result<u32> {
        self.integer("num_key_value_heads")?.map_or_else(|| self.require("num_attention_heads"), Ok)
    }

    /// The number of experts; `None` for dense models.
    pub fn experts(&self) -> Result<Option<u32>> {
        for key in ["num_local_experts", "num_experts"] {
            if let Some(experts) = self.integer(key)? {
                return Ok(Some(experts));
            }
        }
        Ok(None)
    }

    /// True where the output matrix is the embedding.
    pub fn is_tied(&self) -> bool {
        self.flag("tie_word_embeddings")
    }
}
