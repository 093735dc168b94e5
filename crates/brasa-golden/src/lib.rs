//! Golden values of other implementations, and functions that compare a device with them (tests only).
//!
//! [`Runner`] runs a model on any device; [`Golden`], [`Reference`] and [`npz`] read what transformers computed;
//! [`check_greedy`] applies the margin rule. Everything panics with a message on bad input: this is test code.

#![forbid(unsafe_code)]
#![allow(clippy::missing_panics_doc, reason = "a test says what it expects by panicking")]

pub mod npz;
mod reference;
mod speech;

pub use reference::{Prompt, Reference};
pub use speech::{SpeechRunner, load_speech_strictly};

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use brasa_formats::Checkpoint;
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits};
use brasa_graph::output::Output;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::Sequences;
use brasa_models::{LoadOptions, Model, load};

/// A folder of the repository's models.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

/// Loads the checkpoint at `path` strictly, for texts of up to `context_length` tokens. Reads each file once per process.
pub fn load_strictly(path: &Path, context_length: Option<usize>) -> Model {
    type Loaded = Arc<OnceLock<Model>>;
    static MODELS: Mutex<BTreeMap<(PathBuf, Option<usize>), Loaded>> = Mutex::new(BTreeMap::new());
    // A checkpoint that cannot be loaded fails the test that asks for it, and no other.
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let model = Arc::clone(models.entry((path.to_owned(), context_length)).or_default());
    drop(models);
    let load = || {
        let checkpoint = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let options = LoadOptions { context_length, strict: true };
        let model = load(&checkpoint, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(model.warnings, Vec::<String>::new(), "{}", path.display());
        model
    };
    model.get_or_init(load).clone()
}

/// A model on a device.
pub struct Runner {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
}

impl Runner {
    /// On the reference interpreter, f32 throughout.
    pub fn new(model: Model) -> Self {
        Self::on(&ReferenceBackend, model, Precision::Reference, KvType::F32)
    }

    /// On `device`.
    pub fn on(device: &dyn Backend, model: Model, precision: Precision, dtype: KvType) -> Self {
        let graph = Arc::new(model.graph);
        let weights = device
            .upload(&graph, precision, &mut |_| ControlFlow::Continue(()))
            .expect("the device takes every weight");
        let spec = KvPoolSpec::of(&graph, dtype);
        let pool = device.kv_pool(spec).expect("pages");
        let limits = ProgramLimits { max_rows: 1024, max_outs: 1024, max_segments: 1 };
        let program =
            device.compile(graph, weights, limits.with(dtype)).expect("the device runs every graph");
        Self { program, pool }
    }

    /// Logits of every row of `ids`, `[rows][vocab]`, computed in one step.
    pub fn logits(&mut self, ids: &[u32]) -> Vec<Vec<f32>> {
        let mut sequences = Sequences::new(&*self.pool);
        self.step(&mut sequences, ids, Outs::All)
    }

    /// Every output of the graph for all rows of `ids`, `[outputs][rows][width]`, computed in one step. Numbers come as floats.
    pub fn outputs(&mut self, ids: &[u32]) -> Vec<Vec<Vec<f32>>> {
        let mut sequences = Sequences::new(&*self.pool);
        self.run(&mut sequences, ids, Outs::All)
    }

    /// Logits of the last row of `ids`, computed in steps of `chunk` rows. Only the last step returns logits.
    pub fn chunked(&mut self, ids: &[u32], chunk: usize) -> Vec<f32> {
        let mut sequences = Sequences::new(&*self.pool);
        let mut chunks = ids.chunks(chunk).peekable();
        let mut last = Vec::new();
        while let Some(ids) = chunks.next() {
            let outs = if chunks.peek().is_some() { Outs::None } else { Outs::Last };
            last = self.step(&mut sequences, ids, outs).pop().unwrap_or_default();
        }
        last
    }

    /// Logits of every row of `ids`, and `count` argmax continuations of the same sequence.
    pub fn greedy(&mut self, ids: &[u32], count: usize) -> (Vec<Vec<f32>>, Vec<u32>) {
        let mut sequences = Sequences::new(&*self.pool);
        let logits = self.step(&mut sequences, ids, Outs::All);
        let mut chosen = vec![argmax(&logits[logits.len() - 1])];
        while chosen.len() < count {
            let last = [chosen[chosen.len() - 1]];
            let next = self.step(&mut sequences, &last, Outs::Last);
            chosen.push(argmax(&next[0]));
        }
        (logits, chosen)
    }

    fn step(&mut self, sequences: &mut Sequences, ids: &[u32], outs: Outs) -> Vec<Vec<f32>> {
        let [logits] = self.run(sequences, ids, outs).try_into().expect("one output");
        logits
    }

    fn run(&mut self, sequences: &mut Sequences, ids: &[u32], outs: Outs) -> Vec<Vec<Vec<f32>>> {
        let segment = sequences.extend(&mut *self.pool, 1, ids, outs).expect("pages");
        let outputs = self.program.run(&Step { segments: vec![segment] }, &mut *self.pool);
        let rows = |output: Output<'_>| {
            output.to_floats().chunks(output.width().max(1)).map(<[f32]>::to_vec).collect()
        };
        outputs.expect("a valid step").iter().map(rows).collect()
    }
}

