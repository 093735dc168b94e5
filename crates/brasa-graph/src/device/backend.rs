//! A device: what it is, what it can run, and how its parts are made.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::capabilities::Capabilities;
use super::error::DeviceError;
use super::pool::{KvPool, KvPoolSpec};
use super::program::{Program, ProgramSpec};
use super::weights::{UploadProgress, WeightSet};
use crate::Graph;

/// A device that runs graphs.
pub trait Backend: Send + Sync {
    /// Name and abilities of the device, for people.
    fn info(&self) -> DeviceInfo;

    /// Limits of the device, known before anything is uploaded. The default implementation sets no limits.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Free bytes of the device's memory; `None` if the device does not tell.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Bytes of device memory in use by weights, pages and programs of this backend; `None` if the backend does not count them.
    fn memory_use(&self) -> Option<MemoryUse> {
        None
    }

    /// An empty set of weights that are multiplied with `precision`.
    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet>;

    /// A set of the weights of `graph`: [`weight_set`](Self::weight_set), then [`WeightSet::add`].
    ///
    /// # Errors
    ///
    /// Errors of [`WeightSet::add`].
    fn upload(
        &self,
        graph: &Graph,
        precision: Precision,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<Arc<dyn WeightSet>, DeviceError> {
        let weights = self.weight_set(precision);
        weights.add(graph, progress)?;
        Ok(weights)
    }

    /// Approximate bytes of the weights of `graph` on the device: their size in the checkpoint, unless the device stores them in
    /// another form.
    fn weight_bytes(&self, graph: &Graph) -> u64 {
        graph.weights().iter().map(|weight| weight.stored_bytes()).sum()
    }

    /// Bytes of device memory that [`WeightSet::add`] takes for `graph` in an empty set, and bytes of the arena that
    /// [`compile`](Self::compile) makes. `measure` itself uploads no weights and makes no arena, so the model need not fit.
    ///
    /// The default implementation is for devices without an arena: it counts the weights as the checkpoint stores them.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if the device cannot run the graph, [`DeviceError::OutOfMemory`] if a size is beyond any
    /// memory.
    fn measure(
        &self,
        graph: &Arc<Graph>,
        precision: Precision,
        spec: ProgramSpec,
    ) -> Result<Measure, DeviceError> {
        let _ = (precision, spec);
        Ok(Measure { weight_bytes: self.weight_bytes(graph), arena_bytes: 0 })
    }

    /// Makes an empty pool of KV pages.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`] if the device does not support the element type.
    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError>;

    /// Compiles `graph`. Its weights must have been added to `weights`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], [`DeviceError::OutOfMemory`].
    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError>;
}

/// Device memory that a model takes, without its keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Bytes of the weights, in all forms in which the device keeps them.
    pub weight_bytes: u64,
    /// Bytes of a program's arena, as [`Program::arena_bytes`] counts them before the first step.
    pub arena_bytes: u64,
}

/// Device memory in use by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes in use now.
    pub held_bytes: u64,
    /// Most bytes in use at one time since the backend was made.
    pub most_held_bytes: u64,
}

/// Name and abilities of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Short name, e.g. `cpu`.
    pub name: String,
    /// For people: model, instruction sets, threads.
    pub description: String,
    /// Threads of this process that compute.
    pub threads: usize,
    /// Memory of the device, if known.
    pub memory_bytes: Option<u64>,
    /// Rows of a prompt that the device computes efficiently at once.
    pub prompt_rows: usize,
    /// Texts that the device decodes efficiently at once. More texts make each answer slower and their total hardly faster.
    pub decode_rows: usize,
}

/// How exactly a program computes.
///
/// A `match` over this enum is exhaustive on purpose: every device has to handle each precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// The device's fastest arithmetic within its bounds: int8 activations for quantised weights on a CPU.
    #[default]
    Fast,
    /// f32 activations, weights decoded exactly.
    Reference,
}
