//! Embeddings in place of token ids: bit for bit what looking them up gives, and near the reference where they are new.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{Decoder, Random, Running, Tolerance, assert_same_bits, compare, tokens};

use crate::device::{device, full_or_few};

/// A sequence that begins as given rows, goes on as tokens, with company in both steps.
fn run(running: &mut Running, ids: &[u32], given: Option<Vec<f32>>) -> Vec<f32> {
    let mut segment = running.segment(1, ids);
    segment.embeddings = given.map(Into::into);
    let beside = running.segment(2, &[5, 6]);
    let mut logits = running.run(vec![beside, segment]);
    logits.extend(running.step(&[(1, &[9]), (2, &[4])]));
    logits
}

#[test]
fn given_rows_are_looked_up_rows() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::Q4_K, StorageFormat::F32].into_iter().take(full_or_few(device, 2, 1)) {
        let graph = Arc::new(Decoder::small(format).graph(5));
        let table = decode_weight(&graph.weights()[0]).unwrap();
        let ids = tokens(7, 1);
        let looked_up: Vec<f32> =
            ids.iter().flat_map(|&id| &table.floats()[id as usize * 256..][..256]).copied().collect();
        let new = Random::new(2).normals(7 * 256, 0.5);
        let mut reference = Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F32);
        let expected = run(&mut reference, &[0; 7], Some(new.clone()));
        let start = || Running::new(device, &graph, Precision::Reference, KvType::F32);
        let plain = run(&mut start(), &ids, None);
        let given = run(&mut start(), &[0; 7], Some(looked_up.clone()));
        assert_same_bits(&given, &plain, &format.to_string());
        let comparison = compare(&run(&mut start(), &[0; 7], Some(new)), &expected);
        assert!(comparison.within(Tolerance::F32), "{format}: {comparison}");
    }
}
