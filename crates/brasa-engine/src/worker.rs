//! The engine's thread: admits requests, composes steps, hands out tokens.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use brasa_graph::chain::Flow;

use crate::command::{Command, Job};
use crate::delivery::Event;
use crate::executor::{Executor, SequenceChain};
use crate::generation::{Answer, Generation};
use crate::sequence::Sequence;
use crate::{EngineConfig, EngineError, FinishReason, Metrics, SessionId};

/// The state of a session.
enum Held {
    /// No request uses the session. It holds the sequence of its last one, which was the `since`-th to end.
    Idle { sequence: Sequence, since: u64 },
    /// A request uses the sequence. `closed` if the session was closed meanwhile.
    InUse { closed: bool },
}

struct Scheduler<'a> {
    executor: Executor,
    config: EngineConfig,
    commands: &'a Receiver<Command>,
    closing: &'a AtomicBool,
    /// A command that ended a chain.
    arrived: Option<Command>,
    waiting: VecDeque<Box<Job>>,
    active: Vec<Generation>,
    /// Generations whose readers are behind, longest parked first. They take no part in steps.
    parked: VecDeque<Generation>,
    sessions: HashMap<SessionId, Held>,
    /// The active generation that gets its rows first in the next step.
    turn: usize,
    /// Requests that have left their sequence in a session.
    finished: u64,
}

/// Serves commands until the engine closes.
pub(crate) fn worker(
    executor: Executor,
    config: EngineConfig,
    commands: &Receiver<Command>,
    closing: &AtomicBool,
) {
    let mut scheduler = Scheduler {
        executor,
        config,
        commands,
        closing,
        arrived: None,
        waiting: VecDeque::new(),
        active: Vec::new(),
        parked: VecDeque::new(),
        sessions: HashMap::new(),
        turn: 0,
        finished: 0,
    };
    while !closing.load(Ordering::Relaxed) && scheduler.take_commands() {
        scheduler.admit();
        scheduler.retire();
        scheduler.step();
    }
    // Streams whose generation is dropped here see a closed channel.
}

