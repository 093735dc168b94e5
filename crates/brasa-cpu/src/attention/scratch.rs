//! The memory that a thread keeps for attention.

use brasa_graph::step::PAGE_POSITIONS;

use crate::simd::LANES;

use super::page::{Distances, MAX_GROUPS, MAX_QUERIES, Partial, Scores};
use super::plan::ITEM_QUERIES;
use super::source::Stage;
#[cfg(target_arch = "x86_64")]
use super::tiled::TiledScratch;
use super::visibility::Visible;

/// A thread's memory for attention.
#[derive(Debug)]
pub(crate) struct AttentionScratch {
    /// Queries in tiles, `[E][queries]` each.
    pub(super) q: Vec<f32>,
    /// Scores of a tile of queries at the positions of a page.
    pub(super) scores: Box<Scores>,
    /// Softmax weights times the scales of values.
    pub(super) scaled: Vec<Scores>,
    /// Merged values, `[queries][value_width]`.
    pub(super) o: Vec<f32>,
    /// The softmax of each query so far.
    pub(super) seen: Vec<Partial>,
    /// Values of one page, of one tile of queries.
    pub(super) next_o: Vec<f32>,
    /// The softmax of each query of a tile over one page.
    pub(super) next: [Partial; MAX_QUERIES],
    /// Slots that each query of a tile sees of a page.
    pub(super) visible: Vec<Visible>,
    /// The penalties for distance of each query of a tile on a page; empty for none.
    pub(super) distances: Vec<Distances>,
    /// A page converted to f32.
    pub(super) stage: Stage,
    /// For products of bf16.
    #[cfg(target_arch = "x86_64")]
    pub(super) tiled: TiledScratch,
}

impl AttentionScratch {
    /// Memory for heads of at most these sizes.
    pub(crate) fn new(most_group_heads: usize, most_head_dim: usize) -> Self {
        let queries = ITEM_QUERIES.max(most_group_heads).next_multiple_of(MAX_QUERIES);
        let width = most_head_dim.next_multiple_of(LANES);
        Self {
            q: vec![0.0; queries * most_head_dim],
            scores: Box::new([[0.0; PAGE_POSITIONS]; MAX_QUERIES]),
            scaled: vec![[[0.0; PAGE_POSITIONS]; MAX_QUERIES]; MAX_GROUPS],
            o: vec![0.0; queries * width],
            seen: vec![Partial::NONE; queries],
            next_o: vec![0.0; MAX_QUERIES * width],
            next: [Partial::NONE; MAX_QUERIES],
            visible: vec![Visible::NONE; MAX_QUERIES],
            distances: Vec::with_capacity(MAX_QUERIES),
            stage: Stage::new(most_head_dim),
            #[cfg(target_arch = "x86_64")]
            tiled: TiledScratch::default(),
        }
    }
}
