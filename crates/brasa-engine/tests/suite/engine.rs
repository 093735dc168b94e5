//! The engine against itself: batched = alone, chunked = whole, resumed = fresh, on a small random model run by the
//! reference interpreter; and what happens when things end early.

mod adapters;
mod contexts;
mod culprits;
mod draft_models;
mod on_the_cpu;
mod on_the_mock;
mod pages;
mod recurrent;
mod schedules;
mod small_model;
mod snapshots;
mod speculation;
mod streams;
mod texts;
mod toys;

use std::cell::RefCell;
use std::sync::Arc;

use brasa_engine::{
    Engine, EngineConfig, EngineError, EngineParts, Executor, Fragment, GenerateOptions, MakeProgram,
    PlainIds, Request, SessionId, TokenStream, pages_bytes,
};
use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits,
};
use brasa_graph::pass::prune;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::{Graph, GroupId};

// Devices run these tests again by name.
use adapters::*;
use contexts::*;
use draft_models::*;
use pages::*;
use schedules::*;
use small_model::{LAYERS, RECURRENT, VOCAB, graph};
use snapshots::*;
use speculation::*;
use streams::*;
use texts::*;

thread_local! {
    /// The device of the engines that the current test starts.
    static DEVICE: RefCell<Box<dyn Backend>> = RefCell::new(Box::new(ReferenceBackend));
}

/// Sizes that tests change as they need.
const CONFIG: EngineConfig = EngineConfig {
    context: 1024,
    max_sequences: 2,
    max_waiting: 100,
    mixed_prompt_rows: 8,
    vocab_size: VOCAB,
    cache_bytes: u64::MAX,
    prefix_bytes: 0,
    prefault_bytes: 0,
};

fn engine(context: usize, chunk: usize, max_sequences: usize) -> Engine {
    engine_of(LAYERS, KvType::F32, context, chunk, max_sequences, 0)
}

fn engine_of(
    windows: &[Option<usize>],
    dtype: KvType,
    context: usize,
    chunk: usize,
    max_sequences: usize,
    prefix_bytes: u64,
) -> Engine {
    engine_for(windows, dtype, context, chunk, max_sequences, prefix_bytes, 2 * max_sequences)
}

/// An engine with pages for `texts` texts.
fn engine_for(
    windows: &[Option<usize>],
    dtype: KvType,
    context: usize,
    chunk: usize,
    max_sequences: usize,
    prefix_bytes: u64,
    texts: usize,
) -> Engine {
    let graph = Arc::new(graph(windows));
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: max_sequences };
    let spec = KvPoolSpec::of(&graph, dtype);
    start_engine(&graph, limits, spec, |pool| {
        let states = if RECURRENT.get() { 8192 } else { 0 };
        let cache_bytes = pages_bytes(pool, context) * texts as u64 + states;
        EngineConfig { context, max_sequences, cache_bytes, prefix_bytes, ..CONFIG }
    })
}

/// An engine on the device of this thread. Its sizes may depend on the bytes that pages take there.
fn start_engine(
    graph: &Arc<Graph>,
    limits: ProgramLimits,
    spec: KvPoolSpec,
    config: impl FnOnce(&dyn KvPool) -> EngineConfig,
) -> Engine {
    let (program, pool) = DEVICE.with_borrow(|backend| compiled(&**backend, graph, limits, spec));
    let config = config(&*pool);
    Engine::start(EngineParts::new(program, pool), config).unwrap()
}

fn compiled(
    backend: &dyn Backend,
    graph: &Arc<Graph>,
    limits: ProgramLimits,
    spec: KvPoolSpec,
) -> (Box<dyn Program>, Box<dyn KvPool>) {
    let ignore = &mut |_| std::ops::ControlFlow::Continue(());
    let weights = backend.upload(graph, Precision::Reference, ignore).unwrap();
    let program = backend.compile(Arc::clone(graph), weights, limits.with(spec.dtype)).unwrap();
    (program, backend.kv_pool(spec).unwrap())
}

