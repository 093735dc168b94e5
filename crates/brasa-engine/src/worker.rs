//! The engine's thread: describes requests to the scheduler, obeys it, and hands out tokens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use brasa_graph::chain::Flow;

use crate::command::{Command, Job};
use crate::delivery::Event;
use crate::executor::{Executor, SequenceChain};
use crate::generation::{Answer, Generation};
use crate::schedule::{self, Candidate, GiveWay, Limits, MOST_CANDIDATES, Plan, Room, StepPlan};
use crate::sequence::Sequence;
use crate::sessions::{Claim, Sessions};
use crate::{EngineConfig, EngineError, Metrics, SessionId};

struct Worker<'a> {
    executor: Executor,
    config: EngineConfig,
    commands: &'a Receiver<Command>,
    closing: &'a AtomicBool,
    /// Commands that arrived during a chain.
    arrived: VecDeque<Command>,
    /// Generations that may be admitted.
    waiting: Vec<Generation>,
    /// Generations that take part in steps, senior first.
    active: Vec<Generation>,
    /// Generations whose readers are behind.
    parked: Vec<Generation>,
    sessions: Sessions,
    /// Requests that have arrived.
    arrivals: u64,
    /// True if a generation had to give its pages back, and no active one has given up its place since.
    short: bool,
}

/// Serves commands until the engine closes.
pub(crate) fn worker(
    executor: Executor,
    config: EngineConfig,
    commands: &Receiver<Command>,
    closing: &AtomicBool,
) {
    let mut worker = Worker {
        executor,
        config,
        commands,
        closing,
        arrived: VecDeque::new(),
        waiting: Vec::new(),
        active: Vec::new(),
        parked: Vec::new(),
        sessions: Sessions::default(),
        arrivals: 0,
        short: false,
    };
    while !closing.load(Ordering::Relaxed) && worker.take_commands() {
        worker.retire();
        worker.run();
    }
    // Streams whose generation is dropped here see a closed channel.
}

