//! Token ids that mean something to the decoding procedure.

use brasa_tokenizer::{AddSpecial, ParseSpecial, Tokenizer};

use crate::languages::{LANGUAGES, language_code};
use crate::{Result, SpeechError};

/// Least size of the vocabulary of a model of several languages; smaller vocabularies are of English alone.
const MULTILINGUAL_VOCABULARY: usize = 51_865;
/// Duration between two consecutive timestamps, in seconds.
pub const TIMESTAMP_S: f64 = 0.02;
/// Symbols that are annotations anywhere in a text.
const ANNOTATIONS: &str = "\"#()*+/:;<=>@[\\]^_`{|}~「」『』";
/// Sequences of symbols that are annotations.
const SEQUENCES: &str = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪";
/// Symbols of music, whose first token is an annotation even if they have several.
const MUSIC: [&str; 7] = ["♩", "♪", "♫", "♬", "♭", "♮", "♯"];

/// Special tokens of a vocabulary.
///
/// Ids after the text tokens are, in this order: end of text, start of transcript, languages, translate, transcribe, start of LM,
/// start of previous text, no speech, no timestamps, timestamps (0.00 s, 0.02 s, …).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechTokens {
    /// The token that ends a text. All ids below it are text.
    pub eot: u32,
    /// The token that starts a transcript.
    pub sot: u32,
    /// The token for the task of translating into English.
    pub translate: u32,
    /// The token for the task of transcribing in the spoken language.
    pub transcribe: u32,
    /// The token that starts a text without sound.
    pub sot_lm: u32,
    /// The token that starts the text before the window.
    pub sot_prev: u32,
    /// The token for a window without speech.
    pub no_speech: u32,
    /// The token for text without timestamps.
    pub no_timestamps: u32,
    /// The timestamp 0.00 s; all ids from here on are timestamps.
    pub timestamp_begin: u32,
    /// The number of languages, whose tokens follow `sot`; 0 for models of English alone.
    pub languages: usize,
    /// Tokens that do not begin a text: a single space, and the end.
    pub never_first: Vec<u32>,
    /// Annotations and other tokens that are no speech.
    pub non_speech: Vec<u32>,
}

impl SpeechTokens {
    /// Looks the tokens up in a vocabulary, for a table of `vocab_size` rows.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Vocabulary`] if a token is missing or has no row.
    pub fn new(tokenizer: &Tokenizer, vocab_size: usize) -> Result<Self> {
        let find = |names: &[&str]| {
            let id = names.iter().find_map(|name| tokenizer.token_to_id(name));
            let id = id.filter(|&id| (id as usize) < vocab_size);
            id.ok_or_else(|| SpeechError::Vocabulary {
                what: format!("there is no token {}", names.join(" or ")),
            })
        };
        let no_timestamps = find(&["<|notimestamps|>"])?;
        let multilingual = vocab_size >= MULTILINGUAL_VOCABULARY;
        let (sot, translate) = (find(&["<|startoftranscript|>"])?, find(&["<|translate|>"])?);
        let languages = if multilingual { translate.saturating_sub(sot + 1) as usize } else { 0 };
        if languages > LANGUAGES.len() {
            let what = format!("{languages} languages, at most {} are known", LANGUAGES.len());
            return Err(SpeechError::Vocabulary { what });
        }
        let encode =
            |text: &str| Ok::<_, SpeechError>(tokenizer.encode(text, AddSpecial::No, ParseSpecial::No)?);
        let eot = find(&["<|endoftext|>"])?;
        let blank =
            *encode(" ")?.first().ok_or(SpeechError::Vocabulary { what: "there is no space".into() })?;
        let tokens = Self {
            eot,
            sot,
            translate,
            transcribe: find(&["<|transcribe|>"])?,
            sot_lm: find(&["<|startoflm|>"])?,
            sot_prev: find(&["<|startofprev|>"])?,
            no_speech: find(&["<|nospeech|>", "<|nocaptions|>"])?,
            no_timestamps,
            timestamp_begin: no_timestamps + 1,
            languages,
            never_first: vec![blank, eot],
            non_speech: non_speech(encode)?,
        };
        let ordered =
            [tokens.eot, tokens.sot, tokens.translate.min(tokens.transcribe), tokens.sot_prev, no_timestamps];
        if !ordered.is_sorted_by(|a, b| a < b) || tokens.timestamp_begin as usize >= vocab_size {
            let what = "special tokens are not in the order text, start, languages, tasks, timestamps".into();
            return Err(SpeechError::Vocabulary { what });
        }
        Ok(tokens)
    }

    /// True for models of several languages, which can also translate.
    pub fn is_multilingual(&self) -> bool {
        self.languages > 0
    }

    /// True for a timestamp.
    pub fn is_timestamp(&self, token: u32) -> bool {
        token >= self.timestamp_begin
    }

    /// The token of a language by its code or English name.
    ///
    /// # Errors
    ///
    /// [`SpeechError::Language`] for a language that the model does not have.
    pub fn language(&self, name: &str) -> Result<u32> {
        let code = language_code(name);
        let place = LANGUAGES.iter().take(self.languages).position(|(known, _)| Some(*known) == code);
        place
            .map(|place| self.sot + 1 + place as u32)
            .ok_or_else(|| SpeechError::Language { name: name.into() })
    }

    /// The code of a language by its token.
    pub fn language_of(&self, token: u32) -> Option<&'static str> {
        let place = token.checked_sub(self.sot + 1)? as usize;
        LANGUAGES.iter().take(self.languages).nth(place).map(|(code, _)| *code)
    }

    /// The tokens of all languages.
    pub fn language_tokens(&self) -> std::ops::Range<u32> {
        self.sot + 1..self.sot + 1 + self.languages as u32
    }

    /// Tokens that never occur in a transcript: annotations, and tokens that begin a prompt.
    pub fn suppressed(&self) -> Vec<u32> {
        let starts = [self.transcribe, self.translate, self.sot, self.sot_prev, self.sot_lm, self.no_speech];
        let mut all: Vec<u32> = self.non_speech.iter().copied().chain(starts).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Tokens of annotations such as `♪♪` or `(LAUGHS)`. Hyphens and quotes are forbidden only before words, not inside them.
fn non_speech(encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for text in [" -", " '"] {
        found.extend(encode(text)?.first());
    }
    let symbols = ANNOTATIONS.chars().map(String::from).chain(SEQUENCES.split(' ').map(String::from));
    let music = MUSIC.map(String::from);
    for symbol in symbols.chain(music.clone()) {
        for text in [symbol.clone(), format!(" {symbol}")] {
            let ids = encode(&text)?;
            if ids.len() == 1 || music.contains(&symbol) {
                found.extend(ids.first());
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
