//! Checks whether a checkpoint can run, without loading its weights.

use brasa_formats::{Container, Inspection};
use brasa_models::{ModelError, ModelKind, Source, build_encoder, padding_note};
use brasa_tokenizer::{TokenKind, Tokenizer};

use crate::Error;

/// The findings of [`verify`] about a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Messages of everything that keeps the checkpoint from running; [`Model::load`](crate::Model::load), or for an encoder
    /// [`Encoder::load`](crate::Encoder::load), fails with the first.
    pub problems: Vec<String>,
    /// Oddities that do not keep the model from running, as in [`Model::warnings`](crate::Model::warnings).
    pub warnings: Vec<String>,
}

/// Checks files, configuration, tensors and vocabulary of a checkpoint like [`Model::load`](crate::Model::load), but reads no
/// weights and needs no device.
pub fn verify(inspection: &Inspection) -> Verdict {
    let mut verdict = Verdict::default();
    verdict.problems.extend(inspection.problems().iter().map(ToString::to_string));
    if !verdict.problems.is_empty() {
        // A model would be made of what is left, and what is missing would be reported once more.
        return verdict;
    }
    let options = brasa_models::LoadOptions::default();
    let model = Source::inspected(inspection).and_then(|source| {
        if ModelKind::of(&source) == ModelKind::Encoder {
            return build_encoder(&source, &options)
                .map(|model| (model.warnings.clone(), model.vocab_size()));
        }
        brasa_models::build(&source, &options).map(|model| (model.warnings, model.spec.vocab_size))
    });
    let tokenizer = Tokenizer::from_inspection(inspection, None);
    match &model {
        Ok((warnings, _)) => verdict.warnings.extend(warnings.iter().cloned()),
        Err(error) => verdict.problems.push(error.to_string()),
    }
    match (&tokenizer, &model) {
        (Err(error), _) => verdict.problems.push(error.to_string()),
        (Ok(tokenizer), Ok((_, vocab_size))) => {
            verdict.warnings.extend_from_slice(tokenizer.warnings());
            match vocabulary(tokenizer, inspection.container(), *vocab_size) {
                Ok(warning) => verdict.warnings.extend(warning),
                Err(error) => verdict.problems.push(error.to_string()),
            }
        }
        _ => {}
    }
    verdict
}

/// Checks that the tokens of a tokenizer have rows in an embedding table of `rows` rows; returns a warning.
///
/// # Errors
///
/// [`Error::Model`] if text can become a token without a row.
pub(crate) fn vocabulary(
    tokenizer: &Tokenizer,
    container: Container,
    rows: usize,
) -> Result<Option<String>, Error> {
    // A GGUF file says the number of its tokens, and is checked with its configuration.
    if container == Container::Gguf {
        return Ok(None);
    }
    let vocabulary = tokenizer.vocabulary();
    let mut beyond = vocabulary.iter().skip_while(|(id, ..)| (*id as usize) < rows);
    let Some((first, text, _)) = beyond.next() else { return Ok(padding_note(vocabulary.len(), rows)) };
    let is_added = |kind| matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
    let count = vocabulary.iter().filter(|(id, ..)| *id as usize >= rows).count();
    let what = format!(
        "{count} tokens without a row in the embedding table of {rows} rows: the first is {first} ({text})"
    );
    // Text models of multimodal families have no row for the tokens of images, which no text contains.
    if vocabulary.iter().all(|(id, _, kind)| (id as usize) < rows || is_added(kind)) {
        return Ok(Some(what));
    }
    Err(ModelError::Dimensions { what, expected: "a row for every token".into() }.into())
}
