//! Tokenizers from Hugging Face's files.

use std::path::Path;

use ahash::{AHashMap, AHashSet};
use brasa_formats::{FormatError, read_file};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, Model};

use crate::decode::{Decoder, byte_of_token};
use crate::engine::{AnyModel, Engine};
use crate::normalize::Normalizers;
use crate::pair::PairTemplate;
use crate::special::{SpecialTokens, end_of_generation};
use crate::split::{Splitter, Splitters};
use crate::steps::{Step, steps};
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocabulary::{MAX_IDS, TokenKind, Vocabulary};
use crate::words::Words;
use crate::{Result, TokenizerError, pattern};
use brasa_fault::without_panic;

/// Most bytes of a `tokenizer.json` that is read. A vocabulary of a million ids takes an eighth of it.
const LARGEST_FILE: u64 = 512 << 20;

/// Most steps of a pre-tokenizer; no published tokenizer has as many.
const MOST_CUTS: usize = 64;

/// The texts of the files that describe a tokenizer. Only `tokenizer` is required.
#[derive(Clone, Copy, Debug, Default)]
pub struct HfFiles<'a> {
    /// The text of `tokenizer.json`.
    pub tokenizer: &'a str,
    /// `tokenizer_config.json`: the roles of special tokens, the chat template.
    pub tokenizer_config: Option<&'a str>,
    /// `special_tokens_map.json`: the roles of special tokens if the configuration lacks them.
    pub special_tokens_map: Option<&'a str>,
    /// `generation_config.json`: the ids that end generation.
    pub generation_config: Option<&'a str>,
    /// `config.json`: the ids that end generation, in older checkpoints.
    pub config: Option<&'a str>,
    /// `chat_template.jinja`, which has precedence over the template in the configuration.
    pub chat_template: Option<&'a str>,
}

impl Tokenizer {
    /// A tokenizer from the texts of its files.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Malformed`] or [`TokenizerError::Unsupported`], naming the file and the part.
    pub fn from_json(files: &HfFiles<'_>) -> Result<Self> {
        without_panic(|| Self::read_json(files))
            .unwrap_or_else(|panic| Err(TokenizerError::malformed("tokenizer.json", panic)))
    }

