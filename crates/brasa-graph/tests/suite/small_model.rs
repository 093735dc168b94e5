//! A small model on the reference device.
#![allow(dead_code, clippy::unwrap_used, reason = "tests; each needs some of it")]

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits};
use brasa_graph::op::{Attention, KvSource, Rope, RopeLayout, Unary};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Random, Sequences, weight};
use brasa_graph::{Builder, CacheSpec, Graph, Input, ValueId};

pub const VOCAB: usize = 31;
const WIDTH: usize = 24;

/// Two layers, one with a window: 3 heads over 1 KV head of 8.
pub fn small_model() -> Graph {
    let mut g = Builder::new();
    let mut random = Random::new(7);
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        let weight = random.weight(name, shape);
        g.weight(Ok(weight))
    };
    let (ids, positions, rows) =
        (g.input(Input::TokenIds), g.input(Input::Positions), g.input(Input::OutRows));
    let table = w(&mut g, "embed", &[VOCAB, WIDTH]);
    let frequencies = g.weight(Ok(weight("rope", &[4], &[1.0, 0.1, 0.01, 0.001])));
    let mut h = g.embed(ids, table);
    for window in [None, Some(5)] {
        let cache = g.cache(CacheSpec::new(1, 8, window));
        let heads = |g: &mut Builder, x: ValueId, range: std::ops::Range<usize>| {
            let heads = range.len() / 8;
            let part = g.slice(x, range);
            g.reshape(part, &[heads, 8])
        };
        let x = g.rms_norm_unscaled(h, 1e-6);
        let qkv_w = w(&mut g, "qkv", &[40, WIDTH]);
        let qkv = g.linear(x, qkv_w);
        let (q, k, v) = (heads(&mut g, qkv, 0..24), heads(&mut g, qkv, 24..32), heads(&mut g, qkv, 32..40));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 8, magnitude: 1.0 };
        let (q, k) = (g.rope(q, positions, frequencies, rope), g.rope(k, positions, frequencies, rope));
        g.cache_write(k, v, cache);
        let attention = Attention { source: KvSource::Cache(cache), scale: 0.35, window, softcap: None };
        let y = g.attention(&[q], attention);
        let y = g.reshape(y, &[WIDTH]);
        let y = g.unary(y, Unary::Silu);
        h = g.add(h, y);
    }
    let h = g.select_rows(h, rows);
    let logits = g.linear(h, table);
    g.finish(&[logits]).unwrap()
}

/// The model on the reference device.
pub struct Device {
    pub program: Box<dyn Program>,
    pub pool: Box<dyn KvPool>,
    pub sequences: Sequences,
}

impl Device {
    pub fn new(dtype: KvType) -> Self {
        Self::with_segments(dtype, 2)
    }

    /// Rows for steps of three sequences.
    pub fn three(dtype: KvType) -> Self {
        Self::with_segments(dtype, 3)
    }

    /// A model of the same vocabulary.
    pub fn of(graph: Graph, dtype: KvType) -> Self {
        Self::on(&ReferenceBackend, graph, dtype, 2)
    }

    fn with_segments(dtype: KvType, max_segments: usize) -> Self {
        Self::on(&ReferenceBackend, small_model(), dtype, max_segments)
    }

    /// A model on any device, for steps of `max_segments` sequences.
    pub fn on(backend: &dyn Backend, graph: Graph, dtype: KvType, max_segments: usize) -> Self {
        let graph = Arc::new(graph);
        let weights =
            backend.upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(())).unwrap();
        let pool = backend.kv_pool(KvPoolSpec::of(&graph, dtype)).unwrap();
        let limits = ProgramLimits { max_rows: 600, max_outs: 600, max_segments };
        let program = backend.compile(graph, weights, limits.with(dtype)).unwrap();
        Self { program, sequences: Sequences::new(&*pool), pool }
    }

    /// Logits of all rows of one step.
    pub fn run(&mut self, segments: &[(u64, &[u32])]) -> Vec<f32> {
        let segments = segments
            .iter()
            .map(|&(id, tokens)| self.sequences.extend(&mut *self.pool, id, tokens, Outs::All).unwrap());
        let step = Step { segments: segments.collect() };
        self.program.run(&step, &mut *self.pool).unwrap().only().floats().to_vec()
    }
}

pub fn tokens(len: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(VOCAB) as u32).collect()
}
