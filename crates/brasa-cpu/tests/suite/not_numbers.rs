//! NaN and infinities: routers choose among them as the reference does, and they stay with their own texts.

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{
    Decoder, check_absurd, check_absurd_shapes, check_behind_texts, check_company, check_routers,
};

use crate::common::running::device;
use crate::common::sets::instruction_sets;

fn small(head_dim: usize) -> Decoder {
    Decoder {
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_dim,
        feed_forward: 64,
        windows: vec![None],
        ..Decoder::small(StorageFormat::F16)
    }
}

#[test]
fn routers_choose_among_logits_that_are_no_numbers() {
    for isa in instruction_sets() {
        check_routers(&device(2, isa), Precision::Fast, StorageFormat::F16);
    }
}

#[test]
fn a_text_without_numbers_leaves_its_company_alone() {
    for isa in instruction_sets() {
        for (kv, experts) in [(KvType::F16, None), (KvType::Q8, Some((5, 2))), (KvType::F32, Some((5, 2)))] {
            check_company(&device(2, isa), &Decoder { experts, ..small(32) }, Precision::Fast, kv);
        }
    }
}

#[test]
fn what_lies_behind_a_text_changes_nothing() {
    for isa in instruction_sets() {
        for kv in [KvType::F16, KvType::Q8, KvType::BF16, KvType::F32] {
            for head_dim in [32, 40] {
                check_behind_texts(&device(2, isa), &small(head_dim), Precision::Fast, kv);
            }
        }
    }
}

#[test]
fn absurd_graphs_and_steps_have_the_answers_of_the_reference() {
    let seeds =
        if brasa_fuzz::sweeps("most absurd graphs and steps") { 500 * brasa_fuzz::sweep_times() } else { 40 };
    for isa in instruction_sets() {
        check_absurd(&device(2, isa), 0..seeds);
    }
}

#[test]
fn values_of_absurd_sizes_are_refused() {
    for isa in instruction_sets() {
        check_absurd_shapes(&device(2, isa));
    }
}
