//! Checks of a bank of adapters on a device: every row is computed as if the model had only the row's own adapters.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::device::{Backend, KvType, Precision};
use crate::pass::{LowRank, add_low_rank, add_low_rank_bank};
use crate::reference::ReferenceBackend;
use crate::step::{GivenValues, Segment};
use crate::{Graph, Weight};

use super::{
    Decoder, Random, Running, Tolerance, adapter_of_projections, assert_same_bits, compare, tokens, weight,
};

/// An adapter of every projection, as one part for each projection of a stack.
fn adapter(decoder: &Decoder, graph: &Graph, rank: usize, seed: u64) -> Vec<LowRank> {
    adapter_of_projections(decoder, graph, (rank, StorageFormat::F32), 0.2, &mut Random::new(seed))
}

/// The adapter with all numbers near the largest of f32, so that its products are infinite.
fn huge(mut adapter: Vec<LowRank>) -> Vec<LowRank> {
    let largest = |of: &Weight| weight(&of.name, &of.shape, &vec![1e38; of.shape.iter().product()]);
    for of in &mut adapter {
        (of.a, of.b) = (largest(&of.a), largest(&of.b));
    }
    adapter
}

/// The next rows of a sequence, with `scales` of the bank's adapters.
fn segment(running: &mut Running, id: u64, ids: &[u32], scales: &[f32]) -> Segment {
    let mut segment = running.segment(id, ids);
    segment.given = vec![GivenValues::F32(scales.repeat(ids.len()).into())];
    segment
}

/// The logits of a prompt and two further rows, in steps of this one text.
fn alone(running: &mut Running, id: u64, ids: &[u32], scales: &[f32]) -> Vec<f32> {
    let mut logits = Vec::new();
    let (prompt, rest) = ids.split_at(ids.len() - 2);
    for part in [prompt, &rest[..1], &rest[1..]] {
        let segment = segment(running, id, part, scales);
        logits.extend(running.run(vec![segment]));
    }
    logits
}

