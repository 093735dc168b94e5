//! How to load a model.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use brasa_engine::Speculation;
use brasa_graph::device::{Backend, DeviceInfo, KvType, Precision, ProgramLimits, ProgramSpec};

use crate::AdapterSource;

/// How to load a model. The default suits the machine.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Device by name; `None` for the best one present. See [`devices`](crate::devices).
    pub device: Option<String>,
    /// A device of the caller's own, which takes the place of `device`.
    pub own_device: Option<OwnDevice>,
    /// Most bytes of a GPU's memory for the model and all other memory in use on that GPU, as if the GPU had no more; `None` for
    /// all free memory. Has no effect on the CPU and on a device of the caller's own.
    pub gpu_memory: Option<u64>,
    /// Positions of the context; `None` for the model's own limit, at most 131,072.
    pub context: Option<usize>,
    /// Threads of the CPU device; `None` for as many as this process may use.
    pub threads: Option<usize>,
    /// Instruction set of the CPU device by name; `None` for the best, or the one that `BRASA_ISA` names.
    pub isa: Option<String>,
    /// The precision of the arithmetic.
    pub precision: Precision,
    /// Forbids prompts in bf16, whose results depend on the number of rows computed together. Answers are then the same, bit for
    /// bit, in any company of other requests and for any chunks of the prompt. Reference precision is always deterministic.
    pub deterministic: bool,
    /// Element type of cached keys and values; `None` for f16, or f32 in reference precision.
    pub kv_type: Option<KvType>,
    /// Most rows of a step: a prompt is computed in chunks of this many tokens. `None` for as many as the device computes well
    /// at once: 512 on a CPU, 2,048 on a GPU.
    pub chunk: Option<usize>,
    /// Most prompt tokens of a step in which other requests decode, so that a long prompt does not stall them; `None` for a
    /// quarter of `chunk`, or of what suits the device: 128 on a CPU, 512 on a GPU. The engine takes fewer if the step would be
    /// more than three times as long as without them.
    pub mixed_chunk: Option<usize>,
    /// Requests served at once; further ones wait. `None` for as many as the device's memory holds beside the weights with pages
    /// for a text of 2,048 tokens each: at least 1, at most 16 on a CPU and 256 on a GPU.
    /// [`EngineConfig::max_sequences`](brasa_engine::EngineConfig::max_sequences) of a loaded model tells the number.
    pub max_sequences: Option<usize>,
    /// Most requests that wait; further ones are refused with
    /// [`EngineError::QueueFull`](brasa_engine::EngineError::QueueFull).
    pub max_waiting: usize,
    /// Most bytes that cached keys and values take on the device, of running requests and sessions together, the padding of
    /// the device's layout included; `None` for full contexts of twice as many texts as are served at once, but at most three quarters of the
    /// device's memory beside the weights.
    pub cache_bytes: Option<u64>,
    /// Bytes of keys and values, among `cache_bytes`, that stay when a text ends, for later texts that begin alike. The beginning
    /// that two texts share is found to the token, and computed once. Kept texts give way to running ones.
    ///
    /// `None` is 1 GiB, which the requests of all sessions share; requests without a session are computed afresh. `Some`
    /// shares among all requests, except that at 0 every request pays for its own prompt, and a session keeps its own text
    /// alone. [`RequestOptions::cache_prompt`](crate::RequestOptions::cache_prompt) decides for a single request, and
    /// [`CacheScope`](crate::CacheScope) keeps users apart.
    pub prefix_bytes: Option<u64>,
    /// Bytes of keys and values, within `cache_bytes`, whose memory is fetched ahead: while the model has nothing to do, and bit by
    /// bit under load. Requests then do not wait for the system to find and clear memory. 0 fetches none.
    pub prefault_bytes: u64,
    /// Speculation of requests without a setting of their own
    /// ([`GenerateOptions::speculation`](crate::GenerateOptions::speculation)). It changes the time of an answer and never its
    /// text.
    pub speculation: Speculation,
    /// A small model with the same tokens that guesses the model's next tokens, on the same device, in the same precision and with
    /// the same chunks. It serves requests whose speculation has [`model`](Speculation::model) set. Its weights, keys and values
    /// take memory of their own.
    pub draft_model: Option<PathBuf>,
    /// Low-rank adapters that change the model. Its stored weights stay as they are; several adapters add up.
    pub adapters: Vec<AdapterSource>,
    /// Lets every request choose among `adapters` and their scales ([`Model::adapter_scope`](crate::Model::adapter_scope)).
    /// Requests that do not choose have the scales of `adapters`. Texts with different adapters are computed together in the same
    /// steps.
    pub adapters_by_request: bool,
    /// Turns warnings about the checkpoint into errors: unknown configuration keys, unused tensors.
    pub strict: bool,
    /// Pre-tokenizer by its GGUF name, for files that name none or an unknown one.
    pub pre_tokenizer: Option<String>,
    /// A Jinja chat template in place of the checkpoint's, or the name of a built-in one: `chatml`, `llama3` or `gemma`.
    pub chat_template: Option<String>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: None,
            own_device: None,
            gpu_memory: None,
            context: None,
            threads: None,
            isa: None,
            precision: Precision::Fast,
            deterministic: false,
            kv_type: None,
            chunk: None,
            mixed_chunk: None,
            max_sequences: None,
            max_waiting: 1024,
            cache_bytes: None,
            prefix_bytes: None,
            prefault_bytes: 0,
            speculation: Speculation::MODEL,
            draft_model: None,
            adapters: Vec::new(),
            adapters_by_request: false,
            strict: false,
            pre_tokenizer: None,
            chat_template: None,
        }
    }
}

