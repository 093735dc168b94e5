//! Small models of every kind through the engine, on the reference, on the mock and on the CPU device: recurrent states; and latent
//! attention with sinks and a mixture of experts.

use std::sync::Arc;

use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_engine::testing::CheckedModel;
use brasa_formats::StorageFormat;
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Latent, MockBackend, Recurrent};

fn cpu(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), deterministic: true, ..CpuOptions::default() })
        .unwrap()
}

fn check(device: &dyn Backend, graph: Graph, precision: Precision, kv: KvType) {
    let model = CheckedModel { device, graph: Arc::new(graph), precision, kv };
    model.check_texts();
}

#[test]
fn a_recurrent_text_is_the_same_in_every_way() {
    let graph = || Recurrent::small().graph(12);
    check(&ReferenceBackend, graph(), Precision::Reference, KvType::F32);
    check(&MockBackend::new(3), graph(), Precision::Reference, KvType::F32);
    for threads in [1, 2] {
        check(&cpu(threads), graph(), Precision::Fast, KvType::F16);
    }
    check(
        &cpu(2),
        Recurrent { attention: false, ..Recurrent::small() }.graph(4),
        Precision::Fast,
        KvType::F16,
    );
}

#[test]
fn a_latent_text_is_the_same_in_every_way() {
    let graph = |format| Latent::small(format).graph(12);
    check(&ReferenceBackend, graph(StorageFormat::F32), Precision::Reference, KvType::F32);
    check(&MockBackend::new(3), graph(StorageFormat::F32), Precision::Reference, KvType::F32);
    for (threads, format) in [(1, StorageFormat::F32), (2, StorageFormat::Q8_0), (2, StorageFormat::Q4_0)] {
        check(&cpu(threads), graph(format), Precision::Fast, KvType::F16);
    }
}
