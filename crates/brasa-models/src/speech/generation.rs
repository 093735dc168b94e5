//! Settings for transcribing that a Whisper checkpoint holds beside its weights.

use brasa_formats::{Checkpoint, gguf};
use serde_json::{Map, Value};

use super::SpeechSpec;
use super::alignment::heads_by_shape;
use crate::metadata::shortened;
use crate::source::Source;
use crate::{ModelError, Result};

const CONFIG: &str = "generation_config.json";
/// Names of the alignment heads' key in `generation_config.json` and in GGUF, where the architecture's prefix precedes it. GGUF's
/// value is one flat list of layers and heads.
const HEADS: [&str; 2] = ["alignment_heads", "decoder.alignment_heads"];
const SUPPRESSED: [&str; 2] = ["suppress_tokens", "suppress_tokens"];
const NEVER_FIRST: [&str; 2] = ["begin_suppress_tokens", "begin_suppress_tokens"];

/// Settings for transcribing that a Whisper checkpoint holds: `generation_config.json` of a folder, or keys of a GGUF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeechGeneration {
    /// Layer and number of each alignment head, by which words are timed, in order; `None` if the checkpoint names none.
    pub alignment_heads: Option<Vec<(usize, usize)>>,
    /// Tokens that never occur; `None` if the checkpoint has no list.
    pub suppress_tokens: Option<Vec<u32>>,
    /// Tokens that do not begin a text; `None` if the checkpoint has no list.
    pub begin_suppress_tokens: Option<Vec<u32>>,
}

impl SpeechGeneration {
    /// Reads the settings of `checkpoint`, from which `source` and `spec` were read before.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] for a `generation_config.json` that cannot be read, [`ModelError::BadValue`] for heads or tokens that the
    /// model does not have.
    pub fn of(checkpoint: &Checkpoint, source: &Source, spec: &SpeechSpec) -> Result<Self> {
        let config = |what: String| ModelError::Config { what };
        if let brasa_formats::Metadata::Gguf(_) = checkpoint.metadata() {
            let value = |[_, name]: [&str; 2]| {
                Some((source.spelled(name), source.value(name).filter(|value| !value.is_null())?.clone()))
            };
            let pairs = |flat: Value| match flat {
                Value::Array(flat) => flat.chunks(2).map(|pair| Value::from(pair.to_vec())).collect(),
                other => other,
            };
            let heads = value(HEADS).map(|(key, flat)| (key, pairs(flat)));
            return Self::read(heads, value(SUPPRESSED), value(NEVER_FIRST), spec);
        }
        let text = checkpoint.sidecar_text(CONFIG).map_err(|error| config(error.to_string()))?;
        let Some(text) = text else { return Ok(Self::default()) };
        let map: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| config(format!("{CONFIG}: {error}")))?;
        let value = |[name, _]: [&str; 2]| {
            Some((format!("{CONFIG}: {name}"), map.get(name).filter(|value| !value.is_null())?.clone()))
        };
        Self::read(value(HEADS), value(SUPPRESSED), value(NEVER_FIRST), spec)
    }

    fn read(
        heads: Option<(String, Value)>,
        suppressed: Option<(String, Value)>,
        never_first: Option<(String, Value)>,
        spec: &SpeechSpec,
    ) -> Result<Self> {
        let tokens = |given: Option<(String, Value)>| {
            given.map(|(key, value)| read_tokens(key, &value, spec.vocab_size)).transpose()
        };
        Ok(Self {
            alignment_heads: heads.map(|(key, value)| read_heads(key, &value, spec)).transpose()?,
            suppress_tokens: tokens(suppressed)?,
            begin_suppress_tokens: tokens(never_first)?,
        })
    }

    /// The heads by which words are timed: those that are named, else those of OpenAI's model of the same shape, else all heads of the
    /// later half of the decoder, as in openai-whisper.
    pub fn heads(&self, spec: &SpeechSpec) -> Vec<(usize, usize)> {
        let named = self.alignment_heads.clone();
        named.unwrap_or_else(|| heads_by_shape(spec).unwrap_or_else(|| spec.later_heads()))
    }

    /// The keys of a GGUF file with these settings.
    pub fn gguf_pairs(&self, architecture: &str) -> Vec<(String, gguf::Value)> {
        let heads = self.alignment_heads.as_ref();
        let flat = heads.map(|heads| heads.iter().flat_map(|&(layer, head)| [layer as u32, head as u32]));
        let mut pairs = Vec::new();
        let mut put = |name: &str, list: Option<Vec<u32>>| {
            if let Some(list) = list {
                pairs.push((format!("{architecture}.{name}"), gguf::Value::Array(gguf::Array::of(list))));
            }
        };
        put(HEADS[1], flat.map(Iterator::collect));
        put(SUPPRESSED[1], self.suppress_tokens.clone());
        put(NEVER_FIRST[1], self.begin_suppress_tokens.clone());
        pairs
    }
}

fn read_heads(key: String, value: &Value, spec: &SpeechSpec) -> Result<Vec<(usize, usize)>> {
    let decoder = spec.decoder;
    let pair = |pair: &Value| {
        let [layer, head] = pair.as_array()?.as_slice() else { return None };
        let (layer, head) = (layer.as_u64()? as usize, head.as_u64()? as usize);
        (layer < decoder.layers && head < decoder.heads).then_some((layer, head))
    };
    let heads: Option<Vec<_>> = value.as_array().and_then(|pairs| pairs.iter().map(pair).collect());
    let Some(mut heads) = heads.filter(|heads| !heads.is_empty()) else {
        return Err(ModelError::BadValue {
            key,
            found: shortened(value),
            expected: format!("pairs of a layer below {} and a head below {}", decoder.layers, decoder.heads),
        });
    };
    heads.sort_unstable();
    heads.dedup();
    Ok(heads)
}

fn read_tokens(key: String, value: &Value, vocab_size: usize) -> Result<Vec<u32>> {
    let token = |value: &Value| value.as_u64().filter(|&id| id < vocab_size as u64).map(|id| id as u32);
    let tokens = value.as_array().and_then(|tokens| tokens.iter().map(token).collect());
    tokens.ok_or_else(|| ModelError::BadValue {
        key,
        found: shortened(value),
        expected: format!("token ids below {vocab_size}"),
    })
}
