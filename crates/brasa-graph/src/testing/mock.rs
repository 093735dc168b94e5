//! A device that draws and stops by itself, gets the caller's answers late, and fails on request.
//!
//! The mock runs steps on the reference device. Chains run on a thread of their own, as on an accelerator: the thread has its own
//! copies of positions and histories, sends every token it draws, and applies the answer to a token only when it has drawn some
//! more. So callers of devices are tested with late answers, tokens to throw away, and failures within a chain.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use crate::Graph;
use crate::chain::{self, Chain, Finish, Flow};
use crate::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, LostPart, Measure, OpTime, Precision, Program,
    ProgramLimits, ProgramSpec, WeightSet,
};
use crate::output::Outputs;
use crate::reference::ReferenceBackend;
use crate::sampling::{Draw, DrawRules, Row, Sampler, SamplingError};
use crate::step::{Outs, PageId, Step};

use super::mock_pool::MockPool;

/// Most tokens of a row in one of the mock's chains.
const MAX_CHAIN: usize = 11;

/// The reference device behind a thread that applies answers late. Clones share the requested failures.
#[derive(Clone, Debug)]
pub struct MockBackend {
    late: usize,
    /// Number of steps until one fails.
    steps: Successes,
    /// Number of copies of pages until one fails.
    copies: Successes,
}

impl MockBackend {
    /// A device that draws `late` more tokens of each row before it applies the answer to a token.
    pub fn new(late: usize) -> Self {
        Self { late, steps: Successes::default(), copies: Successes::default() }
    }

    /// Makes the step after the next `steps` fail, alone or within a chain. Its program is lost; other programs go on.
    pub fn fail_after(&self, steps: usize) {
        self.steps.fail_after(steps);
    }

    /// Makes the copy of a page after the next `copies` fail. Nothing is lost; later copies succeed.
    pub fn fail_copy_after(&self, copies: usize) {
        self.copies.fail_after(copies);
    }
}

/// Counts down to one failure. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct Successes(Arc<AtomicUsize>);

/// The count while no failure is requested.
const NEVER: usize = usize::MAX;

impl Default for Successes {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(NEVER)))
    }
}

impl Successes {
    fn fail_after(&self, successes: usize) {
        self.0.store(successes, Ordering::SeqCst);
    }

    /// Counts one attempt; returns true if it succeeds.
    pub(super) fn take(&self) -> bool {
        let one_less =
            |left: usize| Some(if left == NEVER { NEVER } else { left.checked_sub(1).unwrap_or(NEVER) });
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) != Ok(0)
    }
}

impl Backend for MockBackend {
    fn info(&self) -> DeviceInfo {
        let description =
            format!("reference interpreter on a thread of its own, answers {} tokens late", self.late);
        DeviceInfo { name: "mock".into(), description, ..ReferenceBackend.info() }
    }

    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        ReferenceBackend.weight_set(precision)
    }

    fn measure(
        &self,
        graph: &Arc<Graph>,
        precision: Precision,
        spec: ProgramSpec,
    ) -> Result<Measure, DeviceError> {
        ReferenceBackend.measure(graph, precision, spec)
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        Ok(Box::new(MockPool::new(ReferenceBackend.kv_pool(spec)?, self.copies.clone())))
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let width = graph.outputs().first().and_then(|&output| graph.value(output).shape.row_elements());
        let steps = Steps {
            program: ReferenceBackend.compile(graph, weights, spec)?,
            successes: self.steps.clone(),
            lost: false,
        };
        Ok(Box::new(MockProgram { steps, late: self.late, vocab_size: width.unwrap_or(0) }))
    }
}

struct MockProgram {
    steps: Steps,
    late: usize,
    vocab_size: usize,
}

/// The steps of one program, with the count to the next failure.
struct Steps {
    program: Box<dyn Program>,
    successes: Successes,
    lost: bool,
}

