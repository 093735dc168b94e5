//! Rotary embeddings: settings and the per-dimension factors that llama.cpp wants as tensors.

use brasa_formats::gguf::Metadata;
use serde_json::{Map, Value};

use super::config::{Config, MOST_HEAD_DIM};
use super::family::Family;
use crate::{ConvertError, Result};

/// The settings of full attention and, where they differ, of sliding attention.
///
/// They come in three forms: `rope_parameters` with one object per kind of attention, one object for all, or
/// `rope_theta` beside `rope_scaling`.
#[derive(Clone, Debug)]
pub struct Rope {
    full: Map<String, Value>,
    sliding: Option<Map<String, Value>>,
}

impl Rope {
    pub fn of(config: &Config) -> Self {
        let object = |value: Option<Value>| match value {
            Some(Value::Object(object)) => Some(object),
            _ => None,
        };
        let raw = object(config.get("rope_parameters")).or_else(|| object(config.get("rope_scaling")));
        let raw = raw.unwrap_or_default();
        if raw.contains_key("full_attention") || raw.contains_key("sliding_attention") {
            let part = |key| object(raw.get(key).cloned());
            return Self {
                full: part("full_attention").unwrap_or_default(),
                sliding: part("sliding_attention"),
            };
        }
        let mut full = raw;
        if !full.contains_key("rope_type")
            && let Some(kind) = full.get("type").cloned()
        {
            full.insert("rope_type".into(), kind);
        }
        for key in ["rope_theta", "partial_rotary_factor", "original_max_position_embeddings"] {
            if !full.contains_key(key)
                && let Some(value) = config.get(key)
            {
                full.insert(key.into(), value);
            }
        }
        let local = config.get("rope_local_base_freq").map(|theta| [("rope_theta".to_owned(), theta)]);
        Self { full, sliding: local.map(|pairs| pairs.into_iter().collect()) }
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.full.get(key).and_then(Value::as_f64)
    }

    fn kind(&self) -> &str {
        self.full.get("rope_type").and_then(Value::as_str).unwrap_or("default")
    }

    /// The base of full attention.
    pub fn theta(&self) -> Option<f64> {
        self.number("rope_theta")
    }

    /// The share of a head that sliding attention rotates.
    pub fn sliding_rotary_share(&self) -> f64 {
        let share = self.sliding.as_ref().and_then(|sliding| sliding.get("partial_rotary_factor"));
        share.and_then(Value::as_f64).unwrap_or(1.0)
    }

    /// Writes scaling and bases; notes what other readers will not see.
    pub fn describe(
        &self,
        metadata: &mut Metadata,
        architecture: &str,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        let factor = || self.number("factor");
        match (self.kind(), factor()) {
            ("linear", Some(factor)) => {
                metadata.insert(key("scaling.type"), "linear");
                metadata.insert(key("scaling.factor"), factor as f32);
            }
            ("yarn", Some(factor)) => {
                metadata.insert(key("scaling.type"), "yarn");
                metadata.insert(key("scaling.factor"), factor as f32);
                let context = self.full.get("original_max_position_embeddings").and_then(Value::as_u64);
                let context = context.ok_or_else(|| {
                    ConvertError::config(
                        "rope_scaling.original_max_position_embeddings",
                        "missing, yarn needs it",
                    )
                })?;
                metadata.insert(key("scaling.original_context_length"), context as u32);
                let attention = self.yarn_attention_factor(factor);
                if attention.is_some() {
                    notes.push("rope_scaling: llama.cpp passes over an attention factor of YaRN's".into());
                }
                if self.full.get("truncate") == Some(&Value::Bool(false)) {
                    notes.push(
                        "rope_scaling.truncate is false, which has no key in GGUF: true is assumed".into(),
                    );
                }
                for (name, value) in [
                    ("scaling.yarn_ext_factor", self.number("extrapolation_factor")),
                    ("scaling.yarn_attn_factor", attention),
                    ("scaling.yarn_beta_fast", self.number("beta_fast")),
                    ("scaling.yarn_beta_slow", self.number("beta_slow")),
                ] {
                    if let Some(value) = value {
                        metadata.insert(key(name), value as f32);
                    }
                }
            }
            ("longrope" | "su", _) => metadata.insert(key("scaling.type"), "longrope"),
            // Written as factors per dimension, or nothing to write.
            ("llama3" | "proportional" | "default", _) => {}
            (other, _) => {
                let problem = format!(
                    "found {other}, expected default, linear, yarn, llama3, longrope or proportional"
                );
                return Err(ConvertError::config("rope_scaling.rope_type", problem));
            }
        }
        if let Some(theta) = self.theta() {
            metadata.insert(key("freq_base"), theta as f32);
        }
        let sliding = self.sliding.as_ref().and_then(|sliding| sliding.get("rope_theta"));
        if let Some(theta) = sliding.and_then(Value::as_f64) {
            metadata.insert(key("freq_base_swa"), theta as f32);
        }
        Ok(())
    }

