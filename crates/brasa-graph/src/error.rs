//! Errors of building a graph.

/// A graph with parts that do not fit together. Messages show the shapes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An operation cannot combine its operands.
    #[error("{op}: {what}, operands {operands}")]
    Operands {
        /// The operation's name.
        op: &'static str,
        /// The reason, as a sentence for people.
        what: String,
        /// The operands' types, as printed in a graph.
        operands: String,
    },
    /// A declared input that no step can bring, because of its name, type or shape.
    #[error("input {name}: {what}")]
    Given {
        /// The input's name.
        name: String,
        /// The reason, as a sentence for people.
        what: String,
    },
    /// A weight's parts do not make up its shape.
    #[error("{weight}: {what}")]
    Weight {
        /// The weight's name.
        weight: String,
        /// The reason, as a sentence for people.
        what: String,
    },
    /// A cache's geometry is impossible: no elements, or a value that is longer than the key that holds it.
    #[error("{what}")]
    Cache {
        /// The reason, as a sentence for people.
        what: String,
    },
    /// A rewritten graph would lack a value, or have one of another type.
    #[error("rewrite: {what}")]
    Rewrite {
        /// The reason, as a sentence for people.
        what: String,
    },
    /// A derivative that does not exist or is not implemented.
    #[error("derivative of {of}: {what}")]
    Derivative {
        /// The operation, or the value by name.
        of: String,
        /// The reason, as a sentence for people.
        what: String,
    },
    /// An adapter that cannot be added to the graph.
    #[error("adapter of {weight}: {what}")]
    Adapter {
        /// The adapted weight's name, or its number if the graph has no such weight.
        weight: String,
        /// The reason, as a sentence for people.
        what: String,
    },
}
