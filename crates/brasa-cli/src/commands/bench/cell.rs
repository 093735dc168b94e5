//! One cell of the table: a prompt, or sequences that decode together, at some context depth.

use std::time::{Duration, Instant};

use brasa::SamplingParams;
use brasa::engine::{EngineError, Executor, Flow, Outs, Sequence, SequenceChain, SequenceRows};
use brasa::sampling::DrawRules;
use brasa::{Arithmetic, Ceilings, Model, ModelInfo};

use crate::args::BenchArguments;
use crate::failure::Failure;
use crate::interrupt;

/// The settings of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// Number of prompt tokens; 0 for a generation.
    pub prompt: usize,
    /// Number of tokens that each sequence generates; 0 for a prompt.
    pub generate: usize,
    /// Tokens already in the context of each sequence.
    pub depth: usize,
    /// Number of sequences that decode together.
    pub parallel: usize,
}

/// The measurements of a cell.
pub struct Measurement {
    pub cell: Cell,
    /// Time of each repetition.
    pub samples: Vec<Duration>,
    /// The machine's ceilings, before the first repetition and after each.
    pub probes: Vec<Probe>,
    /// Bytes that one repetition reads: weights, as stored, and caches.
    pub read_bytes: u64,
    /// Multiplications and additions of one repetition.
    pub operations: u64,
}

/// The machine's ceilings at one moment.
pub struct Probe {
    pub read_bytes_per_second: f64,
    /// The arithmetic of most of the cell's products.
    pub arithmetic: Arithmetic,
    /// Operations a second of this arithmetic on operands in registers; `None` if no probe measures it.
    pub operations_per_second: Option<f64>,
}

impl Cell {
    /// All combinations of the requested settings.
    pub fn all(arguments: &BenchArguments) -> Vec<Self> {
        let mut cells = Vec::new();
        for &depth in &arguments.depth {
            for &prompt in arguments.prompt.iter().filter(|&&prompt| prompt > 0) {
                cells.push(Self { prompt, generate: 0, depth, parallel: 1 });
            }
            for &generate in arguments.n.iter().filter(|&&generate| generate > 0) {
                for &parallel in &arguments.parallel {
                    cells.push(Self { prompt: 0, generate, depth, parallel });
                }
            }
        }
        cells
    }

    /// Name of the cell in llama-bench's table.
    pub fn test(&self) -> String {
        let what =
            if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generate) };
        let together = if self.parallel > 1 { format!(" × {}", self.parallel) } else { String::new() };
        let depth = if self.depth > 0 { format!(" @ d{}", self.depth) } else { String::new() };
        format!("{what}{together}{depth}")
    }

    /// Number of positions of a sequence at the end.
    pub fn positions(&self) -> usize {
        self.depth + self.prompt + self.generate
    }

    /// Number of rows of the largest step, at most `max_rows`.
    fn rows(&self, max_rows: usize) -> usize {
        if self.prompt > 0 { self.prompt.min(max_rows) } else { self.parallel }
    }

    /// Number of tokens that a repetition computes, over all sequences.
    pub fn tokens(&self) -> usize {
        (self.prompt + self.generate) * self.parallel
    }
}

impl Measurement {
    /// The arithmetic of most of the cell's products; `None` without probes.
    pub fn arithmetic(&self) -> Option<Arithmetic> {
        self.probes.first().map(|probe| probe.arithmetic)
    }

    /// Tokens per second of each repetition.
    pub fn tokens_per_second(&self) -> Vec<f64> {
        self.samples.iter().map(|sample| self.cell.tokens() as f64 / sample.as_secs_f64()).collect()
    }
}

/// Runs a cell: first a warm-up that counts operations, then the repetitions, with a probe before and after each if there are
/// `ceilings`.
pub fn measure(
    model: &Model,
    cell: Cell,
    repetitions: usize,
    ceilings: Option<&Ceilings>,
) -> Result<Measurement, Failure> {
    let mut measurement =
        Measurement { cell, samples: Vec::new(), probes: Vec::new(), read_bytes: 0, operations: 0 };
    let mut sequences = with(model, move |executor| prepare(executor, cell))?;
    // The first run pays for page faults and cold caches; it is spent on counting.
    let (counted, read_bytes, operations);
    (counted, read_bytes, operations) = with(model, move |executor| count(executor, sequences, cell))?;
    sequences = counted;
    (measurement.read_bytes, measurement.operations) = (read_bytes, operations);
    let max_rows = with(model, |executor| Ok(executor.max_rows()))?;
    let probe = || probe(ceilings, model.info(), cell.rows(max_rows));
    measurement.probes.extend(probe()?);
    for _ in 0..repetitions {
        interrupt::check()?;
        let time;
        (sequences, time) = with(model, move |executor| sample(executor, sequences, cell))?;
        measurement.samples.push(time);
        measurement.probes.extend(probe()?);
    }
    with(model, move |executor| {
        for sequence in sequences {
            executor.release(sequence);
        }
        Ok(())
    })?;
    Ok(measurement)
}

/// Runs `work` on the engine's thread.
pub fn with<T: Send + 'static>(
    model: &Model,
    work: impl FnOnce(&mut Executor) -> Result<T, EngineError> + Send + 'static,
) -> Result<T, Failure> {
    Ok(model.engine().with(work).map_err(brasa::Error::from)?.map_err(brasa::Error::from)?)
}

/// The token at `index` of sequence `sequence`: arbitrary tokens that differ from each other.
pub fn token(executor: &Executor, sequence: usize, index: usize) -> u32 {
    ((index * 7919 + sequence * 104_729 + 13) % executor.vocab_size()) as u32
}

