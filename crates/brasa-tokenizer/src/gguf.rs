//! Tokenizers from the metadata of GGUF files.

use ahash::{AHashMap, AHashSet};
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, NFC, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{AddedToken, NormalizerWrapper};

use crate::charsmap::Charsmap;
use crate::decode::{Decoder, byte_of_token};
use crate::engine::{AnyModel, Engine, SpacePrefix};
use crate::normalize::Normalizers;
use crate::pair::PairTemplate;
use crate::pre::{self, Pre};
use crate::special::{END_OF_GENERATION, SpecialTokens, end_of_generation};
use crate::split::{Splitter, Splitters};
use crate::spm::Spm;
use crate::tokenizer::{Parts, Tokenizer};
use crate::unigram::{LONGEST_TOKEN, Unigram};
use crate::vocabulary::{MAX_IDS, TokenKind, Vocabulary};
use crate::words::Words;
use crate::{Result, TokenizerError};

/// The keys `tokenizer.*` of a GGUF file, each in a field named like the key's last word.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `gpt2`, `llama`, `bert`, `t5` or `gemma4`.
    pub model: String,
    /// For `gpt2`: the name of the pre-tokenizer.
    pub pre: Option<String>,
    /// The text of every token, as the file spells it.
    pub tokens: Vec<String>,
    /// For `llama`: priorities of merges. For `t5`: logarithms of the tokens' probabilities.
    pub scores: Vec<f32>,
    /// The kind of every token; see [`TokenKind`].
    pub token_types: Vec<i32>,
    /// For `gpt2`: pairs in the order in which they are merged, with a space between.
    pub merges: Vec<String>,
    /// The key `bos_token_id`.
    pub bos: Option<u32>,
    /// The key `eos_token_id`.
    pub eos: Option<u32>,
    /// The key `eot_token_id`.
    pub eot: Option<u32>,
    /// The key `eom_token_id`.
    pub eom: Option<u32>,
    /// The key `unknown_token_id`.
    pub unknown: Option<u32>,
    /// The key `seperator_token_id` (so spelt).
    pub separator: Option<u32>,
    /// The key `padding_token_id`.
    pub padding: Option<u32>,
    /// The key `cls_token_id`.
    pub cls: Option<u32>,
    /// True if BOS is added before a text.
    pub add_bos: Option<bool>,
    /// True if EOS is appended to a text.
    pub add_eos: Option<bool>,
    /// For `llama` and `t5`: true if a space is added before a text.
    pub add_space_prefix: Option<bool>,
    /// For `llama`: which texts get a leading space. `first`: only the text at the beginning, none after a special token.
    /// `always`: each text. Both leave texts unchanged that begin with a space. `None`: every text, whatever it begins with. A
    /// key of Brasa's own, for the `prepend_scheme` of a `tokenizer.json`.
    pub space_prefix_scheme: Option<String>,
    /// For `t5`: true if several spaces count as one.
    pub remove_extra_whitespaces: Option<bool>,
    /// For `t5`: the table by which characters are normalised; empty for no table.
    pub precompiled_charsmap: Vec<u8>,
    /// For `bert`: true if text is converted to lower case.
    pub lowercase: Option<bool>,
    /// For `bert`: true if accents are removed; the value of `lowercase` if absent.
    pub strip_accents: Option<bool>,
    /// The key `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl Tokenizer {
    /// A tokenizer from GGUF metadata. `pre` replaces the file's `tokenizer.ggml.pre`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Unsupported`] for a model or a pre-tokenizer that is not known;
    /// [`TokenizerError::Malformed`], naming the key.
    pub fn from_gguf(source: &GgufVocabulary, pre: Option<&str>) -> Result<Self> {
        source.check()?;
        let mut tokenizer = Self::from_checked(source, pre)?;
        tokenizer.warn(source.doubts(pre));
        Ok(tokenizer)
    }

    fn from_checked(source: &GgufVocabulary, pre: Option<&str>) -> Result<Self> {
        match source.model.as_str() {
            "gpt2" => {
                let name = pre.or(source.pre.as_deref()).unwrap_or("default");
                let pre = pre::by_name(name).ok_or_else(|| {
                    TokenizerError::unsupported(
                        "tokenizer.ggml.pre",
                        name,
                        "name a pre-tokenizer that cuts text in the same way, such as `llama-bpe`, `qwen2` or `gpt-2`",
                    )
                })?;
                source.byte_pair(&pre)
            }
            "gemma4" => source.byte_pair(&pre::GEMMA4),
            "llama" => source.sentencepiece(),
            "bert" => source.wordpiece(),
            "t5" => source.unigram(),
            "none" | "no_vocab" => Err(TokenizerError::malformed(
                "tokenizer.ggml.model",
                "`none` found: the file has no tokenizer, and can only be run on token ids",
            )),
            other => Err(TokenizerError::unsupported(
                "tokenizer.ggml.model",
                other,
                "gpt2, llama, bert, t5 and gemma4 are",
            )),
        }
    }
}

