//! Memory that a model takes on a device, and which model would fit, before anything is loaded.

use std::path::Path;
use std::sync::Arc;

use brasa_engine::PageCosts;
use brasa_formats::{Bytes, Checkpoint, StorageFormat};
use brasa_graph::device::{DeviceInfo, KvPoolSpec, KvType, Measure};
use brasa_graph::{Graph, Weight};

use crate::model::{MOST_POSITIONS, context_of};
use crate::room::{self, cache_room};
use crate::{Error, LoadOptions, device, facts};

/// Formats in which the weights' size is estimated, besides their own; largest first.
const FORMATS: [StorageFormat; 5] =
    [StorageFormat::Q8_0, StorageFormat::Q6_K, StorageFormat::Q5_K, StorageFormat::Q4_K, StorageFormat::Q3_K];

/// The memory that a model takes on a device.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The device on which the model would run.
    pub device: DeviceInfo,
    /// Free bytes of the device's memory; `None` if it does not tell.
    pub free_bytes: Option<u64>,
    /// Bytes of the weights on the device.
    pub weight_bytes: u64,
    /// Bytes of the arena of a step's values that the device allocates before the first step. Long texts may need more for partial
    /// results of attention.
    pub working_bytes: u64,
    /// Most rows of a step.
    pub step_rows: usize,
    /// Positions of a text, as the options say or the model was made for.
    pub context: usize,
    /// Number of texts served at once: from the options, or as many as the memory holds with pages for a usual text each.
    pub sequences: usize,
    /// Longest text that the model was made for, if its files tell it. A longer one fits into memory as counted here, but the model
    /// has not learned to read it.
    pub model_context: Option<usize>,
    /// Type of keys and values.
    pub kv_type: KvType,
    /// The cost of texts in each type of keys and values that the device has, the most exact type first.
    pub texts: Vec<TextFit>,
    /// Bytes of the weights if all matrices were quantised to a format, for formats in which they are smaller.
    pub weights_as: Vec<(StorageFormat, u64)>,
}

/// The cost of texts whose keys and values have one type.
#[derive(Clone, Debug)]
pub struct TextFit {
    /// The type of keys and values.
    pub kv_type: KvType,
    costs: PageCosts,
}

impl Fit {
    /// Reads a checkpoint's names and shapes, and the device's free memory. Loads no weights.
    ///
    /// # Errors
    ///
    /// [`Error::Format`], [`Error::Model`], [`Error::Device`]: no such device.
    pub fn of(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self, Error> {
        Self::of_checkpoint(&Checkpoint::open(path)?, options)
    }

    /// Like [`of`](Self::of), for a GGUF file in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`of`](Self::of).
    pub fn of_gguf_bytes(
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
        options: &LoadOptions,
    ) -> Result<Self, Error> {
        Self::of_checkpoint(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?, options)
    }

    fn of_checkpoint(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self, Error> {
        let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
        let brasa_models::Model { spec, graph, info, .. } = brasa_models::load(checkpoint, &load)?;
        let graph = Arc::new(graph);
        let backend = device::of(options)?;
        let device = backend.info();
        backend.capabilities().check(&device.name, &graph, options.kv_type())?;
        let (stored_bytes, context) = (backend.weight_bytes(&graph), context_of(options, &info));
        let pool = |dtype| backend.kv_pool(KvPoolSpec::of(&graph, dtype));
        let own = pool(options.kv_type())?;
        let sequences = room::sequences(options, &device, stored_bytes, context, &*own);
        let program_spec = options.program_spec(&device, sequences, spec.vocab_size);
        let Measure { weight_bytes, arena_bytes } =
            backend.measure(&graph, options.precision, program_spec)?;
        let mut texts = Vec::new();
        for &kv_type in backend.capabilities().kv_types {
            texts.push(TextFit {
                kv_type,
                costs: PageCosts::new(&*pool(kv_type)?, program_spec.limits.max_rows),
            });
        }
        let weights_as = FORMATS.map(|format| (format, bytes_as(&graph, format))).into_iter();
        Ok(Self {
            free_bytes: backend.free_bytes(),
            weight_bytes,
            working_bytes: arena_bytes,
            step_rows: program_spec.limits.max_rows,
            context,
            sequences,
            model_context: info.context_length,
            kv_type: options.kv_type(),
            texts,
            weights_as: weights_as.filter(|&(_, bytes)| bytes < stored_bytes).collect(),
            device,
        })
    }

    /// Bytes available for keys and values beside weights of `weight_bytes`: the free memory, and at most what a model takes
    /// without [`LoadOptions::cache_bytes`]. `None` if the device does not tell its memory.
    pub fn room_bytes(&self, weight_bytes: u64) -> Option<u64> {
        let beside = self.free_bytes?.saturating_sub(weight_bytes.saturating_add(self.working_bytes));
        Some(beside.min(cache_room(self.device.memory_bytes?, weight_bytes)))
    }

    /// The cost of texts in the type of the options.
    pub fn text(&self) -> Option<&TextFit> {
        self.texts.iter().find(|text| text.kv_type == self.kv_type)
    }

    /// True if a text of the whole context fits; `None` if the device does not tell its memory.
    pub fn fits(&self) -> Option<bool> {
        let room_bytes = self.room_bytes(self.weight_bytes)?;
        let has_room = self.free_bytes? >= self.weight_bytes.saturating_add(self.working_bytes);
        Some(has_room && self.text()?.bytes(self.context) <= room_bytes)
    }
}

impl TextFit {
    /// The type's name, as GGUF spells it.
    pub fn kv_name(&self) -> &'static str {
        facts::kv_name(self.kv_type)
    }

    /// Most bytes of keys and values of a text of `positions` positions.
    pub fn bytes(&self, positions: usize) -> u64 {
        self.costs.bytes(positions)
    }

    /// Positions of the longest text that `room_bytes` hold, in whole pages.
    pub fn longest(&self, room_bytes: u64) -> usize {
        self.costs.longest(room_bytes, MOST_POSITIONS).min(MOST_POSITIONS)
    }

    /// Number of texts of `positions` positions that fit into `room_bytes` together.
    pub fn together(&self, room_bytes: u64, positions: usize) -> u64 {
        room_bytes / self.bytes(positions).max(1)
    }
}

/// Bytes of a graph's weights if every matrix were stored in `format`. Matrices that `format` does not make smaller keep their
/// own.
fn bytes_as(graph: &Graph, format: StorageFormat) -> u64 {
    let bytes = |weight: &Weight| {
        let stored = weight.stored_bytes();
        let row_bytes = format.row_bytes(weight.row_len()).filter(|_| weight.shape.len() > 1);
        row_bytes.map_or(stored, |bytes| stored.min((bytes as u64).saturating_mul(weight.rows() as u64)))
    };
    graph.weights().iter().map(|weight| bytes(weight)).sum()
}
