//! Weights in device memory: matrices in their stored formats, and small ones decoded.
//!
//! Matrices of linear layers and tables of embeddings keep their stored numbers, which kernels decode as they read them; nearly all
//! are repacked into the order in which tensor cores read them ([`stored`]). All other weights (norms, biases,
//! frequencies) are decoded to f32 when they are uploaded.

mod layout;
mod source;
mod stored;
mod upload;

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use brasa_formats::StorageFormat;
use brasa_graph::device::{DeviceError, Precision, UploadProgress, WeightSet};
use brasa_graph::fuse::{Fusion, GateUpActivation, Pattern};
use brasa_graph::{Graph, Item, Op, Schedule, ValueId, ValueKind, Weight, WeightMap};

use crate::driver::DeviceMemory;
use crate::gpu::Gpu;
pub(crate) use layout::{Layout, SUB_INPUTS, TILE_OUTPUTS};
pub(crate) use stored::{Halves, Stored, Stretch, Tiles, raise_of};
use upload::Uploader;

/// Weights on one GPU, found by their identity.
#[derive(Debug)]
pub(crate) struct CudaWeightSet {
    pub gpu: Arc<Gpu>,
    precision: Precision,
    held: WeightMap<Held>,
    /// Held for writing while elements change, and for reading while a step runs.
    steady: RwLock<()>,
}

/// The forms of one weight, each uploaded when a graph first needs it.
#[derive(Debug, Default)]
struct Held {
    stored: OnceLock<Arc<Stored>>,
    /// f32, dense.
    decoded: OnceLock<Arc<DeviceMemory>>,
}

/// The weights of one program, in order of the graph's ids.
#[derive(Debug)]
pub(crate) struct CudaWeights {
    set: Arc<CudaWeightSet>,
    weights: Vec<Uploaded>,
}

#[derive(Debug)]
struct Uploaded {
    elements: u64,
    /// Bytes in the checkpoint.
    stored_bytes: u64,
    stored: Option<Arc<Stored>>,
    decoded: Option<Arc<DeviceMemory>>,
}

/// How a graph uses a weight.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    stored: bool,
    decoded: bool,
}

impl CudaWeightSet {
    /// An empty set.
    pub(crate) fn new(gpu: &Arc<Gpu>, precision: Precision) -> Self {
        Self { gpu: Arc::clone(gpu), precision, held: WeightMap::default(), steady: RwLock::new(()) }
    }

    /// The weights of `graph`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unsupported`], naming a weight that was not added, or not for such a graph.
    pub(crate) fn weights_of(self: Arc<Self>, graph: &Graph) -> Result<CudaWeights, DeviceError> {
        let mut weights = Vec::with_capacity(graph.weights().len());
        for (weight, uses) in graph.weights().iter().zip(uses(graph)) {
            let held = self.held(weight)?;
            if !held.serves(uses) {
                return Err(self.not_added(weight));
            }
            weights.push(Uploaded {
                elements: weight.shape.iter().product::<usize>() as u64,
                stored_bytes: weight.stored_bytes(),
                stored: held.stored.get().cloned(),
                decoded: held.decoded.get().cloned(),
            });
        }
        Ok(CudaWeights { set: self, weights })
    }

    fn held(&self, weight: &Arc<Weight>) -> Result<Arc<Held>, DeviceError> {
        self.held.get(weight).ok_or_else(|| self.not_added(weight))
    }

    fn not_added(&self, weight: &Weight) -> DeviceError {
        DeviceError::not_added(&self.gpu.name, weight)
    }
}

impl Held {
    fn serves(&self, uses: Uses) -> bool {
        (self.stored.get().is_some() || !uses.stored) && (self.decoded.get().is_some() || !uses.decoded)
    }

    fn size_bytes(&self) -> usize {
        let stored = self.stored.get().map_or(0, |stored| stored.size_bytes());
        stored + self.decoded.get().map_or(0, |memory| memory.size_bytes())
    }
}

impl CudaWeights {
    /// True if products may be computed by the fast kernels.
    pub(crate) fn is_fast(&self) -> bool {
        self.set.precision == Precision::Fast && !self.set.gpu.deterministic
    }

    /// Keeps every weight as it is until the result is dropped.
    pub(crate) fn hold_steady(&self) -> RwLockReadGuard<'_, ()> {
        self.set.steady.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps other programs from reading weights until the result is dropped, so that they can change.
    pub(crate) fn hold_changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.set.steady.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a weight that is held as one matrix of f32 and in no other form.
    pub(crate) fn learnable(&self, weight: &Arc<Weight>) -> Option<u64> {
        let held = self.set.held.get(weight)?;
        let stored = held.stored.get()?;
        stored.floats().filter(|_| held.decoded.get().is_none())
    }

    /// Weight `number` in its stored formats.
    pub(crate) fn stored(&self, number: usize) -> Option<&Stored> {
        self.weights[number].stored.as_deref()
    }

