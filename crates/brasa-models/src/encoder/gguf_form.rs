//! A text encoder in GGUF's terms: keys, and the place of every tensor.

use std::ops::Range;

use brasa_formats::gguf;

use super::bidirectional::is_bidirectional;
use super::family::Family;
use super::modern_bert::{POOLING_FIRST, POOLING_MEAN};
use super::names::EncoderNames;
use super::read_encoder;
use super::spec::{ClassifierSpec, EncoderSpec, HeadForm, HeadPooling, LearnedPositions};
use crate::family::activation_name;
use crate::keys::{
    CLASSIFIER_POOLING, ENCODER_ACTIVATION, ENCODER_CAUSAL, ENCODER_CONTEXT_LENGTH, ENCODER_FFN_WIDTH,
    ENCODER_HEADS, ENCODER_HIDDEN_SIZE, ENCODER_LAYERS, GLOBAL_EVERY, Key, LAYER_NORM_EPS, LOCAL_ATTENTION,
    ROPE_LOCAL_THETA, ROPE_SCALING_TYPE, ROTARY_BASE, VOCAB_SIZE,
};
use crate::rope::RopeScaling;
use crate::source::Source;
use crate::spec::Activation;
use crate::{LoadOptions, ModelError, Pooling, Result, SentenceConfig};

/// A text encoder's configuration in GGUF's terms.
#[derive(Clone, Debug)]
pub struct EncoderGgufForm {
    /// `general.architecture`, and the prefix of the keys.
    pub architecture: &'static str,
    /// Configuration keys with their prefix, and their values, in the order of llama.cpp's converter.
    pub pairs: Vec<(String, gguf::Value)>,
    /// `tokenizer.ggml.token_type_count`; `None` for an architecture without token types.
    pub token_types: Option<u32>,
    /// Messages about settings that GGUF does not carry.
    pub notes: Vec<String>,
    spec: EncoderSpec,
    names: EncoderNames,
}

/// The place of a checkpoint's tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncoderPlace {
    /// Rows of the tensor become one tensor.
    Tensor {
        /// The name in GGUF.
        name: String,
        /// The rows that are kept.
        rows: Range<usize>,
    },
    /// The tensor is left out: neither embeddings nor scores need it.
    Foreign,
}

/// Converts the configuration of a Hugging Face checkpoint, and the settings of sentence-transformers beside it, to GGUF's keys.
///
/// # Errors
///
/// Errors of [`build_encoder`](crate::build_encoder) that concern configuration; [`ModelError::NoGgufForm`] for a family that
/// llama.cpp does not have, and for a setting that GGUF cannot express.
pub fn encoder_to_gguf(source: &Source, sentence: &SentenceConfig) -> Result<EncoderGgufForm> {
    if is_bidirectional(source) {
        let why = "language models whose rows all see each other are not written as GGUF";
        return Err(no_form("use_bidirectional_attention", why));
    }
    let (spec, _) = read_encoder(source, &LoadOptions::default())?;
    let architecture = match spec.family {
        "bert" | "roberta" => "bert",
        "nomic_bert" => "nomic-bert",
        "jina_bert_v2" if spec.layers.iter().any(|layer| layer.qk_norm) => {
            let why = "a Jina v2 with norms of queries and keys has no GGUF form that Brasa writes";
            return Err(no_form("architectures", why));
        }
        "jina_bert_v2" => "jina-bert-v2",
        "modernbert" => "modern-bert",
        other => {
            return Err(no_form("architectures", &format!("{other} has no GGUF form that Brasa writes")));
        }
    };
    let names = EncoderNames::of(source, Family::of(source)?.style);
    // llama.cpp wants a number above zero where there is no table either.
    let token_types = (architecture != "modern-bert").then_some(spec.token_types.max(1) as u32);
    let mut form =
        EncoderGgufForm { architecture, pairs: Vec::new(), token_types, notes: Vec::new(), spec, names };
    form.configuration()?;
    form.head()?;
    form.biases(source);
    form.sentence(sentence)?;
    form.labels(source);
    Ok(form)
}