impl GgufVocabulary {
    fn check(&self) -> Result<()> {
        let fail = |key: &str, reason: String| {
            Err(TokenizerError::malformed(format!("tokenizer.ggml.{key}"), reason))
        };
        let count = self.tokens.len();
        if count == 0 {
            return fail("tokens", "no token found".to_owned());
        }
        if count > MAX_IDS as usize {
            return fail("tokens", format!("{count} tokens found, expected at most {MAX_IDS}"));
        }
        for (key, found) in [("scores", self.scores.len()), ("token_type", self.token_types.len())] {
            if found != 0 && found < count {
                return fail(key, format!("{found} values found, expected one for each of {count} tokens"));
            }
        }
        Ok(())
    }

    /// The id of BOS if the file names none, as in llama.cpp.
    pub(crate) fn default_bos(&self) -> Option<u32> {
        match self.model.as_str() {
            "llama" => Some(1),
            "bert" => Some(101),
            _ => None,
        }
    }

    /// The id of EOS if the file names none.
    pub(crate) fn default_eos(&self) -> Option<u32> {
        (self.model == "t5").then_some(1)
    }

    /// The id of the unknown token if the file names none.
    pub(crate) fn default_unknown(&self) -> Option<u32> {
        match self.model.as_str() {
            "llama" => Some(0),
            "bert" => Some(100),
            "t5" => Some(2),
            _ => None,
        }
    }

    /// The id of the separator of two texts if the file names none.
    pub(crate) fn default_separator(&self) -> Option<u32> {
        (self.model == "bert").then_some(102)
    }

    pub(crate) fn kind(&self, id: usize) -> TokenKind {
        let declared = self.token_types.get(id).map_or(TokenKind::Normal, |kind| TokenKind::from_gguf(*kind));
        // Converters have marked these as text; as such they would never be recognised.
        match self.tokens[id].as_str() {
            "<|channel|>" | "<|message|>" | "<|start|>" | "<|constrain|>" => TokenKind::UserDefined,
            "</s>" if declared == TokenKind::Normal => TokenKind::Normal,
            text if END_OF_GENERATION.contains(&text) => TokenKind::Control,
            _ => declared,
        }
    }

    fn entries(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        self.tokens.iter().enumerate().map(|(id, text)| (id as u32, text.as_str(), self.kind(id)))
    }

    fn known(&self, id: Option<u32>) -> Option<u32> {
        id.filter(|id| (*id as usize) < self.tokens.len())
    }

