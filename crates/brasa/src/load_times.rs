//! The time that the parts of loading took.

use std::time::Duration;

/// Times of the parts of loading. The tokenizer is made while the device, the graph and the weights are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// Mapping the files and reading their headers.
    pub open: Duration,
    /// Vocabulary, merges, pre-tokenizer and chat template.
    pub tokenizer: Duration,
    /// From configuration and tensor names to the graph.
    pub graph: Duration,
    /// Copying every weight into the order in which it is read.
    pub weights: Duration,
    /// Fusing the graph, laying out memory, starting the engine.
    pub compile: Duration,
    /// Everything, from first to last.
    pub total: Duration,
}