fn probe(ceilings: Option<&Ceilings>, info: &ModelInfo, rows: usize) -> Result<Option<Probe>, Failure> {
    let Some(ceilings) = ceilings else { return Ok(None) };
    let arithmetic = ceilings.arithmetic(info, rows);
    Ok(Some(Probe {
        read_bytes_per_second: ceilings.read_bytes_per_second()?,
        arithmetic,
        operations_per_second: ceilings.operations_per_second(arithmetic)?,
    }))
}

/// Makes the sequences and fills them to their depth.
fn prepare(executor: &mut Executor, cell: Cell) -> Result<Vec<Sequence>, EngineError> {
    (0..cell.parallel)
        .map(|number| {
            let mut sequence = executor.sequence();
            fill(executor, &mut sequence, number, cell.depth)?;
            Ok(sequence)
        })
        .collect()
}

fn fill(
    executor: &mut Executor,
    sequence: &mut Sequence,
    number: usize,
    depth: usize,
) -> Result<(), EngineError> {
    let missing = sequence.tokens().len()..depth;
    let tokens: Vec<u32> = missing.map(|index| token(executor, number, index)).collect();
    executor.prefill(sequence, &tokens)
}

/// Shortens the sequences to their depth and runs the cell once more; returns its time.
fn sample(
    executor: &mut Executor,
    mut sequences: Vec<Sequence>,
    cell: Cell,
) -> Result<(Vec<Sequence>, Duration), EngineError> {
    for (number, sequence) in sequences.iter_mut().enumerate() {
        // If a sliding window has forgotten what the depth needs, all of it is computed again.
        executor.truncate(sequence, cell.depth);
        fill(executor, sequence, number, cell.depth)?;
    }
    let time = if cell.prompt > 0 {
        prompt(executor, &mut sequences, cell)?
    } else {
        generate(executor, &mut sequences, cell)?
    };
    Ok((sequences, time))
}

/// Runs a prompt; returns its time.
fn prompt(executor: &mut Executor, sequences: &mut [Sequence], cell: Cell) -> Result<Duration, EngineError> {
    let steps = steps(executor, cell);
    let started = Instant::now();
    for step in &steps {
        executor.run(&mut step.rows(sequences))?;
    }
    Ok(started.elapsed())
}

/// Runs a generation in chains, as the engine does: each drawn token is the next step's row. Returns its time.
fn generate(
    executor: &mut Executor,
    sequences: &mut [Sequence],
    cell: Cell,
) -> Result<Duration, EngineError> {
    let rules = DrawRules::new(SamplingParams::default())?;
    let mut texts: Vec<Vec<u32>> = sequences
        .iter()
        .enumerate()
        .map(|(number, sequence)| [sequence.tokens(), &[token(executor, number, cell.depth)]].concat())
        .collect();
    let started = Instant::now();
    let mut left = cell.generate;
    while left > 0 {
        let limit = left.min(executor.max_chain(false).max(1));
        let mut chains: Vec<SequenceChain<'_>> = sequences
            .iter_mut()
            .zip(&mut texts)
            .map(|(sequence, tokens)| SequenceChain {
                sequence,
                position: tokens.len() as u32,
                tokens,
                rows: 1,
                reads: None,
                rules: &rules,
                limit,
                stops: &[],
                mask: None,
                drafts: &[],
            })
            .collect();
        let mut failure = None;
        executor
            .run_chain(&mut chains, &mut |_, drawn| match drawn {
                Ok(_) => Flow::Continue,
                Err(error) => {
                    failure = Some(error);
                    Flow::StopAll
                }
            })
            .map_err(EngineError::from)?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        // Where pages or positions are wanting, a chain is shorter.
        let done = chains.iter().map(|chain| chain.limit).min().unwrap_or(left);
        left -= done.min(left);
    }
    Ok(started.elapsed())
}

/// Runs the cell; returns the bytes read and the operations of all steps.
fn count(
    executor: &mut Executor,
    mut sequences: Vec<Sequence>,
    cell: Cell,
) -> Result<(Vec<Sequence>, u64, u64), EngineError> {
    let (mut bytes, mut operations) = (0, 0);
    for step in steps(executor, cell) {
        for time in executor.profile(&mut step.rows(&mut sequences))? {
            bytes += time.bytes;
            operations += time.flops;
        }
    }
    Ok((sequences, bytes, operations))
}

/// The tokens of every sequence in one step.
struct StepTokens {
    tokens: Vec<Vec<u32>>,
    outs: Outs,
}

impl StepTokens {
    fn rows<'a>(&'a self, sequences: &'a mut [Sequence]) -> Vec<SequenceRows<'a>> {
        let pairs = sequences.iter_mut().zip(&self.tokens);
        pairs.map(|(sequence, tokens)| SequenceRows { sequence, tokens, outs: self.outs.clone() }).collect()
    }
}

/// The steps of a cell: a prompt in chunks, with logits for the last; or one row of every sequence in each step.
fn steps(executor: &Executor, cell: Cell) -> Vec<StepTokens> {
    let rows = if cell.prompt > 0 { executor.max_rows() } else { 1 };
    let end = cell.prompt + cell.generate;
    (0..end)
        .step_by(rows)
        .map(|first| {
            let indices = first..end.min(first + rows);
            let last = cell.generate > 0 || indices.end == end;
            let row = |sequence| {
                indices.clone().map(|index| token(executor, sequence, cell.depth + index)).collect()
            };
            StepTokens {
                tokens: (0..cell.parallel).map(row).collect(),
                outs: if last { Outs::Last } else { Outs::None },
            }
        })
        .collect()
}
