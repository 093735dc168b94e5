//! The tokenizing pipeline: added tokens, normaliser, pre-tokenizer, model.
//!
//! A `tokenizer.json` has the same meaning as in transformers: the stages give the results of the `tokenizers` crate, and most of
//! them are that crate's own. Brasa implements the [added tokens](crate::added), of which a file may have a million, the
//! [normaliser](crate::normalize) and the [cuts](crate::split), whose failures are errors, and the two models of SentencePiece
//! for vocabularies of GGUF files.

use ahash::AHashMap;
use tokenizers::{AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token};

use crate::added::{AddedTokens, Controls};
use crate::normalize::Normalizers;
use crate::pieces::PieceEncoder;
use crate::split::Splitters;
use crate::spm::Spm;
use crate::unigram::Unigram;
use crate::words::Words;

/// A model: converts pieces of text to token ids.
pub enum AnyModel {
    /// A model of the `tokenizers` crate.
    Hf(Box<Words>),
    /// Merges by score: SentencePiece's BPE.
    Spm(Box<Spm>),
    /// The segmentation with the largest sum of scores: SentencePiece's unigram model.
    Unigram(Box<Unigram>),
}

impl AnyModel {
    /// The tokens of one piece.
    pub fn tokenize(&self, piece: &str) -> tokenizers::Result<Vec<Token>> {
        match self {
            Self::Hf(model) => model.tokenize(piece),
            Self::Spm(model) => Ok(model.tokenize(piece)),
            Self::Unigram(model) => Ok(model.tokenize(piece)),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Hf(model) => model.token_to_id(token),
            Self::Spm(model) => model.token_to_id(token),
            Self::Unigram(model) => model.token_to_id(token),
        }
    }
}

/// Which texts get a leading `▁`, unless they begin with one: the `prepend_scheme` of Metaspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpacePrefix {
    /// Each piece between added tokens.
    Each,
    /// The piece at the beginning of the text.
    First,
}

/// The pipeline of every tokenizer in this crate.
pub struct Engine {
    /// Added tokens that are searched for in the original text.
    raw: AddedTokens,
    normalizer: Option<Normalizers>,
    prefix: Option<SpacePrefix>,
    /// Added tokens that are searched for in the normalised text.
    normalized: AddedTokens,
    splitters: Splitters,
    model: AnyModel,
    /// Ids of the added tokens with a normalised text, by their original text.
    before_normalizing: AHashMap<String, u32>,
}

impl Engine {
    /// Makes a pipeline. `added` are the added tokens with their ids in the file; an id in the model's own table has precedence.
    ///
    /// # Errors
    ///
    /// The error of normalising the text of an added token.
    pub fn new(
        model: AnyModel,
        normalizer: Option<Normalizers>,
        splitters: Splitters,
        added: impl IntoIterator<Item = (u32, AddedToken)>,
    ) -> tokenizers::Result<Self> {
        let (mut raw, mut normalized, mut before_normalizing) = (Vec::new(), Vec::new(), AHashMap::new());
        for (id, mut token) in added {
            if token.content.is_empty() {
                continue;
            }
            let id = model.token_to_id(&token.content).unwrap_or(id);
            if !token.normalized {
                raw.push((id, token));
                continue;
            }
            before_normalizing.insert(token.content.clone(), id);
            if let Some(normalizer) = &normalizer {
                token.content = normalizer.normalized(&token.content)?;
            }
            normalized.push((id, token));
        }
        let (raw, normalized) = (AddedTokens::new(raw), AddedTokens::new(normalized));
        Ok(Self { raw, normalizer, prefix: None, normalized, splitters, model, before_normalizing })
    }

    /// The pipeline with a leading `▁` for some texts, added after the normaliser.
    pub fn with_prefix(self, prefix: Option<SpacePrefix>) -> Self {
        Self { prefix, ..self }
    }

    /// Encodes `text`. `controls` selects the control tokens that are plain text.
    ///
    /// # Errors
    ///
    /// The error of a pattern of the file that fails or takes too long, or of the model.
    pub fn encode(&self, text: &str, controls: Controls<'_>) -> tokenizers::Result<Vec<u32>> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, piece| self.raw.cut(&piece, controls))?;
        if self.normalizer.is_some() || !self.normalized.is_empty() {
            pieces.split(|at, mut piece| {
                if let Some(normalizer) = &self.normalizer {
                    normalizer.normalize(&mut piece)?;
                }
                if self.prefix.is_some_and(|prefix| prefix == SpacePrefix::Each || at == 0)
                    && !piece.get().starts_with('▁')
                {
                    piece.prepend("▁");
                }
                self.normalized.cut(&piece, controls)
            })?;
        }
        if let Some(mut encoder) = PieceEncoder::new(&self.splitters, &self.model) {
            for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None) {
                match tokens {
                    Some(tokens) => encoder.ids.extend(tokens.iter().map(|token| token.id)),
                    None => encoder.encode(piece)?,
                }
            }
            return Ok(encoder.ids);
        }
        self.splitters.pre_tokenize(&mut pieces)?;
        pieces.tokenize(|piece| self.model.tokenize(piece.get()))?;
        Ok(pieces.into_encoding(None, 0, OffsetType::None)?.get_ids().to_vec())
    }

    /// The id of a token as its file spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let known = self.model.token_to_id(token).or_else(|| self.raw.id_of(token));
        known.or_else(|| self.before_normalizing.get(token).copied())
    }
}
