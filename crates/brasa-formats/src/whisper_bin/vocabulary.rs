//! The vocabulary of a Whisper: tokens of text by rank, and the special tokens behind them, which files of whisper.cpp leave out.
//!
//! Names and order are those of the tokenizers that came with the models (Radford et al. 2022, arXiv:2212.04356).

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use crate::Result;
use crate::error::Fault;

/// The languages, most heard first. The last came with the third large model.
const LANGUAGES: [&str; 100] = [
    "en", "zh", "de", "es", "ru", "ko", "fr", "ja", "pt", "tr", "pl", "ca", "nl", "ar", "sv", "it", "id",
    "hi", "fi", "vi", "he", "uk", "el", "ms", "cs", "ro", "da", "hu", "ta", "no", "th", "ur", "hr", "bg",
    "lt", "la", "mi", "ml", "cy", "sk", "te", "fa", "lv", "bn", "sr", "az", "sl", "kn", "et", "mk", "br",
    "eu", "is", "hy", "ne", "mn", "bs", "kk", "sq", "sw", "gl", "mr", "pa", "si", "km", "sn", "yo", "so",
    "af", "oc", "ka", "be", "tg", "sd", "gu", "am", "yi", "lo", "uz", "fo", "ht", "ps", "tk", "nn", "mt",
    "sa", "lb", "my", "bo", "tl", "mg", "as", "tt", "haw", "ln", "ha", "ba", "jw", "su", "yue",
];

/// Special tokens after the languages.
const TASKS: [&str; 6] = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"];

/// Timestamps, from 0 to 30 s in steps of 20 ms.
const TIMESTAMPS: usize = 1501;

/// Sizes of the vocabularies that there are: English alone, 99 languages, 100; with their tokens of text and languages.
const SIZES: [(usize, usize, usize); 3] = [(51_864, 50_256, 99), (51_865, 50_257, 99), (51_866, 50_257, 100)];

/// The most pairs that are looked at to find the merges. The published vocabularies take a million.
const MOST_PAIRS: usize = 1 << 25;

/// Kinds of tokens, as GGUF numbers them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// A vocabulary as GGUF spells it.
pub(super) struct Vocabulary {
    /// By id.
    pub tokens: Vec<String>,
    pub types: Vec<i32>,
    /// Pairs of tokens that become one, first ones first.
    pub merges: Vec<String>,
    /// The id of the token that ends a text.
    pub end_of_text: usize,
}

/// The vocabulary of `size` tokens that begins with `text`.
pub(super) fn of(path: &Path, size: usize, text: &[&[u8]]) -> Result<Vocabulary> {
    let Some(&(_, end_of_text, languages)) = SIZES.iter().find(|(known, ..)| *known == size) else {
        return Err(Fault::new(path, unknown_size(size)).at(4_u64).unsupported());
    };
    // Some converters write the token that ends a text, others begin the special tokens with it.
    let Some(text) = text.get(..end_of_text) else {
        let problem = format!("{} tokens of text, expected {end_of_text}", text.len());
        return Err(Fault::new(path, problem).malformed());
    };
    let mut tokens: Vec<String> = text.iter().map(|bytes| visible(bytes)).collect();
    let merges = merges(text).ok_or_else(|| {
        let problem = format!("tokens whose merges take more than {MOST_PAIRS} looks at pairs");
        Fault::new(path, problem).unsupported()
    })?;
    tokens.extend(special_of(languages));
    debug_assert_eq!(tokens.len(), size);
    let types = (0..size).map(|id| if id < end_of_text { NORMAL } else { CONTROL }).collect();
    Ok(Vocabulary { tokens, types, merges, end_of_text })
}

/// The error for a vocabulary of `size` tokens that is no Whisper's.
pub(super) fn unknown_size(size: usize) -> String {
    format!("a vocabulary of {size} tokens, expected 51864, 51865 or 51866 as Whisper's have")
}

/// The special tokens of a vocabulary of `size` tokens; `None` if no Whisper has this size.
pub(super) fn special(size: usize) -> Option<Vec<String>> {
    let &(_, _, languages) = SIZES.iter().find(|(known, ..)| *known == size)?;
    Some(special_of(languages))
}

fn special_of(languages: usize) -> Vec<String> {
    let named = |name: &str| format!("<|{name}|>");
    let mut tokens = vec![named("endoftext"), named("startoftranscript")];
    tokens.extend(LANGUAGES[..languages].iter().map(|name| named(name)));
    tokens.extend(TASKS.iter().map(|name| named(name)));
    tokens.extend((0..TIMESTAMPS).map(|step| named(&format!("{:.2}", step as f64 * 0.02))));
    tokens
}

/// The bytes that a token's text stands for; `None` for a text with other characters.
pub(super) fn bytes_of(token: &str) -> Option<Vec<u8>> {
    static BYTES: LazyLock<HashMap<char, u8>> =
        LazyLock::new(|| (0..=u8::MAX).map(|byte| (character(byte), byte)).collect());
    token.chars().map(|char| BYTES.get(&char).copied()).collect()
}

/// Bytes as characters, each byte one, so that every token is a readable text (Radford et al. 2019, GPT-2's `bytes_to_unicode`).
fn visible(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| character(byte)).collect()
}

fn character(byte: u8) -> char {
    let shown = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if shown(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|&other| !shown(other)).count();
    char::from_u32(256 + hidden_before as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The merges that make each token of its bytes: ids are ranks, so the last merge of a token joins what the merges before it leave.
/// `None` if that takes too long.
fn merges(text: &[&[u8]]) -> Option<Vec<String>> {
    let mut ranks: HashMap<&[u8], usize> = HashMap::with_capacity(text.len());
    for (rank, token) in text.iter().enumerate() {
        ranks.entry(token).or_insert(rank);
    }
    let mut merges = Vec::with_capacity(text.len());
    let mut pairs_left = MOST_PAIRS;
    for (rank, token) in text.iter().enumerate().filter(|(_, token)| token.len() > 1) {
        if let [left, right] = pieces(token, rank, &ranks, &mut pairs_left)?[..] {
            merges.push(format!("{} {}", visible(left), visible(right)));
        }
    }
    Some(merges)
}

/// The pieces of a token that merges of lower rank leave, two if it can be made; `None` if no pair may be looked at any more.
fn pieces<'a>(
    token: &'a [u8],
    below: usize,
    ranks: &HashMap<&[u8], usize>,
    pairs_left: &mut usize,
) -> Option<Vec<&'a [u8]>> {
    // Where pieces begin, and the end.
    let mut cuts: Vec<usize> = (0..=token.len()).collect();
    while cuts.len() > 3 {
        let pairs = cuts.len() - 2;
        *pairs_left = pairs_left.checked_sub(pairs)?;
        let joined = |at: usize| ranks.get(&token[cuts[at]..cuts[at + 2]]).copied();
        let ranked = (0..pairs).filter_map(|at| Some((joined(at).filter(|&rank| rank < below)?, at)));
        let Some((_, at)) = ranked.min() else { break };
        cuts.remove(at + 1);
    }
    Some(cuts.windows(2).map(|cut| &token[cut[0]..cut[1]]).collect())
}