    /// The address of weight `number` as dense f32.
    pub(crate) fn decoded(&self, number: usize) -> Option<u64> {
        self.weights[number].decoded.as_ref().map(|memory| memory.address())
    }

    /// Bytes of weight `number` in the checkpoint.
    pub(crate) fn stored_bytes(&self, number: usize) -> u64 {
        self.weights[number].stored_bytes
    }

    /// Elements of weight `number`.
    pub(crate) fn elements(&self, number: usize) -> u64 {
        self.weights[number].elements
    }
}

impl WeightSet for CudaWeightSet {
    fn add(
        &self,
        graph: &Graph,
        progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        let _changing = self.steady.write().unwrap_or_else(PoisonError::into_inner);
        let all = graph.weights().iter().zip(uses(graph));
        let missing: Vec<(&Arc<Weight>, Uses)> = all
            .filter(|(weight, uses)| self.held.get(weight).is_none_or(|held| !held.serves(*uses)))
            .collect();
        let total_bytes = missing.iter().map(|(weight, _)| weight.stored_bytes()).sum();
        let gates = Gates::of(graph);
        let mut uploader = Uploader::new(&self.gpu)?;
        let mut done_bytes = 0;
        for (weight, uses) in missing {
            let held = self.held.entry(weight, || Ok(Held::default()))?;
            if uses.stored && held.stored.get().is_none() {
                let same = |(of, _): &&(Arc<Weight>, Halves)| Arc::ptr_eq(of, weight);
                let halves = gates.halves.iter().find(same).map(|(_, halves)| halves);
                let is_beside = gates.beside.iter().any(|of| Arc::ptr_eq(of, weight));
                let stored = Arc::new(Stored::new(&mut uploader, weight, halves, is_beside)?);
                held.stored.get_or_init(|| stored);
            }
            if uses.decoded && held.decoded.get().is_none() {
                let decoded = Arc::new(decode(&self.gpu, weight)?);
                held.decoded.get_or_init(|| decoded);
            }
            done_bytes += weight.stored_bytes();
            if progress(UploadProgress { done_bytes, total_bytes }).is_break() {
                return Err(DeviceError::Cancelled);
            }
        }
        Ok(())
    }

    fn read(&self, weight: &Arc<Weight>) -> Result<Vec<f32>, DeviceError> {
        let _steady = self.steady.read().unwrap_or_else(PoisonError::into_inner);
        let held = self.held(weight)?;
        if let Some(decoded) = held.decoded.get() {
            let mut values = vec![0.0_f32; weight.rows() * weight.row_len()];
            self.gpu.read(decoded, bytemuck::cast_slice_mut(&mut values))?;
            return Ok(values);
        }
        let stored = held.stored.get().ok_or_else(|| self.not_added(weight))?;
        let found = stored.read(&mut Uploader::new(&self.gpu)?, weight)?;
        let array = brasa_graph::reference::decode_weight(&found)?;
        Ok(array.floats().to_vec())
    }

    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError> {
        let _changing = self.steady.write().unwrap_or_else(PoisonError::into_inner);
        let held = self.held(weight)?;
        let written = weight.with_values(values).map_err(|error| self.gpu.unsupported(error.to_string()))?;
        if let Some(stored) = held.stored.get() {
            stored.write(&mut Uploader::new(&self.gpu)?, &written)?;
        }
        if let Some(decoded) = held.decoded.get() {
            let array = brasa_graph::reference::decode_weight(&written)?;
            self.gpu.write(decoded, 0, bytemuck::cast_slice(array.floats()))?;
        }
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.held.values().iter().map(|held| held.size_bytes() as u64).sum()
    }

    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

/// True if operand `place` of `op` is read as it is stored, being a weight.
pub(crate) fn reads_stored(op: &Op, place: usize) -> bool {
    match op {
        Op::Embed(_)
        | Op::Linear(_)
        | Op::LinearTransposed(_)
        | Op::HeadLinear(_)
        | Op::LinearCrossEntropy(_)
        | Op::LinearCrossEntropyGradient(_) => place == 1,
        Op::ExpertLinear(_) | Op::ExpertLinearTransposed(_) => place == 2,
        _ => false,
    }
}

fn uses(graph: &Graph) -> Vec<Uses> {
    let mut uses = vec![Uses::default(); graph.weights().len()];
    let decoded = |uses: &mut Vec<Uses>, value: ValueId| {
        if let ValueKind::Weight(weight) = graph.value(graph.view(value).root).kind {
            uses[weight.0 as usize].decoded = true;
        }
    };
    for node in graph.nodes().iter().filter(|node| !node.op.is_view()) {
        for (place, &input) in node.inputs.iter().enumerate() {
            match graph.value(input).kind {
                ValueKind::Weight(weight) if reads_stored(&node.op, place) => {
                    uses[weight.0 as usize].stored = true;
                }
                _ => decoded(&mut uses, input),
            }
        }
    }
    graph.outputs().iter().for_each(|&output| decoded(&mut uses, output));
    uses
}

/// Bytes that the weights of `graph` take, about.
pub(crate) fn bytes_of(graph: &Graph) -> u64 {
    let bytes = |(weight, uses): (&Arc<Weight>, Uses)| {
        let stored =
            uses.stored.then(|| weight.parts.iter().map(|part| layout::part_bytes(weight, part)).sum());
        let decoded = uses.decoded.then(|| 4 * weight.shape.iter().product::<usize>() as u64);
        stored.unwrap_or(0_u64) + decoded.unwrap_or(0)
    };
    graph.weights().iter().zip(uses(graph)).map(bytes).sum()
}

/// Weights of gated layers of a graph, and the low-rank matrices beside them. An upload pairs the halves of the weights, and keeps
/// the norms of both.
#[derive(Default)]
struct Gates {
    /// Weights of which one half of the outputs is gated with the other.
    halves: Vec<(Arc<Weight>, Halves)>,
    /// Low-rank matrices beside them.
    beside: Vec<Arc<Weight>>,
}

impl Gates {
    fn of(graph: &Graph) -> Self {
        let schedule = Schedule::new(graph, &[Pattern::GateUpLowRankRows, Pattern::GateUpActivation]);
        let weight = |value| match graph.value(value).kind {
            ValueKind::Weight(weight) => Some(Arc::clone(&graph.weights()[weight.0 as usize])),
            _ => None,
        };
        let mut gates = Self::default();
        for item in schedule.items() {
            let Item::Fused(fused) = item else { continue };
            let (w, halves) = match &fused.fusion {
                Fusion::GateUpActivation(GateUpActivation { gate, up, unit, .. })
                    if gate.w == up.w && unit.activation().is_some() =>
                {
                    (gate.w, Halves { gate: gate.rows.clone(), up: up.rows.clone() })
                }
                Fusion::GateUpLowRankRows(gated) => {
                    gates.beside.extend([gated.of.low.a, gated.of.low.b].into_iter().filter_map(weight));
                    (gated.of.layer.w, Halves::of(graph, gated))
                }
                _ => continue,
            };
            gates.halves.extend(weight(w).map(|weight| (weight, halves)));
        }
        gates
    }
}

/// Decodes all of a weight on the host and uploads it.
fn decode(gpu: &Gpu, weight: &Weight) -> Result<DeviceMemory, DeviceError> {
    if gpu.measures {
        return gpu.allocate(weight.rows() * weight.row_len() * 4, &weight.name);
    }
    let array = brasa_graph::reference::decode_weight(weight)?;
    let memory = gpu.allocate(array.floats().len() * 4, &weight.name)?;
    gpu.write(&memory, 0, bytemuck::cast_slice(array.floats()))?;
    Ok(memory)
}

/// How rows lie in device memory, by which their kernels are chosen: in tiles, or as the checkpoint stores them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Tiles(Layout),
    F32,
    Mlx,
}