impl Scheduler<'_> {
    /// Takes the commands that callers have sent; waits for one if there is nothing else to do. False when the engine closes.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.active.is_empty()
                && self.waiting.is_empty()
                && self.parked.iter().all(Generation::is_behind);
            let command = if let Some(command) = self.arrived.take() {
                Ok(command)
            } else if idle {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Generate(job)) => self.waiting.push_back(job),
                Ok(Command::CloseSession(id)) => match self.sessions.remove(&id) {
                    Some(Held::Idle { sequence, .. }) => self.executor.release(sequence),
                    Some(Held::InUse { .. }) => {
                        self.sessions.insert(id, Held::InUse { closed: true });
                    }
                    None => {}
                },
                Ok(Command::Work(work)) => work(&mut self.executor),
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Wake) | Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Turns generations whose readers have caught up, then waiting jobs, into active generations, first come first served.
    fn admit(&mut self) {
        let most = self.config.max_sequences.min(self.executor.max_segments()).min(self.executor.max_outs());
        while self.active.len() < most
            && let Some(ready) = self.parked.iter().position(|parked| !parked.is_behind())
        {
            self.active.extend(self.parked.remove(ready));
        }
        while self.active.len() < most
            && let Some(job) = self.waiting.pop_front()
        {
            let sequence = match job.request.session {
                None => self.executor.sequence(),
                Some(id) => match self.sessions.insert(id, Held::InUse { closed: false }) {
                    None => self.executor.sequence(),
                    Some(Held::Idle { sequence, .. }) => sequence,
                    Some(in_use @ Held::InUse { .. }) => {
                        self.sessions.insert(id, in_use);
                        job.delivery.end(Event::Failed(EngineError::SessionBusy, Metrics::default()));
                        continue;
                    }
                },
            };
            match Generation::start(*job, sequence, &mut self.executor) {
                Ok(generation) => self.active.push(generation),
                Err((sequence, session)) => self.put_back(sequence, session),
            }
        }
    }

    /// Ends generations that were cancelled or are past their deadline, waiting ones too.
    fn retire(&mut self) {
        let now = Instant::now();
        for generation in self.active.iter_mut().chain(&mut self.parked) {
            generation.expire(now);
        }
        self.waiting.retain(|job| {
            let cancelled = job.delivery.is_cancelled();
            let late = job.request.options.deadline.is_some_and(|deadline| deadline <= now);
            let metrics = Metrics { queue_time: now - job.submitted, ..Metrics::default() };
            let event = if cancelled {
                Event::Done(FinishReason::Cancelled, metrics)
            } else {
                Event::Failed(EngineError::DeadlineExceeded { tokens: 0 }, metrics)
            };
            if cancelled || late {
                job.delivery.end(event);
            }
            !cancelled && !late
        });
        self.remove_finished();
    }

    /// Runs a step with rows of the active generations: the next token of those that decode, and as much of the others'
    /// prompts as fits. If a step has fewer rows than there are generations, they take turns. If all decode and nobody
    /// waits, runs a chain of such steps.
    fn step(&mut self) {
        let count = self.active.len();
        if count == 0 {
            return;
        }
        self.turn %= count;
        let taking_part = count.min(self.executor.max_rows());
        let mut room = self.executor.max_rows() - taking_part;
        let mut rows = vec![0; count];
        for offset in 0..taking_part {
            let index = (self.turn + offset) % count;
            let wanted = self.active[index].pending().len();
            rows[index] = wanted.min(1 + room);
            room -= rows[index] - 1;
        }
        self.turn += if taking_part < count { taking_part } else { 1 };
        if !self.prepare(&rows) {
            return;
        }

        // A prompt ends in a step of its own: later texts can begin with the pages that its windows hold then.
        let decoding = self.active.iter().all(|active| active.pending().len() == 1);
        let masked = self.active.iter().any(Generation::is_masked);
        let alone = self.waiting.is_empty() && taking_part == count;
        let limit = if decoding && alone { self.executor.max_chain(masked) } else { 1 };
        let active = self.active.iter_mut().zip(&rows).filter(|&(_, &rows)| rows > 0);
        let chains = active.map(|(active, &rows)| active.chain(rows, limit));
        let (mut parts, mut answers): (Vec<SequenceChain<'_>>, Vec<&mut Answer>) = chains.unzip();
        let result = self.executor.run_chain(&mut parts, &mut |number, drawn| {
            let flow = answers[number].take(drawn);
            if self.arrived.is_none() {
                self.arrived = self.commands.try_recv().ok();
            }
            let wanted = self.arrived.is_some() || self.closing.load(Ordering::Relaxed);
            if wanted && flow == Flow::Continue { Flow::StopAll } else { flow }
        });
        match result {
            Ok(()) => {
                for generation in &mut self.active {
                    generation.keep_prompt(&mut self.executor);
                    if generation.is_full() {
                        generation.slide(&mut self.executor);
                    }
                }
                self.remove_finished();
                self.parked.extend(self.active.extract_if(.., |active| active.is_behind()));
            }
            Err(error) => self.fail(error),
        }
    }

    /// Makes the next rows of the active generations writable. False if that failed for one of them and the step is to be
    /// composed anew: a generation whose page the device could not make or copy ends, and the others go on.
    fn prepare(&mut self, rows: &[usize]) -> bool {
        let mut failed = false;
        for (place, &rows) in rows.iter().enumerate().filter(|&(_, &rows)| rows > 0) {
            match self.active[place].prepare(rows, &mut self.executor) {
                Ok(()) => {}
                Err(error @ EngineError::CacheFull { .. }) => {
                    self.fail(error);
                    return false;
                }
                Err(error) => {
                    self.active[place].fail(error);
                    failed = true;
                }
            }
        }
        if failed {
            self.remove_finished();
        }
        !failed
    }

    /// A step that could not run changed nothing. If pages ran out, the session that has been idle longest gives up its
    /// own, or the generation that has been parked longest, or the youngest generation ends, and the step is tried again.
    /// Any other failure ends all.
    fn fail(&mut self, error: EngineError) {
        if let EngineError::CacheFull { .. } = error {
            let idle = |held: &Held| if let Held::Idle { since, .. } = held { Some(*since) } else { None };
            let oldest = self.sessions.iter().filter_map(|(&id, held)| Some((idle(held)?, id))).min();
            if let Some((_, id)) = oldest {
                if let Some(Held::Idle { sequence, .. }) = self.sessions.remove(&id) {
                    self.executor.release(sequence);
                }
            } else if let Some(parked) = self.parked.iter_mut().find(|parked| parked.holds_pages()) {
                parked.give_pages_back(&mut self.executor);
            } else if let Some(youngest) = self.active.last_mut() {
                youngest.fail(error);
            }
        } else {
            for generation in self.active.iter_mut().chain(&mut self.parked) {
                generation.fail(error.clone());
            }
        }
        self.remove_finished();
    }

    fn remove_finished(&mut self) {
        let mut finished: Vec<Generation> =
            self.active.extract_if(.., |generation| generation.is_finished()).collect();
        while let Some(place) = self.parked.iter().position(Generation::is_finished) {
            finished.extend(self.parked.remove(place));
        }
        for generation in finished {
            let (sequence, session) = generation.into_sequence();
            self.put_back(sequence, session);
        }
    }

    /// Leaves a sequence in its session, or gives its pages back.
    fn put_back(&mut self, sequence: Sequence, session: Option<SessionId>) {
        self.executor.keep(&sequence);
        match session {
            Some(id) if !matches!(self.sessions.get(&id), Some(Held::InUse { closed: true })) => {
                self.finished += 1;
                self.sessions.insert(id, Held::Idle { sequence, since: self.finished });
            }
            session => {
                if let Some(id) = session {
                    self.sessions.remove(&id);
                }
                self.executor.release(sequence);
            }
        }
    }
}
