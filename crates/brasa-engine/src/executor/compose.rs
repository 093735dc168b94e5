//! Makes the step of a program from rows of sequences.

use brasa_graph::step::{GivenValues, Outs, Segment};

use super::{Executor, SequenceRows, StepError};
use crate::EngineError;
use crate::held_states::StepEnds;
use crate::sequence::Sequence;

impl Executor {
    /// Makes the step of `parts`, and allocates pages for their tokens. `ends` names the rows that may become the ends
    /// of sequences, and so keep their recurrent states.
    pub(super) fn compose(
        &mut self,
        parts: &mut [SequenceRows<'_>],
        ends: StepEnds,
    ) -> Result<(), StepError> {
        if parts.is_empty() {
            return Err(StepError::senseless(Vec::new(), "a step without parts".into()));
        }
        for (number, part) in parts.iter().enumerate() {
            if part.tokens.is_empty() {
                return Err(StepError::senseless(
                    vec![number],
                    format!("part {number} of a step has no tokens"),
                ));
            }
            if let Some(&id) = part.tokens.iter().find(|&&id| id as usize >= self.vocab_size) {
                let vocab_size = self.vocab_size;
                return Err(StepError::of(number, EngineError::UnknownToken { id, vocab_size }));
            }
            if part.sequence.tokens.len().saturating_add(part.tokens.len()) > self.context {
                return Err(StepError::of(number, EngineError::ContextFull { context: self.context }));
            }
        }
        self.step.segments.truncate(parts.len());
        for (index, part) in parts.iter_mut().enumerate() {
            let prepared = self.store.prepare(part.sequence, part.tokens.len());
            let states =
                prepared.and_then(|()| self.store.step_states(part.sequence, part.tokens.len(), ends));
            let states = states.map_err(|error| StepError::of(index, error))?;
            if self.step.segments.len() == index {
                let id = part.sequence.id;
                self.step.segments.push(Segment::text(id, 0, Vec::new(), Outs::None, Vec::new()));
            }
            // Buffers of the last step are reused: between two tokens nothing is allocated.
            let segment = &mut self.step.segments[index];
            segment.sequence = part.sequence.id;
            segment.first_index = part.sequence.tokens.len();
            segment.set_tokens(part.tokens);
            segment.outs = part.outs.clone();
            segment.states = states;
            segment.given.clear();
            if let Some(rows) = &self.adapter_rows {
                let row =
                    rows.of(part.sequence.scope.adapter).map_err(|error| StepError::of(index, error))?;
                // A program without adapters declares no input.
                if !row.is_empty() {
                    let all = if part.tokens.len() == 1 { row } else { row.repeat(part.tokens.len()).into() };
                    segment.given.push(GivenValues::F32(all));
                }
            }
            copy_tables(part.sequence, segment);
        }
        Ok(())
    }
}

/// Copies the block tables of `sequence` into `segment`.
pub(super) fn copy_tables(sequence: &Sequence, segment: &mut Segment) {
    segment.pages.resize(sequence.tables.len(), Vec::new());
    for (pages, table) in segment.pages.iter_mut().zip(&sequence.tables) {
        pages.clone_from(table);
    }
}
