//! A device, a program and its sequences, run step by step.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::Graph;
use crate::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits, WeightSet};
use crate::step::{Outs, PageId, Segment, Step};

use super::{Random, Sequences};

/// A program, its pool and its sequences. An error of the device panics.
pub struct Running {
    /// The program, for steps of up to 700 rows of 8 sequences.
    pub program: Box<dyn Program>,
    /// The program's pages.
    pub pool: Box<dyn KvPool>,
    /// The sequences in the pool.
    pub sequences: Sequences,
}

#[expect(clippy::missing_panics_doc, reason = "said above of all functions")]
impl Running {
    /// Compiles `graph` on a device.
    pub fn new(device: &dyn Backend, graph: &Arc<Graph>, precision: Precision, kv: KvType) -> Self {
        let weights = device.upload(graph, precision, &mut |_| ControlFlow::Continue(())).expect("an upload");
        Self::with(device, graph, weights, kv)
    }

    /// Compiles `graph` on a device, over a set of weights that exists already.
    pub fn with(device: &dyn Backend, graph: &Arc<Graph>, weights: Arc<dyn WeightSet>, kv: KvType) -> Self {
        let limits = ProgramLimits { max_rows: 700, max_outs: 700, max_segments: 8 };
        let program = device.compile(Arc::clone(graph), weights, limits.with(kv)).expect("a program");
        let pool = device.kv_pool(KvPoolSpec::of(graph, kv)).expect("a pool");
        let sequences = Sequences::new(&*pool);
        Self { program, pool, sequences }
    }

    /// The next rows of a sequence, with logits for all of them.
    pub fn segment(&mut self, id: u64, tokens: &[u32]) -> Segment {
        self.sequences.extend(&mut *self.pool, id, tokens, Outs::All).expect("pages")
    }

    /// Reserves a state page that no sequence uses.
    pub fn state_page(&mut self) -> PageId {
        self.sequences.state_page(&mut *self.pool).expect("a state page")
    }

    /// Runs segments in one step; returns the logits of every row, one after the other.
    pub fn run(&mut self, segments: Vec<Segment>) -> Vec<f32> {
        self.program.run(&Step { segments }, &mut *self.pool).expect("a valid step").only().floats().to_vec()
    }

    /// Runs parts of sequences in one step; returns the logits of every row.
    pub fn step(&mut self, parts: &[(u64, &[u32])]) -> Vec<f32> {
        let segments = parts.iter().map(|&(id, tokens)| self.segment(id, tokens)).collect();
        self.run(segments)
    }

    /// Runs `tokens` of one sequence in steps of `rows` rows, repeated in turn; returns the logits of every row.
    pub fn chunked(&mut self, id: u64, tokens: &[u32], rows: &[usize]) -> Vec<f32> {
        let (mut rest, mut logits) = (tokens, Vec::new());
        for &rows in rows.iter().cycle() {
            if rest.is_empty() {
                return logits;
            }
            let (chunk, tail) = rest.split_at(rows.min(rest.len()));
            logits.extend(self.step(&[(id, chunk)]));
            rest = tail;
        }
        logits
    }
}

/// Random token ids below 150.
pub fn tokens(len: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(150) as u32).collect()
}

/// Asserts that the logits over 150 tokens are finite and equal bit for bit.
///
/// # Panics
///
/// If they are not. The message has `what`.
pub fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(found.iter().all(|x| x.is_finite()), "{what}: not finite");
    let different = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let first = found.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(different, 0, "{what}: {different} elements differ, the first is {first:?} (150 a row)");
}
