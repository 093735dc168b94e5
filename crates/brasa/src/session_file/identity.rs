//! The identity of a loaded model: everything that keys and values depend on besides the tokens.

use brasa_formats::{Checkpoint, Payload};
use brasa_graph::device::{KvPoolSpec, KvType, Precision};
use brasa_graph::step::PAGE_POSITIONS;
use brasa_models::ModelSpec;
use brasa_tokenizer::Tokenizer;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::SessionFileError;

/// Number of places of a tensor whose bytes are part of its fingerprint.
const SAMPLES: usize = 8;
/// Bytes of each place.
const SAMPLE_BYTES: usize = 64;

/// The identity of a model as it was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    parts: Vec<(&'static str, String)>,
}

/// The weights that an identity is made of.
pub(crate) struct Weights<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) spec: &'a ModelSpec,
    /// A fingerprint of the adapters, or `none`.
    pub(crate) adapted_by: String,
}

impl Identity {
    /// The identity of a model, the tokenizer left out.
    pub(crate) fn new(
        weights: &Weights<'_>,
        pool: &KvPoolSpec,
        precision: Precision,
        deterministic: bool,
    ) -> Self {
        let layout: Vec<String> = pool
            .groups
            .iter()
            .map(|group| {
                let spec = group.spec;
                let window = spec.window.map_or("no window".into(), |window| format!("window {window}"));
                // For keys and values of one width, the words stay those of older session files.
                let heads = spec.to_string().replacen(" ×", " heads ×", 1);
                format!("{} caches of {heads}, {window}", group.caches.len())
            })
            .collect();
        let states = match pool.states.page_elements() {
            0 => String::new(),
            elements => format!("; {} states of {elements} elements", pool.states.states()),
        };
        let exactness = match (precision, deterministic) {
            (Precision::Reference, _) => "reference precision",
            (Precision::Fast, true) => "deterministic",
            (Precision::Fast, false) => "fast",
        };
        let mut configuration = Sha256::new();
        configuration.update(format!("{:?}", weights.spec));
        let parts = vec![
            ("architecture", weights.spec.family.to_owned()),
            ("weights", weights_fingerprint(weights.checkpoint)),
            ("configuration", fingerprint(configuration)),
            ("adapter", weights.adapted_by.clone()),
            ("type of keys and values", kv_name(pool.dtype).to_owned()),
            ("layout of pages", format!("{PAGE_POSITIONS} positions; {}{states}", layout.join("; "))),
            ("arithmetic", exactness.to_owned()),
        ];
        Self { parts }
    }

    /// The identity with the tokenizer's fingerprint added.
    pub(crate) fn with_tokenizer(&self, fingerprint: &str) -> Self {
        let mut parts = self.parts.clone();
        parts.push(("tokenizer", fingerprint.to_owned()));
        Self { parts }
    }

    /// True if the arithmetic promises the same bits in any company of requests and for any chunks of a prompt.
    pub(crate) fn is_exact(&self) -> bool {
        self.parts.iter().any(|(name, value)| *name == "arithmetic" && value != "fast")
    }

    /// The identity as an object of a file's header.
    pub(crate) fn to_json(&self) -> Value {
        let parts = self.parts.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into()));
        Value::Object(parts.collect::<Map<_, _>>())
    }

    /// Checks that a file's identity is this one.
    ///
    /// # Errors
    ///
    /// [`SessionFileError::Differs`], naming the first part that differs.
    pub(crate) fn check(&self, file: &Value) -> Result<(), SessionFileError> {
        for (what, expected) in &self.parts {
            let found = file.get(*what).and_then(Value::as_str);
            let found = found.ok_or_else(|| SessionFileError::malformed(format!("it names no {what}")))?;
            if found != expected {
                // A stranger's file may say anything, of any length.
                let found = found.chars().filter(|c| !c.is_control()).take(200).collect();
                return Err(SessionFileError::Differs { what, found, expected: expected.clone() });
            }
        }
        Ok(())
    }
}

/// A fingerprint of all tokens: ids and texts.
pub(crate) fn tokenizer_fingerprint(tokenizer: &Tokenizer) -> String {
    let vocabulary = tokenizer.vocabulary();
    let mut hash = Sha256::new();
    for id in 0..vocabulary.len() as u32 {
        let text = vocabulary.text(id);
        hash.update((text.map_or(u64::MAX, |text| text.len() as u64)).to_le_bytes());
        hash.update(text.unwrap_or_default());
        hash.update([vocabulary.kind(id) as u8]);
    }
    fingerprint(hash)
}

/// A fingerprint of all tensors: names, shapes, formats, and bytes of a few places of each.
fn weights_fingerprint(checkpoint: &Checkpoint) -> String {
    let mut hash = Sha256::new();
    for tensor in checkpoint.tensors() {
        hash.update(format!("{} {:?} {:?};", tensor.name, tensor.shape, tensor.format));
        match &tensor.payload {
            Payload::Blocks(bytes) => sample(&mut hash, bytes),
            Payload::Mlx { words, scales, biases, .. } => {
                for bytes in [words, scales, biases] {
                    sample(&mut hash, bytes);
                }
            }
        }
        // The system maps many pages around each place, of weights that have been packed and are not read any more.
        tensor.release_pages();
    }
    fingerprint(hash)
}

/// Adds bytes of places at equal distances, the first and the last ones among them.
fn sample(hash: &mut Sha256, bytes: &[u8]) {
    let last = bytes.len().saturating_sub(SAMPLE_BYTES);
    for place in 0..SAMPLES {
        let begin = (last as u128 * place as u128 / (SAMPLES - 1) as u128) as usize;
        hash.update(&bytes[begin..bytes.len().min(begin + SAMPLE_BYTES)]);
    }
}

/// The first half of a hash, which tells models apart.
fn fingerprint(hash: Sha256) -> String {
    hex(&hash.finalize()[..16])
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

fn kv_name(dtype: KvType) -> &'static str {
    match dtype {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::BF16 => "bf16",
        KvType::Q8 => "q8",
    }
}
