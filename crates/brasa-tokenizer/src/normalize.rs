//! The normaliser: steps that rewrite the text before it is cut.
//!
//! The steps are those of the `tokenizers` crate. A file chooses them, so each step is checked when it is read, and a step must
//! not make a text much longer: replacing one character by a hundred, six times over, would exceed any memory. This module
//! replaces text itself, so that the failure of a pattern is an error.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use crate::charsmap::{self, Charsmap};
use crate::pattern::{self, Fallible};
use crate::{Result, TokenizerError};

/// Most steps of a normaliser; no published tokenizer has as many.
const MOST_STEPS: usize = 64;
/// Most times that a step may lengthen a text. Unicode's own decompositions reach 18.
const MOST_GROWTH: usize = 32;
/// Bytes by which a step may lengthen any text.
const FREE_GROWTH_BYTES: usize = 1 << 16;

/// All steps of a normaliser.
pub struct Normalizers(Vec<Step>);

enum Step {
    /// Any normaliser of the `tokenizers` crate but `Replace` and `Sequence`.
    Hf(Box<NormalizerWrapper>),
    /// Replaces every match by `content`.
    Replace { pattern: Box<fancy_regex::Regex>, content: String },
    /// Replaces texts by a table.
    Charsmap(Charsmap),
    /// Marks spaces by `▁`. With `prefix`, one is added before the first word. With `merge`, there is one before every word and
    /// none elsewhere.
    Spaces { prefix: bool, merge: bool },
}

impl From<NormalizerWrapper> for Normalizers {
    fn from(normalizer: NormalizerWrapper) -> Self {
        Self(vec![Step::Hf(Box::new(normalizer))])
    }
}

impl Normalizers {
    /// SentencePiece's normaliser: a table of characters, and spaces as `▁`. With `prefix`, one is added before the first word.
    /// With `merge`, several spaces count as one, and spaces at the ends of a text are dropped.
    pub fn sentencepiece(charsmap: Option<Charsmap>, prefix: bool, merge: bool) -> Self {
        Self(charsmap.map(Step::Charsmap).into_iter().chain([Step::Spaces { prefix, merge }]).collect())
    }

    /// The `normalizer` of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Malformed`], naming the step.
    pub fn from_json(value: Option<&Value>) -> Result<Option<Self>> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
        let mut steps = Vec::new();
        collect(value, &mut steps)?;
        Ok(Some(Self(steps)))
    }
}

fn collect(value: &Value, steps: &mut Vec<Step>) -> Result<()> {
    let malformed =
        |reason: &dyn std::fmt::Display| TokenizerError::malformed("tokenizer.json normalizer", reason);
    // Old files leave the type out, and the crate then guesses it by the fields.
    let has = |field: &str| value.get(field).is_some();
    let kind = match value["type"].as_str() {
        _ if has("normalizers") => Some("Sequence"),
        _ if has("pattern") => Some("Replace"),
        _ if has("precompiled_charsmap") => Some("Precompiled"),
        kind => kind,
    };
    match kind {
        Some("Sequence") => {
            let inner = value["normalizers"].as_array();
            return inner
                .ok_or_else(|| malformed(&"Sequence without a list `normalizers`"))?
                .iter()
                .try_for_each(|step| collect(step, steps));
        }
        Some("Replace") => {
            let pattern = &value["pattern"];
            let pattern = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                (Some(text), _) => regex::escape(text),
                (None, Some(pattern)) => pattern.to_owned(),
                (None, None) => return Err(malformed(&"Replace without a pattern `String` or `Regex`")),
            };
            let content = value["content"].as_str();
            let content = content.ok_or_else(|| malformed(&"Replace without a text `content`"))?.to_owned();
            let compiled = pattern::compile(&pattern)?;
            if compiled.is_match("").unwrap_or(true) {
                return Err(malformed(&format!(
                    "Replace with the pattern {pattern:?}, which matches no text at all"
                )));
            }
            steps.push(Step::Replace { pattern: Box::new(compiled), content });
        }
        kind => {
            if kind == Some("Precompiled") {
                charsmap::check(value["precompiled_charsmap"].as_str().unwrap_or_default())
                    .map_err(|reason| malformed(&reason))?;
            }
            let inner = serde_json::from_value(value.clone()).map_err(|error| malformed(&error))?;
            steps.push(Step::Hf(Box::new(inner)));
        }
    }
    if steps.len() > MOST_STEPS {
        return Err(malformed(&format!("more than {MOST_STEPS} steps")));
    }
    Ok(())
}

impl Normalizers {
    /// The normalised form of `text`.
    ///
    /// # Errors
    ///
    /// The errors of [`normalize`](Self::normalize).
    pub fn normalized(&self, text: &str) -> tokenizers::Result<String> {
        let mut text = NormalizedString::from(text);
        self.normalize(&mut text)?;
        Ok(text.get().to_owned())
    }

    /// Normalises `text`.
    ///
    /// # Errors
    ///
    /// The error of a step that fails, takes too long or makes the text much longer.
    pub fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = text.get().len().saturating_mul(MOST_GROWTH).saturating_add(FREE_GROWTH_BYTES);
        let too_long = |bytes: usize| -> tokenizers::Error {
            format!("the normalizer makes {bytes} bytes of it, more than {most}").into()
        };
        for step in &self.0 {
            match step {
                Step::Hf(inner) => inner.normalize(text)?,
                Step::Replace { pattern, content } => {
                    let mut grown = text.get().len();
                    for found in pattern.find_iter(text.get()) {
                        let found = found?;
                        if found.range().is_empty() {
                            return Err("a pattern of the normalizer matches no text at all".into());
                        }
                        grown = (grown + content.len()).saturating_sub(found.range().len());
                    }
                    if grown > most {
                        return Err(too_long(grown));
                    }
                    text.replace(Fallible(pattern), content)?;
                }
                Step::Charsmap(charsmap) => {
                    *text = NormalizedString::from(charsmap.replace(text.get())?);
                }
                Step::Spaces { prefix, merge } => {
                    *text = NormalizedString::from(spaces_marked(text.get(), *prefix, *merge));
                }
            }
            if text.get().len() > most {
                return Err(too_long(text.get().len()));
            }
        }
        Ok(())
    }
}

/// The text with `▁` for spaces, as SentencePiece marks them.
fn spaces_marked(text: &str, prefix: bool, merge: bool) -> String {
    let mut out = String::with_capacity(text.len() + 3);
    let (mut in_word, mut marked) = (false, false);
    for char in text.chars() {
        if char == ' ' {
            in_word = false;
            if !merge {
                out.push('▁');
            }
            continue;
        }
        if !in_word && (merge || prefix && !marked) {
            out.push('▁');
            marked = true;
        }
        in_word = true;
        out.push(char);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::spaces_marked;

    #[test]
    fn spaces_are_marked_as_sentencepiece_marks_them() {
        for (prefix, merge, expected) in
            [(true, true, "▁a▁b"), (false, true, "▁a▁b"), (true, false, "▁▁a▁▁b▁"), (false, false, "▁a▁▁b▁")]
        {
            assert_eq!(spaces_marked(" a  b ", prefix, merge), expected, "{prefix} {merge}");
        }
        assert_eq!(spaces_marked("a", true, false), "▁a");
        assert_eq!(spaces_marked("  ", true, true), "");
    }
}
