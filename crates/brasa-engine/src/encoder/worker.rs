//! The loop of the thread that computes encoders: it takes jobs, fills a step, runs it and brings the vectors.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use brasa_graph::device::{DeviceError, KvPool, Program};
use brasa_graph::output::Output;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};

use super::place::Place;
use super::text::{EncoderConfig, EncoderOutput, EncoderRows, EncoderText};
use super::vectors::Results;
use crate::{EngineError, MakeProgram};

/// The texts of one caller. Dropping the job ends the reader's results.
pub(super) struct Job {
    pub(super) texts: Vec<EncoderText>,
    /// Texts that are still to be computed, longest first.
    pub(super) order: VecDeque<usize>,
    pub(super) output: EncoderOutput,
    pub(super) rows: EncoderRows,
    pub(super) deadline: Option<Instant>,
    pub(super) shared: Arc<Results>,
    pub(super) _place: Place,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.shared.end();
    }
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

/// A program that is compiled when it is first needed.
pub(super) enum Lazy {
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
pub(super) struct Worker {
    pub(super) hidden: Lazy,
    pub(super) logits: Option<Lazy>,
    pub(super) pool: Box<dyn KvPool>,
    pub(super) config: EncoderConfig,
    /// Jobs with texts to compute; the first one's turn is next.
    pub(super) waiting: VecDeque<Job>,
    pub(super) closing: Arc<AtomicBool>,
}

impl Worker {
    /// Computes jobs until the engine is closed or its device is lost.
    pub(super) fn run(mut self, jobs: &Receiver<Option<Job>>) {
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
            self.waiting.retain(|job| !job.order.is_empty() && !job.shared.is_cancelled());
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

    /// Ends all jobs of a program that cannot be compiled.
    fn fail(&mut self, output: EncoderOutput, error: &DeviceError) -> After {
        for job in self.waiting.iter_mut().filter(|job| job.output == output) {
            for number in std::mem::take(&mut job.order) {
                job.shared.put(number, Err(error.clone().into()));
            }
        }
        After::GoOn
    }
}

/// Whether the encoder's thread goes on after a step or ends.
#[derive(PartialEq, Eq)]
enum After {
    GoOn,
    Stop,
}

/// A text as a segment of a step.
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

/// The mean of `rows` of `output`, summed in f64.
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
