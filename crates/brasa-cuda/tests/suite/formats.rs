//! Stored formats: rows looked up have the bits that the codec decodes, and products agree with the reference, whatever the
//! mix of formats in one weight.

use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{KvType, Precision};
use brasa_graph::op::{ExpertLinear, LinearTransposed};
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{Noise, Running, Tolerance, compare, formats, random_tensor};
use brasa_graph::{Builder, Graph, Input, RowStride, Weight, WeightPart};

use crate::device::{deterministic, device, full_or_few};

/// Rows of the tables.
const TOKENS: usize = 97;
/// A row of every format is a whole number of blocks.
const WIDTH: usize = 256;

/// A weight of rows in all formats: cut out of the middle of a tensor, or every second or third row.
fn mixed(shape: &[usize], noise: &mut Noise) -> Weight {
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let (mut parts, mut left, mut number) = (Vec::new(), rows, 0);
    while left > 0 {
        let formats = formats();
        let format = formats[number % formats.len()];
        let rows = left.min(1 + number % 4);
        parts.push(match number % 3 {
            0 => WeightPart::of_rows(random_tensor(format, rows + 3, WIDTH, noise), 2..rows + 2),
            step => {
                let stride = RowStride { first: 1, step: step + 1 };
                let tensor = random_tensor(format, stride.stored(rows + 1), WIDTH, noise);
                WeightPart::of_stride(tensor, stride).cut(1..rows + 1)
            }
        });
        left -= rows;
        number += 1;
    }
    Weight::new("mixed", shape, parts).unwrap()
}

fn run(graph: &Arc<Graph>, running: &mut Running, ids: &[u32]) -> Vec<f32> {
    assert_eq!(graph.outputs().len(), 1);
    let segment = running.segment(1, ids);
    running.run(vec![segment])
}

#[test]
fn rows_have_the_bits_that_the_codec_decodes() {
    let Some(device) = device() else { return };
    for format in formats() {
        let mut noise = Noise::new(3);
        let tensor = random_tensor(format, TOKENS, 2 * WIDTH, &mut noise);
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let weight = Weight::new("table", &[TOKENS, 2 * WIDTH], vec![WeightPart::whole(tensor)]).unwrap();
        let expected = decode_weight(&weight).unwrap();
        let table = b.weight(Ok(weight));
        let y = b.embed(ids, table);
        let graph = Arc::new(b.finish(&[y]).unwrap());
        let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
        let ids: Vec<u32> = (0..TOKENS as u32).collect();
        let found = run(&graph, &mut running, &ids);
        for (i, (found, expected)) in found.iter().zip(expected.floats()).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{format}, element {i}: {found}, {expected}");
        }
    }
}

#[test]
fn products_of_every_format_agree_with_the_reference() {
    let Some(device) = deterministic() else { return };
    let mut noise = Noise::new(5);
    for format in formats() {
        check(device, &format.to_string(), &mut |shape| {
            let rows: usize = shape[..shape.len() - 1].iter().product();
            let tensor = random_tensor(format, rows, WIDTH, &mut noise);
            Weight::new("w", shape, vec![WeightPart::whole(tensor)]).unwrap()
        });
    }
}

/// Gate and up of one tensor, whose rows are stored in turns, are the gate and the up of two tensors.
#[test]
fn rows_in_turns_have_the_bits_of_rows_in_order() {
    let Some(device) = device() else { return };
    for format in formats() {
        let mut noise = Noise::new(21);
        let both = random_tensor(format, 2 * TOKENS, WIDTH, &mut noise);
        let halves = [0, 1].map(|first| WeightPart::of_stride(both.clone(), RowStride { first, step: 2 }));
        let weight = Weight::new("table", &[2 * TOKENS, WIDTH], halves.into()).unwrap();
        let expected = decode_weight(&weight).unwrap();
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let table = b.weight(Ok(weight));
        let y = b.embed(ids, table);
        let graph = Arc::new(b.finish(&[y]).unwrap());
        let mut running = Running::new(device, &graph, Precision::Fast, KvType::F16);
        let ids: Vec<u32> = (0..2 * TOKENS as u32).collect();
        let found = run(&graph, &mut running, &ids);
        for (i, (found, expected)) in found.iter().zip(expected.floats()).enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "{format}, element {i}: {found}, {expected}");
        }
    }
}

/// Products of many rows, whose weights are rounded to f16.
#[test]
fn products_on_tensor_cores_agree_with_the_reference() {
    let Some(device) = device() else { return };
    let mut noise = Noise::new(13);
    for format in formats() {
        let width = full_or_few(device, 2 * WIDTH, WIDTH);
        let tensor = random_tensor(format, 101, width, &mut noise);
        let table =
            brasa_graph::testing::weight("table", &[TOKENS, width], &noise.activations(TOKENS * width));
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let table = b.weight(Ok(table));
        let x = b.embed(ids, table);
        let w = b.weight(Weight::new("w", &[101, width], vec![WeightPart::whole(tensor)]));
        let y = b.linear(x, w);
        let graph = Arc::new(b.finish(&[y]).unwrap());
        for &rows in full_or_few(device, &[2, 16, 40, 97][..], &[3][..]) {
            let ids: Vec<u32> = (0..rows).collect();
            let mut found = Running::new(device, &graph, Precision::Fast, KvType::F16);
            let mut expected = Running::new(&ReferenceBackend, &graph, Precision::Fast, KvType::F16);
            let found = run(&graph, &mut found, &ids);
            let comparison = compare(&found, &run(&graph, &mut expected, &ids));
            println!("{format}, {rows} rows: {comparison}");
            assert!(comparison.within(Tolerance(2e-3)), "{format}, {rows} rows: {comparison}");
        }
    }
}

