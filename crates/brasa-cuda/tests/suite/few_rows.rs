//! Products of 2 to 64 rows whose inputs are dealt to blocks in stretches: the sums of the route that is measured, in another order,
//! and the same bits each time.

use std::sync::Arc;

use brasa_cuda::CudaBackend;
use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::testing::{
    Decoder, Noise, Running, Tolerance, assert_same_bits, compare, random_tensor, tokens,
};
use brasa_graph::{Builder, Graph, Input, Weight, WeightPart};

use crate::device::{device, full_or_few, streaming};

const FORMATS: [StorageFormat; 6] = [
    StorageFormat::F16,
    StorageFormat::BF16,
    StorageFormat::Q8_0,
    StorageFormat::Q4_0,
    StorageFormat::Q4_K,
    StorageFormat::Q6_K,
];

/// `x·Wᵀ` with rows of `x` looked up in a table.
fn product(format: StorageFormat, outputs: usize, inputs: usize) -> Arc<Graph> {
    let mut noise = Noise::new(23);
    let table = brasa_graph::testing::weight("table", &[40, inputs], &noise.activations(40 * inputs));
    let tensor = random_tensor(format, outputs, inputs, &mut noise);
    let weight = Weight::new("w", &[outputs, inputs], vec![WeightPart::whole(tensor)]).unwrap();
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let table = b.weight(Ok(table));
    let x = b.embed(ids, table);
    let w = b.weight(Ok(weight));
    let y = b.linear(x, w);
    Arc::new(b.finish(&[y]).unwrap())
}

#[test]
fn products_in_stretches_are_those_in_parts() {
    let (Some(stream), Some(parts)) = (streaming(), device()) else { return };
    // One piece of outputs for all blocks, a ragged last piece, and pieces that no block shares on an emulated GPU, of eight blocks.
    let shapes = [(16, 1024), (72, 512), (272, 256)];
    for format in full_or_few(stream, &FORMATS[..], &[FORMATS[0], FORMATS[4]]) {
        for (outputs, inputs) in shapes {
            let graph = product(*format, outputs, inputs);
            for rows in full_or_few(stream, &[2, 16, 17, 40, 64, 70][..], &[18][..]) {
                let ids: Vec<u32> = (0..*rows).map(|row| row * 7 % 40).collect();
                // Other rows come between, whose sums nothing may be left of.
                let others: Vec<u32> = ids.iter().map(|id| 39 - id).collect();
                let run = |device: &CudaBackend| {
                    let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
                    [&ids, &others, &ids].map(|ids| running.step(&[(1, ids)]))
                };
                let (found, expected) = (run(stream), run(parts));
                let label = format!("{format} {outputs} × {inputs}, {rows} rows");
                let comparison = compare(&found.concat(), &expected.concat());
                assert!(comparison.within(Tolerance(1e-5)), "{label}: {comparison}");
                let [found, _, again] = found;
                assert_same_bits(&again, &found, &label);
            }
        }
    }
}

/// Biases, residuals and gates behind the products, several sequences, and the sums of one product in the place of another's.
#[test]
fn decoders_in_stretches_agree_with_the_reference() {
    let Some(device) = streaming() else { return };
    for format in full_or_few(device, &FORMATS[..], &FORMATS[4..5]) {
        let decoder = Decoder { softcap: Some(20.0), ..Decoder::small(*format) };
        let graph = Arc::new(decoder.graph(13));
        let texts: Vec<Vec<u32>> = (0..5).map(|text| tokens(2 + text, text as u64)).collect();
        let run = |mut running: Running| {
            let all: Vec<(u64, &[u32])> = (0..).zip(texts.iter().map(Vec::as_slice)).collect();
            let mut found = running.step(&all);
            let last: Vec<(u64, &[u32])> = all.iter().map(|&(id, text)| (id, &text[..1])).collect();
            found.extend(running.step(&last));
            found
        };
        let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16));
        let found = run(Running::new(device, &graph, Precision::Fast, KvType::F16));
        let comparison = compare(&found, &expected);
        assert!(comparison.within(Tolerance::BITS_16), "{format}: {comparison}");
    }
}
