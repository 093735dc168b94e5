//! Embeddings in place of token ids: bit for bit what looking them up gives, near the reference where they are new, and
//! nothing to other lookups and other sequences.

use std::sync::Arc;

use crate::common::decoder::Decoder;
use crate::common::running::{Running, assert_same_bits, device, exact, tokens};
use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{Random, Tolerance, compare, f32_weight};
use brasa_graph::{Builder, Input};

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
    for format in [StorageFormat::F32, StorageFormat::Q8_0, StorageFormat::Q4_K] {
        let graph = Arc::new(Decoder::small(format).graph(5));
        let table = decode_weight(&graph.weights()[0]).unwrap();
        let ids = tokens(7, 1);
        let looked_up: Vec<f32> =
            ids.iter().flat_map(|&id| &table.floats()[id as usize * 256..][..256]).copied().collect();
        let mut random = Random::new(2);
        let new = random.normals(7 * 256, 0.5);
        let reference = |given: &Vec<f32>| {
            let mut running = Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F32);
            run(&mut running, &[0; 7], Some(given.clone()))
        };
        let expected = reference(&new);
        for threads in [1, 3] {
            let device = device(threads, exact());
            let start = |precision| Running::new(&device, &graph, precision, KvType::F32);
            let plain = run(&mut start(Precision::Fast), &ids, None);
            let given = run(&mut start(Precision::Fast), &[0; 7], Some(looked_up.clone()));
            assert_same_bits(&given, &plain, &format!("{format}, {threads} threads"));
            let found = run(&mut start(Precision::Reference), &[0; 7], Some(new.clone()));
            let comparison = compare(&found, &expected);
            assert!(comparison.within(Tolerance::F32), "{format}, {threads} threads: {comparison}");
        }
    }
}

/// A second table keeps looking up the ids, and a factor behind the embedding multiplies given rows too.
#[test]
fn other_lookups_and_factors_are_as_the_graph_says() {
    let mut b = Builder::new();
    let mut random = Random::new(3);
    let ids = b.input(Input::TokenIds);
    let (table, second) =
        (f32_weight(&mut random, "table", &[10, 4]), f32_weight(&mut random, "second", &[10, 4]));
    let (table, second) = (b.weight(Ok(table)), b.weight(Ok(second)));
    let x = b.embed(ids, table);
    let x = b.scale(x, 2.0);
    let also = b.embed(ids, second);
    let y = b.add(x, also);
    let graph = Arc::new(b.finish(&[y]).unwrap());
    let second = decode_weight(&graph.weights()[1]).unwrap();
    let expected: Vec<f32> =
        [1.0, 2.0, 3.0, 4.0].iter().zip(&second.floats()[7 * 4..]).map(|(x, also)| 2.0 * x + also).collect();
    let cpu = device(2, exact());
    for device in [&cpu as &dyn Backend, &ReferenceBackend] {
        let mut running = Running::new(device, &graph, Precision::Reference, KvType::F32);
        let mut segment = running.segment(1, &[7]);
        segment.embeddings = Some(vec![1.0, 2.0, 3.0, 4.0].into());
        assert_eq!(running.run(vec![segment]), expected);
    }
}
