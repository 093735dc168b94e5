//! Checks of draft trees: results near the reference, each row near its branch as plain text, and a tree of one branch equal to
//! plain text.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::device::{Backend, KvType, Precision};
use crate::op::{Attention, KvSource, Mask};
use crate::reference::ReferenceBackend;
use crate::{DraftTree, Graph};

use super::{Case, Decoder, Random, Running, Tolerance, assert_same_bits, compare, f32_weight, tokens};

const VOCAB: usize = 150;

/// A random tree of drafts behind a text, with the logits of the reference.
#[derive(Debug)]
pub struct DraftTreeCase {
    graph: Arc<Graph>,
    committed: Vec<u32>,
    drafts: Vec<u32>,
    parents: Vec<Option<u32>>,
    expected: Vec<f32>,
}

impl DraftTreeCase {
    /// A tree of `rows` drafts behind `committed` tokens, in a decoder whose layers have `windows`.
    ///
    /// # Panics
    ///
    /// If the reference refuses the step: a bug of this crate.
    pub fn new(windows: &[Option<usize>], committed: usize, rows: usize, seed: u64) -> Self {
        Self::of(decoder(windows), committed, rows, seed)
    }

    /// A tree of `rows` drafts behind `committed` tokens, in a graph from token ids below 150 to logits.
    ///
    /// # Panics
    ///
    /// If the reference refuses the step.
    pub fn of(graph: Arc<Graph>, committed: usize, rows: usize, seed: u64) -> Self {
        let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
        let parents = random_tree(&mut Random::new(seed), rows);
        let mut case = Self { graph, committed, drafts, parents, expected: Vec::new() };
        case.expected = case.run(&mut case.on(&ReferenceBackend, Precision::Reference));
        case
    }

    /// Checks the tree on a device that multiplies with `precision`. Weights are f32.
    ///
    /// # Panics
    ///
    /// If a row is not near the reference, or not near its branch as plain text.
    pub fn check(&self, device: &dyn Backend, precision: Precision) {
        let mut running = self.on(device, precision);
        let found = self.run(&mut running);
        let comparison = compare(&found, &self.expected);
        let (committed, rows) = (self.committed.len(), self.drafts.len());
        let label = format!("{committed} committed, {rows} rows, {}", device.info().description);
        assert!(comparison.within(Tolerance::F32), "{label}: {comparison}");
        for (number, row) in [0, rows / 2, rows - 1].into_iter().enumerate() {
            let text = [&self.committed[..], &self.branch(row)].concat();
            let alone = running.step(&[(10 + number as u64, &text)]);
            let comparison = compare(&found[row * VOCAB..][..VOCAB], &alone[alone.len() - VOCAB..]);
            assert!(comparison.within(Tolerance::F32), "{label}, row {row}: {comparison}");
        }
    }

    fn on(&self, device: &dyn Backend, precision: Precision) -> Running {
        Running::new(device, &self.graph, precision, KvType::F32)
    }

    fn run(&self, running: &mut Running) -> Vec<f32> {
        run_tree(running, &self.committed, &self.parents, &self.drafts)
    }

    /// The drafts from the root to a row of the tree, the row itself last.
    fn branch(&self, row: usize) -> Vec<u32> {
        let rows = std::iter::successors(Some(row), |&row| self.parents[row].map(|row| row as usize));
        let mut branch: Vec<u32> = rows.map(|row| self.drafts[row]).collect();
        branch.reverse();
        branch
    }
}

/// Checks that a tree of one branch, of `rows` drafts behind `committed` tokens, equals plain text bit for bit in a decoder whose
/// layers have `windows`.
///
/// # Panics
///
/// If a bit differs.
pub fn check_tree_of_one_branch(
    device: &dyn Backend,
    windows: &[Option<usize>],
    kv: KvType,
    committed: usize,
    rows: usize,
) {
    check_tree_of_one_branch_in(device, &decoder(windows), Precision::Fast, kv, committed, rows);
}