    fn read_json(files: &HfFiles<'_>) -> Result<Self> {
        let parsed: TokenizerJson<'_> = serde_json::from_str(files.tokenizer)
            .map_err(|error| TokenizerError::malformed("tokenizer.json", error))?;
        if let Some(version) = parsed.version.as_deref().filter(|version| *version != "1.0") {
            return Err(TokenizerError::unsupported(
                "tokenizer.json version",
                version,
                "version 1.0 is expected",
            ));
        }
        let config = object("tokenizer_config.json", files.tokenizer_config)?;
        let map = object("special_tokens_map.json", files.special_tokens_map)?;
        let added = added_tokens(&parsed.added_tokens, &config)?;
        let (model, entries, unknown) = model(parsed.model)?;
        let kind = |token: &AddedToken| match token.special {
            true if Some(&token.content) == unknown.as_ref() => TokenKind::Unknown,
            true => TokenKind::Control,
            false => TokenKind::UserDefined,
        };
        let (known, extra): (Vec<_>, Vec<_>) =
            added.iter().partition(|(_, token)| entries.contains_key(&token.content));
        let kinds: AHashMap<&str, TokenKind> =
            known.into_iter().map(|(_, token)| (token.content.as_str(), kind(token))).collect();
        let byte_fallback = matches!(&model, ModelWrapper::BPE(bpe) if bpe.byte_fallback)
            || matches!(&model, ModelWrapper::Unigram(unigram) if unigram.byte_fallback());
        let plain_kind = |text: &str| match byte_of_token(text) {
            Some(_) if byte_fallback => TokenKind::Byte,
            _ => TokenKind::Normal,
        };
        let own = entries.iter().map(|(text, id)| {
            (*id, text.as_str(), kinds.get(text.as_str()).copied().unwrap_or_else(|| plain_kind(text)))
        });
        let extra = extra.into_iter().map(|(id, token)| (*id, token.content.as_str(), kind(token)));
        let vocabulary = Vocabulary::new(own.chain(extra))?;

        let id_of = |text: &str| {
            entries
                .get(text)
                .copied()
                .or_else(|| added.iter().find(|(_, token)| token.content == text).map(|(id, _)| *id))
        };
        let role = |name: &str| token_text(&config, name).or_else(|| token_text(&map, name));
        let bos = role("bos_token");
        let mut special = SpecialTokens {
            bos: bos.and_then(id_of),
            eos: role("eos_token").and_then(id_of),
            pad: role("pad_token").and_then(id_of),
            unknown: unknown.as_deref().and_then(id_of),
            end_of_generation: Vec::new(),
        };
        let generation = object("generation_config.json", files.generation_config)?;
        let model_config = object("config.json", files.config)?;
        let declared = [&generation, &model_config]
            .into_iter()
            .flat_map(|config| ids(&config["eos_token_id"]))
            .chain(special.eos);
        special.end_of_generation = end_of_generation(&vocabulary, declared, false);

        let chat_template = match files.chat_template {
            Some(template) => Some(template.to_owned()),
            None => config_template(&config),
        };
        let template_tokens = [&map, &config]
            .into_iter()
            .filter_map(Value::as_object)
            .flat_map(|config| {
                config.iter().map(|(role, token)| (role, token.as_str().or(token["content"].as_str())))
            })
            .filter_map(|(role, text)| Some((role.clone(), text?.to_owned())))
            .filter(|(role, _)| role.ends_with("_token"))
            .collect();
        let around = crate::post::around(parsed.post_processor.as_ref(), &vocabulary)?;
        let pair = PairTemplate::of(parsed.post_processor.as_ref(), &vocabulary)?;
        let decoder = Decoder::from_json(parsed.decoder.as_ref())?;
        let normalizer = Normalizers::from_json(parsed.normalizer.as_ref())?;
        let splitters = splitters(parsed.pre_tokenizer.as_ref())?;
        let engine = Engine::new(AnyModel::Hf(Box::new(Words::new(model))), normalizer, splitters, added)
            .map_err(|error| TokenizerError::malformed("tokenizer.json added_tokens", error))?;
        Ok(Self::new(Parts {
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

    /// A tokenizer from the folder of a checkpoint.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::Missing`] without a `tokenizer.json`, else as [`from_json`](Self::from_json).
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            let io = |error| TokenizerError::Io { path: path.display().to_string(), error };
            match read_file(&path, LARGEST_FILE) {
                Ok(bytes) => match String::from_utf8(bytes) {
                    Ok(text) => Ok(Some(text)),
                    Err(error) => Err(io(std::io::Error::new(std::io::ErrorKind::InvalidData, error))),
                },
                Err(FormatError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                    Ok(None)
                }
                Err(FormatError::Io { source, .. }) => Err(io(source)),
                Err(error) => Err(io(std::io::Error::other(error))),
            }
        };
        Self::from_files(&directory.display().to_string(), read, |name| directory.join(name).exists())
    }

    /// A tokenizer from the files of `place`. `read` returns a file's text if the file exists.
    pub(crate) fn from_files(
        place: &str,
        read: impl Fn(&str) -> Result<Option<String>>,
        exists: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let Some(tokenizer) = read("tokenizer.json")? else {
            return Err(TokenizerError::missing(place, exists("tokenizer.model")));
        };
        let (tokenizer_config, special_tokens_map) =
            (read("tokenizer_config.json")?, read("special_tokens_map.json")?);
        let (generation_config, config) = (read("generation_config.json")?, read("config.json")?);
        let chat_template = read("chat_template.jinja")?;
        Self::from_json(&HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: tokenizer_config.as_deref(),
            special_tokens_map: special_tokens_map.as_deref(),
            generation_config: generation_config.as_deref(),
            config: config.as_deref(),
            chat_template: chat_template.as_deref(),
        })
    }
}

#[derive(Deserialize)]
struct TokenizerJson<'a> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<AddedJson>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "the flags of the file")]
struct AddedJson {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl AddedJson {
    fn token(&self) -> AddedToken {
        AddedToken {
            content: self.content.clone(),
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            normalized: self.normalized,
            special: self.special,
        }
    }
}

#[derive(Deserialize)]
struct ModelType {
    #[serde(rename = "type")]
    name: Option<String>,
    merges: Option<serde::de::IgnoredAny>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
}

#[derive(Deserialize)]
struct BpeJson {
    vocab: AHashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// `"a b"` in older files, `["a", "b"]` in newer.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Merge;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a merge, \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge(left.to_owned(), right.to_owned()))
                    }
                    _ => {
                        Err(E::custom(format!("merge {text:?}, expected two tokens with one space between")))
                    }
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Merge, A::Error> {
                let left = list.next_element()?.ok_or_else(|| A::Error::custom("merge of no token"))?;
                let right = list.next_element()?.ok_or_else(|| A::Error::custom("merge of one token"))?;
                match list.next_element::<String>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(A::Error::custom("merge of more than two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

type ModelParts = (ModelWrapper, AHashMap<String, u32>, Option<String>);

/// Reads the model, its vocabulary and its unknown token.
fn model(json: &RawValue) -> Result<ModelParts> {
    let fail = |error: &dyn std::fmt::Display| TokenizerError::malformed("tokenizer.json model", error);
    let kind: ModelType = serde_json::from_str(json.get()).map_err(|error| fail(&error))?;
    match kind.name.as_deref() {
        Some("BPE") => {}
        None if kind.merges.is_some() => {}
        Some("WordPiece" | "WordLevel" | "Unigram") | None => {
            let model: ModelWrapper = serde_json::from_str(json.get()).map_err(|error| fail(&error))?;
            let unknown = kind.unk_token.or_else(|| model.id_to_token(kind.unk_id?));
            let vocabulary = model.get_vocab().into_iter().collect();
            return Ok((model, vocabulary, unknown));
        }
        Some(other) => {
            return Err(TokenizerError::unsupported(
                "tokenizer.json model",
                other,
                "BPE, WordPiece, WordLevel and Unigram are",
            ));
        }
    }
    let json: BpeJson = serde_json::from_str(json.get()).map_err(|error| fail(&error))?;
    // The builder looks up all three tokens of a merge, but trusts the prefix, and that the longest token holds the result.
    let prefix = json.continuing_subword_prefix.as_deref().unwrap_or_default();
    let longest = json.vocab.keys().map(String::len).max().unwrap_or(0);
    for Merge(left, right) in &json.merges {
        let rest = right.strip_prefix(prefix).ok_or_else(|| {
            fail(&format!("merge of {left:?} and {right:?}, expected the second to begin with {prefix:?}"))
        })?;
        if left.len() + rest.len() > longest {
            let joined = format!("{left}{rest}");
            return Err(fail(&format!("merge of {left:?} and {right:?} needs {joined:?} in the vocabulary")));
        }
    }
    if let Some((token, id)) = json.vocab.iter().find(|(_, id)| **id >= MAX_IDS) {
        return Err(fail(&format!("id {id} of {token:?}, expected less than {MAX_IDS}")));
    }
    let merges = json.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(json.vocab.clone(), merges)
        .fuse_unk(json.fuse_unk)
        .byte_fallback(json.byte_fallback)
        .ignore_merges(json.ignore_merges)
        .cache_capacity(0);
    if let Some(unknown) = json.unk_token.clone() {
        builder = builder.unk_token(unknown);
    }
    if let Some(prefix) = json.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = json.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    let bpe = builder.build().map_err(|error| fail(&error))?;
    Ok((ModelWrapper::BPE(bpe), json.vocab, json.unk_token))
}

/// The added tokens of both files. Those of the configuration are used only for ids that `tokenizer.json` lacks.
fn added_tokens(listed: &[AddedJson], config: &Value) -> Result<Vec<(u32, AddedToken)>> {
    let mut added: Vec<(u32, AddedToken)> = listed.iter().map(|token| (token.id, token.token())).collect();
    let decoder = config["added_tokens_decoder"].as_object().filter(|decoder| !decoder.is_empty());
    // A million of them are looked up only if there is something to compare with.
    let compared = if decoder.is_some() { listed } else { &[] };
    let mut ids: AHashSet<u32> = compared.iter().map(|token| token.id).collect();
    let mut contents: AHashSet<&str> = compared.iter().map(|token| token.content.as_str()).collect();
    for (id, token) in decoder.into_iter().flatten() {
        let Ok(id) = id.parse::<u32>() else {
            return Err(TokenizerError::malformed(
                "tokenizer_config.json",
                format!("added_tokens_decoder key {id:?}, expected an id"),
            ));
        };
        let Some(content) = token["content"].as_str() else { continue };
        if !ids.insert(id) || !contents.insert(content) {
            continue;
        }
        let flag = |name: &str| token[name].as_bool().unwrap_or(false);
        added.push((
            id,
            AddedToken {
                content: content.to_owned(),
                single_word: flag("single_word"),
                lstrip: flag("lstrip"),
                rstrip: flag("rstrip"),
                normalized: flag("normalized"),
                special: flag("special"),
            },
        ));
    }
    if let Some((id, token)) = added.iter().find(|(id, _)| *id >= MAX_IDS) {
        return Err(TokenizerError::malformed(
            "tokenizer.json added_tokens",
            format!("id {id} of {:?}, expected less than {MAX_IDS}", token.content),
        ));
    }
    Ok(added)
}

fn splitters(value: Option<&Value>) -> Result<Splitters> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Splitters::default()) };
    let splitter = |step: Step<'_>| match step {
        Step::Split { pattern, behavior, invert } => Splitter::regex(pattern, behavior, invert),
        Step::SpacePrefix => Ok(Splitter::SpacePrefix),
        Step::Gpt2 => Splitter::isolated(crate::pre::GPT2),
        Step::Bytes => Ok(Splitter::Bytes),
        Step::Other(value) => {
            pattern::check_all(value)?;
            if value["type"] == "FixedLength" && value["length"] == 0 {
                return Err(TokenizerError::malformed(
                    "tokenizer.json pre_tokenizer",
                    "FixedLength of 0, expected at least 1",
                ));
            }
            let inner: PreTokenizerWrapper = serde_json::from_value(value.clone())
                .map_err(|error| TokenizerError::malformed("tokenizer.json pre_tokenizer", error))?;
            Ok(Splitter::Hf(Box::new(inner)))
        }
    };
    let steps = steps(value)?;
    if steps.len() > MOST_CUTS {
        return Err(TokenizerError::malformed(
            "tokenizer.json pre_tokenizer",
            format!("{} steps, expected at most {MOST_CUTS}", steps.len()),
        ));
    }
    Ok(Splitters(steps.into_iter().map(splitter).collect::<Result<_>>()?))
}

fn object(name: &str, text: Option<&str>) -> Result<Value> {
    text.map_or(Ok(Value::Null), |text| {
        serde_json::from_str(text).map_err(|error| TokenizerError::malformed(name, error))
    })
}

/// A token given as a string or as an object with `content`.
fn token_text<'a>(config: &'a Value, name: &str) -> Option<&'a str> {
    let token = &config[name];
    token.as_str().or_else(|| token["content"].as_str())
}

/// An id or a list of ids.
fn ids(value: &Value) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(one).collect(),
        None => one(value).into_iter().collect(),
    }
}

/// The `chat_template` of the configuration: a text, or the one named `default` in a list.
fn config_template(config: &Value) -> Option<String> {
    let template = &config["chat_template"];
    if let Some(text) = template.as_str() {
        return Some(text.to_owned());
    }
    let list = template.as_array()?;
    let default = list.iter().find(|entry| entry["name"] == "default").or(list.first())?;
    default["template"].as_str().map(str::to_owned)
}
