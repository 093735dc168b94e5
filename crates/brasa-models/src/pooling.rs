//! How a checkpoint makes one vector of a text's hidden states.

use brasa_formats::gguf::{self, FromValue as _};
use brasa_formats::{Checkpoint, Metadata};
use serde_json::{Map, Value};

use crate::metadata::shortened;
use crate::source::as_json;
use crate::{ModelError, Result};

/// The file in which sentence-transformers keeps the pooling.
const CONFIG: &str = "1_Pooling/config.json";

/// The modes of sentence-transformers that make one vector, by the keys that switch them on.
const MODES: [(&str, Pooling); 6] = [
    ("pooling_mode_lasttoken", Pooling::Last),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_cls_token", Pooling::First),
    ("pooling_mode_max_tokens", Pooling::Other("max")),
    ("pooling_mode_mean_sqrt_len_tokens", Pooling::Other("mean_sqrt_len")),
    ("pooling_mode_weightedmean_tokens", Pooling::Other("weightedmean")),
];

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The state of the last token, the only state in a decoder that depends on the whole text.
    Last,
    /// The mean of all tokens' states.
    Mean,
    /// The state of the first token, which depends on the whole text in an encoder.
    First,
    /// No pooling: the states of all tokens, one after the other. Checkpoints do not choose it, but options may.
    None,
    /// Another pooling, which Brasa does not compute, by its name.
    Other(&'static str),
}

impl Pooling {
    /// The name, as llama.cpp spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Mean => "mean",
            Self::First => "cls",
            Self::None => "none",
            Self::Other(name) => name,
        }
    }

    /// Reads a checkpoint's pooling: GGUF's `ARCH.pooling_type`, or the `1_Pooling/config.json` of sentence-transformers. `None` if
    /// it has neither.
    ///
    /// # Errors
    ///
    /// [`ModelError::BadValue`] for a value without meaning, [`ModelError::Config`] for a file that cannot be read, is no JSON object, or
    /// joins several vectors.
    pub fn of(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        match checkpoint.metadata() {
            Metadata::Gguf(metadata) => Self::from_gguf(metadata),
            Metadata::Config(_) => {
                let text = checkpoint.sidecar_text(CONFIG);
                let text = text.map_err(|error| ModelError::Config { what: error.to_string() })?;
                text.map(|text| Self::from_config(&text)).transpose()
            }
        }
    }

    fn from_gguf(metadata: &gguf::Metadata) -> Result<Option<Self>> {
        let Ok(Some(architecture)) = metadata.get::<&str>("general.architecture") else { return Ok(None) };
        let key = format!("{architecture}.pooling_type");
        let Some(value) = metadata.value(&key) else { return Ok(None) };
        match u32::from_value(value) {
            Some(0) => Ok(None),
            Some(1) => Ok(Some(Self::Mean)),
            Some(2) => Ok(Some(Self::First)),
            Some(3) => Ok(Some(Self::Last)),
            Some(4) => Ok(Some(Self::Other("rank"))),
            _ => {
                let expected = "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)".into();
                Err(ModelError::BadValue { key, found: shortened(&as_json(value)), expected })
            }
        }
    }

    /// The mode that a name in newer files of sentence-transformers stands for.
    fn named(name: &str) -> Option<Self> {
        let switch = match name {
            "lasttoken" => "pooling_mode_lasttoken".into(),
            "cls" => "pooling_mode_cls_token".into(),
            "mean" | "max" => format!("pooling_mode_{name}_tokens"),
            other => format!("pooling_mode_{}_tokens", other.trim_end_matches("_tokens")),
        };
        MODES.iter().find(|(known, _)| *known == switch).map(|&(_, pooling)| pooling)
    }

    fn from_config(text: &str) -> Result<Self> {
        let refuse = |what: String| ModelError::Config { what: format!("{CONFIG}: {what}") };
        let config: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| refuse(error.to_string()))?;
        if config.get("include_prompt").and_then(Value::as_bool) == Some(false) {
            return Err(refuse("include_prompt is false: leaving prompts out is not computed".into()));
        }
        // Newer files name the mode, older ones have a switch for each.
        match config.get("pooling_mode") {
            Some(Value::String(name)) => {
                return Self::named(name).ok_or_else(|| refuse(format!("no mode {name}")));
            }
            Some(Value::Array(_)) => return Err(refuse("several modes, whose vectors are joined".into())),
            _ => {}
        }
        let is_on = |name: &str| config.get(name).and_then(Value::as_bool).unwrap_or(false);
        let chosen: Vec<_> = MODES.iter().filter(|(name, _)| is_on(name)).collect();
        match chosen[..] {
            [&(_, pooling)] => Ok(pooling),
            [] => Err(refuse("no mode is chosen".into())),
            _ => Err(refuse("several modes, whose vectors are joined".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gguf(kind: impl Into<gguf::Value>) -> Result<Option<Pooling>> {
        let mut metadata = gguf::Metadata::new();
        metadata.insert("general.architecture", "qwen3");
        metadata.insert("qwen3.pooling_type", kind);
        Pooling::from_gguf(&metadata)
    }

    #[test]
    fn gguf_says_it_by_number() {
        let found: Vec<_> = (0..5_u32).map(|kind| gguf(kind).unwrap().map(Pooling::name)).collect();
        assert_eq!(found, [None, Some("mean"), Some("cls"), Some("last"), Some("rank")]);
        assert!(gguf(5_u32).is_err() && gguf("last").is_err());
        assert_eq!(Pooling::from_gguf(&gguf::Metadata::new()).unwrap(), None);
    }

    #[test]
    fn sentence_transformers_say_it_by_switches() {
        let read = |text: &str| Pooling::from_config(text);
        let last = r#"{"word_embedding_dimension": 1024, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true}"#;
        assert_eq!(read(last).unwrap(), Pooling::Last);
        assert_eq!(read(r#"{"pooling_mode_max_tokens": true}"#).unwrap(), Pooling::Other("max"));
        let newer = |mode: &str| read(&format!(r#"{{"embedding_dimension": 8, "pooling_mode": {mode}}}"#));
        assert_eq!(newer(r#""cls""#).unwrap(), Pooling::First);
        assert_eq!(newer(r#""mean""#).unwrap(), Pooling::Mean);
        assert_eq!(newer(r#""lasttoken""#).unwrap(), Pooling::Last);
        assert_eq!(newer(r#""mean_sqrt_len_tokens""#).unwrap(), Pooling::Other("mean_sqrt_len"));
        assert!(newer(r#""median""#).is_err() && newer(r#"["cls", "max"]"#).is_err());
        for wrong in [
            r#"{"pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": true}"#,
            r#"{"pooling_mode_lasttoken": false}"#,
            r#"{"pooling_mode_mean_tokens": true, "include_prompt": false}"#,
            "[]",
            "{",
        ] {
            assert!(matches!(read(wrong), Err(ModelError::Config { .. })), "{wrong}");
        }
    }
}
