//! Configuration values and tensors by name, from either container.

use std::collections::BTreeMap;
use std::path::Path;

use brasa_formats::{AbsentTensor, Checkpoint, Container, Inspection, Metadata, Tensor, gguf};
use serde_json::{Map, Value, json};

use crate::speech::mlx;
use crate::vocabulary::is_token_id;
use crate::{LoadOptions, ModelError, Result};

/// Configuration and tensors of one checkpoint.
///
/// Cheap: tensors share the bytes of the files.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) container: Container,
    pub(crate) architecture: String,
    /// Configuration of the language model: without the architecture's prefix in GGUF, `text_config` in nested
    /// configurations.
    pub(crate) values: Map<String, Value>,
    /// Keys outside a nested `text_config`.
    pub(crate) outer: Map<String, Value>,
    /// Special tokens by id, under GGUF's keys. Those of Hugging Face are among `values`.
    pub(crate) token_ids: Vec<(String, Value)>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// Tensors that an index names but that no file has.
    absent: Vec<AbsentTensor>,
}

impl Source {
    /// Takes configuration and tensors of an opened checkpoint.
    ///
    /// # Errors
    ///
    /// Errors of [`hugging_face`](Self::hugging_face) and [`gguf`](Self::gguf).
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let source = Self::from_parts(checkpoint.metadata(), checkpoint.tensors())?;
        Ok(Self { absent: checkpoint.absent_tensors().to_vec(), ..source })
    }

    /// Takes configuration and readable tensors of an inspection.
    ///
    /// # Errors
    ///
    /// Errors of [`of`](Self::of); [`ModelError::Config`] if nothing describes the model.
    pub fn inspected(inspection: &Inspection) -> Result<Self> {
        let none = || ModelError::Config { what: "nothing describes the model: no config.json".into() };
        let source =
            Self::from_parts(inspection.metadata().ok_or_else(none)?, inspection.readable_tensors())?;
        Ok(Self { absent: inspection.absent_tensors().to_vec(), ..source })
    }

    fn from_parts(metadata: Metadata<'_>, tensors: &[Tensor]) -> Result<Self> {
        match metadata {
            Metadata::Config(config) => Self::from_config(config.clone(), tensors.iter().cloned()),
            Metadata::Gguf(pairs) => Self::gguf(gguf_pairs(pairs), tensors.iter().cloned()),
        }
    }

    /// Takes the text of a `config.json` and the tensors beside it.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] if `config` is no JSON object; [`ModelError::MissingKey`] if it names no architecture.
    pub fn hugging_face(config: &[u8], tensors: impl IntoIterator<Item = Tensor>) -> Result<Self> {
        let refuse = |what: String| ModelError::Config { what };
        let config: Value =
            serde_json::from_slice(config).map_err(|e| refuse(format!("config.json is not JSON: {e}")))?;
        Self::from_config(config, tensors)
    }

    fn from_config(config: Value, tensors: impl IntoIterator<Item = Tensor>) -> Result<Self> {
        let refuse = |what: String| ModelError::Config { what };
        let Value::Object(mut outer) = config else {
            return Err(refuse(format!("config.json holds {}, expected an object", kind(&config))));
        };
        let mut tensors = by_name(tensors);
        let mut values = match outer.remove("text_config") {
            Some(Value::Object(inner)) => inner,
            Some(other) => {
                return Err(refuse(format!("text_config is {}, expected an object", kind(&other))));
            }
            None => std::mem::take(&mut outer),
        };
        let named =
            |map: &Map<String, Value>| map.get("model_type").and_then(Value::as_str).map(String::from);
        // Very old exports lack the name; what tells the two candidates apart is a tensor that only one has.
        let guess = || {
            let qk_norm = tensors.keys().any(|name| name.ends_with("layers.0.self_attn.q_norm.weight"));
            (!tensors.is_empty()).then(|| String::from(if qk_norm { "qwen3" } else { "qwen2" }))
        };
        // Jina's own code for XLM-R is named in the place of the model type.
        let jina = || {
            let class = values.get("auto_map")?.get("AutoConfig")?.as_str()?;
            class.ends_with("XLMRobertaFlashConfig").then(|| String::from("xlm-roberta"))
        };
        let mlx = || mlx::is_whisper(&values).then(|| String::from("whisper"));
        let architecture = named(&values)
            .or_else(|| named(&outer))
            .or_else(mlx)
            .or_else(jina)
            .or_else(guess)
            .ok_or_else(|| ModelError::MissingKey { key: "model_type".into() })?;
        if architecture == "whisper" && mlx::is_whisper(&values) {
            mlx::translate(&mut values, &mut tensors);
        }
        Ok(Self {
            container: Container::HuggingFace,
            architecture,
            values,
            outer,
            token_ids: Vec::new(),
            tensors,
            absent: Vec::new(),
        })
    }

    /// Takes metadata and tensors of a GGUF file. Of `metadata` only `general.architecture`, the keys under that
    /// architecture's prefix, the ids of special tokens and the length of `tokenizer.ggml.tokens` (as
    /// [`VOCABULARY`](Self::VOCABULARY)) matter.
    ///
    /// # Errors
    ///
    /// [`ModelError::MissingKey`] if the file names no architecture.
    pub fn gguf(
        metadata: impl IntoIterator<Item = (String, Value)>,
        tensors: impl IntoIterator<Item = Tensor>,
    ) -> Result<Self> {
        let mut all: Map<String, Value> = metadata.into_iter().collect();
        let Some(Value::String(architecture)) = all.remove("general.architecture") else {
            return Err(ModelError::MissingKey { key: "general.architecture".into() });
        };
        let mut values = Map::new();
        let mut token_ids = Vec::new();
        for (key, value) in all {
            if let Some(key) = key.strip_prefix(&architecture).and_then(|key| key.strip_prefix('.')) {
                values.insert(key.into(), value);
            } else if key == Self::VOCABULARY {
                values.insert(key, value);
            } else if is_token_id(&key) {
                token_ids.push((key, value));
            }
        }
        Ok(Self {
            container: Container::Gguf,
            architecture,
            values,
            outer: Map::new(),
            token_ids,
            tensors: by_name(tensors),
            absent: Vec::new(),
        })
    }

    /// The name under which [`gguf`](Self::gguf) takes the number of tokens in a file's vocabulary.
    pub const VOCABULARY: &str = "tokenizer.ggml.tokens.length";

    /// The container that configuration and tensors come from.
    pub fn container(&self) -> Container {
        self.container
    }

    /// The tensors by name, under the names and in the layouts that models are made of.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.values()
    }

    /// The architecture, as the checkpoint names it.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The value of a configuration key as the checkpoint spells it: the language model's own, else that of the whole
    /// checkpoint around it. GGUF keys are without the architecture's prefix.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key).or_else(|| self.outer.get(key))
    }

    /// The class of transformers that the language model's own configuration names.
    pub(crate) fn class(&self) -> Option<&str> {
        self.values.get("architectures")?.get(0)?.as_str()
    }

    /// Adds the tensors that an index names and no file has to a model's result: a warning if the model does not need them, else
    /// an error that names the tensor. A strict caller gets the error in any case.
    pub(crate) fn with_index<M>(
        &self,
        options: &LoadOptions,
        built: Result<M>,
        warnings: impl FnOnce(&mut M) -> &mut Vec<String>,
    ) -> Result<M> {
        let error = |absent: &AbsentTensor| ModelError::AbsentTensor {
            tensor: absent.name.clone(),
            index: file_name(&absent.index),
            file: file_name(&absent.file),
        };
        match built {
            Err(ModelError::MissingTensor { tensor }) => {
                let of_index = |name: &str| self.absent.iter().find(|absent| absent.name == name);
                match tensor.split(" or ").find_map(of_index) {
                    Some(absent) => Err(error(absent)),
                    None => Err(ModelError::MissingTensor { tensor }),
                }
            }
            Ok(mut model) => {
                if let Some(first) = self.absent.first() {
                    if options.strict {
                        return Err(error(first));
                    }
                    let more = match self.absent.len() - 1 {
                        0 => String::new(),
                        more => format!(" and {more} more"),
                    };
                    warnings(&mut model).push(format!(
                        "{}: names {}{more}, in {}, which no file has; this model does without",
                        file_name(&first.index),
                        first.name,
                        file_name(&first.file)
                    ));
                }
                Ok(model)
            }
            Err(other) => Err(other),
        }
    }

    /// The name of a key as the checkpoint spells it.
    pub(crate) fn spelled(&self, key: &str) -> String {
        match self.container {
            Container::HuggingFace => key.into(),
            Container::Gguf => format!("{}.{key}", self.architecture),
        }
    }
}

