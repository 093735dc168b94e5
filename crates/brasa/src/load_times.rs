//! The time that the parts of loading took.

use std::time::Duration;

/// Times of the parts of loading. The tokenizer is made in parallel with device, graph and weights, so the parts may add up to
/// more than the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// Time of mapping the files and reading their headers.
    pub open: Duration,
    /// Time of making the tokenizer: vocabulary, merges, pre-tokenizer and chat template.
    pub tokenizer: Duration,
    /// Time of making the graph from configuration and tensor names.
    pub graph: Duration,
    /// Time of copying the weights to the device, in the order in which kernels read them.
    pub weights: Duration,
    /// Time of fusing the graph, laying out memory and starting the engine.
    pub compile: Duration,
    /// Time from the beginning to the end of loading.
    pub total: Duration,
}
