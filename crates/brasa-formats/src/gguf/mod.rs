//! GGUF, the container of llama.cpp: versions 2 and 3 are read, version 3 is written.

mod array;
mod coerce;
mod header;
mod metadata;
mod reader;
mod split;
mod types;
mod value;
mod writer;

pub use array::{Array, Scalar};
pub use coerce::FromValue;
pub use metadata::Metadata;
pub use types::TensorType;
pub use value::{Value, ValueType};
pub use writer::{TensorPlan, Writer};

pub(crate) use reader::Part;
pub(crate) use split::{PartName, read_file, read_single};