impl EncoderGgufForm {
    /// The place of the checkpoint's tensor `name`, which has `rows` rows; `None` for a name that the family does not have.
    pub fn place(&self, name: &str, rows: usize) -> Option<EncoderPlace> {
        let Some(name) = self.names.gguf_name(name, self.spec.classifier.is_some()) else {
            return self.names.passes_over(name).then_some(EncoderPlace::Foreign);
        };
        let first = self.spec.positions.filter(|_| name == "position_embd.weight").map_or(0, |x| x.first);
        Some(EncoderPlace::Tensor { name, rows: first..rows })
    }

    /// Checks that `written`, a GGUF file in this form, gives the same results as the checkpoint.
    ///
    /// # Errors
    ///
    /// [`ModelError::OtherInGguf`], naming the first setting that differs; errors of reading `written`.
    pub fn verify(&self, written: &Source) -> Result<()> {
        let (found, _) = read_encoder(written, &LoadOptions { context_length: None, strict: true })?;
        let mut expected = self.spec.clone();
        // In GGUF a table of positions begins with the first one that is used, and RoBERTa is BERT.
        expected.positions =
            expected.positions.map(|x| LearnedPositions { stored: x.stored - x.first, first: 0 });
        expected.family = found.family;
        match expected.difference(&found) {
            None => Ok(()),
            Some(difference) => Err(ModelError::OtherInGguf { difference }),
        }
    }

    fn configuration(&mut self) -> Result<()> {
        let spec = self.spec.clone();
        let Some(layer) = spec.layers.first() else { return Ok(()) };
        let usual = if self.architecture == "nomic-bert" { Activation::Silu } else { Activation::GeluErf };
        if layer.ffn.activation != usual {
            let found = activation_name(layer.ffn.activation);
            return Err(no_form("hidden_act", &format!("{found} has no GGUF form in this architecture")));
        }
        self.put(ENCODER_LAYERS, spec.layers.len() as u32);
        self.put(ENCODER_CONTEXT_LENGTH, spec.context_length as u32);
        self.put(ENCODER_HIDDEN_SIZE, spec.hidden_size as u32);
        self.put(ENCODER_FFN_WIDTH, layer.ffn.width as u32);
        self.put(ENCODER_HEADS, layer.num_heads as u32);
        let ropes = || spec.layers.iter().filter_map(|layer| Some((layer.window, layer.rope.as_ref()?)));
        if ropes().any(|(_, rope)| rope.scaling != RopeScaling::None) {
            return Err(no_form("rope_scaling", "it has no GGUF form in this architecture"));
        }
        let theta = |windowed: bool| {
            ropes().find(|(window, _)| window.is_some() == windowed).map(|(_, rope)| rope.theta)
        };
        if let Some(theta) = theta(false) {
            self.put(ROTARY_BASE, theta);
        }
        if let Some(theta) = theta(true) {
            self.put(ROPE_LOCAL_THETA, theta);
        }
        self.put(LAYER_NORM_EPS, spec.norm_eps);
        self.put(ENCODER_CAUSAL, false);
        if self.architecture == "modern-bert" {
            self.windows(&spec);
        }
        Ok(())
    }

    /// Writes the settings that ModernBERT alone has: its windows and their layers, rope scaling, size of the vocabulary, activation.
    fn windows(&mut self, spec: &EncoderSpec) {
        if let Some(window) = spec.layers.iter().find_map(|layer| layer.window) {
            // GGUF has the rows to both sides.
            self.put(LOCAL_ATTENTION, 2 * (window - 1) as u32);
            let sliding: Vec<bool> = spec.layers.iter().map(|layer| layer.window.is_some()).collect();
            let has_period = |period: &usize| {
                sliding.iter().enumerate().all(|(at, &sliding)| sliding != at.is_multiple_of(*period))
            };
            match (1..=sliding.len()).find(has_period) {
                Some(period) => self.put(GLOBAL_EVERY, period as u32),
                None => self.put(GLOBAL_EVERY, gguf::Array::of(sliding)),
            }
        }
        self.put(ROPE_SCALING_TYPE, "none");
        self.put(VOCAB_SIZE, spec.vocab_size as u32);
        self.put(ENCODER_ACTIVATION, "gelu");
    }

