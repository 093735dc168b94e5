//! Draft trees: near the reference, and a tree of one branch bit for bit the plain text that it is.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::op::{Attention, KvSource, Mask};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{
    Case, Decoder, Random, Running, Tolerance, assert_same_bits, compare, f32_weight, tokens,
};
use brasa_graph::{DraftTree, Graph};

use crate::device::{device, full_or_few};

const WIDTH: usize = 150;

fn small() -> Arc<Graph> {
    let windows = vec![None, Some(20)];
    let decoder =
        Decoder { hidden: 64, feed_forward: 96, heads: 4, windows, ..Decoder::small(StorageFormat::F32) };
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

/// Committed text, a tree behind it, and beside it another sequence's plain rows.
fn tree_step(running: &mut Running, committed: &[u32], parents: &[Option<u32>], drafts: &[u32]) -> Vec<f32> {
    if !committed.is_empty() {
        running.step(&[(1, committed)]);
    }
    let mut segment = running.segment(1, drafts);
    segment.tree = Some(Arc::new(DraftTree::new(parents).unwrap()));
    let beside = running.segment(2, &[7, 8, 9]);
    let logits = running.run(vec![segment, beside]);
    logits[..drafts.len() * WIDTH].to_vec()
}

#[test]
fn trees_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let graph = small();
    let shapes = [(3, 9), (250, 12), (511, 40), (600, 1), (100, 200), (0, 30)];
    let shapes = &shapes[..full_or_few(device, 6, 2)];
    for (seed, &(committed, rows)) in shapes.iter().enumerate() {
        let mut random = Random::new(seed as u64);
        let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
        let parents = random_tree(&mut random, rows);
        let run = |device: &dyn Backend| {
            let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
            tree_step(&mut running, &committed, &parents, &drafts)
        };
        let comparison = compare(&run(device), &run(&ReferenceBackend));
        assert!(
            comparison.within(Tolerance::F32),
            "{} committed, {rows} rows: {comparison}",
            committed.len()
        );
    }
}

#[test]
fn a_tree_of_one_branch_is_plain_text() {
    let Some(device) = device() else { return };
    let graph = small();
    for kv in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        // Across two pages, and far from their end.
        let across = kv == KvType::F16 || full_or_few(device, true, false);
        for (committed, rows) in [(3, 9), (250, 12)].into_iter().take(if across { 2 } else { 1 }) {
            let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
            let mut running = Running::new(device, &graph, Precision::Fast, kv);
            running.step(&[(5, &committed)]);
            let plain = running.step(&[(5, &drafts)]);
            let parents: Vec<Option<u32>> = (0..rows as u32).map(|row| row.checked_sub(1)).collect();
            let found = tree_step(&mut running, &committed, &parents, &drafts);
            assert_same_bits(&found, &plain, &format!("{kv:?}, {rows} rows"));
        }
    }
}

#[test]
fn attention_to_the_step_follows_the_tree() {
    let Some(device) = device() else { return };
    for seed in 0..6 {
        for mask in [Mask::Causal, Mask::Bidirectional] {
            let window = [None, Some(3)][seed as usize % 2];
            let case = Case::new("tree", seed, &f32_weight, |b| {
                let (q, k, v) = (b.rows(&[4, 24]), b.rows(&[2, 24]), b.rows(&[2, 24]));
                let source = KvSource::Step(mask);
                let softcap = Some(4.0);
                let y = b.graph.attention(&[q, k, v], Attention { source, scale: 0.3, window, softcap });
                vec![b.graph.reshape(y, &[96])]
            });
            let graph = Arc::new(case.graph);
            let drafts: Vec<u32> = tokens(23, seed).iter().map(|token| token % 97).collect();
            let parents = random_tree(&mut Random::new(seed), drafts.len());
            let run = |device: &dyn Backend| {
                let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
                let mut segment = running.segment(1, &drafts);
                segment.tree = Some(Arc::new(DraftTree::new(&parents).unwrap()));
                running.run(vec![segment])
            };
            let comparison = compare(&run(device), &run(&ReferenceBackend));
            assert!(comparison.within(Tolerance::F32), "seed {seed}, {mask:?}: {comparison}");
        }
    }
}