/// Large products, whose blocks hand their sums over to write them in whole lines, are those of a few rows at a time: with a bias and a residual, of weights
/// that end within a block and within a piece of four outputs, and with inputs that are cut in parts.
#[test]
fn large_products_are_those_of_few_rows() {
    let Some(device) = device() else { return };
    let (width, rows) = full_or_few(device, (4096, 690), (WIDTH, 70));
    let mut noise = Noise::new(29);
    for (outputs, few) in [(1100, 44), (4160, 64), (4161, 45)] {
        let outputs = full_or_few(device, outputs, few);
        let mut table = |name: &str, width: usize| {
            brasa_graph::testing::weight(name, &[TOKENS, width], &noise.activations(TOKENS * width))
        };
        let (table, residuals) = (table("table", width), table("residuals", outputs));
        let bias = brasa_graph::testing::weight("bias", &[outputs], &noise.activations(outputs));
        let w = WeightPart::whole(random_tensor(StorageFormat::BF16, outputs, width, &mut noise));
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let (table, residuals, bias) = (b.weight(Ok(table)), b.weight(Ok(residuals)), b.weight(Ok(bias)));
        let (x, residual) = (b.embed(ids, table), b.embed(ids, residuals));
        let w = b.weight(Weight::new("w", &[outputs, width], vec![w]));
        let product = b.linear(x, w);
        let product = b.add(product, bias);
        let y = b.add(residual, product);
        let graph = Arc::new(b.finish(&[y]).unwrap());
        let found =
            |ids: &[u32]| run(&graph, &mut Running::new(device, &graph, Precision::Fast, KvType::F16), ids);
        let all: Vec<u32> = (0..TOKENS as u32).collect();
        let few: Vec<f32> = all.chunks(49).flat_map(&found).collect();
        let ids: Vec<u32> = (0..rows as u32).map(|row| row * 31 % TOKENS as u32).collect();
        let expected = ids.iter().flat_map(|&id| &few[id as usize * outputs..][..outputs]).copied();
        let comparison = compare(&found(&ids), &expected.collect::<Vec<f32>>());
        assert!(comparison.within(Tolerance(1e-4)), "{outputs} outputs: {comparison}");
    }
}

#[test]
fn products_of_mixed_formats_agree_with_the_reference() {
    let Some(device) = deterministic() else { return };
    let mut noise = Noise::new(7);
    check(device, "mixed", &mut |shape| mixed(shape, &mut noise));
}

/// Linear layers, transposed and of experts, one row and many.
fn check(device: &brasa_cuda::CudaBackend, label: &str, weight: &mut dyn FnMut(&[usize]) -> Weight) {
    let mut noise = Noise::new(11);
    for kind in 0..3 {
        let mut b = Builder::new();
        let ids = b.input(Input::TokenIds);
        let table = noise.activations(TOKENS * WIDTH);
        let table = b.weight(Ok(brasa_graph::testing::weight("table", &[TOKENS, WIDTH], &table)));
        let x = b.embed(ids, table);
        let y = match kind {
            0 => {
                let w = b.weight(Ok(weight(&[101, WIDTH])));
                b.linear(x, w)
            }
            1 => {
                let w = b.weight(Ok(weight(&[WIDTH, WIDTH])));
                b.apply(LinearTransposed, &[x, w])[0]
            }
            _ => {
                let numbers = b.weight(Ok(brasa_graph::testing::weight(
                    "numbers",
                    &[TOKENS, 2],
                    &(0..2 * TOKENS).map(|i| (i * 7 % 5) as f32).collect::<Vec<f32>>(),
                )));
                let experts = b.embed(ids, numbers);
                let to = brasa_graph::op::Cast { dtype: brasa_graph::DType::U32 };
                let experts = b.apply(to, &[experts])[0];
                let w = b.weight(Ok(weight(&[5, 13, WIDTH])));
                let y = b.apply(ExpertLinear, &[x, experts, w])[0];
                b.reshape(y, &[26])
            }
        };
        let graph = Arc::new(b.finish(&[y]).unwrap());
        for ids in [&[5][..], &[1, 2, 3, 50, 96, 7, 7, 8, 9, 10, 11]] {
            let mut found = Running::new(device, &graph, Precision::Fast, KvType::F16);
            let mut expected = Running::new(&ReferenceBackend, &graph, Precision::Fast, KvType::F16);
            let found = run(&graph, &mut found, ids);
            let comparison = compare(&found, &run(&graph, &mut expected, ids));
            assert!(
                comparison.within(Tolerance::F32),
                "{label}, kind {kind}, {} rows: {comparison}",
                ids.len()
            );
        }
    }
}