    /// Writes how ModernBERT's head pools. The head's activation has no key: readers take GELU.
    fn head(&mut self) -> Result<()> {
        let Some(ClassifierSpec { pooling, form: HeadForm::Normed(activation), .. }) = self.spec.classifier
        else {
            return Ok(());
        };
        if activation != Activation::GeluErf {
            let found = activation_name(activation);
            return Err(no_form("classifier_activation", &format!("{found} has no GGUF form")));
        }
        let number = match pooling {
            HeadPooling::Mean => POOLING_MEAN,
            HeadPooling::First => POOLING_FIRST,
        };
        self.put(CLASSIFIER_POOLING, number as u32);
        Ok(())
    }

    /// Notes biases of a ModernBERT, which the published models lack.
    fn biases(&mut self, source: &Source) {
        let has_head = self.spec.classifier.is_some();
        let is_bias = |name: &String| {
            let name = self.names.gguf_name(name, has_head);
            name.as_deref()
                .and_then(|name| name.strip_suffix(".bias"))
                .is_some_and(|stem| stem != "cls.output")
        };
        if self.architecture == "modern-bert" && source.tensors.keys().any(is_bias) {
            let note =
                "biases of norms and projections are written; llama.cpp does not read them in modern-bert";
            self.notes.push(note.into());
        }
    }

    fn sentence(&mut self, sentence: &SentenceConfig) -> Result<()> {
        let kind = match sentence.pooling {
            None | Some(Pooling::None) => None,
            Some(Pooling::Mean) => Some(1_u32),
            Some(Pooling::First) => Some(2),
            Some(Pooling::Last) => Some(3),
            Some(Pooling::Other(name)) => {
                return Err(no_form("pooling_mode", &format!("{name} has no GGUF form")));
            }
        };
        if let Some(kind) = kind {
            self.pairs.push((format!("{}.pooling_type", self.architecture), kind.into()));
        }
        if !sentence.dense.is_empty() {
            let why = "a dense layer behind the pooling has no GGUF form in this architecture";
            return Err(no_form("modules.json", why));
        }
        if !sentence.prompts.is_empty() {
            let names: Vec<&str> = sentence.prompts.keys().map(String::as_str).collect();
            self.notes.push(format!(
                "prompts ({}): GGUF does not carry them; put them before the texts",
                names.join(", ")
            ));
        }
        if let Some(most) = sentence.max_tokens.filter(|&most| most < self.spec.context_length) {
            self.notes.push(format!(
                "max_seq_length is {most}: GGUF does not carry it, and readers take {}",
                self.spec.context_length
            ));
        }
        Ok(())
    }

    /// Writes the names of the head's logits, as many as readers expect.
    fn labels(&mut self, source: &Source) {
        let Some(classifier) = self.spec.classifier else { return };
        let named = source.value("id2label").and_then(serde_json::Value::as_object);
        let label = |number: usize| {
            let name = named.and_then(|named| named.get(&number.to_string())?.as_str());
            name.map_or_else(|| format!("LABEL_{number}"), String::from)
        };
        let labels = gguf::Array::of_strings((0..classifier.labels).map(label));
        self.pairs.push((format!("{}.classifier.output_labels", self.architecture), labels.into()));
    }

    fn put(&mut self, key: Key, value: impl Into<gguf::Value>) {
        self.pairs.push((format!("{}.{}", self.architecture, key.gguf[0]), value.into()));
    }
}

fn no_form(key: &str, why: &str) -> ModelError {
    ModelError::NoGgufForm { key: key.into(), why: why.into() }
}