impl Steps {
    /// Counts the begin of a step; an error if this step is to fail.
    fn begin(&mut self) -> Result<(), DeviceError> {
        self.lost |= !self.successes.take();
        if self.lost {
            return Err(DeviceError::Lost {
                device: "mock".into(),
                part: LostPart::Program,
                reason: "it was told to fail".into(),
            });
        }
        Ok(())
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        self.begin()?;
        self.program.run(step, pool)
    }
}

impl Program for MockProgram {
    fn limits(&self) -> ProgramLimits {
        self.steps.program.limits()
    }

    fn arena_bytes(&self) -> u64 {
        self.steps.program.arena_bytes()
    }

    fn describe(&self) -> String {
        self.steps.program.describe()
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        self.steps.run(step, pool)
    }

    /// 1 with a mask, since the thread that draws cannot call the caller's mask.
    fn max_chain(&self, masked: bool) -> usize {
        if masked { 1 } else { MAX_CHAIN }
    }

    fn spare_state_pages(&self) -> usize {
        self.late.max(1)
    }

    fn run_chain(
        &mut self,
        step: &mut Step,
        pool: &mut dyn KvPool,
        chain: Chain<'_, '_>,
    ) -> Result<Finish, DeviceError> {
        let Chain { rows, sink, .. } = chain;
        chain::check(step, pool, rows)?;
        if rows.is_empty() {
            return Ok(Finish { lengths: Vec::new() });
        }
        let mut device_rows = Vec::new();
        for (number, row) in rows.iter_mut().enumerate() {
            let mut mask = None;
            if let Some(hook) = row.mask.as_mut().filter(|_| step.segments[number].outs == Outs::Last) {
                if row.limit > 1 {
                    let what = format!("a chain of {} tokens with a mask in row {number}", row.limit);
                    return Err(DeviceError::Unsupported { device: "mock".into(), what });
                }
                let mut words = vec![0; self.vocab_size.div_ceil(32)];
                mask = Some(hook.fill(&[], &mut words).map(|()| words));
            }
            device_rows.push(DeviceRow {
                rules: row.rules,
                position: row.position,
                history: row.history.clone(),
                limit: row.limit,
                stops: row.stops,
                mask,
            });
        }
        let mut lengths: Vec<usize> =
            step.segments.iter().map(|segment| segment.first_index + segment.rows).collect();
        let mut shown = vec![Shown::default(); rows.len()];
        let ((tokens, from_device), (answers, to_device)) = (channel(), channel());
        let device =
            Device { steps: &mut self.steps, rows: device_rows, late: self.late, tokens, answers: to_device };
        thread::scope(|scope| {
            let device = scope.spawn(move || device.run(step, pool));
            // Both ends of the host are dropped if the sink panics, so that the device does not wait for it.
            let answers = answers;
            for (number, drawn) in from_device {
                let (row, shown) = (&mut rows[number], &mut shown[number]);
                let mut flow = Flow::StopRow;
                // Otherwise the device did not know yet that the row has ended, and the token is thrown away.
                if !shown.ended {
                    match &drawn {
                        Ok(draw) => {
                            row.history.push(draw.token);
                            row.position = row.position.saturating_add(1);
                            row.limit -= 1;
                            shown.tokens += 1;
                            if let Some(mask) = &mut row.mask {
                                mask.accept(draw.token);
                            }
                        }
                        Err(_) => shown.failed = true,
                    }
                    flow = sink(number, drawn);
                    shown.ended = flow != Flow::Continue || shown.failed;
                }
                // A device that has ended needs no answer.
                let _ = answers.send(flow);
            }
            device.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        for (length, shown) in lengths.iter_mut().zip(shown) {
            // All tokens before a draw that failed were computed; otherwise the last one is not counted.
            *length += if shown.failed { shown.tokens } else { shown.tokens.saturating_sub(1) };
        }
        Ok(Finish { lengths })
    }

    fn check_shift(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        self.steps.program.check_shift(pool)
    }

    fn shift(&mut self, pool: &mut dyn KvPool, pages: &[Vec<PageId>], by: i32) -> Result<(), DeviceError> {
        self.steps.program.shift(pool, pages, by)
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        self.steps.begin()?;
        self.steps.program.profile(step, pool)
    }
}

/// The tokens of a row that the caller has received.
#[derive(Clone, Copy, Default)]
struct Shown {
    tokens: usize,
    /// True once the caller receives no further token of the row.
    ended: bool,
    /// True if the last draw failed.
    failed: bool,
}

/// The device's side of a chain.
struct Device<'a> {
    steps: &'a mut Steps,
    rows: Vec<DeviceRow<'a>>,
    late: usize,
    tokens: Sender<(usize, Result<Draw, SamplingError>)>,
    answers: Receiver<Flow>,
}

/// The device's own copy of the inputs of a row's draws.
struct DeviceRow<'a> {
    rules: &'a DrawRules,
    position: u32,
    history: Vec<u32>,
    limit: usize,
    stops: &'a [u32],
    mask: Option<Result<Vec<u32>, SamplingError>>,
}

