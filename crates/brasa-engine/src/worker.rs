//! The engine's thread: describes requests to the scheduler, carries out its decisions, and hands out tokens.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use brasa_graph::chain::Flow;
use brasa_graph::sampling::DrawRules;

use crate::answer::MOST_UNCHECKED;
use crate::command::{Command, Submission};
use crate::drafter::{Drafter, Wish};
use crate::executor::{Executor, SequenceChain, StepOut};
use crate::generation::{Generation, Listener};
use crate::schedule::{
    self, Candidate, Limits, MOST_CANDIDATES, Plan, RecentGaps, Room, StepCosts, StepPlan,
};
use crate::sessions::{Claim, Sessions};
use crate::stats::Board;
use crate::stop::StopMatcher;
use crate::text::{Texts, TokenOrEnd};
use crate::{EngineConfig, EngineError, EngineStats, Metrics, PlainIds};

mod aftermath;

/// Guesses of a draft model that are tried while the times of its steps are unknown.
const MOST_TRIED: usize = 2;

/// Most drafts for which a chain is ended, if they are worth their rows.
const MOST_DRAFTS_AHEAD: usize = 8;

/// Idle time before memory is fetched ahead, so that the engine is free for a client that sends its next request at once.
const BEFORE_PREFAULT: Duration = Duration::from_millis(100);

struct Worker<'a> {
    executor: Executor,
    /// The draft model; `None` if there is none or its device was lost.
    drafter: Option<Drafter>,
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
    /// Generations that have ended while a stop string may still be found in their text.
    settling: Vec<Generation>,
    texts: Texts,
    sessions: Sessions,
    /// The error of a lost device; no request can be served any more.
    lost: Option<EngineError>,
    /// True if requests wait for pages that are lent out. Only a command returns them.
    starved: bool,
    /// True if a generation had to give up its pages, and no active one has ended or paused since.
    short: bool,
    /// Totals so far. Counts that can be taken at any time are added when the stats are published.
    stats: EngineStats,
    board: Board,
    costs: StepCosts,
    recent: RecentGaps,
    /// Pages that were handed out before their memory was fetched, up to the last step.
    cold_pages: usize,
}

/// Serves commands until the engine closes.
pub(crate) fn worker(
    executor: Executor,
    drafter: Option<Drafter>,
    config: EngineConfig,
    texts: Texts,
    board: Board,
    commands: &Receiver<Command>,
    closing: &AtomicBool,
) {
    let mut worker = Worker {
        executor,
        drafter,
        config,
        commands,
        closing,
        arrived: VecDeque::new(),
        waiting: Vec::new(),
        active: Vec::new(),
        parked: Vec::new(),
        settling: Vec::new(),
        texts,
        sessions: Sessions::default(),
        lost: None,
        starved: false,
        short: false,
        stats: EngineStats::default(),
        board,
        costs: StepCosts::default(),
        recent: RecentGaps::default(),
        cold_pages: 0,
    };
    while !closing.load(Ordering::Relaxed) && worker.take_commands() {
        worker.retire();
        worker.run();
        worker.publish(false);
    }
    // Streams whose generation is dropped here see a closed channel.
}

