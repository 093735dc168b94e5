//! Moved keys, near the reference's.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::step::PageId;
use brasa_graph::testing::{Decoder, Running, Tolerance, compare, tokens};

use crate::device::{device, full_or_few};

fn model() -> Arc<Graph> {
    let windows = vec![None, Some(150)];
    let decoder = Decoder {
        head_dim: 40,
        heads: 2,
        kv_heads: 1,
        hidden: 32,
        feed_forward: 32,
        windows,
        ..Decoder::small(StorageFormat::F32)
    };
    Arc::new(decoder.graph(6))
}

/// 680 tokens of which the second page is dropped, then five more beside another text.
fn shifted(device: &dyn Backend, graph: &Arc<Graph>, kv: KvType) -> Vec<f32> {
    let mut running = Running::new(device, graph, Precision::Reference, kv);
    running.step(&[(2, &tokens(30, 5))]);
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
    let Some(device) = device() else { return };
    let graph = model();
    let types = [(KvType::F16, Tolerance::F16), (KvType::F32, Tolerance::F32)];
    for &(kv, tolerance) in &types[..full_or_few(device, 2, 1)] {
        let comparison = compare(&shifted(device, &graph, kv), &shifted(&ReferenceBackend, &graph, kv));
        assert!(comparison.within(tolerance), "{kv:?}: {comparison}");
    }
}

#[test]
fn keys_of_few_bits_stay_where_they_are() {
    let Some(device) = device() else { return };
    let graph = model();
    for (kv, name) in [(KvType::BF16, "bf16"), (KvType::Q8, "q8")] {
        let mut running = Running::new(device, &graph, Precision::Fast, kv);
        let error = running.program.shift(&mut *running.pool, &[Vec::new()], -256).unwrap_err();
        let expected =
            format!("cuda:0 does not support a context shift of {name} keys, which would be rounded twice");
        assert_eq!(error.to_string(), expected);
    }
}