impl LoadOptions {
    /// Element type of cached keys and values, from the options or the precision.
    pub(crate) fn kv_type(&self) -> KvType {
        let reference = self.precision == Precision::Reference;
        self.kv_type.unwrap_or(if reference { KvType::F32 } else { KvType::F16 })
    }

    /// Most prompt rows of a step in which other requests decode.
    pub(crate) fn mixed_prompt_rows(&self, device: &DeviceInfo) -> usize {
        self.mixed_chunk.unwrap_or_else(|| (self.prompt_rows(device) / 4).max(1))
    }

    /// Most rows of a prompt that are computed at once.
    pub(crate) fn prompt_rows(&self, device: &DeviceInfo) -> usize {
        self.chunk.unwrap_or(device.prompt_rows)
    }

    /// The spec of a program under these options, on a device that serves `sequences` texts at once.
    pub(crate) fn program_spec(
        &self,
        device: &DeviceInfo,
        sequences: usize,
        vocab_size: usize,
    ) -> ProgramSpec {
        let chunk = self.prompt_rows(device);
        let limits = ProgramLimits {
            max_rows: chunk.max(sequences),
            max_outs: sequences.max(score_rows(vocab_size).min(chunk)),
            max_segments: sequences,
        };
        limits.with(self.kv_type())
    }
}

/// Rows of a step that may have logits when a text is scored: as many as matrix products compute efficiently, as long as a large
/// vocabulary's logits take no more than 32 MiB.
fn score_rows(vocab_size: usize) -> usize {
    const LOGITS_BYTES: usize = 32 << 20;
    const TILE: usize = 16;
    let rows = LOGITS_BYTES / (vocab_size.max(1) * size_of::<f32>());
    (rows / TILE * TILE).clamp(TILE, ProgramLimits::default().max_outs)
}

/// A device that this build does not include: any implementation of [`Backend`].
#[derive(Clone)]
pub struct OwnDevice(pub Arc<dyn Backend>);

impl fmt::Debug for OwnDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnDevice").field(&self.0.info().name).finish()
    }
}

/// How far loading has come.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// Weight bytes that are ready.
    pub done_bytes: u64,
    /// Weight bytes in all.
    pub total_bytes: u64,
}