    /// The tensors of factors that divide the frequency of each pair of dimensions: `(name, values)`.
    pub fn factors(&self, config: &Config) -> Result<Vec<(&'static str, Vec<f32>)>> {
        match self.kind() {
            "llama3" if config.family == Family::Llama => {
                Ok(vec![("rope_freqs.weight", self.llama3_factors(config.head_dim()?))])
            }
            "proportional" => {
                let head_dim = config.bounded("global_head_dim", MOST_HEAD_DIM)? as usize;
                let share = self.number("partial_rotary_factor").unwrap_or(1.0);
                let rotated = (head_dim as f64 * share / 2.0) as usize;
                // The rest of the head does not turn: its frequency is divided by as good as infinity.
                let factor = |pair| if pair < rotated { 1.0 } else { 1e30 };
                Ok(vec![("rope_freqs.weight", (0..head_dim / 2).map(factor).collect())])
            }
            "longrope" | "su" if config.family == Family::Phi3 => Ok(vec![
                ("rope_factors_long.weight", self.list("long_factor")?),
                ("rope_factors_short.weight", self.list("short_factor")?),
            ]),
            "llama3" | "longrope" | "su" => {
                let problem = format!("{} has no GGUF form in this architecture", self.kind());
                Err(ConvertError::config("rope_scaling.rope_type", problem))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// How much longrope scales the attention of a context longer than the one trained on.
    pub fn longrope_attention_factor(&self, context: f64, original_context: f64) -> Option<f64> {
        if !matches!(self.kind(), "longrope" | "su") {
            return None;
        }
        let scale = context / original_context;
        Some(if scale > 1.0 { (1.0 + scale.ln() / original_context.ln()).sqrt() } else { 1.0 })
    }

    /// What YaRN multiplies queries and keys with, where it is not what follows from `factor`.
    fn yarn_attention_factor(&self, factor: f64) -> Option<f64> {
        let given = ["attention_factor", "attn_factor"].into_iter().find_map(|key| self.number(key));
        let scale = |key| {
            let mscale = self.number(key).filter(|mscale| *mscale != 0.0)?;
            Some(if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 })
        };
        given.or_else(|| Some(scale("mscale")? / scale("mscale_all_dim")?))
    }

    fn list(&self, key: &str) -> Result<Vec<f32>> {
        let list = self.full.get(key).and_then(Value::as_array);
        let numbers =
            list.map(|list| list.iter().map(|x| x.as_f64().map(|x| x as f32)).collect::<Option<_>>());
        numbers.flatten().ok_or_else(|| {
            ConvertError::config(format!("rope_scaling.{key}"), "missing, expected a list of numbers")
        })
    }

    /// Llama 3.1: low frequencies are slowed down by `factor`, high ones are left, those between are blended.
    fn llama3_factors(&self, head_dim: u32) -> Vec<f32> {
        let number = |key, default| self.number(key).unwrap_or(default);
        let base = self.theta().unwrap_or(10_000.0) as f32;
        let factor = number("factor", 8.0) as f32;
        let (low, high) = (number("low_freq_factor", 1.0) as f32, number("high_freq_factor", 4.0) as f32);
        let context = number("original_max_position_embeddings", 8192.0) as f32;
        let of_pair = |pair: u32| {
            let frequency = 1.0 / base.powf((2 * pair) as f32 / head_dim as f32);
            let wave_len = 2.0 * std::f32::consts::PI / frequency;
            if wave_len < context / high {
                1.0
            } else if wave_len > context / low {
                factor
            } else {
                let smooth = (context / wave_len - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..head_dim / 2).map(of_pair).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rope(config: &Value) -> Rope {
        Rope::of(&Config::new(config).unwrap())
    }

    #[test]
    fn three_forms_of_settings() {
        let old = rope(
            &json!({"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        );
        assert_eq!((old.theta(), old.kind()), (Some(5e5), "linear"));
        let flat = rope(
            &json!({"model_type": "llama", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
        );
        assert_eq!((flat.theta(), flat.kind()), (Some(5e5), "default"));
        let by_kind = rope(&json!({"model_type": "gemma3_text", "rope_parameters": {
            "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}));
        assert_eq!(by_kind.theta(), Some(1e6));
        assert_eq!(by_kind.sliding.unwrap()["rope_theta"], json!(1e4));
    }

    #[test]
    fn an_unknown_scaling_is_an_error() {
        let odd = rope(&json!({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}));
        let error = odd.describe(&mut Metadata::new(), "llama", &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("found dynamic"), "{error}");
    }
}
