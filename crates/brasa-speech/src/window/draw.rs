//! Texts drawn side by side: the likeliest token at temperature 0, independent draws above.

use brasa_graph::sampling::gumbel;

use super::{Context, Drawn, Hypothesis, end_own};
use crate::Result;
use crate::numbers::{argmax, log_sum_exp};
use crate::recogniser::{Recogniser, TextId};

/// Independent texts of one prompt.
pub(super) struct Draws {
    pub hypotheses: Vec<Hypothesis>,
    temperature: f32,
    seed: u64,
    scratch: Vec<f32>,
}

impl Draws {
    pub fn new(base: TextId, texts: usize, temperature: f32, seed: u64) -> Self {
        let hypothesis = Hypothesis { drawn: Drawn::default(), text: Some(base) };
        Self { hypotheses: vec![hypothesis; texts], temperature, seed, scratch: Vec::new() }
    }

    /// Draws a token of each text that goes on. Returns whether all have ended, and the tokens of the longest.
    pub fn advance(
        &mut self,
        logits: &[&[f32]],
        context: &mut Context<'_>,
        recogniser: &mut dyn Recogniser,
    ) -> Result<(bool, usize)> {
        let eot = context.procedure.vocabulary.tokens().eot;
        let going =
            self.hypotheses.iter_mut().enumerate().filter(|(_, hypothesis)| hypothesis.text.is_some());
        for ((number, hypothesis), row) in going.zip(logits) {
            let scratch = &mut self.scratch;
            scratch.clear();
            scratch.extend_from_slice(row);
            context.procedure.rules.apply(scratch, &hypothesis.drawn.tokens);
            let total = log_sum_exp(scratch);
            context.hold_to_grammar(scratch, &hypothesis.drawn.tokens)?;
            let token = if self.temperature == 0.0 {
                argmax(scratch)
            } else {
                let seed = self.seed.wrapping_add((number as u64) << 32);
                draw(scratch, self.temperature, seed, hypothesis.drawn.tokens.len() as u32)
            };
            hypothesis.drawn.push(token, scratch[token as usize] - total, eot);
            if token == eot {
                end_own(hypothesis.text.take(), Some(context.base), recogniser);
            }
        }
        let ended = self.hypotheses.iter().all(|hypothesis| hypothesis.text.is_none());
        let longest = self.hypotheses.iter().map(|hypothesis| hypothesis.drawn.tokens.len()).max();
        Ok((ended, longest.unwrap_or(0)))
    }

    /// All texts; some may not have ended.
    pub fn finish(self, base: Option<TextId>, recogniser: &mut dyn Recogniser) -> Vec<Drawn> {
        let finish = |hypothesis: Hypothesis| {
            end_own(hypothesis.text, base, recogniser);
            hypothesis.drawn
        };
        self.hypotheses.into_iter().map(finish).collect()
    }
}

/// A token drawn at a temperature: the largest of `z / T` plus noise.
fn draw(logits: &[f32], temperature: f32, seed: u64, position: u32) -> u32 {
    let noisy = |(token, &logit): (usize, &f32)| {
        let noise = if logit == f32::NEG_INFINITY { 0.0 } else { gumbel(seed, position, token as u32) };
        (token as u32, logit / temperature + noise)
    };
    let best =
        logits.iter().enumerate().map(noisy).reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map_or(0, |(token, _)| token)
}
