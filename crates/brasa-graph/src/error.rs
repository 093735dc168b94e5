//! What can be wrong with a graph.

/// A graph that does not fit together. Built where the shapes are known, so that the message can show them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// An operation was given operands that it cannot combine.
    #[error("{op}: {what}, operands {operands}")]
    Operands {
        /// The operation's name.
        op: &'static str,
        /// What is wrong.
        what: String,
        /// The operands' types, as printed in a graph.
        operands: String,
    },
    /// A weight's parts do not make up its shape.
    #[error("{weight}: {what}")]
    Weight {
        /// The weight's name.
        weight: String,
        /// What is wrong.
        what: String,
    },
}
