//! Looking into a checkpoint without running it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_formats::{Bytes, Checkpoint, Inspection};
use brasa_graph::device::{Precision, ProgramLimits};
use brasa_graph::print;
use brasa_tokenizer::Tokenizer;

use crate::{Error, LoadOptions, device};

/// The largest step of the program that is described.
const LIMITS: ProgramLimits = ProgramLimits { max_rows: 512, max_outs: 256, max_segments: 16 };

/// The tokenizer of a checkpoint; needs neither tensors nor a supported architecture.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Tokenizer`].
pub fn open_tokenizer(path: impl AsRef<Path>, pre_tokenizer: Option<&str>) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_inspection(&Inspection::open(path)?, pre_tokenizer)?)
}

/// The tokenizer of a GGUF file in memory.
///
/// # Errors
///
/// Those of [`open_tokenizer`].
pub fn open_tokenizer_bytes(
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    pre_tokenizer: Option<&str>,
) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_inspection(&Inspection::of_gguf_bytes(&Bytes::new(bytes))?, pre_tokenizer)?)
}

/// The graph of a checkpoint as text, and the program that the best device of this machine makes of it: its operations in
/// order, the place of every operand, and the arithmetic of every product.
///
/// Packs the weights, so it takes as much time and memory as loading the model.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Model`], [`Error::Device`].
pub fn describe_graph(path: impl AsRef<Path>) -> Result<String, Error> {
    describe(&Checkpoint::open(path)?)
}

/// Describes a GGUF file in memory, like [`describe_graph`].
///
/// # Errors
///
/// Those of [`describe_graph`].
pub fn describe_graph_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<String, Error> {
    describe(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?)
}

fn describe(checkpoint: &Checkpoint) -> Result<String, Error> {
    let options = LoadOptions::default();
    let graph = Arc::new(brasa_models::load(checkpoint, &brasa_models::LoadOptions::default())?.graph);
    let device = device::open(options.device.as_deref(), &options)?;
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let program = device.compile(Arc::clone(&graph), weights, LIMITS)?;
    Ok(format!("{}\n{}", print::graph(&graph), program.describe()))
}