/// An engine whose program returns hidden states in place of logits, and one that gives both.
fn hidden_engines(context: usize, chunk: usize, max_sequences: usize) -> (Engine, Engine) {
    let program = || hidden_parts(context, chunk, max_sequences, true);
    let (alone, pool, config) = program();
    let (hidden, ..) = program();
    let (logits, its_pool, _) = hidden_parts(context, chunk, max_sequences, false);
    let mut hidden = Some(hidden);
    let make: MakeProgram = Box::new(move || Ok(hidden.take().expect("one program is asked for")));
    let both =
        Engine::start(EngineParts { hidden: Some(make), ..EngineParts::new(logits, its_pool) }, config)
            .unwrap();
    (Engine::start(EngineParts::new(alone, pool), config).unwrap(), both)
}

/// An engine whose device has no memory for a program that returns hidden states.
fn engine_without_memory_for_hidden(context: usize, chunk: usize, max_sequences: usize) -> Engine {
    let (logits, pool, config) = hidden_parts(context, chunk, max_sequences, false);
    let make: MakeProgram =
        Box::new(|| Err(DeviceError::OutOfMemory { bytes: 1 << 40, what: "an arena".into() }));
    Engine::start(EngineParts { hidden: Some(make), ..EngineParts::new(logits, pool) }, config).unwrap()
}

/// A program that returns the `hidden` states of the small model, or its logits; a pool and a configuration for it.
fn hidden_parts(
    context: usize,
    chunk: usize,
    max_sequences: usize,
    hidden: bool,
) -> (Box<dyn Program>, Box<dyn KvPool>, EngineConfig) {
    let mut graph = graph(LAYERS);
    if hidden {
        let states = graph.nodes().last().unwrap().inputs[0];
        graph = prune(&graph.returning(&[states]));
    }
    let graph = Arc::new(graph);
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: max_sequences };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    DEVICE.with_borrow(|backend| {
        let ignore = &mut |_| std::ops::ControlFlow::Continue(());
        let weights = backend.upload(&graph, Precision::Reference, ignore).unwrap();
        let program = backend.compile(Arc::clone(&graph), weights, limits.with(spec.dtype)).unwrap();
        let pool = backend.kv_pool(spec).unwrap();
        let cache_bytes = pages_bytes(&*pool, context) * 2 * max_sequences as u64;
        (program, pool, EngineConfig { context, max_sequences, cache_bytes, ..CONFIG })
    })
}

/// Bytes that a page of one layer takes on the device of this thread.
fn page_bytes() -> u64 {
    let spec = KvPoolSpec::of(&graph(&[None]), KvType::F32);
    // Recurrent states take few bytes beside the keys and values.
    let states = if RECURRENT.get() { 2048 } else { 0 };
    DEVICE.with_borrow(|backend| backend.kv_pool(spec).unwrap().page_bytes(GroupId(0))) + states
}

fn prompt(length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|index| ((index * index * 7 + index * 3 + seed * 11) % VOCAB) as u32).collect()
}

fn limit(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ..GenerateOptions::default() }
}

fn start(
    engine: &Engine,
    prompt: Vec<u32>,
    options: &GenerateOptions,
    session: Option<SessionId>,
) -> TokenStream {
    try_start(engine, prompt, options, session).unwrap()
}

fn try_start(
    engine: &Engine,
    prompt: Vec<u32>,
    options: &GenerateOptions,
    session: Option<SessionId>,
) -> Result<TokenStream, EngineError> {
    engine.generate(Request {
        prompt,
        options: options.clone(),
        end_ids: Vec::new(),
        decoder: Box::new(PlainIds),
        session,
    })
}

fn ids(stream: &mut impl Iterator<Item = Result<Fragment, EngineError>>) -> Vec<u32> {
    stream.filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
}

/// Runs `work` while the engine's thread waits for it.
fn while_held(engine: &Engine, work: impl FnOnce()) {
    let (held, is_held) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = move |_: &mut Executor| {
                held.send(()).unwrap();
                // A `work` that panics has dropped the sender.
                let _ = released.recv();
            };
            engine.with(wait).unwrap();
        });
        is_held.recv().unwrap();
        work();
        drop(release);
    });
}
