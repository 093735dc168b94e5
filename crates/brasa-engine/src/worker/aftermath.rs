//! Changes to generations after a step: pausing, ending, failing, and releasing pages.

use super::Worker;
use crate::executor::{StepError, StepOut};
use crate::generation::Generation;
use crate::schedule::{self, GiveWay};
use crate::sequence::Sequence;
use crate::{EngineError, SessionId};

impl Worker<'_> {
    /// Updates the active generations after a step. `places` lists the generations that took part, each with its number of rows.
    pub(super) fn finish_step(&mut self, result: Result<(), StepError>, places: &[(usize, usize)]) {
        if let Err(failed) = result {
            let parts: Vec<(usize, usize)> = failed.parts.iter().map(|&part| places[part]).collect();
            match failed.error {
                error if error.is_final() => return self.lose(error),
                error @ EngineError::CacheFull { .. } if parts.len() == 1 => {
                    return self.give_way(parts[0].0, error);
                }
                error if failed.is_certain => {
                    for &(place, _) in &parts {
                        self.active[place].fail(error.clone());
                    }
                }
                _ => {
                    if let Err(error) = self.step_apart(&parts) {
                        return self.lose(error);
                    }
                }
            }
        }
        for generation in &mut self.active {
            generation.read_ahead();
            generation.report_prefill();
            generation.keep_prompt(&mut self.executor);
            if generation.slide_if_full(&mut self.executor) {
                self.short = false;
            }
        }
        self.remove_finished();
        let before = self.active.len();
        self.parked.extend(self.active.extract_if(.., |active| active.is_behind() || active.is_full()));
        self.short &= self.active.len() == before;
    }

    /// Runs the parts of a failed step one by one: pairs of an active generation's place and its most rows. Generations that fail
    /// alone end; the others go on.
    ///
    /// # Errors
    ///
    /// The error of a lost device.
    fn step_apart(&mut self, parts: &[(usize, usize)]) -> Result<(), EngineError> {
        for &(place, rows) in parts {
            let generation = &mut self.active[place];
            if generation.is_finished() || generation.is_full() || generation.is_behind() {
                continue;
            }
            let rows = rows.min(generation.pending().len());
            let decodes = generation.decodes();
            let (part, mut listener) = generation.chain(rows, 1);
            let mut part = [part];
            let result = if part[0].read_value().is_some() {
                let last_index = part[0].tokens.len() - 1;
                self.executor.run_reading(&mut part, &mut |_, out| match out {
                    StepOut::Drawn(drawn) => drop(listener.take(drawn)),
                    StepOut::Read { index, values } => listener.take_row(index, values, index == last_index),
                })
            } else {
                self.executor.run_chain(&mut part, &mut |_, drawn| listener.take(drawn))
            };
            self.stats.steps += 1;
            match result {
                Ok(()) if decodes => self.stats.decode_rows += 1,
                Ok(()) => self.stats.prompt_rows += rows as u64,
                Err(failed) if failed.error.is_final() => return Err(failed.error),
                // Pages are wanting, which the next step sees to.
                Err(StepError { error: EngineError::CacheFull { .. }, .. }) => {}
                Err(failed) => self.active[place].fail(failed.error),
            }
        }
        Ok(())
    }

    /// Ends all requests with the error of a lost device.
    fn lose(&mut self, error: EngineError) {
        let all = [&mut self.active, &mut self.waiting, &mut self.parked];
        all.into_iter().flatten().for_each(|generation| generation.fail(error.clone()));
        self.lost = Some(error);
        self.remove_finished();
    }

    /// Frees pages for the active generation at `place`, which cannot get the pages that it needs.
    pub(super) fn give_way(&mut self, place: usize, error: EngineError) {
        let hold = |generations: &[Generation]| -> Vec<bool> {
            generations.iter().map(Generation::holds_pages).collect()
        };
        self.parked.sort_by_key(|parked| parked.standing().seniority());
        self.waiting.sort_by_key(|waiting| waiting.standing().seniority());
        // Ended generations give way first, then paused ones, then waiting ones.
        let at_rest = [&self.waiting, &self.parked, &self.settling].map(|texts| hold(texts)).concat();
        match schedule::give_way(self.sessions.idle(), &at_rest, &hold(&self.active), place) {
            GiveWay::Session => {
                if let Some(sequence) = self.sessions.give_up_oldest() {
                    self.end(sequence);
                }
            }
            GiveWay::AtRest(junior) => {
                let at_rest = self.waiting.iter_mut().chain(&mut self.parked).chain(&mut self.settling);
                let generation = at_rest.into_iter().nth(junior);
                if let Some(generation) = generation {
                    generation.give_pages_back(&mut self.executor);
                }
            }
            GiveWay::Preempt(junior) => self.preempt(junior),
            GiveWay::Fail if self.executor.lends() => {
                self.preempt(place);
                self.starved = true;
            }
            GiveWay::Fail => {
                self.active[place].fail(error);
                self.remove_finished();
            }
        }
    }

    /// Moves the active generation at `place` to the waiting ones and releases its pages.
    fn preempt(&mut self, place: usize) {
        let mut generation = self.active.remove(place);
        generation.give_pages_back(&mut self.executor);
        self.waiting.push(generation);
        self.short = true;
        self.stats.preemptions += 1;
    }

    /// Moves generations that have ended from the active to the settling ones.
    pub(super) fn remove_finished(&mut self) {
        let before = self.active.len();
        let mut finished = Vec::new();
        for generations in [&mut self.active, &mut self.waiting, &mut self.parked] {
            finished.extend(generations.extract_if(.., |generation| generation.is_finished()));
        }
        self.short &= self.active.len() == before;
        self.settling.extend(finished);
        self.settle();
    }

    /// Puts back the sequences of ended generations in whose text no stop string can be found any more.
    pub(super) fn settle(&mut self) {
        let settled: Vec<Generation> = self.settling.extract_if(.., Generation::is_settled).collect();
        for generation in settled {
            if let (Some(drafter), Some(modeled)) = (&mut self.drafter, generation.modeled()) {
                drafter.learn(modeled);
            }
            let (sequence, session) = generation.into_sequence(&mut self.executor);
            self.put_back(sequence, session);
        }
    }

    /// Returns a sequence to its session, or releases its pages.
    fn put_back(&mut self, mut sequence: Sequence, session: Option<SessionId>) {
        let left = match session {
            Some(id) => {
                // The session goes on to write the last page.
                self.executor.keep(&mut sequence, false);
                self.sessions.leave(id, sequence)
            }
            None => Some(sequence),
        };
        if let Some(sequence) = left {
            self.end(sequence);
        }
    }

    /// Ends a text: keeps its pages for later texts that begin alike.
    pub(super) fn end(&mut self, mut sequence: Sequence) {
        self.executor.keep(&mut sequence, true);
        self.executor.release(sequence);
    }
}