/// Number of the largest element, ties to the lowest.
pub fn argmax(row: &[f32]) -> u32 {
    let best = |best: usize, i: usize| if row[i] > row[best] { i } else { best };
    (0..row.len()).fold(0, best) as u32
}

/// Mean of −log p over all ids but the first.
pub fn mean_nll(logits: &[Vec<f32>], ids: &[u32]) -> f64 {
    let nll = |(row, &next): (&Vec<f32>, &u32)| {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        f64::from(max) + sum.ln() - f64::from(row[next as usize])
    };
    logits.iter().zip(&ids[1..]).map(nll).sum::<f64>() / (ids.len() - 1) as f64
}

/// Asserts that greedy ids agree up to the first step whose margin the measured error could bridge. Returns the number of steps
/// compared; the caller asserts that it is large enough.
#[must_use]
pub fn check_greedy(name: &str, found: &[u32], expected: &[u32], margins: &[f32], worst_error: f32) -> usize {
    assert_eq!((found.len(), margins.len()), (expected.len(), expected.len()), "{name}: steps");
    assert!(worst_error.is_finite(), "{name}: error {worst_error}");
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        if margins[step] < 2.0 * worst_error {
            println!("{name}: step {step} has margin {} below error {worst_error}; stopped", margins[step]);
            return step;
        }
        assert_eq!(found, expected, "{name}: greedy step {step}, margin {}", margins[step]);
    }
    expected.len()
}

/// Arrays of a safetensors file of golden values.
pub struct Golden(BTreeMap<String, (String, Vec<u8>)>);

impl Golden {
    /// Reads the file.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let header: serde_json::Value =
            serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("a JSON header");
        let data = &bytes[8 + header_bytes..];
        let arrays =
            header.as_object().expect("an object").iter().filter(|(name, _)| *name != "__metadata__");
        let array = |(name, entry): (&String, &serde_json::Value)| {
            let offset = |i: usize| entry["data_offsets"][i].as_u64().expect("an offset") as usize;
            let dtype = entry["dtype"].as_str().expect("a type").to_string();
            (name.clone(), (dtype, data[offset(0)..offset(1)].to_vec()))
        };
        Self(arrays.map(array).collect())
    }

    /// The names of all arrays, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// True if there is an array of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// An f32 array.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name, "F32").map(f32::from_le_bytes).collect()
    }

    /// An i32 array of token ids.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name, "I32").map(u32::from_le_bytes).collect()
    }

    fn words(&self, name: &str, dtype: &str) -> impl Iterator<Item = [u8; 4]> {
        let (found, bytes) = self.0.get(name).unwrap_or_else(|| panic!("no array {name}"));
        assert_eq!(found, dtype, "{name}");
        bytes.as_chunks::<4>().0.iter().copied()
    }
}
