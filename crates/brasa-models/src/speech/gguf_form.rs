//! A Whisper in GGUF's terms: the keys and names that a file of whisper.cpp is read as.

use std::collections::HashMap;

use brasa_formats::gguf;

use super::names::{self, REPEATED};
use super::{SpeechSpec, read_speech_spec};
use crate::keys::{
    AUDIO_CONTEXT, AUDIO_FFN_WIDTH, AUDIO_HEADS, AUDIO_LAYERS, Key, MEL_BINS, MODEL_WIDTH, TEXT_CONTEXT,
    TEXT_FFN_WIDTH, TEXT_HEADS, TEXT_LAYERS, TEXT_WIDTH, VOCAB_SIZE,
};
use crate::source::Source;
use crate::{LoadOptions, ModelError, Result};

/// A Whisper's configuration in GGUF's terms.
#[derive(Clone, Debug)]
pub struct SpeechGgufForm {
    /// Configuration keys with their prefix, and their values.
    pub pairs: Vec<(String, gguf::Value)>,
    spec: SpeechSpec,
    /// Names of tensors in GGUF, by their names in Hugging Face's spelling.
    names: HashMap<String, String>,
}

/// Converts the configuration of a Hugging Face or MLX checkpoint of a Whisper to GGUF's keys.
///
/// # Errors
///
/// Errors of [`read_speech_spec`].
pub fn speech_to_gguf(source: &Source) -> Result<SpeechGgufForm> {
    let (spec, _) = read_speech_spec(source, &LoadOptions::default())?;
    let mut pairs = Vec::new();
    let mut put = |key: Key, value: usize| {
        let name = format!("{}.{}", SpeechGgufForm::ARCHITECTURE, key.gguf[0]);
        pairs.push((name, gguf::Value::from(value as u32)));
    };
    put(VOCAB_SIZE, spec.vocab_size);
    put(AUDIO_CONTEXT, spec.encoder.positions);
    put(MODEL_WIDTH, spec.hidden_size);
    put(AUDIO_LAYERS, spec.encoder.layers);
    put(AUDIO_HEADS, spec.encoder.heads);
    put(AUDIO_FFN_WIDTH, spec.encoder.ffn_width);
    put(MEL_BINS, spec.num_mel_bins);
    put(TEXT_CONTEXT, spec.decoder.positions);
    put(TEXT_WIDTH, spec.hidden_size);
    put(TEXT_LAYERS, spec.decoder.layers);
    put(TEXT_HEADS, spec.decoder.heads);
    put(TEXT_FFN_WIDTH, spec.decoder.ffn_width);
    let ours = names::all(spec.encoder.layers, spec.decoder.layers);
    let names = ours
        .into_iter()
        .flat_map(|ours| names::spellings(&ours).into_iter().map(move |theirs| (theirs, ours.clone())));
    Ok(SpeechGgufForm { pairs, spec, names: names.collect() })
}

impl SpeechGgufForm {
    /// `general.architecture`, and the prefix of the keys.
    pub const ARCHITECTURE: &str = "whisper";

    /// GGUF's name of the checkpoint's tensor `name`; `None` for a tensor that is no part of a Whisper.
    pub fn name(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// True if the tensor `name` repeats another tensor and is left out.
    pub fn is_repeated(name: &str) -> bool {
        REPEATED.contains(&name)
    }

    /// Mel bins of a frame of sound.
    pub fn num_mel_bins(&self) -> usize {
        self.spec.num_mel_bins
    }

    /// Rows of the embedding table.
    pub fn vocab_size(&self) -> usize {
        self.spec.vocab_size
    }

    /// Checks that `written`, a GGUF file in this form, gives the same results as the checkpoint.
    ///
    /// # Errors
    ///
    /// [`ModelError::OtherInGguf`] with both specifications; errors of reading `written`.
    pub fn verify(&self, written: &Source) -> Result<()> {
        let (found, _) = read_speech_spec(written, &LoadOptions { context_length: None, strict: true })?;
        if found == self.spec {
            return Ok(());
        }
        let Self { spec, .. } = self;
        let difference = match () {
            () if spec.activation != found.activation => {
                format!("activation_function: {:?}, {:?}", spec.activation, found.activation)
            }
            () if spec.embedding_scale != found.embedding_scale => {
                format!("scale_embedding: {:?}, {:?}", spec.embedding_scale, found.embedding_scale)
            }
            () => format!("{spec:?}, {found:?}"),
        };
        Err(ModelError::OtherInGguf { difference })
    }
}
