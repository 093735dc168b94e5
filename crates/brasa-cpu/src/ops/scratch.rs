//! The memory that a thread keeps for itself from operation to operation.

use crate::attention::AttentionScratch;
use crate::linear::{ExpertGroups, RowPair};
use crate::matrix::ProductScratch;
use crate::prepared::PrivateRows;

use super::attention_gradient::GradientScratch;
use super::low_rank::RowsByUnit;
use super::state_scan::Line;

/// A thread's own memory, made once per program.
#[derive(Debug)]
pub(crate) struct Scratch {
    /// Scratch memory of attention.
    pub attention: AttentionScratch,
    /// A key and a value of one head.
    pub head: [Vec<f32>; 2],
    /// For activations that the thread prepares for itself.
    pub rows: PrivateRows,
    /// Products that are multiplied into others.
    pub up: Vec<f32>,
    /// For mixtures of experts.
    pub experts: ExpertScratch,
    /// Pairs of an input vector and a result vector, for one head.
    pub pairs: Vec<RowPair>,
    /// The rows of a step by the ranks that they use.
    pub ranks: RowsByUnit,
    /// Decoded rows of a weight.
    pub decoded: Vec<f32>,
    /// For products of matrices that are no weights.
    pub products: ProductScratch,
    /// Memory for a product that is stored transposed.
    pub swapped: Vec<f32>,
    /// For the gradients of attention.
    pub gradient: GradientScratch,
    /// Columns of a recurrent state.
    pub state: Vec<Line>,
}

/// A thread's memory for mixtures of experts.
#[derive(Debug, Default)]
pub(crate) struct ExpertScratch {
    /// The rows of the step by expert.
    pub groups: ExpertGroups,
    /// The chosen experts of all rows.
    pub chosen: Vec<u32>,
    /// The logits of one row.
    pub logits: Vec<f32>,
}

/// The sizes of a [`Scratch`] that is enough for all operations of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScratchSize {
    /// Most query heads that share a KV head.
    pub group_heads: usize,
    /// Most elements of a head.
    pub head_dim: usize,
    /// Elements of products that are multiplied into others.
    pub up: usize,
    /// Most elements of a vector that is prepared for a product.
    pub k: usize,
    /// Most elements of decoded rows of a weight.
    pub decoded: usize,
    /// Most lines of columns of a recurrent state.
    pub state_lines: usize,
}

impl ScratchSize {
    /// Enlarges the size to what attention with these heads needs.
    pub(crate) fn add_heads(&mut self, heads: usize, kv_heads: usize, head_dim: usize) {
        self.group_heads = self.group_heads.max(heads / kv_heads);
        self.head_dim = self.head_dim.max(head_dim);
    }
}

impl Scratch {
    /// Memory of this size.
    pub(crate) fn new(size: &ScratchSize) -> Self {
        Self {
            attention: AttentionScratch::new(size.group_heads, size.head_dim),
            head: [vec![0.0; size.head_dim], vec![0.0; size.head_dim]],
            rows: PrivateRows::new(size.k),
            up: vec![0.0; size.up],
            experts: ExpertScratch::default(),
            pairs: Vec::new(),
            ranks: RowsByUnit::default(),
            decoded: vec![0.0; size.decoded],
            products: ProductScratch::default(),
            swapped: Vec::new(),
            gradient: GradientScratch::default(),
            state: vec![Line::default(); size.state_lines],
        }
    }
}