impl Device<'_> {
    /// Runs steps and draws until every row has ended or the caller is gone.
    fn run(mut self, step: &mut Step, pool: &mut dyn KvPool) -> Result<(), DeviceError> {
        let mut sampler = Sampler::default();
        let mut numbers: Vec<usize> = (0..step.segments.len()).collect();
        // For each step that is not answered yet, the rows that drew.
        let mut unanswered: VecDeque<Vec<usize>> = VecDeque::new();
        loop {
            let output = self.steps.run(step, pool)?.only();
            // By row: the token that goes on.
            let mut next: Vec<Option<u32>> = vec![None; self.rows.len()];
            let drawing = (step.segments.iter().zip(&numbers))
                .filter(|(segment, _)| segment.outs == Outs::Last)
                .map(|(_, &number)| number);
            let drawing: Vec<usize> = drawing.collect();
            for (out, &number) in drawing.iter().enumerate() {
                let drawn = self.rows[number].draw(output.row(out), &mut sampler);
                next[number] = drawn.as_ref().ok().and_then(|draw| self.rows[number].going_on(draw.token));
                if self.tokens.send((number, drawn)).is_err() {
                    return Ok(());
                }
            }
            unanswered.push_back(drawing);
            let mut stop_all = false;
            while unanswered.len() > self.late
                && let Some(answered) = unanswered.pop_front()
            {
                for number in answered {
                    match self.answers.recv() {
                        Ok(Flow::Continue) => {}
                        Ok(Flow::StopRow) => next[number] = None,
                        Ok(Flow::StopAll) => stop_all = true,
                        Err(_) => return Ok(()),
                    }
                }
            }
            for place in (0..numbers.len()).rev() {
                if let Some(token) = next[numbers[place]] {
                    chain::go_on(&mut step.segments[place], token);
                } else {
                    step.segments.remove(place);
                    numbers.remove(place);
                }
            }
            if stop_all || numbers.is_empty() {
                return Ok(());
            }
        }
    }
}

impl DeviceRow<'_> {
    fn draw(&mut self, logits: &[f32], sampler: &mut Sampler) -> Result<Draw, SamplingError> {
        let mask = self.mask.as_ref().map(|mask| mask.as_deref().map_err(Clone::clone)).transpose()?;
        let row = Row { logits, position: self.position, history: &self.history, mask };
        let draw = sampler.draw(self.rules, &row)?;
        self.history.push(draw.token);
        self.position = self.position.saturating_add(1);
        self.limit -= 1;
        Ok(draw)
    }

    /// The drawn token; `None` if the row ends with it.
    fn going_on(&self, token: u32) -> Option<u32> {
        (self.limit > 0 && !self.stops.contains(&token)).then_some(token)
    }
}
