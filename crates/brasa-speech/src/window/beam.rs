//! Beam search (openai-whisper's `BeamSearchDecoder`): the likeliest texts of equal length, side by side.

use super::{Context, Drawn, Hypothesis, end_own};
use crate::Result;
use crate::numbers::{largest, log_sum_exp};
use crate::recogniser::{Recogniser, TextId};

/// A search over several texts of one prompt.
pub(super) struct Beam {
    /// Texts that go on, likeliest first.
    pub hypotheses: Vec<Hypothesis>,
    /// Texts that go on at once.
    width: usize,
    /// Finished texts that end the search.
    enough: usize,
    finished: Vec<Drawn>,
    scratch: Vec<f32>,
}

/// One text, one token longer.
struct Candidate {
    source: usize,
    token: u32,
    logprob: f32,
    sum_logprob: f32,
}

impl Beam {
    pub fn new(base: TextId, beam_size: usize, patience: f32) -> Self {
        let hypothesis = Hypothesis { drawn: Drawn::default(), text: Some(base) };
        let enough = (beam_size as f32 * patience).round_ties_even().max(1.0) as usize;
        Self {
            hypotheses: vec![hypothesis],
            width: beam_size,
            enough,
            finished: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Extends all texts by one token and keeps the likeliest. Returns whether enough have finished, and the tokens of each text.
    pub fn advance(
        &mut self,
        logits: &[&[f32]],
        context: &mut Context<'_>,
        recogniser: &mut dyn Recogniser,
    ) -> Result<(bool, usize)> {
        let eot = context.procedure.vocabulary.tokens().eot;
        let mut candidates = Vec::new();
        for (source, (hypothesis, row)) in self.hypotheses.iter().zip(logits).enumerate() {
            let scratch = &mut self.scratch;
            scratch.clear();
            scratch.extend_from_slice(row);
            context.procedure.rules.apply(scratch, &hypothesis.drawn.tokens);
            let total = log_sum_exp(scratch);
            context.hold_to_grammar(scratch, &hypothesis.drawn.tokens)?;
            for token in largest(scratch, self.width + 1) {
                let logit = scratch[token as usize];
                // What the rules forbid is no candidate, however few there are.
                if logit > f32::NEG_INFINITY {
                    let logprob = logit - total;
                    let sum_logprob = hypothesis.drawn.sum_logprob + logprob;
                    candidates.push(Candidate { source, token, logprob, sum_logprob });
                }
            }
        }
        candidates.sort_by(|a, b| b.sum_logprob.total_cmp(&a.sum_logprob));
        let mut kept: Vec<Candidate> = Vec::with_capacity(self.width);
        for candidate in candidates {
            if candidate.token == eot {
                // Likelier ones come first, and the search ends when there are enough.
                if self.finished.len() < self.enough {
                    let mut drawn = self.hypotheses[candidate.source].drawn.clone();
                    drawn.push(eot, candidate.logprob, eot);
                    self.finished.push(drawn);
                }
                continue;
            }
            kept.push(candidate);
            if kept.len() == self.width {
                break;
            }
        }
        self.follow(&kept, context, recogniser)?;
        let drawn = self.hypotheses.first().map_or(0, |hypothesis| hypothesis.drawn.tokens.len());
        Ok((self.finished.len() >= self.enough || self.hypotheses.is_empty(), drawn))
    }

    /// Makes the kept candidates the running texts: the first successor of a text takes its pages, others copy them.
    fn follow(
        &mut self,
        kept: &[Candidate],
        context: &Context<'_>,
        recogniser: &mut dyn Recogniser,
    ) -> Result<()> {
        let old = std::mem::take(&mut self.hypotheses);
        for candidate in kept {
            let source = &old[candidate.source];
            let taken = self.hypotheses.iter().any(|hypothesis| hypothesis.text == source.text);
            let text = match source.text {
                // The prompt is copied when the first token is appended to it.
                Some(text) if taken && text != context.base => Some(recogniser.fork(text)?),
                text => text,
            };
            let mut drawn = source.drawn.clone();
            drawn.push(candidate.token, candidate.logprob, context.procedure.vocabulary.tokens().eot);
            self.hypotheses.push(Hypothesis { drawn, text });
        }
        for hypothesis in old {
            if !self.hypotheses.iter().any(|kept| kept.text == hypothesis.text) {
                end_own(hypothesis.text, Some(context.base), recogniser);
            }
        }
        Ok(())
    }

    /// All finished texts; if they are fewer than the beam, the likeliest unfinished ones too.
    pub fn finish(self, base: Option<TextId>, recogniser: &mut dyn Recogniser) -> Vec<Drawn> {
        let mut found = self.finished;
        // They are sorted already.
        for hypothesis in self.hypotheses {
            end_own(hypothesis.text, base, recogniser);
            if found.len() < self.width {
                found.push(hypothesis.drawn);
            }
        }
        found
    }
}
