//! Steps of two to 64 rows, several sequences that decode together: launches that join what lies between products give what
//! launches of their own give, and both agree with the reference.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_cuda::CudaBackend;
use brasa_formats::{Bytes, MlxAffine, Payload, StorageFormat, Tensor, codec};
use brasa_golden::{folder, load_strictly};
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::op::Unary;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{Decoder, Running, Tolerance, assert_same_bits, compare, weight};
use brasa_graph::{Builder, Graph, Input, Weight, WeightPart};

use crate::device::{deterministic, device, full_or_few, in_full, is_emulated, separate};

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

/// A weight of F16.
fn halves(name: &str, shape: &[usize], values: &[f32]) -> Weight {
    let mut bytes = vec![0; values.len() * 2];
    for (x, bytes) in values.chunks_exact(shape[1]).zip(bytes.chunks_exact_mut(shape[1] * 2)) {
        codec::encode_row(StorageFormat::F16, x, None, bytes).unwrap();
    }
    let payload = Payload::Blocks(Bytes::from(bytes));
    let tensor = Tensor { name: name.into(), shape: shape.to_vec(), format: StorageFormat::F16, payload };
    Weight::new(name, shape, vec![WeightPart::whole(tensor)]).unwrap()
}

#[test]
fn joined_launches_give_what_separate_ones_give() {
    let (Some(device), Some(separate)) = (device(), separate()) else { return };
    let mlx = StorageFormat::MlxAffine(MlxAffine { bits: 4, group_size: 64 });
    let formats = [StorageFormat::Q4_K, StorageFormat::F16, StorageFormat::BF16, StorageFormat::Q8_0, mlx];
    for &format in full_or_few(device, &formats[..], &formats[..1]) {
        for decoder in decoders(format) {
            let graph = Arc::new(decoder.graph(21));
            for &sequences in full_or_few(device, &[2, 7, 8][..], &[3][..]) {
                let run =
                    |device: &CudaBackend| logits(device, &graph, Precision::Fast, KvType::F16, sequences);
                let comparison = compare(&run(device), &run(separate));
                let label = format!("{format}, hidden {}, {sequences} texts", decoder.hidden);
                println!("{label}: {comparison}");
                assert!(comparison.within(NEAR), "{label}: {comparison}");
            }
        }
    }
}

/// With keys and values that are no halves, and gates that do not fill panels, every row is rounded by the same power of two.
#[test]
fn joined_launches_that_round_alike_have_the_same_bits() {
    let (Some(device), Some(separate)) = (device(), separate()) else { return };
    for &format in full_or_few(device, &[StorageFormat::F16, StorageFormat::BF16][..], &[StorageFormat::F16])
    {
        for decoder in decoders(format) {
            let decoder = Decoder { feed_forward: decoder.feed_forward - 8, ..decoder };
            let graph = Arc::new(decoder.graph(22));
            let run = |device: &CudaBackend| logits(device, &graph, Precision::Fast, KvType::F32, 3);
            assert_same_bits(&run(device), &run(separate), &format!("{format}, hidden {}", decoder.hidden));
        }
    }
}

