//! A thread's memory.

use crate::matrix::{FirstFactor, SecondFactor};

/// A thread's memory for the gradients of attention.
#[derive(Debug, Default)]
pub(crate) struct GradientScratch {
    /// Keys and values as factors whose columns are keys, and keys as a factor that is summed over keys.
    pub(super) keys_across: SecondFactor,
    pub(super) values_across: SecondFactor,
    pub(super) keys: SecondFactor,
    /// Queries, and then cotangents, of a block.
    pub(super) queries: SecondFactor,
    /// Scores, then probabilities, by query and key.
    pub(super) scores: Vec<f32>,
    /// Changes of probabilities, then of products of queries and keys.
    pub(super) changes: Vec<f32>,
    /// Slopes of the soft-cap of one query.
    pub(super) slopes: Vec<f32>,
    pub(super) rows: FirstFactor,
    /// For second derivatives: the keys that one query attends to.
    pub(super) bent: Vec<Bent>,
}

/// A key as a query sees it, and how that changes along the direction.
#[derive(Debug)]
pub(super) struct Bent {
    /// The scaled score, before the soft-cap.
    pub(super) score: f32,
    /// How the score changes.
    pub(super) by_score: f32,
    /// How the probability changes, as a share of itself.
    pub(super) turn: f32,
    /// The cotangent of the probability.
    pub(super) pull: f32,
    /// How that changes.
    pub(super) by_pull: f32,
}
