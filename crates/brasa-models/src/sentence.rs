//! Configuration files of sentence-transformers: pooling, dense layers, prompts and lengths.
//!
//! `modules.json` lists the parts: the transformer, pooling, dense layers, normalisation. Reimers & Gurevych 2019,
//! arXiv:1908.10084.

use std::collections::BTreeMap;

use brasa_formats::{Bytes, Checkpoint, Metadata};
use serde_json::{Map, Value};

use crate::metadata::floats;
use crate::score_activation::ScoreActivation;
use crate::spec::Activation;
use crate::{ModelError, Pooling, Result};

/// A limit of tokens from which on a number means no limit: tokenizers without a limit write 10³⁰.
const NO_LIMIT: usize = 1 << 31;

/// Largest width of a dense layer's output.
const WIDEST: usize = 1 << 16;

/// Settings for vectors: pooling, further layers, prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentenceConfig {
    /// Pooling of hidden states into one vector; `None` if no file names it.
    pub pooling: Option<Pooling>,
    /// Layers that the pooled vector passes, in order.
    pub dense: Vec<DenseLayer>,
    /// True if vectors are scaled to length 1; `None` if no file decides it.
    pub normalize: Option<bool>,
    /// Prompts to put before texts, by their names.
    pub prompts: BTreeMap<String, String>,
    /// The name of the prompt that is put before texts if the caller names none.
    pub default_prompt: Option<String>,
    /// Most tokens of a text, if fewer than the model's positions.
    pub max_tokens: Option<usize>,
    /// True if texts are lowercased before they are cut into tokens.
    pub lowercase: bool,
    /// Function that turns a cross-encoder's logit into a score; `None` if no file names one.
    pub score: Option<ScoreActivation>,
    /// False if the tokenizer does not pass token types to the model.
    pub token_types: bool,
    /// The tokens whose logits give a document's score, for a language model that was made into a reranker; `None` for other
    /// models.
    pub logit_score: Option<LogitScore>,
    /// Lengths to which vectors may be cut and keep their meaning. Kusupati et al. 2022, arXiv:2205.13147.
    pub matryoshka: Vec<usize>,
}

/// The logits after a question from which a document's relevance is computed: one token's logit, or the difference of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitScore {
    /// The token that stands for "relevant".
    pub relevant: u32,
    /// The token that stands for "not relevant"; `None` if the first token's logit is used alone.
    pub irrelevant: Option<u32>,
}

/// A dense layer `act(x · Wᵀ + b)`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseLayer {
    /// Number of input elements.
    pub inputs: usize,
    /// Number of output elements.
    pub outputs: usize,
    /// The weights, `[outputs, inputs]`.
    pub weight: Vec<f32>,
    /// The biases, `[outputs]`; `None` for a layer without biases.
    pub bias: Option<Vec<f32>>,
    /// The activation.
    pub activation: DenseActivation,
}

/// The activation of a dense layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseActivation {
    /// No activation.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// One of the activations that networks have.
    Other(Activation),
}

