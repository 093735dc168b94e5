//! Weights in device memory: rows as the checkpoint stores them, and small ones decoded.
//!
//! Matrices of linear layers and tables of embeddings keep their stored bytes, which kernels decode as they read them. All
//! other weights (norms, biases, frequencies) are decoded to f32 when they are uploaded.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::device::{DeviceError, UploadProgress, WeightSet};
use brasa_graph::{Graph, Op, ValueId, ValueKind, Weight, WeightMap, WeightPart};

use crate::driver::DeviceMemory;
use crate::gpu::Gpu;
use crate::params::{Part, Ptr, StoredWeight, part_bytes};

/// Alignment of every array of stored bytes.
const ALIGNMENT_BYTES: usize = 256;

/// Weights on one GPU, found by their identity.
#[derive(Debug)]
pub(crate) struct CudaWeightSet {
    pub gpu: Arc<Gpu>,
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

/// Rows as they are stored.
#[derive(Debug)]
struct Stored {
    weight: StoredWeight,
    /// Each format that some rows have, once.
    formats: Vec<StorageFormat>,
    memory: Vec<DeviceMemory>,
}

/// How a graph uses a weight.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    stored: bool,
    decoded: bool,
}

impl CudaWeightSet {
    /// An empty set. Every precision computes in f32.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: Arc::clone(gpu), held: WeightMap::default(), steady: RwLock::new(()) }
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

    /// `weight` with the floats that the GPU holds now. Quantised rows cannot have changed.
    fn downloaded(&self, weight: &Weight, stored: &Stored) -> Result<Weight, DeviceError> {
        let mut parts = Vec::with_capacity(stored.memory.len());
        let filled = weight.parts.iter().filter(|part| !part.rows.is_empty());
        for (part, memory) in filled.zip(&stored.memory) {
            let format = part.format();
            if !format.is_float() {
                parts.push(part.clone());
                continue;
            }
            let shape = vec![part.rows.len(), weight.row_len()];
            let mut bytes = vec![0; shape[0] * shape[1] * format.block_bytes()];
            self.gpu.read(memory, &mut bytes)?;
            let payload = Payload::Blocks(Bytes::from(bytes));
            parts.push(WeightPart::whole(Tensor { name: part.tensor.name.clone(), shape, format, payload }));
        }
        Ok(Weight { parts, ..weight.clone() })
    }
}

impl Held {
    fn serves(&self, uses: Uses) -> bool {
        (self.stored.get().is_some() || !uses.stored) && (self.decoded.get().is_some() || !uses.decoded)
    }

    fn size_bytes(&self) -> usize {
        let arrays = self.stored.get().into_iter().flat_map(|stored| &stored.memory);
        let decoded = self.decoded.get().map(|memory| &**memory);
        arrays.chain(decoded).map(DeviceMemory::size_bytes).sum()
    }
}

