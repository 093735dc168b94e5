//! Times of words, by aligning a window's tokens with its sound (openai-whisper's `timing`).
//!
//! The heads of some layers look where a token is spoken. Their weights, made comparable and smoothed, are a matrix of tokens and
//! times of 20 ms, through which dynamic time warping (Sakoe & Chiba 1978) finds the path that goes with them best.

mod adjust;
mod dtw;
mod punctuation;
mod weights;
mod words;

pub use adjust::time_segments;
pub use dtw::{Path, warp};
pub use punctuation::merge_punctuation;
pub use weights::{alignment_matrix, median_filter};
pub use words::split_words;

use crate::Result;
use crate::numbers::log_sum_exp;
use crate::recogniser::{Recogniser, Rows, WindowId};
use crate::tokens::TIMESTAMP_S;
use crate::vocabulary::SpeechVocabulary;
use brasa_graph::step::Outs;

/// A word with its times in the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimedWord {
    /// The word; empty if it was merged into a neighbour.
    pub word: String,
    /// The tokens of the word.
    pub tokens: Vec<u32>,
    /// The start of the word, in seconds from the start of the window.
    pub start_s: f64,
    /// The end of the word, in seconds from the start of the window.
    pub end_s: f64,
    /// Mean probability of the tokens.
    pub probability: f64,
}

/// The times of the words of `text`, tokens without timestamps, which were spoken in the first `frames` frames of a window.
/// `start`: the start of the transcript, language and task.
///
/// # Errors
///
/// Errors of the device and of the tokenizer.
pub fn align(
    recogniser: &mut dyn Recogniser,
    window: WindowId,
    vocabulary: &SpeechVocabulary,
    start: &[u32],
    text: &[u32],
    frames: usize,
    language: &str,
) -> Result<Vec<TimedWord>> {
    let special = vocabulary.tokens();
    let room = recogniser.shape().text_context.saturating_sub(start.len() + 2);
    let text = &text[..text.len().min(room)];
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let tokens = [start, &[special.no_timestamps], text, &[special.eot]].concat();
    let probabilities = probabilities(recogniser, window, &tokens, start.len(), text, special.eot)?;
    let scores = recogniser.cross_scores(window, &tokens)?;
    let matrix = alignment_matrix(&scores, frames / 2);
    let columns = matrix.len() / scores.tokens.max(1);
    // Rows of the text, and of the token in front of it.
    let rows = &matrix[start.len() * columns..(tokens.len() - 1) * columns];
    let path = warp(rows, columns);
    let words = split_words(vocabulary, &[text, &[special.eot]].concat(), language)?;
    if words.len() <= 1 {
        return Ok(Vec::new());
    }
    let times = path.starts();
    let time = |token: usize| times.get(token).map_or(0.0, |&column| column as f64 * TIMESTAMP_S);
    let mut found = Vec::with_capacity(words.len() - 1);
    let mut from = 0;
    // The last word is the end of the text.
    for (word, tokens) in &words[..words.len() - 1] {
        let end = from + tokens.len();
        let spoken = &probabilities[from..end.min(probabilities.len())];
        let mean = spoken.iter().sum::<f64>() / spoken.len().max(1) as f64;
        found.push(TimedWord {
            word: word.clone(),
            tokens: tokens.clone(),
            start_s: time(from),
            end_s: time(end),
            probability: mean,
        });
        from = end;
    }
    Ok(found)
}

/// The probability of each token of `text`, among all text tokens.
fn probabilities(
    recogniser: &mut dyn Recogniser,
    window: WindowId,
    tokens: &[u32],
    first: usize,
    text: &[u32],
    eot: u32,
) -> Result<Vec<f64>> {
    let shape = recogniser.shape();
    let id = recogniser.begin(window)?;
    let mut found = Vec::with_capacity(text.len());
    let mut from = 0;
    let most = shape.max_outs.min(shape.max_rows).max(1);
    while from < tokens.len() {
        let end = (from + most).min(tokens.len());
        let rows = Rows { text: id, tokens: tokens[from..end].to_vec(), outs: Outs::All };
        let logits = match recogniser.run(&[rows]) {
            Ok(logits) => logits,
            Err(error) => {
                recogniser.end(id);
                return Err(error);
            }
        };
        for (row, logits) in (from..).zip(logits.chunks_exact(shape.vocab_size)) {
            // Row `first` says what the first token of the text is.
            if let Some(&token) = row.checked_sub(first).and_then(|place| text.get(place)) {
                let logits = &logits[..eot as usize];
                found.push(f64::from(logits[token as usize] - log_sum_exp(logits)).exp());
            }
        }
        from = end;
    }
    recogniser.end(id);
    Ok(found)
}
