use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::added::Controls;
use crate::chat::Edges;
use crate::decode::{DecodeStream, Decoder};
use crate::engine::Engine;
use crate::pair::PairTemplate;
use crate::pattern::begin_text;
use crate::special::SpecialTokens;
use crate::vocabulary::Vocabulary;
use crate::{Result, TokenizerError};
use brasa_fault::without_panic;

/// Whether the model's own special tokens are added around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// Adds BOS before and EOS after the text, or other tokens that the model was trained with. A text that already begins with
    /// BOS (see [`ParseSpecial`]) gets no second one.
    AsModel,
    /// No ids are added.
    No,
}

/// Whether a text may name control tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSpecial {
    /// `<|im_end|>` in the text is the control token, as needed for a rendered chat template.
    Yes,
    /// `<|im_end|>` in the text is ten characters, as needed for text from outside.
    No,
}

/// Text to token ids and back, for one model.
pub struct Tokenizer {
    engine: Engine,
    /// The vocabulary, shared with streams, which may outlive the tokenizer.
    vocabulary: Arc<Vocabulary>,
    decoder: Arc<Decoder>,
    special: SpecialTokens,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: Option<PairTemplate>,
    chat_template: Option<String>,
    template_tokens: Vec<(String, String)>,
    /// Characters with which control tokens begin and end; computed when first needed.
    edges: OnceLock<Edges>,
    warnings: Vec<String>,
}

/// The parts of a tokenizer, made by the reader of either container.
pub(crate) struct Parts {
    pub engine: Engine,
    pub vocabulary: Vocabulary,
    pub decoder: Decoder,
    pub special: SpecialTokens,
    pub around: (Vec<u32>, Vec<u32>),
    pub pair: Option<PairTemplate>,
    pub chat_template: Option<String>,
    /// Texts of special tokens, by their names in templates.
    pub template_tokens: Vec<(String, String)>,
    /// The warnings of [`Tokenizer::warnings`].
    pub warnings: Vec<String>,
}

impl Tokenizer {
    pub(crate) fn new(parts: Parts) -> Self {
        let (prefix, suffix) = parts.around;
        Self {
            engine: parts.engine,
            vocabulary: Arc::new(parts.vocabulary),
            decoder: Arc::new(parts.decoder),
            special: parts.special,
            prefix,
            suffix,
            pair: parts.pair,
            chat_template: parts.chat_template,
            template_tokens: parts.template_tokens,
            edges: OnceLock::new(),
            warnings: parts.warnings,
        }
    }

    /// The ids of `text`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Encode`] if a pattern of the tokenizer fails on this text.
    pub fn encode(&self, text: &str, add: AddSpecial, parse: ParseSpecial) -> Result<Vec<u32>> {
        let controls = match parse {
            ParseSpecial::Yes => Controls::Parse,
            ParseSpecial::No => Controls::Text,
        };
        let ids = self.encode_with(text, controls)?;
        if add == AddSpecial::No {
            return Ok(ids);
        }
        let doubled = parse == ParseSpecial::Yes
            && self.special.bos.is_some_and(|bos| self.prefix == [bos] && ids.first() == Some(&bos));
        let prefix: &[u32] = if doubled { &[] } else { &self.prefix };
        Ok([prefix, &ids, &self.suffix].concat())
    }

    /// Encodes `text`, which need not be UTF-8: invalid bytes become U+FFFD first.
    ///
    /// # Errors
    ///
    /// Errors of [`encode`](Self::encode).
    pub fn encode_bytes(&self, text: &[u8], add: AddSpecial, parse: ParseSpecial) -> Result<Vec<u32>> {
        self.encode(&String::from_utf8_lossy(text), add, parse)
    }

    /// The text of `ids`. `skip_special` leaves out control tokens.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let mut stream = self.decode_stream(skip_special);
        let mut text = String::new();
        for id in ids {
            text.push_str(&stream.push(*id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// A stream that decodes ids as they are generated; see [`DecodeStream`].
    pub fn decode_stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream::new(Arc::clone(&self.decoder), Arc::clone(&self.vocabulary), skip_special)
    }

    /// The bytes that a token adds inside a text; not always whole characters.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn piece_bytes(&self, id: u32) -> Result<Cow<'_, [u8]>> {
        let size = self.vocabulary.len();
        let token = self.vocabulary.text(id).ok_or(TokenizerError::UnknownId { id, size })?;
        Ok(self.decoder.bytes(token, self.vocabulary.kind(id), false))
    }

    /// The text that a token adds inside a text; incomplete characters become U+FFFD. See [`piece_bytes`](Self::piece_bytes).
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`].
    pub fn piece(&self, id: u32) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.piece_bytes(id)?).into_owned())
    }

    /// The id of a token as its file spells it: `Ġthe`, `<|im_end|>`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.engine.token_to_id(token)
    }

    /// The table of all tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// BOS, EOS and the tokens that end generation.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// True if generation ends at this token.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.special.end_of_generation.binary_search(&id).is_ok()
    }

    /// The ids that [`AddSpecial::AsModel`] puts before and after a text.
    pub fn added_around(&self) -> (&[u32], &[u32]) {
        (&self.prefix, &self.suffix)
    }

    /// The template by which two texts are joined to one sequence; `None` if the file has none.
    pub fn pair(&self) -> Option<&PairTemplate> {
        self.pair.as_ref()
    }

    /// Facts that the checkpoint leaves out and that change token ids. Each sentence says what was assumed instead.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The [`warnings`](Self::warnings); an error if the caller is `strict` and there are any.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Doubtful`] with the first warning.
    pub fn judged_warnings(&self, strict: bool) -> Result<&[String]> {
        match self.warnings.first() {
            Some(doubt) if strict => Err(TokenizerError::Doubtful { doubt: doubt.clone() }),
            _ => Ok(&self.warnings),
        }
    }

    /// The Jinja source of the checkpoint's chat template.
    pub fn chat_template_source(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    pub(crate) fn warn(&mut self, warnings: Vec<String>) {
        self.warnings.extend(warnings);
    }

    pub(crate) fn template_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        self.template_tokens.iter().map(|(role, text)| (role.as_str(), text.as_str()))
    }

    /// The ids of `text`. Control tokens are parsed, except those with a character at one of `places`, which are ascending byte
    /// offsets.
    pub(crate) fn encode_beside(&self, text: &str, places: &[usize]) -> Result<Vec<u32>> {
        self.encode_with(text, Controls::Beside(places))
    }

    /// Characters with which control tokens begin and end.
    pub(crate) fn edges_of_control_tokens(&self) -> &Edges {
        self.edges.get_or_init(|| self.find_edges_of_control_tokens())
    }

    fn encode_with(&self, text: &str, controls: Controls<'_>) -> Result<Vec<u32>> {
        begin_text(text.len());
        let failed = |reason| TokenizerError::Encode { length_bytes: text.len(), reason };
        let ids = without_panic(|| self.engine.encode(text, controls)).map_err(failed)?;
        ids.map_err(|error| failed(error.to_string()))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tokenizer")
            .field("tokens", &self.vocabulary.len())
            .field("decoder", &self.decoder)
            .field("special", &self.special)
            .field("prefix", &self.prefix)
            .field("suffix", &self.suffix)
            .finish_non_exhaustive()
    }
}
