//! Makes tokenizers of checkpoints that `brasa-formats` has opened.

use brasa_formats::gguf::{self, FromValue};
use brasa_formats::{Checkpoint, Inspection, Metadata};

use crate::{GgufVocabulary, Result, Tokenizer, TokenizerError};

impl GgufVocabulary {
    /// Reads `tokenizer.*` of a file's metadata.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Malformed`] without a tokenizer; [`TokenizerError::Format`] for a value of the wrong type.
    pub fn from_metadata(metadata: &gguf::Metadata) -> Result<Self> {
        fn get<'a, T: FromValue<'a>>(metadata: &'a gguf::Metadata, key: &str) -> Result<Option<T>> {
            Ok(metadata.get(&format!("tokenizer.{key}"))?)
        }
        let Some(model) = get::<String>(metadata, "ggml.model")? else {
            return Err(TokenizerError::malformed(
                "tokenizer.ggml.model",
                "this key is missing: the file has no tokenizer",
            ));
        };
        let id = |key: &str| -> Result<Option<u32>> {
            // Files write −1 for "none".
            Ok(get::<i64>(metadata, &format!("ggml.{key}"))?.and_then(|id| u32::try_from(id).ok()))
        };
        let flag = |key: &str| get::<bool>(metadata, &format!("ggml.{key}"));
        Ok(Self {
            model,
            pre: get(metadata, "ggml.pre")?,
            // A few vocabularies hold pieces of characters.
            tokens: get::<Vec<&[u8]>>(metadata, "ggml.tokens")?
                .unwrap_or_default()
                .into_iter()
                .map(|token| String::from_utf8_lossy(token).into_owned())
                .collect(),
            scores: get(metadata, "ggml.scores")?.unwrap_or_default(),
            token_types: get(metadata, "ggml.token_type")?.unwrap_or_default(),
            merges: get(metadata, "ggml.merges")?.unwrap_or_default(),
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            eom: id("eom_token_id")?,
            unknown: id("unknown_token_id")?,
            separator: id("seperator_token_id")?,
            padding: id("padding_token_id")?,
            cls: id("cls_token_id")?,
            add_bos: flag("add_bos_token")?,
            add_eos: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            space_prefix_scheme: get(metadata, "ggml.space_prefix_scheme")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            precompiled_charsmap: bytes(metadata, "tokenizer.ggml.precompiled_charsmap")?,
            lowercase: flag("normalizer.lowercase")?,
            strip_accents: flag("normalizer.strip_accents")?,
            chat_template: get(metadata, "chat_template")?,
        })
    }
}

/// An array of bytes, which some files store as signed numbers.
fn bytes(metadata: &gguf::Metadata, key: &str) -> Result<Vec<u8>> {
    match metadata.get::<Vec<i8>>(key) {
        Ok(signed) => Ok(signed.unwrap_or_default().into_iter().map(i8::cast_unsigned).collect()),
        Err(_) => Ok(metadata.get(key)?.unwrap_or_default()),
    }
}

impl Tokenizer {
    /// The tokenizer of an opened checkpoint. `pre` replaces a GGUF file's `tokenizer.ggml.pre`.
    ///
    /// # Errors
    ///
    /// Errors of [`from_gguf`](Self::from_gguf) and [`from_json`](Self::from_json); [`TokenizerError::Missing`] if there
    /// is no tokenizer.
    pub fn from_checkpoint(checkpoint: &Checkpoint, pre: Option<&str>) -> Result<Self> {
        if let Metadata::Gguf(metadata) = checkpoint.metadata() {
            return Self::from_gguf(&GgufVocabulary::from_metadata(metadata)?, pre);
        }
        let place = checkpoint.path().display().to_string();
        let read = |name: &str| Ok(checkpoint.sidecar_text(name)?);
        Self::from_files(&place, read, |name| !matches!(checkpoint.sidecar(name), Ok(None)))
    }

    /// The tokenizer of files that may lack tensors or name an unknown architecture.
    ///
    /// # Errors
    ///
    /// Errors of [`from_checkpoint`](Self::from_checkpoint).
    pub fn from_inspection(inspection: &Inspection, pre: Option<&str>) -> Result<Self> {
        if let Some(Metadata::Gguf(metadata)) = inspection.metadata() {
            return Self::from_gguf(&GgufVocabulary::from_metadata(metadata)?, pre);
        }
        let place = inspection.path().display().to_string();
        let read = |name: &str| Ok(inspection.sidecar_text(name)?);
        Self::from_files(&place, read, |name| !matches!(inspection.sidecar(name), Ok(None)))
    }
}