/// Checks that a tree of one branch, of `rows` drafts behind `committed` tokens, equals plain text bit for bit in a graph from
/// token ids below 150 to logits.
pub(super) fn check_tree_of_one_branch_in(
    device: &dyn Backend,
    graph: &Arc<Graph>,
    precision: Precision,
    kv: KvType,
    committed: usize,
    rows: usize,
) {
    let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
    let mut running = Running::new(device, graph, precision, kv);
    running.step(&[(5, &committed)]);
    let plain = running.step(&[(5, &drafts)]);
    let parents: Vec<Option<u32>> = (0..rows as u32).map(|row| row.checked_sub(1)).collect();
    let found = run_tree(&mut running, &committed, &parents, &drafts);
    assert_same_bits(&found, &plain, &format!("{kv:?}, {rows} rows, {}", device.info().description));
}

/// Checks that attention to the rows of the step follows random trees, with and without causality and windows.
///
/// # Panics
///
/// If a result is not near the reference.
pub fn check_attention_in_trees(device: &dyn Backend) {
    for seed in 0..6 {
        for mask in [Mask::Causal, Mask::Bidirectional] {
            let window = [None, Some(3)][seed as usize % 2];
            let case = Case::new("tree", seed, &f32_weight, |b| {
                // From the fourth tree on with sinks, and values of another width than keys.
                let is_wide = seed >= 3;
                let value_dim = if is_wide { 20 } else { 24 };
                let mut operands = vec![b.rows(&[4, 24]), b.rows(&[2, 24]), b.rows(&[2, value_dim])];
                if is_wide {
                    operands.push(b.bias("sinks", 4));
                }
                let source = KvSource::Step(mask);
                let softcap = Some(4.0);
                let y = b.graph.attention(&operands, Attention { source, scale: 0.3, window, softcap });
                vec![b.graph.reshape(y, &[4 * value_dim])]
            });
            let graph = Arc::new(case.graph);
            let drafts: Vec<u32> = tokens(23, seed).iter().map(|token| token % 97).collect();
            let parents = random_tree(&mut Random::new(seed), drafts.len());
            let run = |device: &dyn Backend| {
                let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
                let mut segment = running.segment(1, &drafts);
                segment.tree = Some(Arc::new(DraftTree::new(&parents).expect("parents before children")));
                running.run(vec![segment])
            };
            let comparison = compare(&run(device), &run(&ReferenceBackend));
            assert!(comparison.within(Tolerance::F32), "seed {seed}, {mask:?}: {comparison}");
        }
    }
}

fn decoder(windows: &[Option<usize>]) -> Arc<Graph> {
    let small = Decoder::small(StorageFormat::F32);
    // With windows also sinks, as in gpt-oss.
    let (windows, sinks) = (windows.to_vec(), windows.iter().any(Option::is_some));
    let decoder = Decoder { hidden: 64, heads: 4, feed_forward: 96, windows, sinks, ..small };
    Arc::new(decoder.graph(8))
}

fn random_tree(random: &mut Random, rows: usize) -> Vec<Option<u32>> {
    (0..rows)
        .map(|row| {
            let near = row - random.below(row.min(4) + 1);
            (near > 0 && random.below(10) > 0).then(|| near as u32 - 1)
        })
        .collect()
}

/// The logits of drafts after committed text, in a step with plain rows of another text.
fn run_tree(running: &mut Running, committed: &[u32], parents: &[Option<u32>], drafts: &[u32]) -> Vec<f32> {
    if !committed.is_empty() {
        running.step(&[(1, committed)]);
    }
    let mut segment = running.segment(1, drafts);
    segment.tree = Some(Arc::new(DraftTree::new(parents).expect("parents before children")));
    let beside = running.segment(2, &[7, 8, 9]);
    let logits = running.run(vec![segment, beside]);
    logits[..drafts.len() * VOCAB].to_vec()
}
