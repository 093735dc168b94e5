//! A model as data: the settings in which families differ, in the terms of their papers.

use brasa_graph::op::Gating;

use crate::rope::RopeSpec;

/// A decoder-only language model: all settings that its graph needs besides the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family that read the configuration, e.g. `qwen3`.
    pub family: &'static str,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// The longest context that the model was trained for, in positions.
    pub context_length: usize,
    /// Added to the mean square in every RMS norm; keeps the division finite.
    pub norm_eps: f32,
    /// Added to every stored norm weight: 1 if the file keeps `w − 1` (Gemma 1 to 3 outside GGUF), else 0.
    pub norm_offset: f32,
    /// Multiplies the token embeddings: √width in Gemma.
    ///
    /// Kept in f32. Checkpoints run in bfloat16 see it rounded (√3072 = 55.43 becomes 55.5); run in f32, as every
    /// oracle of ours is, they do not.
    pub embedding_scale: Option<f32>,
    /// The transformer blocks, first to last.
    pub layers: Vec<LayerSpec>,
    /// A second embedding that feeds every layer (Gemma 4, small models).
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// The source of the output projection.
    pub head: Head,
    /// Soft-cap of the logits; `None` for no cap.
    pub final_softcap: Option<f32>,
}

/// One transformer block.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The attention of the block.
    pub attention: AttentionSpec,
    /// The feed-forward network of the block.
    pub ffn: FfnSpec,
    /// The places of the RMS norms.
    pub norms: Norms,
    /// True if a learned scalar multiplies the layer's output (Gemma 4).
    pub output_scalar: bool,
}

/// The places of a block's RMS norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Norms {
    /// Norms precede attention and the feed-forward network. Xiong et al. 2020, arXiv:2002.04745.
    Pre,
    /// Norms precede and follow both attention and the feed-forward network (Gemma 2 and later).
    PreAndPost,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// True if every query and key head is RMS-normed before RoPE.
    pub qk_norm: bool,
    /// The source of keys and values.
    pub kv: KvSpec,
    /// Multiplies the attention scores.
    pub scale: f32,
    /// Positions that a row attends to, its own included; `None` for all earlier positions.
    pub window: Option<usize>,
    /// Soft-cap of the attention scores; `None` for no cap.
    pub softcap: Option<f32>,
    /// The rotary position embedding of the layer.
    pub rope: RopeSpec,
}

/// The source of a layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvSpec {
    /// The layer has projections and a cache of its own.
    Own {
        /// The source of the layer's values.
        value: ValueSource,
        /// True if values pass an RMS norm without weights before they are cached (Gemma 4).
        value_norm: bool,
    },
    /// The layer reads the cache of an earlier layer (Gemma 4's trailing layers).
    Shared {
        /// The layer that owns the cache.
        layer: usize,
    },
}

/// The source of a layer's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueSource {
    /// A projection of the values' own.
    Projection,
    /// The output of the key projection, before key norm and RoPE (Gemma 4's full layers).
    Key,
}

/// The feed-forward network of a block.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FfnSpec {
    /// One network, `down(act(gate(x)) · up(x))`. Shazeer 2020, arXiv:2002.05202.
    Dense(DenseSpec),
    /// A mixture of gated networks. Shazeer et al. 2017, arXiv:1701.06538.
    Experts(ExpertsSpec),
    /// A dense network and experts on the same residual stream, each with norms of its own; their outputs are added (Gemma 4).
    DenseAndExperts(DenseSpec, ExpertsSpec),
}

/// A gated feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseSpec {
    /// Elements between the projections.
    pub width: usize,
    /// The function that is applied to the gate.
    pub activation: Activation,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// Number of all experts.
    pub num_experts: usize,
    /// Number of experts that each row is computed by.
    pub experts_per_token: usize,
    /// Each expert's network.
    pub expert: DenseSpec,
    /// The function from router logits to the shares of experts.
    pub gating: Gating,
    /// The input of the router.
    pub router: Router,
}

/// The input of a mixture's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Router {
    /// The input of the router is that of the experts.
    Plain,
    /// The input of the router is the residual stream, RMS-normed, times a learned vector, times width^−½; the chosen experts'
    /// weights are multiplied by a learned factor each (Gemma 4).
    Normed,
}

/// The function that a gated network applies to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// The tanh form of GELU.
    GeluTanh,
    /// The error-function form of GELU.
    GeluErf,
}

/// Gemma 4's per-layer embeddings: for every layer a vector of each token, mixed with a projection of its embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// Elements for each layer.
    pub width: usize,
    /// The function that is applied to the gate of each layer.
    pub activation: Activation,
}

/// The source of the output projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Head {
    /// The embedding table is the output projection. Press & Wolf 2016, arXiv:1608.05859.
    Tied,
    /// The output projection is a matrix of its own.
    Untied,
}

impl ModelSpec {
    /// The attention of every layer, for families to change.
    pub(crate) fn attentions(&mut self) -> impl Iterator<Item = &mut AttentionSpec> {
        self.layers.iter_mut().map(|layer| &mut layer.attention)
    }
}

impl AttentionSpec {
    /// Elements of all query heads.
    pub fn q_dim(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Elements of all key heads, and of all value heads.
    pub fn kv_dim(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }
}