    fn byte_pair(&self, pre: &Pre) -> Result<Tokenizer> {
        if self.merges.is_empty() {
            return Err(TokenizerError::malformed("tokenizer.ggml.merges", "no merges found"));
        }
        // Control tokens must not arise from text by merging.
        let vocabulary: AHashMap<String, u32> = self
            .entries()
            .filter(|(_, text, kind)| !kind.is_special() && !text.is_empty())
            .map(|(id, text, _)| (text.to_owned(), id))
            .collect();
        let mut merges = Vec::with_capacity(self.merges.len());
        let mut joined = String::new();
        let (mut strange, mut all) = (0_usize, None);
        for merge in &self.merges {
            // A token may itself begin with a space.
            let space = merge.char_indices().skip(1).find(|(_, char)| *char == ' ');
            let Some((at, _)) = space else {
                return Err(TokenizerError::malformed(
                    "tokenizer.ggml.merges",
                    format!("{merge:?} found, expected two tokens with a space between"),
                ));
            };
            let (left, right) = (&merge[..at], &merge[at + 1..]);
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let usable = [left, right, &joined].into_iter().all(|token| vocabulary.contains_key(token));
            // Of a merge that is listed twice the last place counts, as in the tokenizers library.
            if usable {
                merges.push((left.to_owned(), right.to_owned()));
                continue;
            }
            let all =
                all.get_or_insert_with(|| self.tokens.iter().map(String::as_str).collect::<AHashSet<_>>());
            strange += usize::from(![left, right, &joined].into_iter().all(|token| all.contains(token)));
        }
        let bpe = BPE::builder()
            .vocab_and_merges(vocabulary, merges)
            .ignore_merges(pre.ignore_merges)
            .byte_fallback(!pre.byte_level)
            .cache_capacity(0)
            .build()
            .map_err(|error| TokenizerError::malformed("tokenizer.ggml.merges", error))?;
        let mut splitters = pre.splitters()?;
        let normalizer: Option<NormalizerWrapper> = if pre.byte_level {
            splitters.push(Splitter::Bytes);
            pre.compose.then(|| NFC.into())
        } else {
            Some(spaces_marked(false)?)
        };
        let normalizer = normalizer.map(Normalizers::from);
        let engine =
            self.engine(AnyModel::Hf(Box::new(Words::new(ModelWrapper::BPE(bpe)))), normalizer, splitters)?;
        let decoder = if pre.byte_level { Decoder::ByteLevel } else { Decoder::sentencepiece(false) };
        // The file of Gemma 4 says that BOS is not added, and its model needs it.
        let gemma4 = self.model == "gemma4" || self.pre.as_deref() == Some("gemma4");
        let add_bos = gemma4 || self.add_bos.unwrap_or(pre.add_bos);
        let mut tokenizer = self.finish(engine, decoder, add_bos, self.bos, None)?;
        if strange > 0 {
            tokenizer.warn(vec![format!(
                "tokenizer.ggml.merges: {strange} of {} name tokens that the vocabulary does not have; they are passed over",
                self.merges.len()
            )]);
        }
        Ok(tokenizer)
    }

    fn sentencepiece(&self) -> Result<Tokenizer> {
        if self.scores.is_empty() {
            return Err(TokenizerError::malformed("tokenizer.ggml.scores", "no scores found"));
        }
        let mut bytes = vec![None; 256];
        let mut tokens = AHashMap::new();
        for (id, text, kind) in self.entries() {
            match (kind, byte_of_token(text)) {
                (TokenKind::Byte, Some(byte)) => bytes[usize::from(byte)] = Some(id),
                (TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused, _) if !text.is_empty() => {
                    tokens.insert(text.to_owned(), (id, self.scores[id as usize]));
                }
                _ => {}
            }
        }
        let unknown = self.known(self.unknown.or(self.default_unknown()));
        let add_space = self.add_space_prefix.unwrap_or(true);
        let scheme = match self.space_prefix_scheme.as_deref() {
            None => None,
            Some("first") => Some(SpacePrefix::First),
            Some("always") => Some(SpacePrefix::Each),
            Some(other) => {
                let key = "tokenizer.ggml.space_prefix_scheme";
                return Err(TokenizerError::unsupported(key, other, "first and always are"));
            }
        };
        let scheme = scheme.filter(|_| add_space);
        let model = AnyModel::Spm(Box::new(Spm::new(tokens, bytes, unknown)));
        let normalizer = spaces_marked(add_space && scheme.is_none())?;
        let engine = self.engine(model, Some(normalizer.into()), Vec::new())?.with_prefix(scheme);
        let bos = self.bos.or(self.default_bos());
        self.finish(engine, Decoder::sentencepiece(add_space), self.add_bos.unwrap_or(true), bos, None)
    }

