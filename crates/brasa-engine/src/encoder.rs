//! The engine of encoders: texts that are computed whole, each in one step.
//!
//! An encoder keeps nothing from one step to the next, so there are no pages, no sessions and no schedule beyond this: jobs
//! take turns, and a step is filled with the texts of whoever's turn it is, then with those of the others. A step has no
//! padding: a text is one segment of it.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Instant;

use brasa_graph::device::{DeviceError, KvPool, Program};
use brasa_graph::output::Output;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};

use crate::{EngineError, MakeProgram};

/// Sizes that an engine of encoders is started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Most tokens of a text, which must fit into one step.
    pub context: usize,
    /// Token ids of the model.
    pub vocab_size: usize,
    /// Number of token types, which mark the parts of a text; 0 if the graphs have no such input.
    pub token_types: usize,
    /// Most jobs that run or wait, at least 1.
    pub max_jobs: usize,
}

/// A text to be computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncoderText {
    /// Token ids of the text.
    pub tokens: Vec<u32>,
    /// The part that each token is of; empty if all are of part 0.
    pub types: Vec<u32>,
}

/// The program that computes a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderOutput {
    /// Hidden states behind the last norm, `[hidden_size]` a row.
    Hidden,
    /// Logits of the head that judges texts, `[labels]` a row.
    Logits,
}

/// The rows of a text that become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EncoderRows {
    /// The first row.
    First,
    /// The last row.
    Last,
    /// The mean of all rows, summed in f64.
    Mean,
    /// All rows, one behind the other: `[tokens, width]`.
    All,
}

impl EncoderRows {
    /// True if the device has to give every row of a text.
    fn needs_all(self) -> bool {
        matches!(self, Self::Mean | Self::All)
    }

    /// The vector of a text whose `rows` of `output` the device has given.
    fn vector(self, output: Output<'_>, rows: Range<usize>) -> Vec<f32> {
        match self {
            Self::All => rows.flat_map(|row| output.row(row)).copied().collect(),
            Self::First | Self::Last | Self::Mean => mean(output, rows),
        }
    }
}

/// Runs an encoder's programs on a thread of its own. Dropping it ends the running jobs and waits for the thread.
pub struct EncoderEngine {
    /// Jobs; `None` wakes the thread.
    jobs: Sender<Option<Job>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    closing: Arc<AtomicBool>,
    /// Jobs that run or wait.
    running: Arc<AtomicUsize>,
    config: EncoderConfig,
    judges: bool,
}

