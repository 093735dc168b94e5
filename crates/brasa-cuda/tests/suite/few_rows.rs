//! Steps of two to 64 rows, several sequences that decode together: launches that join what lies between products give what
//! launches of their own give, and both agree with the reference.

use std::sync::Arc;

use brasa_cuda::CudaBackend;
use brasa_formats::{MlxAffine, StorageFormat};
use brasa_golden::{folder, load_strictly};
use brasa_graph::Graph;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Decoder, Running, Tolerance, assert_same_bits, compare};

use crate::device::{device, full_or_few, in_full, is_emulated, separate};

/// Values rounded by a power of two of the row or by none differ where halves are subnormal.
const NEAR: Tolerance = Tolerance(1e-4);

/// Decoders whose products cut K on four multiprocessors: those behind attention and gates, and, in formats of short blocks, those in
/// front of attention.
fn decoders(format: StorageFormat) -> Vec<Decoder> {
    let small = Decoder::small(format);
    let back = Decoder { heads: 32, kv_heads: 4, feed_forward: 2048, ..small.clone() };
    let mut decoders = vec![back];
    if format.row_bytes(64).is_some() {
        let (hidden, feed_forward, windows) = (1024, 256, vec![Some(4)]);
        decoders.push(Decoder { hidden, heads: 2, kv_heads: 1, feed_forward, windows, ..small });
    }
    decoders
}

/// Logits of prompts of `sequences` texts, and of two tokens of all of them together.
fn logits(
    device: &dyn Backend,
    graph: &Arc<Graph>,
    precision: Precision,
    kv: KvType,
    sequences: u64,
) -> Vec<f32> {
    let mut running = Running::new(device, graph, precision, kv);
    let token = |i: u64| (i * 7 % 61 + 3) as u32;
    let mut found = Vec::new();
    let prompts: Vec<Vec<u32>> =
        (0..sequences).map(|id| (0..2 + id % 5).map(|i| token(i + id)).collect()).collect();
    let parts: Vec<(u64, &[u32])> = (0..).zip(&prompts).map(|(id, prompt)| (id, &prompt[..])).collect();
    found.extend(running.step(&parts));
    for turn in 0..2 {
        let tokens: Vec<[u32; 1]> = (0..sequences).map(|id| [token(id + 11 * turn)]).collect();
        let parts: Vec<(u64, &[u32])> = (0..).zip(&tokens).map(|(id, token)| (id, &token[..])).collect();
        found.extend(running.step(&parts));
    }
    found
}

#[test]
fn joined_launches_have_the_bits_of_separate_ones() {
    let (Some(device), Some(separate)) = (device(), separate()) else { return };
    let mlx = StorageFormat::MlxAffine(MlxAffine { bits: 4, group_size: 64 });
    let formats = [StorageFormat::F16, StorageFormat::Q4_K, StorageFormat::BF16, StorageFormat::Q8_0, mlx];
    for &format in full_or_few(device, &formats[..], &formats[..2]) {
        for decoder in decoders(format) {
            let graph = Arc::new(decoder.graph(21));
            for &sequences in full_or_few(device, &[2, 7, 8][..], &[3][..]) {
                let run = |device: &CudaBackend, kv| logits(device, &graph, Precision::Fast, kv, sequences);
                let label = format!("{format}, hidden {}, {sequences} texts", decoder.hidden);
                assert_same_bits(&run(device, KvType::F32), &run(separate, KvType::F32), &label);
                let comparison = compare(&run(device, KvType::F16), &run(separate, KvType::F16));
                println!("{label}: {comparison}");
                assert!(comparison.within(NEAR), "{label}: {comparison}");
            }
        }
    }
}

#[test]
fn decoders_whose_products_are_cut_agree_with_the_reference() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::F16, StorageFormat::Q6_K] {
        for decoder in decoders(format) {
            let decoder = Decoder { softcap: Some(20.0), ..decoder };
            let graph = Arc::new(decoder.graph(23));
            let expected = logits(&ReferenceBackend, &graph, Precision::Reference, KvType::F16, 3);
            let comparison = compare(&logits(device, &graph, Precision::Fast, KvType::F16, 3), &expected);
            println!("{format}, hidden {}: {comparison}", decoder.hidden);
            assert!(comparison.within(Tolerance(5e-3)), "{format}, hidden {}: {comparison}", decoder.hidden);
        }
    }
}

/// QK norms, biases, windows, norms behind products, soft-caps, shared caches, rotations of parts of heads.
#[test]
fn random_families_agree_with_the_reference() {
    let (Some(device), Some(separate)) = (device(), separate()) else { return };
    let entries = std::fs::read_dir(folder("random")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let step = if in_full(device, "five of six random families together") { 1 } else { 6 };
    for path in paths.iter().step_by(step) {
        let graph = Arc::new(load_strictly(path, None).graph);
        let expected = logits(&ReferenceBackend, &graph, Precision::Reference, KvType::F16, 3);
        let found = logits(device, &graph, Precision::Fast, KvType::F16, 3);
        let comparison = compare(&found, &expected);
        println!("{}: {comparison}", path.display());
        assert!(comparison.within(Tolerance::BITS_16), "{}: {comparison}", path.display());
        let apart = logits(separate, &graph, Precision::Fast, KvType::F16, 3);
        let bound = if is_emulated(device) { NEAR } else { Tolerance(1e-3) };
        let comparison = compare(&found, &apart);
        assert!(comparison.within(bound), "{}, launches apart: {comparison}", path.display());
    }
}
