//! Draft trees on the device.

use brasa_cpu::Isa;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{DraftTreeCase, check_tree_of_one_branch};

use crate::common::running::{device, exact};

const WINDOWS: &[Option<usize>] = &[None, Some(20), Some(300)];

#[test]
fn trees_agree_with_the_reference_and_with_each_branch_alone() {
    // One query tile and many, inside a page, across two, on one thread and on so many that pages are shared out.
    let shapes = [(3, 9), (250, 12), (511, 40), (600, 1), (100, 200), (0, 30)];
    for (seed, (committed, rows)) in shapes.into_iter().enumerate() {
        let case = DraftTreeCase::new(WINDOWS, committed, rows, seed as u64);
        for isa in Isa::available() {
            for threads in [1, 3] {
                case.check(&device(threads, isa), Precision::Fast);
            }
        }
    }
}

#[test]
fn a_tree_of_one_branch_is_plain_text() {
    for kv in [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8] {
        for (committed, rows, threads) in [(3, 9, 1), (250, 12, 3), (530, 5, 2)] {
            check_tree_of_one_branch(&device(threads, exact()), WINDOWS, kv, committed, rows);
        }
    }
}