impl Worker<'_> {
    /// Takes the commands that callers have sent; waits for one if there is nothing else to do. False when the engine closes.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.active.is_empty()
                && self.waiting.is_empty()
                && self.parked.iter().all(Generation::is_behind);
            let command = if let Some(command) = self.arrived.pop_front() {
                Ok(command)
            } else if idle {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Generate(job)) => self.arrive(*job),
                Ok(Command::CloseSession(id)) => {
                    if let Some(sequence) = self.sessions.close(id) {
                        self.executor.release(sequence);
                    }
                }
                Ok(Command::Work(work)) => work(&mut self.executor),
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Wake) | Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Lets a request wait.
    fn arrive(&mut self, job: Job) {
        let sequence = match job.request.session.map(|id| self.sessions.claim(id)) {
            None | Some(Claim::Empty) => self.executor.sequence(),
            Some(Claim::Held(sequence)) => sequence,
            Some(Claim::Busy) => {
                return job.delivery.end(Event::Failed(EngineError::SessionBusy, Metrics::default()));
            }
        };
        self.arrivals += 1;
        match Generation::arrive(job, sequence, self.arrivals, self.executor.context()) {
            Ok(generation) => self.waiting.push(generation),
            Err((sequence, session)) => self.put_back(sequence, session),
        }
    }

    /// Ends generations that were cancelled or are past their deadline, and lets those wait whose readers have caught up.
    fn retire(&mut self) {
        let now = Instant::now();
        for generation in self.active.iter_mut().chain(&mut self.waiting).chain(&mut self.parked) {
            generation.expire(now);
        }
        self.remove_finished();
        self.waiting.extend(self.parked.extract_if(.., |parked| !parked.is_behind()));
    }

    /// Does what the scheduler decides, up to a step or a chain.
    fn run(&mut self) {
        loop {
            match self.plan() {
                Plan::Admit(place) => self.admit(place),
                Plan::Step(step) => {
                    if self.prepare(&step.rows) {
                        self.step(&step);
                    }
                    return;
                }
                Plan::Rest => return,
            }
        }
    }

    /// Asks the scheduler. The cache is looked into only if somebody waits and a place is free.
    fn plan(&mut self) -> Plan {
        let executor = &self.executor;
        let max_rows = executor.max_rows();
        let max_active =
            self.config.max_sequences.min(executor.max_segments()).min(executor.max_outs()).min(max_rows);
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut room = Room::default();
        let mut outlook = None;
        if !self.waiting.is_empty() && self.active.len() < max_active {
            self.waiting.sort_by_key(|waiting| waiting.standing().turn());
            let outlook = outlook.insert(executor.outlook());
            for generation in &self.active {
                generation.add_to(outlook);
            }
            room = outlook.room();
            let first = self.waiting.iter().take(MOST_CANDIDATES);
            let described =
                first.map(|waiting| waiting.as_candidate(outlook, executor, &self.active, max_rows));
            candidates.extend(described);
        }
        let active = self.active.iter().map(|active| active.as_active(outlook.as_ref(), max_rows));
        let active: Vec<_> = active.collect();
        let masked = self.active.iter().any(Generation::is_masked);
        let limits = Limits {
            max_active,
            max_rows,
            mixed_rows: self.config.mixed_prompt_rows,
            max_chain: executor.max_chain(masked),
            waiting: self.waiting.len(),
            room,
            short: self.short,
        };
        schedule::plan(&active, &candidates, &limits)
    }

    /// Makes the waiting generation at `place` active.
    fn admit(&mut self, place: usize) {
        let mut generation = self.waiting.remove(place);
        let standing = generation.standing();
        for waiting in &mut self.waiting {
            waiting.see_admitted(standing);
        }
        generation.admit(&mut self.executor);
        let junior =
            self.active.partition_point(|active| active.standing().seniority() < standing.seniority());
        self.active.insert(junior, generation);
    }

    /// Runs a step, or the chain that begins with it.
    fn step(&mut self, step: &StepPlan) {
        let active = self.active.iter_mut().zip(&step.rows).filter(|&(_, &rows)| rows > 0);
        let chains = active.map(|(active, &rows)| active.chain(rows, step.chain.limit));
        let (mut parts, mut answers): (Vec<SequenceChain<'_>>, Vec<&mut Answer>) = chains.unzip();
        let (arrived, commands, closing) = (&mut self.arrived, self.commands, self.closing);
        let mut chain = step.chain;
        let mut wanted = false;
        let result = self.executor.run_chain(&mut parts, &mut |number, drawn| {
            let answer = &mut *answers[number];
            let flow = answer.take(drawn);
            while let Ok(command) = commands.try_recv() {
                match command {
                    Command::Generate(_) if !chain.ends_on_arrival => chain.ends_with_row = true,
                    _ => wanted = true,
                }
                arrived.push_back(command);
            }
            wanted |= closing.load(Ordering::Relaxed);
            wanted |= chain.ends_with_row && flow == Flow::StopRow;
            if wanted && flow == Flow::Continue { Flow::StopAll } else { flow }
        });
        match result {
            Ok(()) => {
                for generation in &mut self.active {
                    generation.keep_prompt(&mut self.executor);
                    if generation.is_full() {
                        generation.slide(&mut self.executor);
                        self.short = false;
                    }
                }
                self.remove_finished();
                let before = self.active.len();
                self.parked.extend(self.active.extract_if(.., |active| active.is_behind()));
                self.short &= self.active.len() == before;
            }
            Err(error) => {
                for generation in self.active.iter_mut().chain(&mut self.parked) {
                    generation.fail(error.clone());
                }
                self.remove_finished();
            }
        }
    }

    /// Makes the next rows of the active generations writable. False if that failed for one of them and the step is to be
    /// planned anew: a generation whose page the device could not make or copy ends, and the others go on.
    fn prepare(&mut self, rows: &[usize]) -> bool {
        let mut failed = false;
        for (place, &rows) in rows.iter().enumerate().filter(|&(_, &rows)| rows > 0) {
            match self.active[place].prepare(rows, &mut self.executor) {
                Ok(()) => {}
                Err(error @ EngineError::CacheFull { .. }) => {
                    self.give_way(place, error);
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

    /// Frees pages for the active generation at `place`, for which there are none.
    fn give_way(&mut self, place: usize, error: EngineError) {
        let hold = |generations: &[Generation]| -> Vec<bool> {
            generations.iter().map(Generation::holds_pages).collect()
        };
        self.parked.sort_by_key(|parked| parked.standing().seniority());
        self.waiting.sort_by_key(|waiting| waiting.standing().seniority());
        // Paused generations give way before waiting ones.
        let (waiting, parked) = (hold(&self.waiting), hold(&self.parked));
        let at_rest = [waiting, parked].concat();
        match schedule::give_way(self.sessions.idle(), &at_rest, &hold(&self.active), place) {
            GiveWay::Session => {
                if let Some(sequence) = self.sessions.give_up_oldest() {
                    self.executor.release(sequence);
                }
            }
            GiveWay::AtRest(junior) => {
                let generation = self.waiting.iter_mut().chain(&mut self.parked).nth(junior);
                if let Some(generation) = generation {
                    generation.give_pages_back(&mut self.executor);
                }
            }
            GiveWay::Preempt(junior) => {
                let mut generation = self.active.remove(junior);
                generation.give_pages_back(&mut self.executor);
                self.waiting.push(generation);
                self.short = true;
            }
            GiveWay::Fail => {
                self.active[place].fail(error);
                self.remove_finished();
            }
        }
    }

    fn remove_finished(&mut self) {
        let before = self.active.len();
        let mut finished = Vec::new();
        for generations in [&mut self.active, &mut self.waiting, &mut self.parked] {
            finished.extend(generations.extract_if(.., |generation| generation.is_finished()));
        }
        self.short &= self.active.len() == before;
        for generation in finished {
            let (sequence, session) = generation.into_sequence();
            self.put_back(sequence, session);
        }
    }

    /// Leaves a sequence in its session, or gives its pages back.
    fn put_back(&mut self, sequence: Sequence, session: Option<SessionId>) {
        self.executor.keep(&sequence);
        let left = match session {
            Some(id) => self.sessions.leave(id, sequence),
            None => Some(sequence),
        };
        if let Some(sequence) = left {
            self.executor.release(sequence);
        }
    }
}
