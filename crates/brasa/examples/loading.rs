//! Ways to load a model: `cargo run -p brasa --example loading`.
//!
//! A model that is part of the program, bounds on what it takes, a device of the caller's own, and several models at once.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa::{Error, GenerateOptions, LoadOptions, Message, Model, OwnDevice};
use brasa_cpu::{CpuBackend, CpuOptions};

static MODEL: &[u8] = include_bytes!("../../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");

fn main() -> Result<(), Error> {
    let embedded = embedded()?;
    let small = small()?;
    let own = own_device()?;
    eprintln!();
    // Each model has weights, threads and a cache of its own; requests of all of them run at the same time.
    let question = [Message::new("user", "What does \"ember\" mean?")];
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::default() };
    let streams = [&embedded, &small, &own].map(|model| model.chat(&question, &options));
    for (model, stream) in [embedded, small, own].iter().zip(streams) {
        println!("context {:>6}, {}: {}", model.context(), model.device().description, stream?.into_text()?);
    }
    Ok(())
}

/// A model in the program's own file. Progress may cancel.
fn embedded() -> Result<Model, Error> {
    Model::from_gguf_bytes(MODEL, &LoadOptions::default(), |progress| {
        eprint!("\r{} of {} bytes", progress.done_bytes, progress.total_bytes);
        ControlFlow::Continue(())
    })
}

/// A model that takes little: one thread, short texts, two at once, a bounded queue and a bounded cache.
fn small() -> Result<Model, Error> {
    let options = LoadOptions {
        threads: Some(1),
        context: Some(512),
        max_sequences: Some(2),
        max_waiting: 8,
        cache_bytes: Some(32 << 20),
        ..LoadOptions::default()
    };
    Model::load(path(), &options)
}

/// A model on a device that the program made itself: anything that implements `brasa_graph::device::Backend`.
fn own_device() -> Result<Model, Error> {
    let device =
        CpuBackend::new(CpuOptions { threads: Some(1), deterministic: true, ..CpuOptions::default() })?;
    let own_device = Some(OwnDevice(Arc::new(device)));
    Model::load(path(), &LoadOptions { own_device, ..LoadOptions::default() })
}

fn path() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/lexicon-qwen3/lexicon-qwen3-Q6_K.gguf")
}
