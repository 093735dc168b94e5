//! Draft trees on the device: near the reference, each row near its branch as plain text, and a tree of one branch bit
//! for bit the plain text that it is.

use std::sync::Arc;

use crate::common::decoder::Decoder;
use crate::common::running::{Running, assert_same_bits, device, exact, tokens};
use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::DraftTree;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::op::{Attention, KvSource, Mask};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Case, Random, Tolerance, compare, f32_weight};

const WIDTH: usize = 150;

fn small() -> Decoder {
    let windows = vec![None, Some(20), Some(300)];
    Decoder { hidden: 64, feed_forward: 96, windows, ..Decoder::small(StorageFormat::F32) }
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

/// The drafts on the way to a row of the tree, itself last.
fn branch(parents: &[Option<u32>], drafts: &[u32], row: usize) -> Vec<u32> {
    let rows = std::iter::successors(Some(row), |&row| parents[row].map(|row| row as usize));
    let mut branch: Vec<u32> = rows.map(|row| drafts[row]).collect();
    branch.reverse();
    branch
}

#[test]
fn trees_agree_with_the_reference_and_with_each_branch_alone() {
    let graph = Arc::new(small().graph(8));
    // One query tile and many, inside a page, across two, on one thread and on so many that pages are shared out.
    let shapes = [(3, 9), (250, 12), (511, 40), (600, 1), (100, 200), (0, 30)];
    for (seed, (committed, rows)) in shapes.into_iter().enumerate() {
        let mut random = Random::new(seed as u64);
        let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
        let parents = random_tree(&mut random, rows);
        let expected = tree_step(
            &mut Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F32),
            &committed,
            &parents,
            &drafts,
        );
        for isa in Isa::available() {
            for threads in [1, 3] {
                let mut running = Running::new(&device(threads, isa), &graph, Precision::Fast, KvType::F32);
                let found = tree_step(&mut running, &committed, &parents, &drafts);
                let comparison = compare(&found, &expected);
                let label = format!("{} committed, {rows} rows, {}, {threads}", committed.len(), isa.name());
                assert!(comparison.within(Tolerance::F32), "{label}: {comparison}");
                for (number, row) in [0, rows / 2, rows - 1].into_iter().enumerate() {
                    let text = [&committed[..], &branch(&parents, &drafts, row)].concat();
                    let alone = running.step(&[(10 + number as u64, &text)]);
                    let alone = &alone[alone.len() - WIDTH..];
                    let comparison = compare(&found[row * WIDTH..][..WIDTH], alone);
                    assert!(comparison.within(Tolerance::F32), "{label}, row {row}: {comparison}");
                }
            }
        }
    }
}

#[test]
fn a_tree_of_one_branch_is_plain_text() {
    let graph = Arc::new(small().graph(8));
    for kv in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        for (committed, rows, threads) in [(3, 9, 1), (250, 12, 3), (530, 5, 2)] {
            let (committed, drafts) = (tokens(committed, 90), tokens(rows, 91));
            let device = device(threads, exact());
            let mut running = Running::new(&device, &graph, Precision::Fast, kv);
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
            let run = |mut running: Running| {
                let mut segment = running.segment(1, &drafts);
                segment.tree = Some(Arc::new(DraftTree::new(&parents).unwrap()));
                running.run(vec![segment])
            };
            let new = |device: &dyn brasa_graph::device::Backend| {
                Running::new(device, &graph, Precision::Reference, KvType::F32)
            };
            let expected = run(new(&ReferenceBackend));
            let found = run(new(&device(2, exact())));
            let comparison = compare(&found, &expected);
            assert!(comparison.within(Tolerance::F32), "seed {seed}, {mask:?}: {comparison}");
        }
    }
}
