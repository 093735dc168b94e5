//! Layers that can be adapted.

use std::ops::Range;

use brasa_graph::WeightId;

/// A linear layer of a model: all rows of a weight, or the rows of one projection in a stacked weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Name of the layer, e.g. `layers.3.attn_q`.
    pub name: String,
    /// Other spellings of the name, e.g. `model.layers.3.self_attn.q_proj`.
    pub aliases: Vec<String>,
    /// The graph's weight that holds the layer.
    pub weight: WeightId,
    /// Rows of the layer in the stacked weight; for a stack of experts, rows in each expert's matrix.
    pub rows: Range<usize>,
    /// Elements of a row: the layer's inputs.
    pub inputs: usize,
    /// Number of experts in a stack of experts, which each have a pair of matrices; `None` for a single layer.
    pub experts: Option<usize>,
}

impl Layer {
    /// The layer's name, then its aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }

    /// The number of the layer's block; `None` outside the blocks.
    pub fn block(&self) -> Option<usize> {
        self.name.strip_prefix("layers.")?.split_once('.')?.0.parse().ok()
    }
}
