//! A device that stands still, fails and says what it is told to, in front of the CPU.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use brasa::{LoadOptions, OwnDevice};
use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_graph::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, LostPart, OpTime, Precision, Program,
    ProgramLimits, ProgramSpec, WeightSet,
};
use brasa_graph::output::{OutputPlace, OutputValues, Outputs};
use brasa_graph::step::{Outs, Segment, Step};
use brasa_graph::{Graph, Sizes};
use brasa_server::ServerOptions;

use super::client::options;

/// Fault of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The step fails, and later ones succeed.
    Once,
    /// The step fails, and so do all others of its program.
    ForGood,
    /// The device breaks its contract, and takes the engine's thread along.
    Panic,
}

/// A device that stands still and fails when it is told to. Clones are one device.
#[derive(Clone)]
pub struct Device {
    cpu: Arc<CpuBackend>,
    orders: Arc<(Mutex<Orders>, Condvar)>,
}

#[derive(Default)]
struct Orders {
    /// Steps of at least so many texts stand still.
    holds_steps: Option<usize>,
    holds_loading: bool,
    refuses_loading: Option<LostPart>,
    /// Loadings that were refused.
    refusals: usize,
    /// Steps and loadings that stand still.
    held: usize,
    fault: Option<Fault>,
    /// The ids that every text goes on with behind this number of tokens.
    script: Option<(usize, Vec<u32>)>,
    /// Least time of a step.
    pace: Duration,
    /// Programs made, and rows computed.
    programs: usize,
    rows: usize,
}

impl Device {
    pub fn new() -> Self {
        // Like the devices of the other servers.
        let options = CpuOptions { threads: Some(1), deterministic: true, ..CpuOptions::default() };
        let cpu = CpuBackend::new(options).unwrap();
        Self { cpu: Arc::new(cpu), orders: Arc::default() }
    }

    /// The options of a server on this device.
    pub fn options(&self) -> ServerOptions {
        let own_device = Some(OwnDevice(Arc::new(self.clone())));
        let load = LoadOptions { own_device, ..options().load };
        ServerOptions { load, ..options() }
    }

    /// Lets the next step of at least `texts` texts stand still.
    pub fn hold(&self, texts: usize) {
        self.change(|orders| orders.holds_steps = Some(texts));
    }

    /// Lets loading stand still from now on.
    pub fn hold_loading(&self) {
        self.change(|orders| orders.holds_loading = true);
    }

    /// Lets no model be loaded from now on: so much of the device is lost.
    pub fn refuse_loading(&self, what: LostPart) {
        self.change(|orders| orders.refuses_loading = Some(what));
    }

    /// Loadings refused so far.
    pub fn refusals(&self) -> usize {
        self.lock().refusals
    }

    /// Waits until a step or a loading stands still.
    pub fn until_held(&self) {
        let patience = Duration::from_secs(20);
        let (orders, waited) =
            self.orders.1.wait_timeout_while(self.lock(), patience, |orders| orders.held == 0).unwrap();
        drop(orders);
        assert!(!waited.timed_out(), "nothing stands still");
    }

    /// Lets everything go on.
    pub fn release(&self) {
        self.change(|orders| (orders.holds_steps, orders.holds_loading) = (None, false));
    }

    /// Lets the next step fail. One that stands still is the next.
    pub fn fail(&self, fault: Fault) {
        self.change(|orders| orders.fault = Some(fault));
    }

    /// Lets no step be shorter than this.
    pub fn pace(&self, pace: Duration) {
        self.change(|orders| orders.pace = pace);
    }

    /// Has texts with `prompt` tokens go on with these, whatever the model makes of them.
    pub fn say(&self, prompt: usize, tokens: Vec<u32>) {
        self.change(|orders| orders.script = Some((prompt, tokens)));
    }

    /// Rows computed so far.
    pub fn rows(&self) -> usize {
        self.lock().rows
    }

