//! Steps with guessed tokens: the rows after a sequence's last token are drafts.

use brasa_graph::chain::Flow;
use brasa_graph::device::{DrawInputs, Drawn};
use brasa_graph::sampling::{Draw, SamplingError, TokenMask};
use brasa_graph::step::Outs;

use crate::held_states::StepEnds;

use super::{Executor, SequenceChain, SequenceRows, StepError, check};

/// Receives each token that [`Executor::run_drafts`] draws: the number of its sequence, true if the token was drafted, and the
/// draw or the reason why there is none.
pub type DraftSink<'a> = dyn FnMut(usize, bool, Result<Draw, SamplingError>) -> Flow + 'a;

/// A mask for rows that are drawn at once: the mask of each row follows the drafts before it.
struct DraftedMask<'a> {
    mask: Option<&'a mut dyn TokenMask>,
    drafts: &'a [u32],
}

impl SequenceChain<'_> {
    /// The rows of the last token and of its drafts; the drafts are appended to the tokens.
    fn drafted_rows(&mut self) -> SequenceRows<'_> {
        let start = self.sequence.tokens.len();
        self.tokens.extend_from_slice(self.drafts);
        let tokens = &self.tokens[start..];
        let outs = if self.drafts.is_empty() { Outs::Last } else { Outs::All };
        SequenceRows { sequence: self.sequence, tokens, outs }
    }

    /// The inputs for drawing the tokens of the last row and of its drafts, and the sequence's mask.
    fn drafted_draws(&mut self) -> (Vec<DrawInputs<'_>>, DraftedMask<'_>) {
        let first = self.tokens.len() - self.drafts.len();
        let rows = (first..=self.tokens.len()).zip(self.position..);
        let rules = self.rules;
        let masked = self.mask.is_some() && !rules.params().reports_logits();
        let tokens = &*self.tokens;
        let draws =
            rows.map(|(end, position)| DrawInputs { rules, position, history: &tokens[..end], masked });
        let mask = self.mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask);
        (draws.collect(), DraftedMask { mask, drafts: self.drafts })
    }

    /// True if the drawn tokens are complete as far as they are used: up to the first that differs from its draft.
    fn is_complete(&self, drawn: &[Drawn]) -> bool {
        for (place, drawn) in drawn.iter().enumerate() {
            match drawn {
                Drawn::Nothing => return false,
                Drawn::Token(id) if self.drafts.get(place) != Some(id) => return true,
                Drawn::Token(_) | Drawn::Logits(_) => {}
            }
        }
        true
    }
}

impl Executor {
    /// Runs one step of the last token of each sequence, the only one that is not computed, and its drafts. Draws the next tokens
    /// as far as they equal the drafts, and one more. `sink` receives each token; any answer but [`Flow::Continue`] ends its
    /// sequence's part of the step. A sequence does not contain its last drawn token, nor drafts that were not drawn.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), with the numbers of the parts at fault. No sequence changes, and `sink` receives
    /// nothing.
    pub fn run_drafts(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut DraftSink<'_>,
    ) -> Result<(), StepError> {
        check(parts)?;
        let mut rows: Vec<SequenceRows<'_>> = parts.iter_mut().map(SequenceChain::drafted_rows).collect();
        let composed = self.compose(&mut rows, StepEnds::Each);
        drop(rows);
        let count = parts.len();
        let drawn = composed.and_then(|()| {
            if parts.iter().all(|part| part.rules.params().reports_logits()) {
                return Ok(None);
            }
            let (mut draws, mut masks, mut places) = (Vec::new(), Vec::new(), Vec::new());
            for (part, (rows, mask)) in parts.iter_mut().map(SequenceChain::drafted_draws).enumerate() {
                places.extend((0..rows.len()).map(|place| (part, place)));
                draws.extend(rows);
                masks.push(mask);
            }
            let mut fill = |draw: usize, words: &mut [u32]| {
                let (part, place) = places[draw];
                let DraftedMask { mask, drafts } = &mut masks[part];
                mask.as_deref_mut().map_or(Ok(()), |mask| mask.fill(&drafts[..place], words))
            };
            let drawn = self.program.run_drawn(&self.step, self.store.pool(), &draws, &mut fill);
            drawn.map_err(|error| StepError::among((0..count).collect(), error))
        });
        for part in &mut *parts {
            part.tokens.truncate(part.tokens.len() - part.drafts.len());
        }
        let drawn = drawn?.filter(|rows| {
            let mut left = &rows[..];
            parts.iter().all(|part| {
                let (own, behind) = left.split_at(part.drafts.len() + 1);
                left = behind;
                part.is_complete(own)
            })
        });
        let logits = if drawn.is_some() {
            None
        } else {
            let output = self.program.run(&self.step, self.store.pool());
            Some(output.map_err(|error| StepError::among((0..count).collect(), error))?.only())
        };
        let mut out = 0;
        for (number, part) in parts.iter_mut().enumerate() {
            let begin = part.sequence.tokens.len();
            let (drafts, mut computed) = (part.drafts, 0);
            let mut row = part.row_draw();
            for place in 0..=drafts.len() {
                let drawn = match (&logits, &drawn) {
                    (Some(logits), _) => row.draw(logits.row(out + place), &mut self.sampler),
                    (None, rows) => {
                        row.take_drawn(rows.as_ref().map(|rows| &rows[out + place]), &mut self.sampler)
                    }
                };
                computed += 1;
                let token = drawn.as_ref().ok().map(|draw| draw.token);
                let accepted = token.is_some() && token == drafts.get(place).copied();
                let goes_on = accepted && token.is_some_and(|token| row.goes_on(token));
                if sink(number, accepted, drawn) != Flow::Continue || !goes_on {
                    break;
                }
            }
            out += drafts.len() + 1;
            self.store.commit(part.sequence, &part.tokens[begin..begin + computed]);
        }
        Ok(())
    }
}