impl EncoderEngine {
    /// Starts a thread over the programs and a pool without groups. Each program is made when it is first needed. The second one
    /// judges texts, if there is one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Options`] if the thread cannot be started, or a size of `config` is 0 that must not be.
    pub fn start(
        hidden: MakeProgram,
        logits: Option<MakeProgram>,
        pool: Box<dyn KvPool>,
        config: EncoderConfig,
    ) -> Result<Self, EngineError> {
        if config.context == 0 || config.max_jobs == 0 {
            return Err(EngineError::Options(
                "context and max_jobs must be at least 1: no text could ever be served".into(),
            ));
        }
        let (jobs, receiver) = channel();
        let closing = Arc::new(AtomicBool::new(false));
        let judges = logits.is_some();
        let worker = Worker {
            hidden: Lazy::Unmade(hidden),
            logits: logits.map(Lazy::Unmade),
            pool,
            config,
            waiting: VecDeque::new(),
            closing: Arc::clone(&closing),
        };
        let thread = std::thread::Builder::new()
            .name("brasa-encoder".into())
            .spawn(move || worker.run(&receiver))
            .map_err(|error| EngineError::Options(format!("cannot start the engine's thread: {error}")))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { jobs, thread, closing, running: Arc::default(), config, judges })
    }

    /// The sizes that the engine was started with.
    pub fn config(&self) -> EncoderConfig {
        self.config
    }

    /// Starts to compute the vectors of texts. Long texts go first. Those that are not computed at the `deadline` fail with
    /// [`EngineError::DeadlineExceeded`].
    ///
    /// # Errors
    ///
    /// [`EngineError::EmptyPrompt`] and [`EngineError::TextTooLong`] for a text, [`EngineError::UnknownToken`],
    /// [`EngineError::Options`] for logits of an encoder that does not judge and for other types than the model has,
    /// [`EngineError::QueueFull`], [`EngineError::Closed`]. Later errors come in place of vectors.
    pub fn encode(
        &self,
        texts: Vec<EncoderText>,
        output: EncoderOutput,
        rows: EncoderRows,
        deadline: Option<Instant>,
    ) -> Result<EncoderVectors, EngineError> {
        if output == EncoderOutput::Logits && !self.judges {
            return Err(EngineError::Options("this encoder has no head that judges texts".into()));
        }
        texts.iter().try_for_each(|text| self.check(text))?;
        let place = Place::take(&self.running, self.config.max_jobs)?;
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&number| std::cmp::Reverse(texts[number].tokens.len()));
        let shared = Arc::new(Shared::new(texts.len()));
        let vectors = EncoderVectors { shared: Arc::clone(&shared), next: 0 };
        let job = Job { texts, order: order.into(), output, rows, deadline, shared, _place: place };
        self.jobs.send(Some(job)).map_err(|_| EngineError::Closed)?;
        Ok(vectors)
    }

    fn check(&self, text: &EncoderText) -> Result<(), EngineError> {
        let EncoderConfig { context, vocab_size, token_types, .. } = self.config;
        let tokens = text.tokens.len();
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens > context {
            return Err(EngineError::TextTooLong { tokens, context });
        }
        if let Some(&id) = text.tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(EngineError::UnknownToken { id, vocab_size });
        }
        let fits = text.types.is_empty() || text.types.len() == tokens;
        if !fits || text.types.iter().any(|&kind| kind as usize >= token_types.max(1)) {
            return Err(EngineError::Options(format!(
                "the types of a text's tokens must be one for each, below {}",
                token_types.max(1)
            )));
        }
        Ok(())
    }

    /// Ends the running jobs and waits for the thread. Jobs that still ran, and every later call, give
    /// [`EngineError::Closed`]. Closing a closed engine does nothing.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes a thread that waits for work; one that is gone needs no waking.
        let _ = self.jobs.send(None);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the thread has been reported by the panic hook and seen by every job as `Closed`.
            let _ = thread.join();
        }
    }
}

impl Drop for EncoderEngine {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for EncoderEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncoderEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A place among the jobs, given back when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(running: &Arc<AtomicUsize>, most: usize) -> Result<Self, EngineError> {
        let one_more = |count: usize| (count < most).then_some(count + 1);
        match running.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more) {
            Ok(_) => Ok(Self(Arc::clone(running))),
            Err(waiting) => Err(EngineError::QueueFull { waiting }),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The texts of one caller. Dropping it tells the reader that no more results come.
struct Job {
    texts: Vec<EncoderText>,
    /// Texts that are still to be computed, longest first.
    order: VecDeque<usize>,
    output: EncoderOutput,
    rows: EncoderRows,
    deadline: Option<Instant>,
    shared: Arc<Shared>,
    _place: Place,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.change(|state| state.ended = true);
    }
}

/// Results on the way to their reader.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    cancelled: AtomicBool,
}

struct State {
    results: Vec<Option<Result<Vec<f32>, EngineError>>>,
    /// Texts whose results have come.
    done: usize,
    ended: bool,
    waker: Option<Waker>,
}