impl SentenceConfig {
    /// Reads the settings from the files beside a checkpoint. GGUF files hold only the pooling.
    ///
    /// # Errors
    ///
    /// [`ModelError::Config`] for a file that cannot be read or makes no sense, and for modules that Brasa does not compute, by
    /// their names. The errors of [`Pooling::of`].
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let pooling = Pooling::of(checkpoint)?;
        let mut config = Self { pooling, token_types: true, ..Self::default() };
        let Metadata::Config(own) = checkpoint.metadata() else { return Ok(config) };
        config.matryoshka = matryoshka(own)?;
        config.score = ScoreActivation::of(own)?;
        let files = Files(checkpoint);
        if let Some(tokenizer) = files.object("tokenizer_config.json")? {
            config.max_tokens = count(tokenizer.get("model_max_length")).filter(|&most| most < NO_LIMIT);
            let named = tokenizer.get("model_input_names").and_then(Value::as_array);
            config.token_types = named.is_none_or(|names| names.iter().any(|name| name == "token_type_ids"));
        }
        if let Some(texts) = files.object("sentence_bert_config.json")? {
            config.max_tokens = count(texts.get("max_seq_length")).or(config.max_tokens);
            config.lowercase = texts.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        }
        if let Some(prompts) = files.object("config_sentence_transformers.json")? {
            config.read_prompts(&prompts)?;
            if let Some(class) = prompts.get("activation_fn").and_then(Value::as_str) {
                config.score = Some(ScoreActivation::named(class)?);
            }
        }
        if let Some(modules) = files.array("modules.json")? {
            config.normalize = Some(false);
            for module in &modules {
                config.read_module(&files, module)?;
            }
        }
        Ok(config)
    }

    /// Elements of a vector, made of hidden states of `hidden_size` elements.
    pub fn dimensions(&self, hidden_size: usize) -> usize {
        self.dense.last().map_or(hidden_size, |layer| layer.outputs)
    }

    fn read_prompts(&mut self, object: &Map<String, Value>) -> Result<()> {
        let wrong = || refuse("config_sentence_transformers.json: prompts that are no texts by their names");
        if let Some(prompts) = object.get("prompts").filter(|prompts| !prompts.is_null()) {
            for (name, prompt) in prompts.as_object().ok_or_else(wrong)? {
                self.prompts.insert(name.clone(), prompt.as_str().ok_or_else(wrong)?.into());
            }
        }
        self.default_prompt = object.get("default_prompt_name").and_then(Value::as_str).map(String::from);
        match &self.default_prompt {
            Some(name) if !self.prompts.contains_key(name) => Err(refuse(&format!(
                "config_sentence_transformers.json: there is no prompt {name}, the default"
            ))),
            _ => Ok(()),
        }
    }

    fn read_module(&mut self, files: &Files<'_>, module: &Value) -> Result<()> {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type").rsplit('.').next().unwrap_or_default();
        match kind {
            // The pooling's configuration has been read.
            "Transformer" | "Pooling" | "Dropout" => Ok(()),
            "Normalize" => {
                self.normalize = Some(true);
                Ok(())
            }
            "LogitScore" => {
                self.logit_score = Some(files.logit_score(text("path"))?);
                Ok(())
            }
            "Dense" if self.normalize == Some(true) => Err(refuse(
                "modules.json: a dense layer behind the normalisation, which Brasa does not compute",
            )),
            "Dense" => {
                let layer = files.dense(text("path"))?;
                if let Some(before) = self.dense.last().filter(|before| before.outputs != layer.inputs) {
                    let what = format!(
                        "a dense layer of {} inputs behind one of {} outputs",
                        layer.inputs, before.outputs
                    );
                    return Err(refuse(&what));
                }
                self.dense.push(layer);
                Ok(())
            }
            other => Err(refuse(&format!(
                "modules.json: a module {other}, which Brasa does not compute; Transformer, Pooling, Dense, Normalize and LogitScore are"
            ))),
        }
    }
}

/// The lengths that `config.json` declares.
fn matryoshka(config: &Value) -> Result<Vec<usize>> {
    let Some(value) = config.get("matryoshka_dimensions").filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let lengths = value.as_array().map(|all| all.iter().map(|one| count(Some(one))).collect::<Option<_>>());
    lengths.flatten().ok_or_else(|| refuse("matryoshka_dimensions is no list of numbers above zero"))
}

/// The small text files beside a checkpoint.
struct Files<'a>(&'a Checkpoint);

