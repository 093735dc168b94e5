//! Looking into a checkpoint without running it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use brasa_formats::{Bytes, Checkpoint, Inspection};
use brasa_graph::device::KvPoolSpec;
use brasa_graph::print;
use brasa_tokenizer::Tokenizer;

use crate::model::context_of;
use crate::{Error, LoadOptions, device, room};

/// The tokenizer of a checkpoint. Works without tensors and for unsupported architectures.
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
/// The errors of [`open_tokenizer`].
pub fn open_tokenizer_bytes(
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    pre_tokenizer: Option<&str>,
) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::from_inspection(&Inspection::of_gguf_bytes(&Bytes::new(bytes))?, pre_tokenizer)?)
}

/// Prints the graph of a checkpoint and the device's program for it: operations, fusions, places of values. Loads the weights,
/// since their formats decide how they are multiplied.
///
/// # Errors
///
/// [`Error::Format`], [`Error::Model`], [`Error::Device`].
pub fn describe_graph(path: impl AsRef<Path>, options: &LoadOptions) -> Result<String, Error> {
    describe(&Checkpoint::open(path)?, options)
}

/// Like [`describe_graph`], for a GGUF file in memory.
///
/// # Errors
///
/// The errors of [`describe_graph`].
pub fn describe_graph_bytes(
    bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    options: &LoadOptions,
) -> Result<String, Error> {
    describe(&Checkpoint::from_gguf_bytes(Bytes::new(bytes))?, options)
}

fn describe(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<String, Error> {
    let load = brasa_models::LoadOptions { context_length: options.context, strict: options.strict };
    let brasa_models::Model { spec, graph, info, .. } = brasa_models::load(checkpoint, &load)?;
    let backend = device::of(options)?;
    let graph = Arc::new(graph);
    let weights = backend.upload(&graph, options.precision, &mut |_| ControlFlow::Continue(()))?;
    let pool = backend.kv_pool(KvPoolSpec::of(&graph, options.kv_type()))?;
    let (device, context) = (backend.info(), context_of(options, &info));
    let sequences = room::sequences(options, &device, weights.size_bytes(), context, &*pool);
    let program_spec = options.program_spec(&device, sequences, spec.vocab_size);
    let program = backend.compile(Arc::clone(&graph), weights, program_spec)?;
    Ok(format!("{}\n{}", print::graph(&graph), program.describe()))
}
