//! Checks that a text has the same bits however its rows are computed.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::Graph;
use crate::StatePages;
use crate::device::{Backend, KvType, Precision};
use crate::reference::ReferenceBackend;
use crate::step::Segment;

use super::{
    Latent, Running, Tolerance, assert_same_bits, check_moves, check_tree_of_one_branch_in, compare, tokens,
};

const VOCAB: usize = 150;
/// Rows of the text, and rows of its first part.
const TEXT: usize = 61;
const FIRST: usize = 30;

/// Checks a graph from token ids below 150 to their logits, with weights in f32.
///
/// - Logits are within `tolerance` of the reference.
/// - A text has equal bits alone, beside other texts, in chunks, and behind drafts that were not kept.
///
/// # Panics
///
/// If a check fails.
pub fn check_texts(device: &dyn Backend, graph: &Arc<Graph>, precision: Precision, tolerance: Tolerance) {
    let label = format!("{precision:?} on {}", device.info().description);
    let text = tokens(TEXT, 17);
    let found = check_same_bits(device, graph, precision, KvType::F32);
    let expected =
        Running::new(&ReferenceBackend, graph, Precision::Reference, KvType::F32).step(&[(1, &text)]);
    let comparison = compare(&found, &expected);
    assert!(comparison.within(tolerance), "{label}: {comparison}");
}

/// Checks that a text has equal bits alone, beside other texts, in chunks, and behind drafts that were not kept, for a
/// graph from token ids below 150 to their logits. Returns the logits of the text.
///
/// # Panics
///
/// If a bit differs.
pub fn check_same_bits(
    device: &dyn Backend,
    graph: &Arc<Graph>,
    precision: Precision,
    kv: KvType,
) -> Vec<f32> {
    let text = tokens(TEXT, 17);
    let mut running = Running::new(device, graph, precision, kv);
    let whole = running.step(&[(1, &text)]);
    assert_same_bits(&running.chunked(2, &text, &[1, 7, 2, 16]), &whole, "in chunks");
    let together = running.step(&[(3, &text[..FIRST]), (4, &text), (5, &text[..9])]);
    assert_same_bits(&together[..FIRST * VOCAB], &whole[..FIRST * VOCAB], "the first of three");
    assert_same_bits(&together[FIRST * VOCAB..][..TEXT * VOCAB], &whole, "the second of three");
    let rest = running.step(&[(5, &text[9..]), (3, &text[FIRST..])]);
    assert_same_bits(&rest[..(TEXT - 9) * VOCAB], &whole[9 * VOCAB..], "the rest in other company");
    assert_same_bits(&rest[(TEXT - 9) * VOCAB..], &whole[FIRST * VOCAB..], "the rest of the first");
    check_rollback(&mut running, &text, &whole);
    whole
}

/// A text whose step had drafts that were not kept goes on like a text without drafts.
fn check_rollback(running: &mut Running, text: &[u32], whole: &[f32]) {
    let drafts = tokens(5, 23);
    let mut segment = running.segment(6, &[&text[..FIRST], &drafts].concat());
    let has_states = !running.pool.spec().states.is_empty();
    let kept = has_states.then(|| running.state_page());
    if let Some(kept) = kept {
        segment.states.to.insert(0, (FIRST as u32 - 1, kept));
    }
    let found = running.run(vec![segment.clone()]);
    assert_same_bits(&found[..FIRST * VOCAB], &whole[..FIRST * VOCAB], "before drafts");
    let rows = FIRST..FIRST + drafts.len();
    let mut back = Segment { first_index: FIRST, ..segment };
    back.set_tokens(&text[rows.clone()]);
    back.states = StatePages { from: kept, ..StatePages::default() };
    let expected = &whole[rows.start * VOCAB..rows.end * VOCAB];
    assert_same_bits(&running.run(vec![back]), expected, "behind drafts that were not kept");
}

/// Checks a decoder with latent attention, sinks and a mixture of experts ([`Latent`]): with weights in f32, Q8_0 and
/// Q4_0 a text has the same bits however its rows are computed, as a tree of one branch too. Where weights are decoded
/// exactly, logits are near the reference, and a text goes on behind pages that were copied or moved.
///
/// # Panics
///
/// If a check fails.
pub fn check_latent(device: &dyn Backend, precision: Precision) {
    for format in [StorageFormat::F32, StorageFormat::Q8_0, StorageFormat::Q4_0] {
        let graph = Arc::new(Latent::small(format).graph(3));
        // Activations of few bits choose other experts now and then.
        if format == StorageFormat::F32 || precision == Precision::Reference {
            check_texts(device, &graph, precision, Tolerance(1e-4));
        } else {
            check_same_bits(device, &graph, precision, KvType::F32);
        }
        check_same_bits(device, &graph, precision, KvType::F16);
        check_tree_of_one_branch_in(device, &graph, precision, KvType::F16, 40, 7);
        if precision == Precision::Reference {
            check_moves(device, &graph, KvType::F32, Tolerance(1e-4));
        }
    }
}
