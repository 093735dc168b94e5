//! Which tokens may come next: rules that set logits to −∞ (openai-whisper's logit filters).

use crate::numbers::log_sum_exp;
use crate::tokens::TIMESTAMP_S;
use crate::{SpeechTokens, Timestamps, TranscribeOptions};

/// The rules of one transcription, applied in the order blank, suppressed tokens, bias, timestamps.
#[derive(Clone, Debug)]
pub struct Rules {
    tokens: SpeechTokens,
    suppressed: Vec<u32>,
    suppress_blank: bool,
    bias: Vec<(u32, f32)>,
    timestamps: bool,
    /// The latest first timestamp, counted from 0.00 s.
    max_initial: Option<u32>,
}

impl Rules {
    /// The rules that `options` ask for.
    pub fn new(tokens: &SpeechTokens, options: &TranscribeOptions) -> Self {
        // A grammar says itself which annotations there are.
        let own = options.suppress_tokens.clone().or(options.grammar.is_some().then(Vec::new));
        let suppressed = match own {
            // What starts something is never part of a transcript.
            Some(own) => SpeechTokens { non_speech: own, ..tokens.clone() }.suppressed(),
            None => tokens.suppressed(),
        };
        Self {
            tokens: tokens.clone(),
            suppressed,
            suppress_blank: options.suppress_blank,
            bias: options.logit_bias.to_vec(),
            timestamps: options.timestamps != Timestamps::None,
            max_initial: options
                .max_initial_timestamp_s
                .filter(|&latest_s| latest_s > 0.0)
                .map(|latest_s| (latest_s / TIMESTAMP_S).round_ties_even() as u32),
        }
    }

    /// Applies the rules to the logits of the token after `drawn`, which are the tokens of the window so far.
    pub fn apply(&self, logits: &mut [f32], drawn: &[u32]) {
        let forbid = |logits: &mut [f32], token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        if self.suppress_blank && drawn.is_empty() {
            for &token in &self.tokens.never_first {
                forbid(logits, token);
            }
        }
        for &token in &self.suppressed {
            forbid(logits, token);
        }
        for &(token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if self.timestamps {
            self.apply_timestamps(logits, drawn);
        }
    }

    /// Timestamps come in pairs and never decrease; the first is bounded. If all timestamps together are likelier than any text
    /// token, text is forbidden.
    fn apply_timestamps(&self, logits: &mut [f32], drawn: &[u32]) {
        let begin = self.tokens.timestamp_begin as usize;
        logits[self.tokens.no_timestamps as usize] = f32::NEG_INFINITY;
        let is_timestamp = |token: &u32| self.tokens.is_timestamp(*token);
        let last = drawn.last().is_some_and(is_timestamp);
        let before = drawn.len() < 2 || is_timestamp(&drawn[drawn.len() - 2]);
        if last {
            if before {
                logits[begin..].fill(f32::NEG_INFINITY);
            } else {
                logits[..self.tokens.eot as usize].fill(f32::NEG_INFINITY);
            }
        }
        if let Some(&latest) = drawn.iter().rev().find(|token| is_timestamp(token)) {
            // A segment may start where the last one ended, but has to end behind its start.
            let first = latest as usize + usize::from(!last || before);
            let end = first.min(logits.len());
            logits[begin..end].fill(f32::NEG_INFINITY);
        }
        if drawn.is_empty() {
            logits[..begin].fill(f32::NEG_INFINITY);
            if let Some(latest) = self.max_initial {
                let end = (begin + latest as usize + 1).min(logits.len());
                logits[end..].fill(f32::NEG_INFINITY);
            }
        }
        let (text, timestamps) = logits.split_at_mut(begin);
        let likeliest = text.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if log_sum_exp(timestamps) > likeliest {
            text.fill(f32::NEG_INFINITY);
        }
    }
}
