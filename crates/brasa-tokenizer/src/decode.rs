//! Decodes token ids to text, all at once or one by one.
//!
//! All families are converted to one form: a token is a run of bytes, and the text is the concatenation of these bytes, sometimes
//! without a leading space. Whole decoding *is* streaming decoding, so the two cannot differ. Bytes that are not UTF-8 become
//! U+FFFD, one for each maximal invalid part, as `String::from_utf8_lossy` has it.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use crate::vocabulary::{TokenKind, Vocabulary};
use crate::{Result, TokenizerError};

/// Most times that the replacements of a decoder may lengthen a token.
const MOST_GROWTH: usize = 64;

/// How a vocabulary spells the bytes of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoder {
    /// Each character represents a byte (GPT-2's table).
    ByteLevel,
    /// Text with replacements. Afterwards `<0xHH>` is a byte.
    Text {
        /// Pairs `(from, to)` of replacements, in order, such as `▁` to a space.
        replacements: Vec<(String, String)>,
        /// True if `<0xHH>` is a byte.
        byte_fallback: bool,
        /// A character, and how often it is removed at the start of the text.
        strip_start: Option<(char, usize)>,
        /// A character, and how often it is removed at the start of every token.
        strip_each: Option<(char, usize)>,
    },
    /// `▁` is a space, except perhaps at the start of the first token.
    Metaspace {
        /// The character that represents a space.
        replacement: char,
        /// True if the character is dropped at the start of the first token.
        drop_first: bool,
    },
    /// Words, and continuations marked by a prefix.
    WordPiece {
        /// The prefix of continuations, such as `##`.
        prefix: String,
        /// True if the space before punctuation is dropped.
        cleanup: bool,
    },
    /// Tokens joined by spaces, as without a decoder.
    Spaced,
}

impl Decoder {
    /// SentencePiece's spelling: `▁` and `<0xHH>`. With `strip_space`, a space that was added before the text is removed.
    pub(crate) fn sentencepiece(strip_space: bool) -> Self {
        Self::Text {
            replacements: vec![("▁".to_owned(), " ".to_owned())],
            byte_fallback: true,
            strip_start: strip_space.then_some((' ', 1)),
            strip_each: None,
        }
    }

    /// Reads the `decoder` of a `tokenizer.json`.
    pub(crate) fn from_json(value: Option<&Value>) -> Result<Self> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Self::Spaced) };
        let steps: Vec<&Value> = match kind(value) {
            "Sequence" => {
                value["decoders"].as_array().map(|steps| steps.iter().collect()).unwrap_or_default()
            }
            _ => vec![value],
        };
        let (mut replacements, mut byte_fallback, mut fused) = (Vec::new(), false, false);
        let (mut strip_start, mut strip_each) = (None, None);
        let mut growth = 1_usize;
        for step in &steps {
            match kind(step) {
                // These two see whole words; nobody puts anything after them.
                "ByteLevel" => return Ok(Self::ByteLevel),
                "WordPiece" => {
                    return Ok(Self::WordPiece {
                        prefix: text(step, "prefix").unwrap_or("##").to_owned(),
                        cleanup: step["cleanup"].as_bool().unwrap_or(true),
                    });
                }
                "Metaspace" => {
                    let old_style = step["add_prefix_space"].as_bool().unwrap_or(true);
                    let scheme = text(step, "prepend_scheme").unwrap_or("always");
                    return Ok(Self::Metaspace {
                        replacement: text(step, "replacement")
                            .and_then(|text| text.chars().next())
                            .unwrap_or('▁'),
                        drop_first: old_style && scheme != "never",
                    });
                }
                "Replace" => {
                    let from =
                        text(&step["pattern"], "String").ok_or_else(|| refused("Replace with a pattern"))?;
                    let to = text(step, "content").unwrap_or_default();
                    if from.is_empty() {
                        return Err(refused("Replace with an empty pattern"));
                    }
                    growth = growth.saturating_mul(to.len().div_ceil(from.len()).max(1));
                    if growth > MOST_GROWTH {
                        return Err(refused("Replace that makes tokens many times longer"));
                    }
                    replacements.push((from.to_owned(), to.to_owned()));
                }
                "ByteFallback" => byte_fallback = true,
                "Fuse" => fused = true,
                "Strip" => {
                    let char = text(step, "content").and_then(|text| text.chars().next()).unwrap_or(' ');
                    let start = step["start"].as_u64().unwrap_or(0) as usize;
                    if step["stop"].as_u64().unwrap_or(0) != 0 {
                        return Err(refused("Strip at the end"));
                    }
                    *(if fused { &mut strip_start } else { &mut strip_each }) = Some((char, start));
                }
                other => return Err(refused(other)),
            }
        }
        Ok(Self::Text { replacements, byte_fallback, strip_start, strip_each })
    }

    /// The bytes of a token. `first` is true for the first token of the text.
    pub(crate) fn bytes<'a>(&self, token: &'a str, kind: TokenKind, first: bool) -> Cow<'a, [u8]> {
        if kind.is_added() {
            // These are kept as written, whatever the alphabet of the others.
            return Cow::Borrowed(match self {
                Self::WordPiece { .. } | Self::Spaced if !first => return prefixed(token),
                _ => token.as_bytes(),
            });
        }
        match self {
            Self::ByteLevel => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of_char).collect();
                bytes.map_or(Cow::Borrowed(token.as_bytes()), Cow::Owned)
            }
            Self::Text { replacements, byte_fallback, strip_each, .. } => {
                let mut text = Cow::Borrowed(token);
                for (from, to) in replacements {
                    if text.contains(from.as_str()) {
                        text = Cow::Owned(text.replace(from.as_str(), to));
                    }
                }
                if *byte_fallback && let Some(byte) = byte_of_token(&text) {
                    return Cow::Owned(vec![byte]);
                }
                let dropped = strip_each.map_or(0, |strip| leading(text.as_bytes(), strip));
                match text {
                    Cow::Borrowed(text) => Cow::Borrowed(&text.as_bytes()[dropped..]),
                    Cow::Owned(text) => Cow::Owned(text.as_bytes()[dropped..].to_vec()),
                }
            }
            Self::Metaspace { replacement, drop_first } => {
                let space = if first && *drop_first { "" } else { " " };
                Cow::Owned(token.replace(*replacement, space).into_bytes())
            }
            Self::WordPiece { prefix, cleanup } => {
                let text = match token.strip_prefix(prefix.as_str()) {
                    Some(rest) if !first => rest.to_owned(),
                    _ if first => token.to_owned(),
                    _ => format!(" {token}"),
                };
                Cow::Owned(if *cleanup { without_spaces_before_marks(&text) } else { text }.into_bytes())
            }
            Self::Spaced if first => Cow::Borrowed(token.as_bytes()),
            Self::Spaced => prefixed(token),
        }
    }

    fn strip_start(&self) -> Option<(char, usize)> {
        match self {
            Self::Text { strip_start, .. } => *strip_start,
            _ => None,
        }
    }
}

