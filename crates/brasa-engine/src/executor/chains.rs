//! Chains, and steps whose rows are read or drawn.

use brasa_graph::chain::{Chain, ChainSink, RowDraw};
use brasa_graph::step::Outs;

use super::compose::copy_tables;
use super::{Executor, SequenceChain, SequenceRows, StepError, StepOut, check, made};
use crate::ReadValue;
use crate::held_states::StepEnds;

impl Executor {
    /// Runs one step, then draws and computes further tokens of the sequences whose last token was in the step, each up to its
    /// limit. `sink` receives every token. Computed tokens become part of their sequences. A sequence with too few pages or
    /// positions gets a lower limit; the others keep theirs.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), with the numbers of the parts at fault. No sequence changes then, but tokens that `sink`
    /// has received stay in `tokens` of `parts`.
    pub fn run_chain(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut ChainSink<'_>,
    ) -> Result<(), StepError> {
        check(parts)?;
        let mut first: Vec<SequenceRows<'_>> = parts.iter_mut().map(SequenceChain::first_rows).collect();
        self.compose(&mut first, StepEnds::Last)?;
        let spares = self.program.spare_state_pages();
        for (number, (part, segment)) in parts.iter_mut().zip(&mut self.step.segments).enumerate() {
            if segment.outs != Outs::Last || part.limit <= 1 {
                continue;
            }
            let room = self.context.saturating_sub(part.sequence.tokens.len() + part.rows).saturating_add(1);
            part.limit = part.limit.min(room);
            let positions = part.rows.saturating_add(part.limit - 1);
            if self.store.prepare_more(part.sequence, positions).is_err() {
                part.limit = 1;
                let prepared = self.store.prepare_more(part.sequence, part.rows);
                prepared.map_err(|error| StepError::of(number, error))?;
            } else {
                match self.store.spare_state_pages(part.sequence, spares) {
                    Ok(states) => segment.states = states,
                    Err(_) => part.limit = 1,
                }
            }
            copy_tables(part.sequence, segment);
        }
        let mut rows: Vec<RowDraw<'_>> = parts.iter_mut().map(SequenceChain::row_draw).collect();
        let chain = Chain { rows: &mut rows, sampler: &mut self.sampler, sink };
        let finish = self.program.run_chain(&mut self.step, self.store.pool(), chain);
        let finish = finish.map_err(|error| StepError::among((0..parts.len()).collect(), error))?;
        for (part, length) in parts.iter_mut().zip(finish.lengths) {
            let computed = part.sequence.tokens.len()..length;
            self.store.commit(part.sequence, &part.tokens[computed]);
        }
        Ok(())
    }

    /// Runs one step, draws a token for each sequence whose last token was in the step, and reports the values that rows are read
    /// for. Rows read for hidden states run in a second step, by a program that is made when first needed. `sink` sees the rows
    /// of each sequence in order. The rows are then part of their sequences. If a program has several outputs, the values of a
    /// row are those of all outputs, one behind the other.
    ///
    /// # Errors
    ///
    /// The errors of [`run`](Self::run), with the numbers of the parts at fault, all of one of the two steps. If the first step
    /// fails, no sequence changes and `sink` receives nothing. [`EngineError::Options`](crate::EngineError::Options) if there is
    /// no program for hidden states.
    pub fn run_reading(
        &mut self,
        parts: &mut [SequenceChain<'_>],
        sink: &mut dyn FnMut(usize, StepOut<'_>),
    ) -> Result<(), StepError> {
        check(parts)?;
        for hidden in [false, true] {
            let chosen = |part: &SequenceChain<'_>| (part.read_value() == Some(ReadValue::Hidden)) == hidden;
            let numbered = parts.iter().enumerate().filter(|(_, part)| chosen(part));
            let numbers: Vec<usize> = numbered.map(|(number, _)| number).collect();
            if numbers.is_empty() {
                continue;
            }
            let mut first: Vec<SequenceRows<'_>> =
                parts.iter_mut().filter(|part| chosen(part)).map(SequenceChain::first_rows).collect();
            self.compose(&mut first, StepEnds::Last).map_err(|failed| failed.renumbered(&numbers))?;
            drop(first);
            let program = if hidden {
                let made = made(&mut self.hidden);
                made.map_err(|error| StepError { error, parts: numbers.clone(), is_certain: true })?
            } else {
                &mut *self.program
            };
            let outputs = program.run(&self.step, self.store.pool());
            let outputs = outputs.map_err(|error| StepError::among(numbers, error))?;
            let numbered = parts.iter_mut().enumerate().filter(|(_, part)| chosen(part));
            let mut out = 0;
            for ((number, part), segment) in numbered.zip(&self.step.segments) {
                let computed = part.sequence.tokens.len()..part.sequence.tokens.len() + part.rows;
                self.store.commit(part.sequence, &part.tokens[computed]);
                for row in segment.out_rows() {
                    let values = outputs.get(0).row(out);
                    if part.reads.is_none() {
                        sink(number, StepOut::Drawn(part.row_draw().draw(values, &mut self.sampler)));
                    } else if outputs.len() == 1 {
                        sink(number, StepOut::Read { index: segment.first_index + row, values });
                    } else {
                        let all: Vec<f32> =
                            outputs.iter().flat_map(|output| output.row(out)).copied().collect();
                        sink(number, StepOut::Read { index: segment.first_index + row, values: &all });
                    }
                    out += 1;
                }
            }
        }
        Ok(())
    }
}
