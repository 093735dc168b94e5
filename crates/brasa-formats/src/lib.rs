//! GGUF, safetensors and MLX files: readers, writers, and the exact codec of every block format.

mod bytes;
pub mod codec;
mod storage;
mod tensor;

pub use bytes::Bytes;
pub use storage::{MlxAffine, StorageFormat};
pub use tensor::{Payload, Tensor};