    /// Programs made so far.
    pub fn programs(&self) -> usize {
        self.lock().programs
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.0.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.lock());
        self.orders.1.notify_all();
    }

    /// Stands still while it is told to; returns the fault that was asked for.
    fn pass(&self, is_held: impl Fn(&Orders) -> bool) -> Option<Fault> {
        let mut orders = self.lock();
        if is_held(&orders) {
            orders.held += 1;
            self.orders.1.notify_all();
            orders = self.orders.1.wait_while(orders, |orders| is_held(orders)).unwrap();
            orders.held -= 1;
        }
        orders.fault.take()
    }
}

impl Backend for Device {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "faulty".into(), ..self.cpu.info() }
    }

    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        self.cpu.weight_set(precision)
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        self.cpu.kv_pool(spec)
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        self.pass(|orders| orders.holds_loading);
        let refuses = self.lock().refuses_loading;
        if let Some(what) = refuses {
            self.change(|orders| orders.refusals += 1);
            return Err(lost(what));
        }
        self.change(|orders| orders.programs += 1);
        let places = OutputPlace::of(&graph);
        let program = self.cpu.compile(graph, weights, spec)?;
        Ok(Box::new(Faulty { device: self.clone(), program, places, words: Vec::new(), is_lost: false }))
    }
}

/// For each row of logits, the number of tokens in front of what is drawn from it.
fn places_behind(step: &Step) -> Vec<usize> {
    let rows = |segment: &Segment| -> Vec<usize> {
        let rows = match &segment.outs {
            Outs::None => Vec::new(),
            Outs::Last => vec![segment.rows - 1],
            Outs::All => (0..segment.rows).collect(),
            Outs::Rows(rows) => rows.iter().map(|&row| row as usize).collect(),
        };
        rows.into_iter().map(|row| segment.first_index + row + 1).collect()
    };
    step.segments.iter().flat_map(rows).collect()
}

/// The error of a device that has lost something.
fn lost(part: LostPart) -> DeviceError {
    DeviceError::Lost { device: "faulty".into(), part, reason: "it was told to fail".into() }
}

struct Faulty {
    device: Device,
    program: Box<dyn Program>,
    /// The outputs of a step in which something is said.
    places: Vec<OutputPlace>,
    words: Vec<u32>,
    is_lost: bool,
}

impl Program for Faulty {
    fn limits(&self) -> ProgramLimits {
        self.program.limits()
    }

    fn arena_bytes(&self) -> u64 {
        self.program.arena_bytes()
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        let fault =
            self.device.pass(|orders| orders.holds_steps.is_some_and(|texts| step.segments.len() >= texts));
        assert_ne!(fault, Some(Fault::Panic), "a fault that a test asked for");
        self.is_lost |= fault == Some(Fault::ForGood);
        if self.is_lost {
            return Err(lost(LostPart::Context));
        }
        if fault == Some(Fault::Once) {
            return Err(DeviceError::OutOfMemory { bytes: 7, what: "a step that was told to fail".into() });
        }
        let rows: usize = step.segments.iter().map(|segment| segment.rows).sum();
        self.device.change(|orders| orders.rows += rows);
        std::thread::sleep(self.device.lock().pace);
        let outputs = self.program.run(step, pool)?;
        let Some((prompt, tokens)) = self.device.lock().script.clone() else { return Ok(outputs) };
        let OutputValues::F32(logits) = outputs.only().values() else { return Ok(outputs) };
        self.words.clear();
        self.words.extend(logits.iter().map(|logit| logit.to_bits()));
        let vocabulary = logits.len() / step.outs().max(1);
        for (out, behind) in places_behind(step).into_iter().enumerate() {
            if let Some(&token) = behind.checked_sub(prompt).and_then(|at| tokens.get(at)) {
                self.words[out * vocabulary + token as usize] = 1e4_f32.to_bits();
            }
        }
        for place in &mut self.places {
            place.resolve(&Sizes::of(step), 0);
        }
        Ok(Outputs::new(&self.places, &self.words))
    }

    /// Engines tell their state between chains, so short ones keep it fresh.
    fn max_chain(&self, _: bool) -> usize {
        4
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        self.program.profile(step, pool)
    }
}