    /// BERT's tokenizer. The file marks the first piece of a word by `▁`, whereas the original marks all other pieces by `##`.
    fn wordpiece(&self) -> Result<Tokenizer> {
        let original = |text: &str, kind: TokenKind| match text.strip_prefix('▁') {
            _ if kind.is_special() => text.to_owned(),
            Some(word) => word.to_owned(),
            None => format!("##{text}"),
        };
        let tokens: Vec<(u32, String, TokenKind)> =
            self.entries().map(|(id, text, kind)| (id, original(text, kind), kind)).collect();
        let unknown =
            self.known(self.unknown.or(self.default_unknown())).map(|id| self.tokens[id as usize].clone());
        let Some(unknown) = unknown else {
            return Err(TokenizerError::malformed("tokenizer.ggml.unknown_token_id", "no such token"));
        };
        let vocabulary: AHashMap<String, u32> =
            tokens.iter().map(|(id, text, _)| (text.clone(), *id)).collect();
        let model = WordPiece::builder()
            .vocab(vocabulary)
            .unk_token(unknown)
            .build()
            .map_err(|error| TokenizerError::malformed("tokenizer.ggml.tokens", error))?;
        let lowercase = self.lowercase.unwrap_or(true);
        let normalizer = BertNormalizer::new(true, true, self.strip_accents.or(Some(lowercase)), lowercase);
        let normalizer = NormalizerWrapper::from(normalizer);
        let splitters = vec![Splitter::Hf(Box::new(BertPreTokenizer.into()))];
        let model = AnyModel::Hf(Box::new(Words::new(ModelWrapper::WordPiece(model))));
        let engine = self.engine(model, Some(normalizer.into()), splitters)?;
        let bos = self.bos.or(self.cls).or(self.default_bos());
        let separator = self.separator.or(self.default_separator());
        // The space before a word is part of its first piece, as the file spells it.
        self.finish(engine, Decoder::sentencepiece(true), true, bos, separator)
    }

    /// SentencePiece's unigram model, of T5 and XLM-R.
    fn unigram(&self) -> Result<Tokenizer> {
        let fail = |key: &str, reason: String| {
            Err(TokenizerError::malformed(format!("tokenizer.ggml.{key}"), reason))
        };
        if self.scores.is_empty() {
            return fail("scores", "no scores found".to_owned());
        }
        let Some(unknown) = self.known(self.unknown.or(self.default_unknown())) else {
            return fail("unknown_token_id", "no such token".to_owned());
        };
        let mut tokens = AHashMap::new();
        let mut lowest = f64::INFINITY;
        for (id, text, kind) in self.entries() {
            let score = f64::from(self.scores[id as usize]);
            match kind {
                TokenKind::Normal | TokenKind::Unused | TokenKind::UserDefined if !text.is_empty() => {}
                _ => continue,
            }
            if text.len() > LONGEST_TOKEN {
                let reason = format!("token {id} of {} bytes, expected at most {LONGEST_TOKEN}", text.len());
                return fail("tokens", reason);
            }
            if !score.is_finite() {
                return fail("scores", format!("{score} found for token {id}, expected a number"));
            }
            if kind == TokenKind::Normal {
                lowest = lowest.min(score);
            }
            // Text that is matched before everything else costs nothing.
            tokens.insert(text, (id, if kind == TokenKind::UserDefined { 0.0 } else { score }));
        }
        let lowest = if lowest.is_finite() { lowest } else { 0.0 };
        let model = AnyModel::Unigram(Box::new(Unigram::new(tokens, lowest, unknown)));
        let charsmap =
            match &self.precompiled_charsmap[..] {
                [] => None,
                table => Some(Charsmap::new(table).map_err(|error| {
                    TokenizerError::malformed("tokenizer.ggml.precompiled_charsmap", error)
                })?),
            };
        let add_space = self.add_space_prefix.unwrap_or(true);
        let merge = self.remove_extra_whitespaces.unwrap_or(false);
        let normalizer = Normalizers::sentencepiece(charsmap, add_space, merge);
        let engine = self.engine(model, Some(normalizer), Vec::new())?;
        let end = self.eos.or(self.default_eos()).filter(|_| self.add_eos.unwrap_or(true));
        let add_bos = self.add_bos.unwrap_or(false);
        self.finish(engine, Decoder::sentencepiece(add_space), add_bos, self.bos, end)
    }

