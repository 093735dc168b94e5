//! Punctuation joins the words beside it.

use super::TimedWord;

/// Marks that belong to the word after them.
const PREPENDED: &str = "\"'“¿([{-";
/// Marks that belong to the word before them.
const APPENDED: &str = "\"'.。,，!！?？:：”)]}、";

/// Merges words of punctuation alone into their neighbours. Merged words stay in the list, with empty texts.
pub fn merge_punctuation(words: &mut [TimedWord]) {
    let mut following = words.len().saturating_sub(1);
    for previous in (0..following).rev() {
        let word = &words[previous].word;
        if word.starts_with(' ') && is_part(word.trim(), PREPENDED) {
            let merged = std::mem::take(&mut words[previous].word);
            words[following].word.insert_str(0, &merged);
            let tokens = std::mem::take(&mut words[previous].tokens);
            words[following].tokens.splice(0..0, tokens);
        } else {
            following = previous;
        }
    }
    let mut previous = 0;
    for following in 1..words.len() {
        if !words[previous].word.ends_with(' ') && is_part(&words[following].word, APPENDED) {
            let merged = std::mem::take(&mut words[following].word);
            words[previous].word.push_str(&merged);
            let tokens = std::mem::take(&mut words[following].tokens);
            words[previous].tokens.extend(tokens);
        } else {
            previous = following;
        }
    }
}

/// True if `text` occurs in `marks`; an empty text does.
fn is_part(text: &str, marks: &str) -> bool {
    marks.contains(text)
}
