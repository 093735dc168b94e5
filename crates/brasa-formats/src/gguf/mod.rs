//! GGUF, the container of llama.cpp: versions 2 and 3 are read, version 3 is written.

mod header;
mod metadata;
mod reader;
mod split;
mod types;
mod value;
mod writer;

pub use metadata::Metadata;
pub use types::TensorType;
pub use value::{Array, FromValue, Scalar, Value, ValueType};
pub use writer::{TensorPlan, Writer};

pub(crate) use reader::Part;
pub(crate) use split::{PartName, read_file, read_single};