/// Decodes ids one by one; no piece of text that it returns ends inside a character.
///
/// The concatenation of everything that [`push`](Self::push) and [`finish`](Self::finish) return is what
/// [`Tokenizer::decode`](crate::Tokenizer::decode) makes of the same ids.
#[derive(Clone, Debug)]
pub struct DecodeStream {
    decoder: Arc<Decoder>,
    vocabulary: Arc<Vocabulary>,
    skip_special: bool,
    /// Special tokens that are shown as text.
    shown: Arc<[u32]>,
    first: bool,
    strip: Option<(char, usize)>,
    pending: Vec<u8>,
}

impl DecodeStream {
    pub(crate) fn new(decoder: Arc<Decoder>, vocabulary: Arc<Vocabulary>, skip_special: bool) -> Self {
        let strip = decoder.strip_start();
        let shown = Arc::default();
        Self { decoder, vocabulary, skip_special, shown, first: true, strip, pending: Vec::new() }
    }

    /// Makes the stream show `ids` as text, even if they are control tokens.
    #[must_use]
    pub fn showing(mut self, ids: Arc<[u32]>) -> Self {
        self.shown = ids;
        self
    }

    /// The text that `id` completes; empty while a character is unfinished.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`]; the stream is unchanged then.
    pub fn push(&mut self, id: u32) -> Result<String> {
        let token =
            self.vocabulary.text(id).ok_or(TokenizerError::UnknownId { id, size: self.vocabulary.len() })?;
        let kind = self.vocabulary.kind(id);
        if self.skip_special && kind.is_special() && !self.shown.contains(&id) {
            return Ok(String::new());
        }
        self.pending.extend_from_slice(&self.decoder.bytes(token, kind, self.first));
        self.first = false;
        if let Some(strip) = self.strip
            && !self.pending.is_empty()
        {
            self.pending.drain(..leading(&self.pending, strip));
            self.strip = None;
        }
        Ok(self.take_complete())
    }

    /// Ends the text: returns U+FFFD for a character that the last ids left unfinished, else nothing.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    fn take_complete(&mut self) -> String {
        let mut text = String::new();
        let mut done = 0;
        loop {
            match std::str::from_utf8(&self.pending[done..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[done..valid]));
                    let Some(invalid) = error.error_len() else {
                        self.pending.drain(..valid);
                        return text;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    done = valid + invalid;
                }
            }
        }
    }
}

fn byte_of_char(char: char) -> Option<u8> {
    let code = char as u32;
    Some(match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code as u8,
        0x100..=0x120 => (code - 0x100) as u8,
        0x121..=0x142 => (code - 0x121 + 0x7F) as u8,
        0x143 => 0xAD,
        _ => return None,
    })
}

/// The character that represents a byte in GPT-2's alphabet.
pub(crate) fn char_of_byte(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x00..=0x20 => code + 0x100,
        0x7F..=0xA0 => code - 0x7F + 0x121,
        0xAD => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte of a token `<0xHH>`; `None` for other tokens.
pub(crate) fn byte_of_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn leading(text: &[u8], (char, most): (char, usize)) -> usize {
    let mut buffer = [0; 4];
    let char = char.encode_utf8(&mut buffer).as_bytes();
    let mut at = 0;
    for _ in 0..most {
        if !text[at..].starts_with(char) {
            break;
        }
        at += char.len();
    }
    at
}

fn prefixed(token: &str) -> Cow<'_, [u8]> {
    Cow::Owned(format!(" {token}").into_bytes())
}

fn without_spaces_before_marks(text: &str) -> String {
    const MARKS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    MARKS.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn kind(value: &Value) -> &str {
    text(value, "type").unwrap_or("without a type")
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn refused(what: &str) -> TokenizerError {
    TokenizerError::unsupported("decoder", what, "convert the model to GGUF, or report this tokenizer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_letter() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of_char(char_of_byte(byte)), Some(byte));
        }
    }
}