impl Files<'_> {
    fn json(&self, name: &str) -> Result<Option<Value>> {
        let text = self.0.sidecar_text(name).map_err(|error| refuse(&error.to_string()))?;
        let parse = |text: String| {
            serde_json::from_str(&text).map_err(|error| refuse(&format!("{name} is not JSON: {error}")))
        };
        text.map(parse).transpose()
    }

    fn object(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.json(name)? {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(refuse(&format!("{name} holds no object"))),
        }
    }

    fn array(&self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.json(name)? {
            None => Ok(None),
            Some(Value::Array(all)) => Ok(Some(all)),
            Some(_) => Err(refuse(&format!("{name} holds no list"))),
        }
    }

    /// The configuration of a module that has a folder of its own.
    fn config(&self, folder: &str) -> Result<Map<String, Value>> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if folder.is_empty() || !folder.chars().all(is_plain) {
            return Err(refuse(&format!("modules.json: the path {folder:?}, expected the name of a folder")));
        }
        let config = self.object(&format!("{folder}/config.json"))?;
        config.ok_or_else(|| refuse(&format!("{folder}/config.json is missing")))
    }

    /// The tokens whose logits give the score, from the files of a folder.
    fn logit_score(&self, folder: &str) -> Result<LogitScore> {
        let config = self.config(folder)?;
        let wrong =
            |key: &str, expected: &str| refuse(&format!("{folder}/config.json: {key}, expected {expected}"));
        let token = |key: &str| match config.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
                id.map(Some).ok_or_else(|| wrong(key, "the id of a token"))
            }
        };
        let read = config.get("module_input_name").and_then(Value::as_str).unwrap_or("causal_logits");
        if read != "causal_logits" {
            return Err(wrong("module_input_name", "causal_logits"));
        }
        let relevant = token("true_token_id")?.ok_or_else(|| wrong("true_token_id", "the id of a token"))?;
        Ok(LogitScore { relevant, irrelevant: token("false_token_id")? })
    }

    /// Reads the dense layer of a folder.
    fn dense(&self, folder: &str) -> Result<DenseLayer> {
        let missing = |file: &str| refuse(&format!("{folder}/{file} is missing"));
        let config = self.config(folder)?;
        let size = |key: &str| {
            let found = count(config.get(key)).filter(|&size| size <= WIDEST);
            found.ok_or_else(|| refuse(&format!("{folder}/config.json: {key}, expected 1 to {WIDEST}")))
        };
        let (inputs, outputs) = (size("in_features")?, size("out_features")?);
        if config.get("use_residual").and_then(Value::as_bool) == Some(true) {
            return Err(refuse(&format!("{folder}/config.json: use_residual, which Brasa does not compute")));
        }
        let activation =
            activation(&config).map_err(|what| refuse(&format!("{folder}/config.json: {what}")))?;
        let file = format!("{folder}/model.safetensors");
        let bytes = self.0.sidecar(&file).map_err(|error| refuse(&error.to_string()))?;
        let bytes = bytes.ok_or_else(|| missing("model.safetensors"))?;
        let files = [("config.json", Bytes::from(b"{}".to_vec())), ("model.safetensors", bytes.into())];
        let files = files.map(|(name, bytes)| (name.into(), bytes)).into();
        let layer = Checkpoint::from_files(files).map_err(|error| refuse(&format!("{folder}: {error}")))?;
        let weight = layer.tensor("linear.weight").ok_or_else(|| missing("linear.weight"))?;
        let weight = floats(weight, &[outputs, inputs], "outputs × inputs")?;
        let bias = layer.tensor("linear.bias");
        let bias = bias.map(|bias| floats(bias, &[outputs], "one per output")).transpose()?;
        Ok(DenseLayer { inputs, outputs, weight, bias, activation })
    }
}

/// The activation that a dense layer's configuration names by its class.
fn activation(config: &Map<String, Value>) -> std::result::Result<DenseActivation, String> {
    let class = config.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    match class.rsplit('.').next().unwrap_or_default() {
        "Identity" => Ok(DenseActivation::Identity),
        "Tanh" => Ok(DenseActivation::Tanh),
        "GELU" => Ok(DenseActivation::Other(Activation::GeluErf)),
        "SiLU" => Ok(DenseActivation::Other(Activation::Silu)),
        other => Err(format!(
            "the activation {other}, which Brasa does not compute; Identity, Tanh, GELU and SiLU are"
        )),
    }
}

fn count(value: Option<&Value>) -> Option<usize> {
    value?.as_u64().filter(|&count| count > 0).and_then(|count| usize::try_from(count).ok())
}

pub(crate) fn refuse(what: &str) -> ModelError {
    ModelError::Config { what: what.into() }
}
