//! Errors of arrays.

use brasa_graph::GraphError;
use brasa_graph::device::DeviceError;

/// Errors of arrays and of their derivatives.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArrayError {
    /// The operation does not fit its operands.
    #[error("{operation}: {what}")]
    Operation {
        /// The operation, e.g. `matmul`.
        operation: &'static str,
        /// The operands' property that does not fit the operation, with the value found.
        what: String,
    },
    /// A derivative was requested of a function that does not allow it.
    #[error("{what}")]
    Derivative {
        /// The derivative that was asked for, and the reason why there is none.
        what: String,
    },
    /// The evaluation needs more memory than its limit.
    #[error(
        "{needed_bytes} bytes are needed, and the limit is {limit_bytes}\nhint: drop arrays, or raise the limit"
    )]
    Memory {
        /// Bytes of all living results, of the program and of its weights.
        needed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The graph of an expression.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The result of something with arrays.
pub type Result<T> = std::result::Result<T, ArrayError>;
