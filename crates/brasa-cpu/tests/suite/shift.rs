//! Moved keys on the device: near the reference's, and in a model of one layer, whose keys know nothing of their
//! neighbours, as if the text had never been longer.

use std::sync::Arc;

use crate::common::decoder::Decoder;
use crate::common::running::{Running, device, exact, tokens};
use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::PageId;
use brasa_graph::testing::{Tolerance, compare};

fn model(windows: &[Option<usize>]) -> Arc<Graph> {
    // Heads of other than whole vectors, more than one, and frequencies down to 1e-4.
    let decoder = Decoder {
        head_dim: 40,
        heads: 4,
        hidden: 64,
        feed_forward: 96,
        ..Decoder::small(StorageFormat::F32)
    };
    Arc::new(Decoder { windows: windows.to_vec(), ..decoder }.graph(6))
}

/// 680 tokens of which the second page is dropped, then five more beside another text.
fn shifted(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType) -> Vec<f32> {
    let mut running = Running::new(device, graph, Precision::Reference, kv);
    running.step(&[(2, &tokens(300, 5))]);
    running.step(&[(1, &tokens(680, 3))]);
    let mut segment = running.segment(1, &tokens(5, 4));
    segment.first_index -= 256;
    let mut moved: Vec<Vec<PageId>> = Vec::new();
    for table in &mut segment.pages {
        table.remove(1);
        moved.push(table[1..].iter().flatten().copied().collect());
    }
    running.program.shift(&mut *running.pool, &moved, -256).unwrap();
    let beside = running.segment(2, &[1, 2, 3]);
    running.run(vec![segment, beside])
}

#[test]
fn moved_keys_agree_with_the_reference() {
    let graph = model(&[None, Some(150), None]);
    for (kv, tolerance) in [(KvType::F32, Tolerance::F32), (KvType::F16, Tolerance::F16)] {
        let expected = shifted(&ReferenceBackend, &graph, kv);
        for isa in Isa::available() {
            let found = shifted(&device(2, isa), &graph, kv);
            let comparison = compare(&found, &expected);
            assert!(comparison.within(tolerance), "{kv:?} on {}: {comparison}", isa.name());
        }
    }
}

#[test]
fn one_layer_forgets_what_was_dropped() {
    let graph = model(&[None]);
    for (kv, tolerance) in [(KvType::F32, Tolerance(2e-5)), (KvType::F16, Tolerance::F16)] {
        let device = device(2, exact());
        let found = shifted(&device, &graph, kv);
        let text = tokens(680, 3);
        let mut running = Running::new(&device, &graph, Precision::Reference, kv);
        running.step(&[(1, &[&text[..256], &text[512..]].concat()), (2, &tokens(300, 5)[..200])]);
        running.step(&[(2, &tokens(300, 5)[200..])]);
        let fresh = running.step(&[(1, &tokens(5, 4)), (2, &[1, 2, 3])]);
        let comparison = compare(&found, &fresh);
        assert!(comparison.within(tolerance), "{kv:?}: {comparison}");
    }
}

#[test]
fn keys_of_few_bits_stay_where_they_are() {
    let graph = model(&[None]);
    let device = device(1, exact());
    for (kv, name) in [(KvType::BF16, "bf16"), (KvType::Q8, "q8")] {
        let mut running = Running::new(&device, &graph, Precision::Fast, kv);
        let error = running.program.shift(&mut *running.pool, &[Vec::new()], -256).unwrap_err();
        let expected =
            format!("cpu does not support a context shift of {name} keys, which would be rounded twice");
        assert_eq!(error.to_string(), expected);
    }
}
