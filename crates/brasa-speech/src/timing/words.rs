//! Tokens to words.

use crate::Result;
use crate::vocabulary::SpeechVocabulary;

/// Languages that are written without spaces; each character counts as a word.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// A word and its tokens.
type Word = (String, Vec<u32>);

/// Splits tokens into words; special tokens are words of their own.
///
/// # Errors
///
/// Errors of the tokenizer.
pub fn split_words(vocabulary: &SpeechVocabulary, tokens: &[u32], language: &str) -> Result<Vec<Word>> {
    let parts = split_characters(vocabulary, tokens)?;
    if WITHOUT_SPACES.contains(&language) {
        return Ok(parts);
    }
    let mut words: Vec<Word> = Vec::new();
    for (text, tokens) in parts {
        let is_special = tokens[0] >= vocabulary.tokens().eot;
        let starts = text.starts_with(' ') || PUNCTUATION.contains(text.trim());
        match words.last_mut() {
            Some((word, own)) if !is_special && !starts => {
                word.push_str(&text);
                own.extend(tokens);
            }
            _ => words.push((text, tokens)),
        }
    }
    Ok(words)
}

/// Splits tokens after each token at which the text consists of whole characters.
fn split_characters(vocabulary: &SpeechVocabulary, tokens: &[u32]) -> Result<Vec<Word>> {
    const BROKEN: char = '\u{FFFD}';
    let text_of = |tokens: &[u32]| match tokens {
        [special] if *special >= vocabulary.tokens().eot => Ok(format!("<|{special}|>")),
        tokens => vocabulary.decode(tokens),
    };
    // What is spelled as a broken character in the whole text is one.
    let whole: Vec<char> = vocabulary.decode(tokens)?.chars().collect();
    let mut offset = 0;
    let mut words = Vec::new();
    let mut current = Vec::new();
    for &token in tokens {
        current.push(token);
        let text = text_of(&current)?;
        let broken = text.chars().position(|c| c == BROKEN);
        if broken.is_none_or(|at| whole.get(offset + at) == Some(&BROKEN)) {
            offset += text.chars().count();
            words.push((text, std::mem::take(&mut current)));
        }
    }
    Ok(words)
}