impl Worker<'_> {
    /// Takes the commands that callers have sent; waits for one if there is nothing else to do. False when the engine closes.
    fn take_commands(&mut self) -> bool {
        loop {
            let idle = self.active.is_empty()
                && (self.waiting.is_empty() || self.starved)
                && self.parked.iter().all(Generation::is_behind);
            let command = if let Some(command) = self.arrived.pop_front() {
                Ok(command)
            } else if idle {
                self.publish(true);
                self.wait()
            } else {
                self.commands.try_recv()
            };
            // Whatever comes may bring pages back.
            self.starved &= command.is_err();
            match command {
                Ok(Command::Generate(submission)) => self.arrive(*submission),
                Ok(Command::CloseSession(id)) => {
                    if let Some(sequence) = self.sessions.close(id) {
                        self.end(sequence);
                    }
                }
                Ok(Command::Work(work)) => work(&mut self.executor),
                Ok(Command::AtSessions(work)) => {
                    // A session is idle as soon as its reader has seen the end, or is gone.
                    self.retire();
                    work(&mut self.executor, &mut self.sessions);
                }
                Ok(Command::Close) | Err(TryRecvError::Disconnected) => return false,
                Ok(Command::Wake) | Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// The next command, or an error at the next deadline of a request. If no command comes soon, memory of pages is fetched
    /// ahead while waiting.
    fn wait(&mut self) -> Result<Command, TryRecvError> {
        let deadlines = self.waiting.iter().chain(&self.parked).filter_map(Generation::deadline);
        let deadline = deadlines.min();
        let rest = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let within = |rest: Duration| {
            self.commands.recv_timeout(rest).map_err(|error| match error {
                RecvTimeoutError::Timeout => TryRecvError::Empty,
                RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
            })
        };
        match within(rest().map_or(BEFORE_PREFAULT, |rest| rest.min(BEFORE_PREFAULT))) {
            Err(TryRecvError::Empty) if rest() != Some(Duration::ZERO) => {}
            command => return command,
        }
        loop {
            match self.commands.try_recv() {
                Err(TryRecvError::Empty) if rest() == Some(Duration::ZERO) => {
                    return Err(TryRecvError::Empty);
                }
                Err(TryRecvError::Empty) if self.executor.prefault() => {}
                Err(TryRecvError::Empty) => {
                    return match rest() {
                        Some(rest) => within(rest),
                        None => self.commands.recv().map_err(|_| TryRecvError::Disconnected),
                    };
                }
                command => return command,
            }
        }
    }

    /// Adds a request to the waiting ones.
    fn arrive(&mut self, submission: Submission) {
        // The request may be the answer to an end that the text's thread has just found.
        self.settle();
        if let Some(error) = self.lost.clone() {
            return self.refuse(submission, error);
        }
        let rules = match DrawRules::new(submission.request.options.sampling.clone()) {
            Ok(rules) => rules,
            Err(error) => return self.refuse(submission, error.into()),
        };
        let sequence = match submission.request.session.map(|id| self.sessions.claim(id)) {
            None | Some(Claim::Empty) => self.executor.sequence(),
            Some(Claim::Held(sequence)) => sequence,
            Some(Claim::Busy) => return self.refuse(submission, EngineError::SessionBusy),
        };
        self.stats.requests += 1;
        let context = self.executor.context();
        let texts = &mut self.texts;
        let mut generation =
            Generation::new(submission, rules, sequence, self.stats.requests, context, texts);
        generation.meet_draft_model(self.drafter.as_ref().map(Drafter::experience));
        self.waiting.push(generation);
    }

    /// Sends the reader an error in place of a text.
    fn refuse(&mut self, submission: Submission, error: EngineError) {
        let text = self.texts.begin(Box::new(PlainIds), StopMatcher::default(), submission.delivery);
        text.write(TokenOrEnd {
            token: None,
            end: Some(Err(error)),
            end_token: None,
            metrics: Metrics::default(),
        });
    }

    /// Ends generations that were cancelled or are past their deadline. Moves generations whose readers have caught up to the
    /// waiting ones.
    fn retire(&mut self) {
        let now = Instant::now();
        for generation in self.active.iter_mut().chain(&mut self.waiting).chain(&mut self.parked) {
            generation.expire(now);
        }
        for mut generation in self.parked.extract_if(.., |parked| !parked.is_behind()) {
            generation.slide_if_full(&mut self.executor);
            self.waiting.push(generation);
        }
        self.remove_finished();
    }

    /// Carries out the scheduler's decisions, up to a step or a chain.
    fn run(&mut self) {
        loop {
            match self.plan() {
                Plan::Admit(place) => self.admit(place),
                Plan::Step(step) => {
                    if self.prepare(&step.rows) {
                        if self.draft() {
                            self.step_drafts();
                        } else {
                            self.step(&step);
                        }
                    }
                    return;
                }
                Plan::Rest => return,
            }
        }
    }

    /// The scheduler's next decision. The cache is searched only if a request waits and a place is free.
    fn plan(&mut self) -> Plan {
        let executor = &self.executor;
        let max_rows = executor.max_rows();
        let chunk = max_rows.max(MOST_UNCHECKED);
        let max_active =
            self.config.max_sequences.min(executor.max_segments()).min(executor.max_outs()).min(max_rows);
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut room = Room::default();
        let mut outlook = None;
        if !self.waiting.is_empty() && !self.starved && self.active.len() < max_active {
            self.waiting.sort_by_key(|waiting| waiting.standing().turn());
            let outlook = outlook.insert(executor.outlook());
            for generation in &self.active {
                generation.add_to(outlook);
            }
            room = outlook.room();
            let first = self.waiting.iter().take(MOST_CANDIDATES);
            let described = first.map(|waiting| waiting.as_candidate(outlook, executor, &self.active, chunk));
            candidates.extend(described);
        }
        let active = self.active.iter().map(|active| active.as_active(outlook.as_ref(), chunk));
        let active: Vec<_> = active.collect();
        let decoding = self.active.iter().filter(|active| active.decodes()).count();
        let requests = self.active.len() + self.waiting.len();
        let masked = self.active.iter().any(Generation::is_masked);
        let alone = self.active.iter().map(Generation::tokens_alone).min().unwrap_or(usize::MAX);
        let limits = Limits {
            max_active,
            max_rows,
            max_outs: executor.max_outs(),
            mixed_rows: self.costs.prompt_rows(
                decoding,
                requests,
                self.recent.median(),
                self.config.mixed_prompt_rows,
            ),
            max_chain: executor.max_chain(masked).min(alone),
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
        let generations = [&self.active, &self.parked, &self.waiting, &self.settling].into_iter().flatten();
        let others = self.sessions.sequences().chain(generations.map(Generation::sequence));
        generation.admit(&mut self.executor, others, &mut self.stats);
        let junior =
            self.active.partition_point(|active| active.standing().seniority() < standing.seniority());
        self.active.insert(junior, generation);
    }

    /// Guesses the next tokens of the active generations, if all of them decode. Returns true if a guess is worth its row.
    fn draft(&mut self) -> bool {
        let decoding = self.active.len();
        let most = self.executor.max_rows().min(self.executor.max_outs()).saturating_sub(decoding);
        let drafting = self.active.iter().any(|active| active.most_drafts() > 0);
        if !drafting || most == 0 || !self.active.iter().all(Generation::decodes) {
            return false;
        }
        self.active.iter_mut().for_each(|active| active.guess(most / decoding));
        self.ask_draft_model(most);
        let hopes: Vec<&[f32]> = self.active.iter().map(|active| &active.draft().hopes[..]).collect();
        let counts = schedule::share_drafts(&hopes, decoding, most, &self.costs, None);
        for (active, count) in self.active.iter_mut().zip(counts) {
            active.keep_drafts(count);
            active.prepare_drafts(&mut self.executor);
        }
        self.active.iter().any(|active| !active.draft().tokens.is_empty())
    }

    /// Lets the draft model guess for generations for which that is likely to pay, at most `most` tokens in all. A draft model
    /// that fails is not used again.
    fn ask_draft_model(&mut self, most: usize) {
        let Some(drafter) = &mut self.drafter else { return };
        let decoding = self.active.len();
        let each = most / decoding;
        let hopes: Vec<Vec<f32>> = self.active.iter().map(|active| active.model_hopes(each)).collect();
        let asking = hopes.iter().filter(|hopes| !hopes.is_empty()).count();
        if asking == 0 {
            return;
        }
        let lists: Vec<&[f32]> = hopes.iter().map(|hopes| &hopes[..]).collect();
        // The first steps are to tell what such a step costs.
        let drafting = Some(drafter.costs()).filter(|costs| costs.are_known());
        let most = if drafting.is_some() { most } else { MOST_TRIED.min(most) };
        let counts = schedule::share_drafts(&lists, decoding, most, &self.costs, drafting);
        let least_hope =
            drafting.map_or(0.0, |costs| schedule::least_model_hope(asking, decoding, &self.costs, costs));
        // Other guesses are not given up for a trial.
        let asked = self.active.iter_mut().zip(&lists).zip(counts).filter(|((active, hopes), count)| {
            !hopes.is_empty() && (*count > 0 || active.draft().tokens.is_empty())
        });
        let mut wishes: Vec<Wish<'_>> =
            asked.filter_map(|((active, _), count)| active.wish(count, each, least_hope)).collect();
        let catch_up_rows = if decoding > 1 { self.config.mixed_prompt_rows } else { usize::MAX };
        if drafter.guess(&mut wishes, catch_up_rows).is_err() {
            self.drafter = None;
            let all = [&mut self.active, &mut self.waiting, &mut self.parked];
            all.into_iter().flatten().for_each(|generation| generation.meet_draft_model(None));
        }
    }

    /// Runs a step of all active generations with their guesses.
    fn step_drafts(&mut self) {
        let (began, decoded) = (Instant::now(), self.stats.decode_rows);
        let chains = self.active.iter_mut().map(|active| active.chain(1, usize::MAX));
        let (mut parts, mut listeners): (Vec<SequenceChain<'_>>, Vec<Listener<'_>>) = chains.unzip();
        let drafts: usize = parts.iter().map(|part| part.drafts.len()).sum();
        let rows = parts.len() + drafts;
        let stats = &mut self.stats;
        let result = self.executor.run_drafts(&mut parts, &mut |number, accepted, drawn| {
            stats.decode_rows += 1;
            stats.accepted_rows += u64::from(accepted);
            listeners[number].take_drafted(accepted, drawn)
        });
        stats.steps += 1;
        stats.draft_rows += drafts as u64;
        self.behind_steps(rows, 1, decoded, began.elapsed());
        let all: Vec<(usize, usize)> = (0..self.active.len()).map(|place| (place, 1)).collect();
        self.finish_step(result, &all);
    }

    /// Runs a step, or the chain that begins with it.
    fn step(&mut self, step: &StepPlan) {
        let (began, decoded) = (Instant::now(), self.stats.decode_rows);
        let rows = step.rows.iter().sum();
        let places: Vec<(usize, usize)> =
            step.rows.iter().copied().enumerate().filter(|&(_, rows)| rows > 0).collect();
        let mut counts = StepCounts::new(&self.active, &step.rows);
        let active = self.active.iter_mut().zip(&step.rows).filter(|&(_, &rows)| rows > 0);
        let chains = active.map(|(active, &rows)| active.chain(rows, step.chain.limit));
        let (mut parts, mut listeners): (Vec<SequenceChain<'_>>, Vec<Listener<'_>>) = chains.unzip();
        let (arrived, commands, closing) = (&mut self.arrived, self.commands, self.closing);
        let mut chain = step.chain;
        let mut wanted = false;
        let least_hope = schedule::least_hope(parts.len(), MOST_DRAFTS_AHEAD, &self.costs);
        if parts.iter().any(|part| part.read_value().is_some()) {
            let lasts: Vec<usize> = parts.iter().map(|part| part.tokens.len() - 1).collect();
            let result = self.executor.run_reading(&mut parts, &mut |number, out| match out {
                StepOut::Drawn(drawn) => {
                    counts.drawn[number] += 1;
                    listeners[number].take(drawn);
                }
                StepOut::Read { index, values } => {
                    listeners[number].take_row(index, values, index == lasts[number]);
                }
            });
            counts.add_to(&mut self.stats);
            self.behind_steps(rows, 1, decoded, began.elapsed());
            return self.finish_step(result, &places);
        }
        let result = self.executor.run_chain(&mut parts, &mut |number, drawn| {
            let listener = &mut listeners[number];
            counts.drawn[number] += 1;
            let flow = listener.take(drawn);
            wanted |= listener.hopes(least_hope);
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
        let steps = counts.add_to(&mut self.stats);
        self.behind_steps(rows, steps, decoded, began.elapsed());
        self.finish_step(result, &places);
    }

    /// Learns the time of a step of `rows` rows from `steps` steps that took `time` together, and fetches memory for the next
    /// ones. A step that took a page whose memory was not fetched is ignored: it may have waited for the system to find and clear
    /// that memory, which takes as long as many rows. `decoded` is the number of decoded rows before these steps.
    fn behind_steps(&mut self, rows: usize, steps: u64, decoded: u64, time: Duration) {
        let each = time.div_f64(steps as f64);
        self.recent.observe(self.stats.decode_rows - decoded, each);
        let cold = self.executor.cold_pages();
        if std::mem::replace(&mut self.cold_pages, cold) == cold {
            self.costs.observe(rows, each);
        }
        self.executor.keep_up(rows.saturating_mul(steps as usize), self.active.len());
    }

    /// Makes the next rows of the active generations writable. Returns false if that failed for one of them and the step must be
    /// planned again. A generation whose page the device could not make or copy ends; the others go on.
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

    /// Publishes the engine's state for callers; for certain if it `must` be.
    fn publish(&mut self, must: bool) {
        let stats = &mut self.stats;
        stats.running = self.active.len();
        stats.paused = self.parked.len();
        stats.waiting = self.waiting.len();
        stats.idle_sessions = self.sessions.idle();
        stats.prefix_bytes = self.config.prefix_bytes;
        self.executor.describe(stats);
        stats.draft_model_bytes = self.drafter.as_ref().map_or(0, Drafter::memory_bytes);
        self.board.publish(*stats, must);
    }
}

/// Counts of a chain's rows.
struct StepCounts {
    prompt_rows: usize,
    /// For each part, true if it decodes.
    decodes: Vec<bool>,
    /// For each part, the number of tokens drawn.
    drawn: Vec<u64>,
}

impl StepCounts {
    fn new(active: &[Generation], rows: &[usize]) -> Self {
        let parts = || active.iter().zip(rows).filter(|&(_, &rows)| rows > 0);
        let decodes: Vec<bool> = parts().map(|(active, _)| active.decodes()).collect();
        let prompt_rows = parts().zip(&decodes).filter(|&(_, &decodes)| !decodes).map(|((_, &rows), _)| rows);
        Self { prompt_rows: prompt_rows.sum(), drawn: vec![0; decodes.len()], decodes }
    }

    /// Adds the rows to `stats`; returns how many steps they were.
    fn add_to(&self, stats: &mut EngineStats) -> u64 {
        // The part with most tokens has drawn one in each step.
        let steps = self.drawn.iter().copied().max().unwrap_or(0).max(1);
        stats.steps += steps;
        stats.prompt_rows += self.prompt_rows as u64;
        stats.decode_rows += self
            .drawn
            .iter()
            .zip(&self.decodes)
            .filter(|&(_, &decodes)| decodes)
            .map(|(drawn, _)| drawn)
            .sum::<u64>();
        steps
    }
}
