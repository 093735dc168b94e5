//! Draft trees on the device.

use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{DraftTreeCase, check_tree_of_one_branch};

use crate::device::{device, full_or_few, in_full};

const WINDOWS: &[Option<usize>] = &[None, Some(20)];

#[test]
fn trees_agree_with_the_reference_and_with_each_branch_alone() {
    let Some(device) = device() else { return };
    let shapes = [(3, 9), (250, 12), (511, 40), (600, 1), (100, 200), (0, 30)];
    let shapes = &shapes[..full_or_few(device, 6, if in_full(device, "larger draft trees") { 2 } else { 1 })];
    for (seed, &(committed, rows)) in shapes.iter().enumerate() {
        let case = DraftTreeCase::new(WINDOWS, committed, rows, seed as u64);
        case.check(device, Precision::Reference);
    }
}

#[test]
fn a_tree_of_one_branch_is_plain_text() {
    let Some(device) = device() else { return };
    let types = [KvType::F16, KvType::F32, KvType::BF16, KvType::Q8];
    for kv in types.into_iter().take(if in_full(device, "trees in other types of pages") { 4 } else { 1 }) {
        // Far from the end of a page, and across it.
        let across = kv == KvType::F16 || full_or_few(device, true, false);
        for (committed, rows) in [(3, 9), (250, 12)].into_iter().take(if across { 2 } else { 1 }) {
            check_tree_of_one_branch(device, WINDOWS, kv, committed, rows);
        }
    }
}