impl Form {
    /// The form of rows that stay as they are stored in `format`.
    fn of_rows(format: StorageFormat) -> Self {
        if matches!(format, StorageFormat::MlxAffine(_)) { Self::Mlx } else { Self::F32 }
    }

    /// Suffix of kernels' names for this form: `q4_k` in `tiles_q4_k`.
    pub(crate) fn kernel_suffix(self) -> &'static str {
        match self {
            Self::Tiles(Layout::F16) => "f16",
            Self::Tiles(Layout::BF16) => "bf16",
            Self::Tiles(Layout::Q8_0) => "q8_0",
            Self::Tiles(Layout::Q4_0) => "q4_0",
            Self::Tiles(Layout::Q4_K) => "q4_k",
            Self::Tiles(Layout::Q6_K) => "q6_k",
            Self::Tiles(Layout::Q5_K) => "q5_k",
            Self::Tiles(Layout::Q4_1) => "q4_1",
            Self::Tiles(Layout::MLX8) => "mlx8",
            Self::Tiles(Layout::Q3_K) => "q3_k",
            Self::Tiles(Layout::Q2_K) => "q2_k",
            Self::Tiles(Layout::IQ4_XS) => "iq4_xs",
            Self::F32 => "f32",
            Self::Mlx => "mlx",
        }
    }

    /// The number by which kernels know it: GGUF's where GGUF has such a format.
    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::Tiles(Layout::F16) => 1,
            Self::Tiles(Layout::Q4_0) => 2,
            Self::Tiles(Layout::Q4_1) => 3,
            Self::Tiles(Layout::Q8_0) => 8,
            Self::Tiles(Layout::Q2_K) => 10,
            Self::Tiles(Layout::Q3_K) => 11,
            Self::Tiles(Layout::Q4_K) => 12,
            Self::Tiles(Layout::Q5_K) => 13,
            Self::Tiles(Layout::Q6_K) => 14,
            Self::Tiles(Layout::IQ4_XS) => 23,
            Self::Tiles(Layout::BF16) => 30,
            Self::Tiles(Layout::MLX8) => 254,
            Self::Mlx => 255,
        }
    }
}
