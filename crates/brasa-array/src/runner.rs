//! Computing arrays on a device.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use brasa_graph::device::{
    Backend, DeviceInfo, KvPool, KvPoolSpec, Precision, Program, ProgramLimits, WeightSet,
};
use brasa_graph::step::{Outs, Segment, SequenceId, Step};
use brasa_graph::{Graph, Weight};

use crate::array::{Held, Source};
use crate::lower::{Lowered, Purpose, lower};
use crate::{Array, ArrayError, Result};

/// Computes arrays on a device.
///
/// Expressions of one form share a compiled program: only the values of their leaves are brought anew, so a loop compiles once.
pub struct Runner {
    device: Arc<dyn Backend>,
    pool: Box<dyn KvPool>,
    programs: HashMap<String, Compiled>,
    /// Bytes of results that arrays hold.
    results: Arc<AtomicU64>,
    peak_bytes: u64,
    memory_limit: u64,
    cache_limit: u64,
    /// Counts evaluations.
    clock: u64,
}

/// A program, and what its weights hold.
struct Compiled {
    program: Box<dyn Program>,
    weights: Arc<dyn WeightSet>,
    leaves: Vec<(Arc<Weight>, Weak<Held>)>,
    used: u64,
}

impl Compiled {
    fn bytes(&self) -> u64 {
        self.program.arena_bytes() + self.weights.size_bytes()
    }
}

impl Runner {
    /// A runner on a device, without limits.
    ///
    /// # Errors
    ///
    /// Errors of the device.
    pub fn new(device: Arc<dyn Backend>) -> Result<Self> {
        let pool = device.kv_pool(KvPoolSpec::empty())?;
        Ok(Self {
            device,
            pool,
            programs: HashMap::new(),
            results: Arc::default(),
            peak_bytes: 0,
            memory_limit: u64::MAX,
            cache_limit: u64::MAX,
            clock: 0,
        })
    }

