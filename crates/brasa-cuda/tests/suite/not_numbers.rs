//! NaN and infinities: routers choose among them as the reference does, and they stay with their own texts.

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::testing::{
    Decoder, check_absurd, check_absurd_shapes, check_behind_texts, check_company, check_routers,
};

use crate::device::{device, full_or_few, in_full};

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

/// Experts in tiles, which are one operation with their router, and in rows.
#[test]
fn routers_choose_among_logits_that_are_no_numbers() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::F16, StorageFormat::F32] {
        check_routers(device, Precision::Fast, format);
    }
    check_routers(device, Precision::Reference, StorageFormat::F16);
}

#[test]
fn a_text_without_numbers_leaves_its_company_alone() {
    let Some(device) = device() else { return };
    let types = [KvType::F16, KvType::Q8, KvType::BF16, KvType::F32];
    for kv in types.into_iter().take(full_or_few(device, 4, 2)) {
        check_company(device, &small(32), Precision::Fast, kv);
        check_company(device, &Decoder { experts: Some((5, 2)), ..small(32) }, Precision::Fast, kv);
    }
    let large = full_or_few(device, vec![Decoder::small(StorageFormat::Q4_K)], vec![]);
    for decoder in
        large.iter().flat_map(|large| [large.clone(), Decoder { experts: Some((5, 2)), ..large.clone() }])
    {
        check_company(device, &decoder, Precision::Fast, KvType::F16);
    }
}

#[test]
fn what_lies_behind_a_text_changes_nothing() {
    let Some(device) = device() else { return };
    let types = [KvType::F16, KvType::Q8, KvType::BF16, KvType::F32];
    let widths = full_or_few(device, &[32, 40, 64, 96, 128, 192, 256][..], &[32, 40, 192][..]);
    for (i, &head_dim) in widths.iter().enumerate() {
        for kv in types.into_iter().take(full_or_few(device, 4, if i == 0 { 4 } else { 2 })) {
            check_behind_texts(device, &small(head_dim), Precision::Fast, kv);
        }
    }
    // As large as the interpreter takes.
    let large = full_or_few(device, vec![64, 128], vec![]);
    for head_dim in large {
        let decoder =
            Decoder { head_dim, windows: vec![None, Some(9)], ..Decoder::small(StorageFormat::F16) };
        check_behind_texts(device, &decoder, Precision::Fast, KvType::F16);
        check_behind_texts(device, &Decoder { softcap: Some(20.0), ..decoder }, Precision::Fast, KvType::F16);
    }
}

#[test]
fn absurd_graphs_and_steps_have_the_answers_of_the_reference() {
    let Some(device) = device() else { return };
    let all = in_full(device, "most absurd graphs and steps");
    check_absurd(device, 0..if all { 200 * brasa_fuzz::sweep_times().max(1) } else { 12 });
}

#[test]
fn values_of_absurd_sizes_are_refused() {
    let Some(device) = device() else { return };
    check_absurd_shapes(device);
}
