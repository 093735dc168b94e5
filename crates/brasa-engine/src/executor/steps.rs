//! Single steps: for their outputs, and for the time of their operations.

use brasa_graph::device::OpTime;
use brasa_graph::output::Output;
use brasa_graph::step::Outs;

use super::{Executor, SequenceRows};
use crate::EngineError;
use crate::held_states::StepEnds;
use crate::sequence::Sequence;

impl Executor {
    /// Runs one step; returns the logits of the rows that have outputs, in order. All rows are then part of their sequences.
    ///
    /// # Errors
    ///
    /// [`EngineError::UnknownToken`], [`EngineError::ContextFull`], [`EngineError::CacheFull`]: nothing was computed, and
    /// no sequence changed. [`EngineError::Device`].
    pub fn run(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<Output<'_>, EngineError> {
        self.compose(parts, StepEnds::Last)?;
        let output = self.program.run(&self.step, self.store.pool())?.only();
        for part in parts {
            self.store.commit(part.sequence, part.tokens);
        }
        Ok(output)
    }

    /// Appends `tokens` to `sequence` in as many steps as it takes, and computes the logits of the last.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run); `sequence` then holds the tokens of the steps that ran.
    pub fn prefill(&mut self, sequence: &mut Sequence, tokens: &[u32]) -> Result<(), EngineError> {
        let chunk = self.max_rows();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (tokens, after) = rest.split_at(chunk.min(rest.len()));
            let outs = if after.is_empty() { Outs::Last } else { Outs::None };
            self.run(&mut [SequenceRows { sequence: &mut *sequence, tokens, outs }])?;
            rest = after;
        }
        Ok(())
    }

    /// Runs one step like [`run`](Self::run), but returns the time of each operation.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run).
    pub fn profile(&mut self, parts: &mut [SequenceRows<'_>]) -> Result<Vec<OpTime>, EngineError> {
        self.compose(parts, StepEnds::Last)?;
        let times = self.program.profile(&self.step, self.store.pool())?;
        for part in parts {
            self.store.commit(part.sequence, part.tokens);
        }
        Ok(times)
    }
}