    /// The device.
    pub fn device(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Computes arrays together. Afterwards they hold their values, and no longer the operations that computed them. Blocks until
    /// the device is done.
    ///
    /// # Errors
    ///
    /// The first mistake that an array on the way notes; errors of the device; [`ArrayError::Memory`]. No array has changed.
    pub fn eval(&mut self, arrays: &[&Array]) -> Result<()> {
        let mut open: Vec<Array> = Vec::new();
        for &array in arrays {
            array.check()?;
            let is_open = array.held().is_none() && open.iter().all(|known| known.key() != array.key());
            if is_open && !take_over(array) {
                open.push(array.clone());
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        let lowered = lower(&open, &[], Purpose::Values)?;
        let key = form(&lowered.graph);
        self.clock += 1;
        if !self.programs.contains_key(&key) {
            let compiled = self.compile(&lowered)?;
            self.programs.insert(key.clone(), compiled);
        }
        let found = self.run(&key, &lowered);
        if found.is_err() {
            // Whatever state the program is in, it does not serve again.
            self.programs.remove(&key);
        }
        for (array, values) in open.iter().zip(found?) {
            array.settle(Arc::new(Held::counted(values, &self.results)));
        }
        self.peak_bytes = self.peak_bytes.max(self.active_bytes());
        self.shrink_cache(self.cache_limit);
        Ok(())
    }

    /// The elements of an array, which is computed if it has not been.
    ///
    /// # Errors
    ///
    /// The errors of [`eval`](Self::eval).
    pub fn read(&mut self, array: &Array) -> Result<Vec<f32>> {
        self.eval(&[array])?;
        Ok(array.values().unwrap_or_default())
    }

    /// The only element of an array of one element.
    ///
    /// # Errors
    ///
    /// The errors of [`eval`](Self::eval); [`ArrayError::Operation`] for an array of several elements.
    pub fn item(&mut self, array: &Array) -> Result<f32> {
        match self.read(array)?[..] {
            [value] => Ok(value),
            _ => Err(crate::array::wrong("item", format!("shape {:?}, expected one element", array.shape()))),
        }
    }

    /// Bytes of results that arrays hold, and of intermediate values during a computation.
    pub fn active_bytes(&self) -> u64 {
        self.results.load(Ordering::Relaxed)
    }

    /// The most bytes that were active at once since the last [`reset_peak`](Self::reset_peak).
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Bytes of compiled programs that wait for an expression of their form.
    pub fn cache_bytes(&self) -> u64 {
        self.programs.values().map(Compiled::bytes).sum()
    }

    /// Sets the peak to the bytes that are active now.
    pub fn reset_peak(&mut self) {
        self.peak_bytes = self.active_bytes();
    }

    /// Sets the most bytes that may be active, and returns the limit before. Active arrays stay, even beyond the limit; further
    /// ones beyond it are errors.
    pub fn set_memory_limit(&mut self, bytes: u64) -> u64 {
        std::mem::replace(&mut self.memory_limit, bytes)
    }

    /// Sets the bytes to which unused programs are cut after each evaluation; returns the previous limit.
    pub fn set_cache_limit(&mut self, bytes: u64) -> u64 {
        let before = std::mem::replace(&mut self.cache_limit, bytes);
        self.shrink_cache(bytes);
        before
    }

    /// Drops all waiting programs.
    pub fn clear_cache(&mut self) {
        self.shrink_cache(0);
    }

    /// Programs that have been unused longest are dropped first.
    fn shrink_cache(&mut self, limit: u64) {
        while self.cache_bytes() > limit {
            let oldest = self.programs.iter().min_by_key(|(_, compiled)| compiled.used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else { return };
            self.programs.remove(&key);
        }
    }

    fn compile(&self, lowered: &Lowered) -> Result<Compiled> {
        let graph = Arc::new(lowered.graph.clone());
        let go_on = &mut |_| ControlFlow::Continue(());
        let weights = self.device.upload(&graph, Precision::Reference, go_on)?;
        let limits = ProgramLimits { max_rows: 1, max_outs: 1, max_segments: 1 };
        let program = self.device.compile(Arc::clone(&graph), Arc::clone(&weights), limits.into())?;
        let held = lowered.leaves.iter().map(|(_, held)| held.as_ref().map_or(Weak::new(), Arc::downgrade));
        let leaves = graph.weights().iter().cloned().zip(held).collect();
        Ok(Compiled { program, weights, leaves, used: self.clock })
    }

    fn run(&mut self, key: &str, lowered: &Lowered) -> Result<Vec<Vec<f32>>> {
        let active = self.active_bytes();
        let compiled =
            self.programs.get_mut(key).ok_or_else(|| crate::array::wrong("eval", "no program".into()))?;
        compiled.used = self.clock;
        let needed_bytes = active.saturating_add(compiled.bytes());
        if needed_bytes > self.memory_limit {
            return Err(ArrayError::Memory { needed_bytes, limit_bytes: self.memory_limit });
        }
        self.peak_bytes = self.peak_bytes.max(needed_bytes);
        for ((weight, holds), (_, held)) in compiled.leaves.iter_mut().zip(&lowered.leaves) {
            let Some(held) = held else { continue };
            // A weak pointer that is alive, to the same elements: they are on the device already.
            if holds.upgrade().is_none_or(|holds| !Arc::ptr_eq(&holds, held)) {
                compiled.weights.write(weight, &held.values)?;
                *holds = Arc::downgrade(held);
            }
        }
        let row = Segment::text(SequenceId(0), 0, vec![0], Outs::None, Vec::new());
        let outputs = compiled.program.run(&Step { segments: vec![row] }, &mut *self.pool)?;
        Ok(outputs.iter().map(|output| output.floats().to_vec()).collect())
    }
}

/// Gives an array the elements of the array that it shares them with, if those are in memory.
fn take_over(array: &Array) -> bool {
    let mut root = array.clone();
    loop {
        let source = root.source().clone();
        match source {
            Source::Same(of, _) => root = of,
            Source::Values(held) => {
                array.settle(held);
                return true;
            }
            Source::Result(..) | Source::Wrong(_) => return false,
        }
    }
}

/// The text of a graph's operations, operands and shapes. Graphs with the same text share a program.
fn form(graph: &Graph) -> String {
    let mut text = String::new();
    for weight in graph.weights() {
        let _ = write!(text, "{:?};", weight.shape);
    }
    for node in graph.nodes() {
        let _ = write!(text, "{:?}{:?}{:?};", node.op, node.inputs, node.outputs);
    }
    let _ = write!(text, "{:?}", graph.outputs());
    text
}

/// The graph that computes arrays, for printing with [`brasa_graph::print`]. Leaves are weights that hold their values.
///
/// # Errors
///
/// The first mistake that an array on the way notes.
pub fn graph(arrays: &[Array]) -> Result<Graph> {
    Ok(lower(arrays, &[], Purpose::Values)?.graph)
}
