//! A summary of a checkpoint for display.

use std::collections::BTreeMap;

use crate::keys::{
    CONTEXT_LENGTH, EXPERTS_PER_TOKEN, FFN_WIDTH, HEAD_DIM, HIDDEN_SIZE, Key, NUM_EXPERTS, NUM_HEADS,
    NUM_KV_HEADS, NUM_LAYERS, ROPE_THETA, VOCAB_SIZE, WINDOW,
};
use crate::metadata::{Metadata, limits};
use crate::source::Source;
use crate::{LoadOptions, ModelKind, supported};
use brasa_formats::{Container, StorageFormat};

/// Facts about a checkpoint, as far as they can be read, also for unsupported architectures.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The architecture, in the checkpoint's spelling.
    pub architecture: String,
    /// True if a graph can be built.
    pub is_supported: bool,
    /// The container, which decides how configuration and tensors are spelled.
    pub container: Container,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Stored bytes of all tensors.
    pub size_bytes: u64,
    /// Bytes by storage format, e.g. `Q4_K`.
    pub formats: BTreeMap<String, u64>,
    /// Bits of an element's code in the format of most bytes, without scales; `None` without tensors.
    pub quant_bits: Option<u32>,
    /// Elements that share a scale in the format of most bytes; `None` for floats.
    pub quant_group_size: Option<usize>,
    /// Number of transformer blocks.
    pub num_layers: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Width of the dense networks.
    pub intermediate_size: Option<usize>,
    /// Query heads.
    pub num_heads: Option<usize>,
    /// Key and value heads, if all layers have the same.
    pub num_kv_heads: Option<usize>,
    /// Elements of a head.
    pub head_dim: Option<usize>,
    /// Rows of the embedding table.
    pub vocab_size: Option<usize>,
    /// The longest context that the model was trained for, in positions.
    pub context_length: Option<usize>,
    /// Width of the window of windowed layers, in positions.
    pub window: Option<usize>,
    /// Base of the rotary frequencies (θ) of layers without a window.
    pub rope_theta: Option<f32>,
    /// Number of all experts of a layer.
    pub num_experts: Option<usize>,
    /// Number of experts that each row is computed by.
    pub experts_per_token: Option<usize>,
}

impl ModelInfo {
    /// The storage format of most bytes; `None` without tensors.
    pub fn main_format(&self) -> Option<&str> {
        self.formats.iter().max_by_key(|&(_, bytes)| bytes).map(|(format, _)| format.as_str())
    }

    /// Reads the facts that the source holds.
    pub fn of(source: &Source) -> Self {
        let options = LoadOptions::default();
        let meta = Metadata::new(source, &options);
        let count = |key: Key, most: usize| meta.count(key, most).ok().flatten();
        let (mut parameters, mut size_bytes) = (0, 0);
        let mut formats = BTreeMap::new();
        let mut main: Vec<(StorageFormat, u64)> = Vec::new();
        for tensor in source.tensors.values() {
            let stored = tensor.size_bytes() as u64;
            parameters += tensor.shape.iter().map(|&dim| dim as u64).product::<u64>();
            size_bytes += stored;
            *formats.entry(tensor.format.to_string()).or_insert(0) += stored;
            match main.iter_mut().find(|(format, _)| *format == tensor.format) {
                Some((_, bytes)) => *bytes += stored,
                None => main.push((tensor.format, stored)),
            }
        }
        let main = main.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(format, _)| format);
        let hidden_size = count(HIDDEN_SIZE, limits::WIDTH);
        let num_heads = count(NUM_HEADS, limits::HEADS);
        let divided = || hidden_size.zip(num_heads).map(|(width, heads)| width / heads);
        Self {
            architecture: source.architecture().into(),
            is_supported: supported(source.container()).contains(&source.architecture())
                || ModelKind::of(source) != ModelKind::Text,
            container: source.container(),
            parameters,
            size_bytes,
            formats,
            quant_bits: main.map(StorageFormat::bits),
            quant_group_size: main.and_then(StorageFormat::group_size),
            num_layers: count(NUM_LAYERS, limits::LAYERS),
            hidden_size,
            intermediate_size: count(FFN_WIDTH, limits::FFN_WIDTH),
            num_heads,
            num_kv_heads: count(NUM_KV_HEADS, limits::HEADS).or(num_heads),
            head_dim: count(HEAD_DIM, limits::HEAD_DIM).or_else(divided),
            vocab_size: count(VOCAB_SIZE, limits::VOCAB),
            context_length: count(CONTEXT_LENGTH, limits::POSITIONS),
            window: count(WINDOW, limits::POSITIONS),
            rope_theta: meta.positive(ROPE_THETA).ok().flatten(),
            num_experts: count(NUM_EXPERTS, limits::EXPERTS),
            experts_per_token: count(EXPERTS_PER_TOKEN, limits::EXPERTS),
        }
    }
}