    fn finish(
        &self,
        engine: Engine,
        decoder: Decoder,
        add_bos: bool,
        bos: Option<u32>,
        separator: Option<u32>,
    ) -> Result<Tokenizer> {
        let vocabulary = Vocabulary::new(self.entries())?;
        let (bos, eos) = (self.known(bos), self.known(self.eos));
        let prefix: Vec<u32> = bos.filter(|_| add_bos).into_iter().collect();
        let suffix = match self.known(separator) {
            Some(separator) => vec![separator],
            None => eos.filter(|_| self.add_eos == Some(true)).into_iter().collect(),
        };
        let declared = [self.eos, self.eot, self.eom].into_iter().flatten();
        let special = SpecialTokens {
            bos,
            eos,
            pad: self.known(self.padding),
            unknown: self.known(self.unknown),
            end_of_generation: end_of_generation(&vocabulary, declared, true),
        };
        let roles = [
            ("bos_token", special.bos),
            ("eos_token", special.eos),
            ("unk_token", special.unknown),
            ("pad_token", special.pad),
        ];
        let template_tokens = roles
            .into_iter()
            .filter_map(|(role, id)| Some((role.to_owned(), vocabulary.text(id?)?.to_owned())))
            .collect();
        // Only vocabularies with an end behind each text are of models that judge pairs.
        let join = if self.model == "bert" { PairTemplate::bert } else { PairTemplate::roberta };
        let pair = (!suffix.is_empty()).then(|| join(&prefix, &suffix));
        let around = (prefix, suffix);
        let chat_template = self.chat_template.clone();
        Ok(Tokenizer::new(Parts {
            engine,
            vocabulary,
            decoder,
            special,
            around,
            pair,
            chat_template,
            template_tokens,
            warnings: Vec::new(),
        }))
    }

    fn engine(
        &self,
        model: AnyModel,
        normalizer: Option<Normalizers>,
        splitters: Vec<Splitter>,
    ) -> Result<Engine> {
        let strip = self.strips_after_control();
        let added = self.entries().filter(|(_, _, kind)| kind.is_added()).map(|(id, text, kind)| {
            let token = AddedToken {
                content: text.to_owned(),
                rstrip: strip && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"),
                normalized: false,
                special: kind.is_special(),
                ..AddedToken::default()
            };
            (id, token)
        });
        Engine::new(model, normalizer, Splitters(splitters), added)
            .map_err(|error| TokenizerError::malformed("tokenizer.ggml.tokens", error))
    }

    /// True for Phi-3, which was trained without the white space after its control tokens. No GGUF key can express that; the
    /// vocabulary is recognised as Llama 2's followed by these tokens.
    fn strips_after_control(&self) -> bool {
        let has = |text: &str| self.tokens.iter().any(|token| token == text);
        self.model == "llama" && has("<|placeholder1|>") && has("<|assistant|>") && has("<|end|>")
    }
}

fn spaces_marked(prefix: bool) -> Result<NormalizerWrapper> {
    let replace = Replace::new(" ", "▁").map_err(|error| TokenizerError::malformed("space mark", error))?;
    let mut steps: Vec<NormalizerWrapper> = vec![replace.into()];
    if prefix {
        steps.insert(0, Prepend::new("▁".to_owned()).into());
    }
    Ok(Sequence::new(steps).into())
}
