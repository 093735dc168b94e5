//! Looking into a checkpoint without running it.

use std::path::Path;

use brasa_formats::{Bytes, Checkpoint, Inspection};
use brasa_graph::fuse::Pattern;
use brasa_graph::plan::Plan;
use brasa_graph::{Schedule, Sizes, print};
use brasa_tokenizer::Tokenizer;

use crate::Error;

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

/// The graph of a checkpoint as text: operations, what is fused, where values lie.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Model`].
pub fn describe_graph(path: impl AsRef<Path>) -> Result<String, Error> {
    describe(&Checkpoint::open(path)?)
}

/// As [`describe_graph`], of a GGUF file in memory.
///
/// # Errors
///
/// Those of [`describe_graph`].
pub fn describe_graph_bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Result<String, Error> {
    describe(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?)
}

fn describe(checkpoint: &Checkpoint) -> Result<String, Error> {
    let model = brasa_models::load(checkpoint, &brasa_models::LoadOptions::default())?;
    let graph = model.graph;
    let schedule = Schedule::new(&graph, Pattern::ALL);
    let sizes = Sizes { rows: 512, outs: 256, segments: 16 };
    let plan = Plan::new(&graph, &schedule, &sizes);
    Ok(format!("{}\n{}", print::graph(&graph), print::plan(&graph, &schedule, &plan, &sizes)))
}
