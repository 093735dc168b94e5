//! Readers, writers and exact codecs for GGUF, safetensors and MLX files (NumPy archives among them), and for whisper.cpp's files.
//!
//! [`Checkpoint`] opens a model's files, whatever their container, and gives its tensors, its metadata and the small
//! files beside them. [`Inspection`] does the same without refusing what cannot be run. Files are mapped, not
//! read; everything in them is treated as written by an enemy: counts, offsets and nesting are checked
//! before they are believed, and whatever is wrong becomes a [`FormatError`] that says where.
//!
//! This crate knows neither what a model computes nor any device.

mod adapter;
mod bytes;
mod changed;
mod checkpoint;
pub mod codec;
mod cursor;
mod detect;
mod directory;
mod error;
#[cfg(target_os = "linux")]
mod exchange;
pub mod gguf;
mod hugging_face;
mod input_file;
mod inspection;
mod json;
mod map;
pub mod mlx;
mod names;
mod npz;
mod output_file;
mod output_folder;
mod problems;
pub mod safetensors;
mod shards;
#[cfg(unix)]
mod shrunk;
mod storage;
mod tensor;
pub mod whisper_bin;

pub use adapter::{AdapterFile, AdapterForm, LowRankPair};
pub use bytes::Bytes;
pub use changed::Changed;
pub use checkpoint::Checkpoint;
pub use error::{Fault, FormatError, Result};
pub use hugging_face::AbsentTensor;
pub use input_file::{read_capped, read_file};
pub use inspection::{Container, Inspection, Metadata, TensorInfo};
pub use map::map_file;
pub use output_file::{Existing, OutputFile, remove_partial_files};
pub use output_folder::OutputFolder;
pub use shards::Shards;
#[cfg(unix)]
pub use shrunk::exit_on_shrunk_files;
pub use storage::{MlxAffine, StorageFormat};
pub use tensor::{Payload, Tensor};
