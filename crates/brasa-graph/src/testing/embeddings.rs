//! Checks of embeddings in place of token ids: equal bit for bit to looked-up rows, near the reference for other rows, and
//! without effect on other lookups and other sequences.

use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::device::{Backend, KvType, Precision};
use crate::reference::{ReferenceBackend, decode_weight};
use crate::{Builder, Input};

use super::{Decoder, Random, Running, Tolerance, assert_same_bits, compare, f32_weight, tokens};

/// Checks embeddings that a segment of a decoder brings, whose table is stored in `format`.
///
/// # Panics
///
/// If the device does not compute the embeddings like looked-up rows.
pub fn check_embeddings(device: &dyn Backend, format: StorageFormat) {
    let graph = Arc::new(Decoder::small(format).graph(5));
    let table = decode_weight(&graph.weights()[0]).expect("whole rows");
    let (ids, width) = (tokens(7, 1), table.width());
    let looked_up: Vec<f32> =
        ids.iter().flat_map(|&id| &table.floats()[id as usize * width..][..width]).copied().collect();
    let new = Random::new(2).normals(ids.len() * width, 0.5);
    let start = |device: &dyn Backend, precision| Running::new(device, &graph, precision, KvType::F32);
    let label = format!("{format}, {}", device.info().description);

    let plain = run(&mut start(device, Precision::Fast), &ids, None);
    let given = run(&mut start(device, Precision::Fast), &[0; 7], Some(&looked_up));
    assert_same_bits(&given, &plain, &label);
    let expected = run(&mut start(&ReferenceBackend, Precision::Reference), &[0; 7], Some(&new));
    let comparison = compare(&run(&mut start(device, Precision::Reference), &[0; 7], Some(&new)), &expected);
    assert!(comparison.within(Tolerance::F32), "{label}: {comparison}");
}

/// Checks that a second table keeps looking up the ids, and that a factor behind the embedding multiplies given rows too.
///
/// # Panics
///
/// If a result differs from the reference.
pub fn check_other_lookups(device: &dyn Backend) {
    let mut b = Builder::new();
    let mut random = Random::new(3);
    let ids = b.input(Input::TokenIds);
    let table = b.weight(Ok(f32_weight(&mut random, "table", &[10, 4])));
    let second = b.weight(Ok(f32_weight(&mut random, "second", &[10, 4])));
    let x = b.embed(ids, table);
    let x = b.scale(x, 2.0);
    let also = b.embed(ids, second);
    let y = b.add(x, also);
    let graph = Arc::new(b.finish(&[y]).expect("a graph of fitting shapes"));
    let second = decode_weight(&graph.weights()[1]).expect("whole rows");
    let given = [1.0, 2.0, 3.0, 4.0];
    let expected: Vec<f32> =
        given.iter().zip(&second.floats()[7 * 4..]).map(|(x, also)| 2.0 * x + also).collect();
    let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
    let mut segment = running.segment(1, &[7]);
    segment.embeddings = Some(given.into());
    assert_eq!(running.run(vec![segment]), expected, "{}", device.info().description);
}

/// The logits of a sequence that begins with given rows and goes on with tokens, with another text in both steps.
fn run(running: &mut Running, ids: &[u32], given: Option<&[f32]>) -> Vec<f32> {
    let mut segment = running.segment(1, ids);
    segment.embeddings = given.map(Into::into);
    let beside = running.segment(2, &[5, 6]);
    let mut logits = running.run(vec![beside, segment]);
    logits.extend(running.step(&[(1, &[9]), (2, &[4])]));
    logits
}