/// A row of gates whose largest product is far below its bound, or near it, loses nothing; nor where weights have been written anew.
#[test]
fn gated_products_are_rounded_by_a_bound_that_holds() {
    let Some(device) = device() else { return };
    for scale in [1e-3, 1.0, 60.0] {
        let (inputs, gates) = (64, 128);
        let row = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
        let x: Vec<f32> = (0..7 * inputs).map(|i| row(i) * scale).collect();
        let graph = |factor: f32| {
            let mut b = Builder::new();
            let ids = b.input(Input::TokenIds);
            let table = b.weight(Ok(weight("table", &[7, inputs], &x)));
            let rows = b.embed(ids, table);
            // One gate and its partner stand out: the row's largest product is near the bound where x is such a row.
            let of = |i: usize| {
                if i % (gates * inputs) < inputs { row(i % inputs) * 8.0 } else { row(i * 13) / 8.0 }
            };
            let gate_up: Vec<f32> = (0..2 * gates * inputs).map(|i| of(i) * factor).collect();
            let w = b.weight(Ok(halves("gate_up", &[2 * gates, inputs], &gate_up)));
            let y = b.linear(rows, w);
            let (gate, up) = (b.slice(y, 0..gates), b.slice(y, gates..2 * gates));
            let gate = b.unary(gate, Unary::Silu);
            let y = b.mul(gate, up);
            let down: Vec<f32> = (0..32 * gates).map(row).collect();
            let down = b.weight(Ok(halves("down", &[32, gates], &down)));
            let y = b.linear(y, down);
            Arc::new(b.finish(&[y]).unwrap())
        };
        let ids: Vec<u32> = (0..7).collect();
        let run = |running: &mut Running| {
            let segment = running.segment(1, &ids);
            running.run(vec![segment])
        };
        let (first, grown) = (graph(1.0), graph(16.0));
        let weights = device.upload(&first, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
        for (graph, label) in [(&first, "as uploaded"), (&grown, "grown")] {
            let gate_up =
                |graph: &Graph| Arc::clone(graph.weights().iter().find(|w| w.name == "gate_up").unwrap());
            let values = brasa_graph::reference::decode_weight(&gate_up(graph)).unwrap();
            weights.write(&gate_up(&first), values.floats()).unwrap();
            let found = run(&mut Running::with(device, &first, Arc::clone(&weights), KvType::F16));
            let expected =
                run(&mut Running::new(&ReferenceBackend, graph, Precision::Reference, KvType::F16));
            let comparison = compare(&found, &expected);
            println!("{scale}, {label}: {comparison}");
            assert!(comparison.within(Tolerance(1e-3)), "{scale}, {label}: {comparison}");
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

/// Parts of the positions of one text or of all, one part or several, heads that share keys in one block or in two.
#[test]
fn texts_of_any_length_attend_in_parts() {
    let (Some(device), Some(exact)) = (device(), deterministic()) else { return };
    let lengths = full_or_few(device, &[650, 600, 555, 300, 64, 20, 5, 1][..], &[130, 40, 3][..]);
    let small = Decoder::small(StorageFormat::F16);
    let wide = Decoder { heads: 16, kv_heads: 8, head_dim: 128, softcap: Some(20.0), ..small.clone() };
    let shared = Decoder { heads: 24, kv_heads: 2, head_dim: 64, ..small.clone() };
    for decoder in full_or_few(device, &[small.clone(), wide, shared.clone()][..], &[small, shared][..]) {
        let graph = Arc::new(decoder.graph(29));
        let run = |device: &CudaBackend| {
            let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
            let token = |i: u64| (i * 7 % 61 + 3) as u32;
            for (id, &length) in (0..).zip(lengths) {
                let prompt: Vec<u32> = (0..length).map(|i| token(i + id)).collect();
                running.step(&[(id, &prompt[..])]);
            }
            // Rows enough for all positions to be one part, then few.
            let mut found = Vec::new();
            for rows in [15, 1, 2] {
                let texts = if rows == 2 { 2 } else { lengths.len() as u64 };
                let tokens: Vec<Vec<u32>> =
                    (0..texts).map(|id| (0..rows).map(|i| token(id + 5 * i)).collect()).collect();
                let parts: Vec<(u64, &[u32])> = (0..).zip(&tokens).map(|(id, row)| (id, &row[..])).collect();
                found.extend(running.step(&parts));
            }
            found
        };
        let comparison = compare(&run(device), &run(exact));
        let Decoder { heads, kv_heads, .. } = decoder;
        println!("{heads} heads, {kv_heads} of keys: {comparison}");
        assert!(comparison.within(Tolerance(5e-3)), "{heads} heads, {kv_heads} of keys: {comparison}");
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