/// Checks banks of the small decoder on a device with rows that do not depend on each other. Results must not depend on other
/// texts of a step, on the place in the bank, or on other adapters, one of which overflows. Mixtures of two adapters must be near
/// the sum of both.
///
/// # Panics
///
/// If a bit differs, or a mixture is not near.
pub fn check_bank(device: &dyn Backend, precision: Precision, decoder: &Decoder) {
    let graph = decoder.graph(7);
    let (first, second) = (adapter(decoder, &graph, 8, 1), adapter(decoder, &graph, 5, 2));
    let third = huge(adapter(decoder, &graph, 16, 3));
    let start = |bank: &[&Vec<LowRank>]| {
        let bank: Vec<Vec<LowRank>> = bank.iter().copied().cloned().collect();
        let graph = Arc::new(add_low_rank_bank(&graph, &bank).expect("a bank"));
        Running::new(device, &graph, precision, KvType::F32)
    };
    let texts = [tokens(14, 1), tokens(7, 2), tokens(70, 3), tokens(5, 4)];
    let mut plain = Running::new(device, &Arc::new(graph.clone()), precision, KvType::F32);
    let mut own = [start(&[&first]), start(&[&second])];
    let expected_plain = plain.chunked(1, &texts[3], &[3, 1, 1]);
    let expected = [
        alone(&mut own[0], 1, &texts[0], &[1.0]),
        alone(&mut own[1], 1, &texts[1], &[0.7]),
        alone(&mut own[0], 2, &texts[2], &[-0.5]),
        alone(&mut own[0], 3, &texts[3], &[0.0]),
    ];
    assert_same_bits(&expected[3], &expected_plain, "a row without adapters");
    for (found, plain) in [(&expected[0], 1), (&expected[1], 2)] {
        let unadapted = alone(&mut own[0], 10 + plain, &texts[plain as usize - 1], &[0.0]);
        assert!(compare(found, &unadapted).relative_l2 > 1e-2, "adapter {plain} changes something");
    }
    let banks: [(&[&Vec<LowRank>], [usize; 3]); 3] = [
        (&[&first, &second, &third], [0, 1, 2]),
        (&[&third, &second, &first], [2, 1, 0]),
        (&[&second, &third, &first], [2, 0, 1]),
    ];
    for (bank, [at_first, at_second, at_third]) in banks {
        let mut running = start(bank);
        let of = |place: usize, scale: f32| {
            let mut scales = vec![0.0; 3];
            scales[place] = scale;
            scales
        };
        let scales =
            [of(at_first, 1.0), of(at_second, 0.7), of(at_first, -0.5), of(at_first, 0.0), of(at_third, 1.0)];
        let texts = [&texts[..], &[texts[1].clone()]].concat();
        let mut found = vec![Vec::new(); 5];
        let parts = texts
            .iter()
            .map(|text| [0..text.len() - 2, text.len() - 2..text.len() - 1, text.len() - 1..text.len()]);
        let parts: Vec<_> = parts.collect();
        for step in 0..3 {
            let mut segments = Vec::new();
            for (number, text) in texts.iter().enumerate() {
                let ids = &text[parts[number][step].clone()];
                segments.push(segment(&mut running, number as u64, ids, &scales[number]));
            }
            let logits = running.run(segments);
            let mut rest = &logits[..];
            for (number, found) in found.iter_mut().enumerate() {
                let (own, others) = rest.split_at(parts[number][step].len() * decoder.vocab);
                found.extend_from_slice(own);
                rest = others;
            }
        }
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same_bits(found, expected, &format!("text {number}, first adapter at {at_first}"));
        }
    }
    // Two adapters of one text.
    let scaled = |adapter: &[LowRank], scale: f32| -> Vec<LowRank> {
        adapter.iter().map(|of| LowRank { scale: of.scale * scale, ..of.clone() }).collect()
    };
    let both = add_low_rank(&graph, &[scaled(&first, 0.5), scaled(&second, 2.0)].concat()).expect("adapters");
    let mut both = Running::new(device, &Arc::new(both), precision, KvType::F32);
    let expected = both.chunked(1, &texts[0], &[12, 1, 1]);
    let found = alone(&mut start(&[&first, &third, &second]), 1, &texts[0], &[0.5, 0.0, 2.0]);
    let comparison = compare(&found, &expected);
    assert!(comparison.relative_l2 < 1e-2, "a mixture of two adapters: {comparison}");
}

/// Compares steps of a bank, whose adapters are stored in `format`, with the reference: one row and many, each with its own adapter, none or two of them.
///
/// # Panics
///
/// If logits are farther apart than `tolerance`.
pub fn check_bank_is_near(
    device: &dyn Backend,
    decoder: &Decoder,
    format: StorageFormat,
    tolerance: Tolerance,
) {
    let graph = decoder.graph(9);
    let mut random = Random::new(4);
    let bank =
        [8, 5, 16, 12].map(|rank| adapter_of_projections(decoder, &graph, (rank, format), 0.5, &mut random));
    let graph = Arc::new(add_low_rank_bank(&graph, &bank).expect("a bank"));
    let devices: [&dyn Backend; 2] = [device, &ReferenceBackend];
    let mut running = devices.map(|device| Running::new(device, &graph, Precision::Fast, KvType::F32));
    let scales =
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, -0.5, 0.0], [0.0; 4], [0.0, 1.5, 0.0, 0.7], [0.0, 0.0, 0.0, 1.0]];
    // Rows of each text in a step.
    let steps = [
        [1, 0, 0, 0, 0],
        [3, 1, 7, 2, 5],
        [1, 1, 1, 1, 1],
        [20, 1, 3, 11, 1],
        [31, 5, 20, 11, 3],
        [0, 1, 0, 0, 1],
    ];
    for (number, rows) in steps.iter().enumerate() {
        let [found, expected] = running.each_mut().map(|running| {
            let texts = rows.iter().zip(&scales).enumerate().filter(|(_, (rows, _))| **rows > 0);
            let segments = texts.map(|(text, (&rows, scales))| {
                segment(running, text as u64, &tokens(rows, (10 * number + text) as u64), scales)
            });
            let segments = segments.collect();
            running.run(segments)
        });
        let comparison = compare(&found, &expected);
        assert!(comparison.within(tolerance), "{format}, step {number} of {rows:?} rows: {comparison}");
    }
}