impl CudaWeights {
    /// Keeps every weight as it is until the result is dropped.
    pub(crate) fn hold_steady(&self) -> RwLockReadGuard<'_, ()> {
        self.set.steady.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Weight `number` as it is stored, and the formats of its rows.
    pub(crate) fn stored(&self, number: usize) -> Option<(StoredWeight, &[StorageFormat])> {
        self.weights[number].stored.as_ref().map(|stored| (stored.weight, &stored.formats[..]))
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
        let mut done_bytes = 0;
        for (weight, uses) in missing {
            let held = self.held.entry(weight, || Ok(Held::default()))?;
            if uses.stored && held.stored.get().is_none() {
                let stored = Arc::new(Stored::new(&self.gpu, weight)?);
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
        let array = brasa_graph::reference::decode_weight(&self.downloaded(weight, stored)?)?;
        Ok(array.floats().to_vec())
    }

    fn write(&self, weight: &Arc<Weight>, values: &[f32]) -> Result<(), DeviceError> {
        let _changing = self.steady.write().unwrap_or_else(PoisonError::into_inner);
        let held = self.held(weight)?;
        let written = weight.with_values(values).map_err(|error| self.gpu.unsupported(error.to_string()))?;
        if let Some(stored) = held.stored.get() {
            let filled = written.parts.iter().filter(|part| !part.rows.is_empty());
            for (part, memory) in filled.zip(&stored.memory) {
                if let Payload::Blocks(bytes) = &part.tensor.payload {
                    self.gpu.write(memory, 0, bytes)?;
                }
            }
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

/// True where operand `place` of `op` is read as it is stored, being a weight.
pub(crate) fn reads_stored(op: &Op, place: usize) -> bool {
    match op {
        Op::Embed(_) | Op::Linear(_) | Op::LinearTransposed(_) => place == 1,
        Op::ExpertLinear(_) => place == 2,
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

/// Decodes all of a weight on the host and uploads it.
fn decode(gpu: &Gpu, weight: &Weight) -> Result<DeviceMemory, DeviceError> {
    let array = brasa_graph::reference::decode_weight(weight)?;
    let memory = gpu.allocate(array.floats().len() * 4, &weight.name)?;
    gpu.write(&memory, 0, bytemuck::cast_slice(array.floats()))?;
    Ok(memory)
}

impl Stored {
    fn new(gpu: &Gpu, weight: &Weight) -> Result<Self, DeviceError> {
        let (mut parts, mut formats, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let mut first_row = 0;
        for part in weight.parts.iter().filter(|part| !part.rows.is_empty()) {
            let (stored, arrays) = upload_part(gpu, weight, part, first_row)?;
            first_row += part.rows.len();
            parts.push(stored);
            memory.push(arrays);
            // Kernels know one MLX format, whose parameters each part brings.
            if !formats.iter().any(|&known| format_code(known) == format_code(part.format())) {
                formats.push(part.format());
            }
        }
        let table = gpu.allocate(parts.len() * size_of::<Part>(), &weight.name)?;
        gpu.write(&table, 0, part_bytes(&parts))?;
        let stored = StoredWeight {
            parts: Ptr::new(table.address()),
            parts_count: parts.len() as u32,
            rows: first_row as u32,
            row_len: weight.row_len() as u32,
        };
        memory.push(table);
        Ok(Self { weight: stored, formats, memory })
    }
}

/// Uploads the bytes of a part's rows.
fn upload_part(
    gpu: &Gpu,
    weight: &Weight,
    part: &WeightPart,
    first_row: usize,
) -> Result<(Part, DeviceMemory), DeviceError> {
    let refuse = |what: &str| gpu.unsupported(format!("{}: {what}", weight.name));
    let format = part.format();
    let row_len = weight.row_len();
    let row_bytes = match format {
        StorageFormat::MlxAffine(mlx) => row_len
            .checked_mul(usize::from(mlx.bits))
            .filter(|bits| bits.is_multiple_of(8) && row_len.is_multiple_of(mlx.group_size.max(1) as usize))
            .map(|bits| bits / 8),
        _ => format.row_bytes(row_len),
    };
    let row_bytes = row_bytes.ok_or_else(|| refuse("rows that are no whole number of blocks"))?;
    if u32::try_from(first_row + part.rows.len()).is_err() || u32::try_from(row_bytes).is_err() {
        return Err(refuse("more rows than can be numbered"));
    }
    let rows_of = |bytes: &Bytes, row_bytes: usize| {
        bytes
            .slice(part.rows.start * row_bytes..part.rows.end * row_bytes)
            .ok_or_else(|| refuse("stored bytes that do not belong to its format"))
    };
    let mut stored = Part {
        data: Ptr::NONE,
        scales: Ptr::NONE,
        biases: Ptr::NONE,
        first_row: first_row as u32,
        rows: part.rows.len() as u32,
        row_bytes: row_bytes as u32,
        format: format_code(format),
        bits: 0,
        group_size: 1,
        groups: 0,
        scale_format: 0,
    };
    let arrays = match (&part.tensor.payload, format) {
        (Payload::Blocks(bytes), format) if format.gguf_code().is_some() => vec![rows_of(bytes, row_bytes)?],
        (Payload::Mlx { words, scales, biases, scale_format }, StorageFormat::MlxAffine(mlx)) => {
            let groups = row_len / mlx.group_size.max(1) as usize;
            let scale_bytes = groups * scale_format.block_bytes();
            if !matches!(mlx.bits, 2..=6 | 8) || !scale_format.is_float() {
                return Err(refuse(&format!("{format} with scales in {scale_format}")));
            }
            stored.bits = u32::from(mlx.bits);
            stored.group_size = mlx.group_size;
            stored.groups = groups as u32;
            stored.scale_format = format_code(*scale_format);
            vec![rows_of(words, row_bytes)?, rows_of(scales, scale_bytes)?, rows_of(biases, scale_bytes)?]
        }
        _ => return Err(refuse("stored bytes that do not belong to its format")),
    };
    let sizes = arrays.iter().map(|array| array.len().next_multiple_of(ALIGNMENT_BYTES));
    let memory = gpu.allocate(sizes.sum(), &weight.name)?;
    let mut offset = 0;
    let mut addresses = [0; 3];
    for (array, address) in arrays.iter().zip(&mut addresses) {
        gpu.write(&memory, offset, array)?;
        array.release_pages();
        *address = memory.address() + offset as u64;
        offset += array.len().next_multiple_of(ALIGNMENT_BYTES);
    }
    [stored.data, stored.scales, stored.biases] = addresses.map(Ptr::new);
    Ok((stored, memory))
}

/// The number by which kernels know a format: GGUF's, or 255 for MLX.
fn format_code(format: StorageFormat) -> u32 {
    format.gguf_code().unwrap_or(255)
}

/// A format's part of kernels' names: `q4_k` of `linear_q4_k`.
pub(crate) fn kernel_suffix(format: StorageFormat) -> &'static str {
    match format {
        StorageFormat::F32 => "f32",
        StorageFormat::F16 => "f16",
        StorageFormat::BF16 => "bf16",
        StorageFormat::Q4_0 => "q4_0",
        StorageFormat::Q4_1 => "q4_1",
        StorageFormat::Q5_0 => "q5_0",
        StorageFormat::Q5_1 => "q5_1",
        StorageFormat::Q8_0 => "q8_0",
        StorageFormat::Q2_K => "q2_k",
        StorageFormat::Q3_K => "q3_k",
        StorageFormat::Q4_K => "q4_k",
        StorageFormat::Q5_K => "q5_k",
        StorageFormat::Q6_K => "q6_k",
        StorageFormat::IQ4_NL => "iq4_nl",
        StorageFormat::IQ4_XS => "iq4_xs",
        StorageFormat::MlxAffine(_) => "mlx",
    }
}