/// The metadata of a GGUF file as [`Source::gguf`] takes it. Of long arrays (vocabularies) only the length of the token list is kept.
pub fn gguf_pairs(metadata: &gguf::Metadata) -> Vec<(String, Value)> {
    const LONGEST: usize = 1 << 16;
    let mut pairs = Vec::new();
    for (key, value) in metadata.iter() {
        match value {
            gguf::Value::Array(array) if key == "tokenizer.ggml.tokens" => {
                pairs.push((Source::VOCABULARY.into(), json!(array.len())));
            }
            gguf::Value::Array(array) if array.len() <= LONGEST => {
                if let Some(scalars) = array.scalars() {
                    pairs.push((key.into(), scalars.map(|scalar| as_json(&scalar)).collect()));
                }
            }
            scalar => pairs.push((key.into(), as_json(scalar))),
        }
    }
    pairs
}

pub(crate) fn as_json(value: &gguf::Value) -> Value {
    match *value {
        gguf::Value::U8(x) => json!(x),
        gguf::Value::I8(x) => json!(x),
        gguf::Value::U16(x) => json!(x),
        gguf::Value::I16(x) => json!(x),
        gguf::Value::U32(x) => json!(x),
        gguf::Value::I32(x) => json!(x),
        gguf::Value::U64(x) => json!(x),
        gguf::Value::I64(x) => json!(x),
        gguf::Value::F32(x) => float(f64::from(x)),
        gguf::Value::F64(x) => float(x),
        gguf::Value::Bool(x) => json!(x),
        gguf::Value::String(ref text) => json!(text),
        gguf::Value::Array(ref array) => json!(format!("{} elements", array.len())),
    }
}

/// A number as JSON. Infinity and NaN, which JSON lacks, become texts that every reader of numbers refuses: a null would count as
/// missing.
fn float(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn by_name(tensors: impl IntoIterator<Item = Tensor>) -> BTreeMap<String, Tensor> {
    tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
