//! Which language is spoken.

use brasa_graph::step::Outs;

use crate::numbers::log_sum_exp;
use crate::recogniser::{Recogniser, Rows, WindowId};
use crate::vocabulary::SpeechVocabulary;
use crate::{Result, SpeechError};

/// The probability of each language in a window, by code, likeliest first. They add up to 1.
///
/// # Errors
///
/// [`SpeechError::Options`] for a model of English alone; errors of the device.
pub fn detect_language(
    recogniser: &mut dyn Recogniser,
    window: WindowId,
    vocabulary: &SpeechVocabulary,
) -> Result<Vec<(&'static str, f64)>> {
    let tokens = vocabulary.tokens();
    if !tokens.is_multilingual() {
        return Err(SpeechError::Options { what: "this model knows English alone".into() });
    }
    let text = recogniser.begin(window)?;
    let rows = Rows { text, tokens: vec![tokens.sot], outs: Outs::Last };
    let found = recogniser.run(&[rows]).map(|logits| {
        let range = tokens.language_tokens();
        let logits = &logits[range.start as usize..range.end as usize];
        let total = log_sum_exp(logits);
        let known = range.filter_map(|token| tokens.language_of(token));
        known.zip(logits).map(|(code, logit)| (code, f64::from(logit - total).exp())).collect()
    });
    recogniser.end(text);
    let mut found: Vec<(&'static str, f64)> = found?;
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(found)
}