impl Shared {
    fn new(texts: usize) -> Self {
        let results = (0..texts).map(|_| None).collect();
        Self {
            state: Mutex::new(State { results, done: 0, ended: false, waker: None }),
            changed: Condvar::new(),
            cancelled: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn put(&self, number: usize, result: Result<Vec<f32>, EngineError>) {
        self.change(|state| {
            state.results[number] = Some(result);
            state.done += 1;
        });
    }
}

/// The vectors of a job's texts, in the order of the texts. The iterator waits for the next one,
/// [`poll_next`](Self::poll_next) does not. Dropping it ends the job at the next step.
pub struct EncoderVectors {
    shared: Arc<Shared>,
    next: usize,
}

impl EncoderVectors {
    /// Texts of the job.
    pub fn texts(&self) -> usize {
        self.shared.lock().results.len()
    }

    /// Waits until more than `done` texts are computed or the job has ended; returns how many are.
    pub fn wait_beyond(&self, done: usize) -> usize {
        let mut state = self.shared.lock();
        while state.done <= done && !state.ended && state.done < state.results.len() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended { state.results.len() } else { state.done }
    }

    /// The next vector if it is there; otherwise `Pending`, and the task of `context` is woken when there is more to see.
    ///
    /// This is the method of the same name of `futures`' `Stream`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, EngineError>>> {
        let mut state = self.shared.lock();
        if let Some(next) = Self::take(&mut state, &mut self.next) {
            return Poll::Ready(next);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next result; `Some(None)` behind the last one, `None` if it is still to come.
    #[allow(clippy::option_option, reason = "an end that is there, and a result that is not")]
    fn take(state: &mut State, next: &mut usize) -> Option<Option<Result<Vec<f32>, EngineError>>> {
        let Some(result) = state.results.get_mut(*next) else { return Some(None) };
        let result = match result.take() {
            Some(result) => result,
            None if state.ended => Err(EngineError::Closed),
            None => return None,
        };
        *next += 1;
        Some(Some(result))
    }
}

impl Iterator for EncoderVectors {
    type Item = Result<Vec<f32>, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut state = self.shared.lock();
        loop {
            if let Some(next) = Self::take(&mut state, &mut self.next) {
                return next;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for EncoderVectors {
    fn drop(&mut self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for EncoderVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncoderVectors").field("next", &self.next).finish_non_exhaustive()
    }
}

/// A program that is made when it is first needed.
enum Lazy {
    Unmade(MakeProgram),
    Made(Box<dyn Program>),
}

impl Lazy {
    fn get(&mut self) -> Result<&mut dyn Program, DeviceError> {
        if let Self::Unmade(make) = self {
            *self = Self::Made(make()?);
        }
        match self {
            Self::Made(program) => Ok(&mut **program),
            Self::Unmade(_) => unreachable!("made above"),
        }
    }
}

/// The program and the queue of the thread that computes encoders.
struct Worker {
    hidden: Lazy,
    logits: Option<Lazy>,
    pool: Box<dyn KvPool>,
    config: EncoderConfig,
    /// Jobs with texts to compute. The first is the one whose turn it is.
    waiting: VecDeque<Job>,
    closing: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Option<Job>>) {
        loop {
            if self.waiting.is_empty() {
                match jobs.recv() {
                    Ok(job) => self.waiting.extend(job),
                    Err(_) => return,
                }
            }
            self.waiting.extend(jobs.try_iter().flatten());
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            self.end_late_jobs();
            self.waiting.retain(|job| !job.order.is_empty() && !job.shared.cancelled.load(Ordering::Relaxed));
            if !self.waiting.is_empty() && self.step() == After::Stop {
                return;
            }
            if self.waiting.len() > 1 {
                self.waiting.rotate_left(1);
            }
        }
    }

    /// Ends the jobs whose deadline has passed.
    fn end_late_jobs(&mut self) {
        let now = Instant::now();
        let is_late = |job: &&mut Job| job.deadline.is_some_and(|deadline| deadline <= now);
        for job in self.waiting.iter_mut().filter(is_late) {
            for number in std::mem::take(&mut job.order) {
                job.shared.put(number, Err(EngineError::DeadlineExceeded { tokens: 0 }));
            }
        }
    }

    /// Computes as many texts as fit in one step.
    fn step(&mut self) -> After {
        let output = self.waiting[0].output;
        let program = match output {
            EncoderOutput::Hidden => self.hidden.get(),
            EncoderOutput::Logits => self.logits.as_mut().expect("checked with the request").get(),
        };
        let program = match program {
            Ok(program) => program,
            Err(error) => return self.fail(output, &error),
        };
        let limits = program.limits();
        let (mut rows_left, mut outs_left) = (limits.max_rows, limits.max_outs);
        let (mut step, mut chosen) = (Step::default(), Vec::new());
        for (place, job) in self.waiting.iter_mut().enumerate().filter(|(_, job)| job.output == output) {
            while step.segments.len() < limits.max_segments {
                let outs = |tokens: usize| if job.rows.needs_all() { tokens } else { 1 };
                let tokens = |number: &usize| job.texts[*number].tokens.len();
                let fits = |number: &usize| tokens(number) <= rows_left && outs(tokens(number)) <= outs_left;
                // The longest text, else the shortest.
                let number = if job.order.front().is_some_and(fits) {
                    job.order.pop_front()
                } else if job.order.back().is_some_and(fits) {
                    job.order.pop_back()
                } else {
                    None
                };
                let Some(number) = number else { break };
                let text = std::mem::take(&mut job.texts[number]);
                rows_left -= text.tokens.len();
                outs_left -= outs(text.tokens.len());
                step.segments.push(segment(text, chosen.len(), job.rows, self.config.token_types));
                chosen.push((place, number));
            }
        }
        assert!(!chosen.is_empty(), "a text of {} tokens fits in no step of {limits:?}", self.config.context);
        match program.run(&step, &mut *self.pool) {
            Ok(outputs) => {
                let (output, mut row) = (outputs.get(0), 0);
                for ((place, number), segment) in chosen.into_iter().zip(&step.segments) {
                    let rows = row..row + segment.outs();
                    row = rows.end;
                    let job = &self.waiting[place];
                    job.shared.put(number, Ok(job.rows.vector(output, rows)));
                }
                After::GoOn
            }
            Err(error @ DeviceError::Lost { .. }) => {
                for (place, number) in chosen {
                    self.waiting[place].shared.put(number, Err(error.clone().into()));
                }
                self.end_all(&error);
                After::Stop
            }
            // The device does not say which text it could not compute.
            Err(error) if chosen.len() > 1 => {
                for ((place, number), segment) in chosen.into_iter().zip(step.segments) {
                    let alone = Step { segments: vec![segment] };
                    let vector = program.run(&alone, &mut *self.pool);
                    let (how, rows) = (self.waiting[place].rows, 0..alone.segments[0].outs());
                    let vector = vector.map(|outputs| how.vector(outputs.get(0), rows));
                    if let Err(error @ DeviceError::Lost { .. }) = &vector {
                        // Whoever comes behind this text has not been computed.
                        let error = error.clone();
                        self.waiting[place].shared.put(number, Err(error.clone().into()));
                        self.end_all(&error);
                        return After::Stop;
                    }
                    self.waiting[place].shared.put(number, vector.map_err(EngineError::from));
                }
                drop(error);
                After::GoOn
            }
            Err(error) => {
                for (place, number) in chosen {
                    self.waiting[place].shared.put(number, Err(error.clone().into()));
                }
                After::GoOn
            }
        }
    }

    /// Ends all jobs with the error of a lost device.
    fn end_all(&mut self, error: &DeviceError) {
        for job in &mut self.waiting {
            for number in std::mem::take(&mut job.order) {
                job.shared.put(number, Err(error.clone().into()));
            }
        }
    }

    /// Ends all jobs of a program that cannot be made.
    fn fail(&mut self, output: EncoderOutput, error: &DeviceError) -> After {
        for job in self.waiting.iter_mut().filter(|job| job.output == output) {
            for number in std::mem::take(&mut job.order) {
                job.shared.put(number, Err(error.clone().into()));
            }
        }
        After::GoOn
    }
}

/// The state of the engine's loop behind a step: it goes on, or it ends.
#[derive(PartialEq, Eq)]
enum After {
    GoOn,
    Stop,
}

/// A text as the device sees it.
fn segment(text: EncoderText, number: usize, rows: EncoderRows, token_types: usize) -> Segment {
    let EncoderText { tokens, mut types } = text;
    let outs = match rows {
        EncoderRows::First => Outs::Rows([0].into()),
        EncoderRows::Last => Outs::Last,
        EncoderRows::Mean | EncoderRows::All => Outs::All,
    };
    types.resize(tokens.len(), 0);
    let mut segment = Segment::text(SequenceId(number as u64), 0, tokens, outs, Vec::new());
    if token_types > 0 {
        segment.given.push(GivenValues::U32(types.into()));
    }
    segment
}

/// The mean of some rows.
fn mean(output: Output<'_>, rows: Range<usize>) -> Vec<f32> {
    if rows.len() == 1 {
        return output.row(rows.start).to_vec();
    }
    let count = rows.len() as f64;
    let mut sums = vec![0.0_f64; output.width()];
    for row in rows {
        sums.iter_mut().zip(output.row(row)).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}
