//! Weights in tiles: floats are read and written exactly, and halves that one graph gates serve other graphs too.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::op::Unary;
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{Noise, Running, Tolerance, compare, random_tensor};
use brasa_graph::{Builder, Graph, Input, Weight, WeightPart};

use crate::device::device;

/// Rows of each half of a gated weight.
const HALF: usize = 24;

fn floats(weight: &Weight) -> Vec<f32> {
    decode_weight(weight).unwrap().floats().to_vec()
}

/// A graph that looks rows of `weight` up.
fn lookup(weight: &Arc<Weight>) -> Arc<Graph> {
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let table = b.weight(Ok(Arc::clone(weight)));
    let y = b.embed(ids, table);
    Arc::new(b.finish(&[y]).unwrap())
}

/// `x·Wᵀ` with `x` looked up in `table`, gated or as it is.
fn product(table: &Arc<Weight>, weight: &Arc<Weight>, gate_first: Option<bool>) -> Arc<Graph> {
    let mut b = Builder::new();
    let ids = b.input(Input::TokenIds);
    let (table, w) = (b.weight(Ok(Arc::clone(table))), b.weight(Ok(Arc::clone(weight))));
    let x = b.embed(ids, table);
    let mut y = b.linear(x, w);
    if let Some(gate_first) = gate_first {
        let halves = [0..HALF, HALF..2 * HALF].map(|half| b.slice(y, half));
        let [gate, up] = if gate_first { halves } else { [halves[1], halves[0]] };
        let gate = b.unary(gate, Unary::GeluTanh);
        y = b.mul(gate, up);
    }
    Arc::new(b.finish(&[y]).unwrap())
}

#[test]
fn floats_are_read_and_written_exactly() {
    let Some(device) = device() else { return };
    let mut noise = Noise::new(17);
    for (formats, row_len) in [
        (vec![StorageFormat::F16], 100),
        (vec![StorageFormat::BF16, StorageFormat::F16, StorageFormat::F32, StorageFormat::BF16], 64),
        (vec![StorageFormat::F16, StorageFormat::F16, StorageFormat::F16], 130),
    ] {
        let mut part = |&format: &StorageFormat| WeightPart {
            tensor: random_tensor(format, 40, row_len, &mut noise),
            rows: 3..3 + 16,
        };
        let mut parts: Vec<WeightPart> = formats.iter().map(&mut part).collect();
        parts[0].rows.end += 16;
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let weight = Arc::new(Weight::new("floats", &[rows, row_len], parts).unwrap());
        let set = device.weight_set(Precision::Fast);
        set.add(&lookup(&weight), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(set.read(&weight).unwrap(), floats(&weight), "{formats:?}");
        let doubled: Vec<f32> = floats(&weight).iter().map(|x| 2.0 * x).collect();
        set.write(&weight, &doubled).unwrap();
        assert_eq!(set.read(&weight).unwrap(), doubled, "{formats:?}, written");
    }
}

#[test]
fn gated_halves_serve_every_graph() {
    let Some(device) = device() else { return };
    for format in [StorageFormat::F16, StorageFormat::BF16, StorageFormat::Q8_0, StorageFormat::Q6_K] {
        for gate_first in [true, false] {
            let mut noise = Noise::new(19);
            let table = brasa_graph::testing::weight("table", &[40, 256], &noise.activations(40 * 256));
            let table = Arc::new(table);
            // The halves are two tensors, as files have them.
            let parts = (0..2).map(|_| WeightPart::whole(random_tensor(format, HALF, 256, &mut noise)));
            let weight = Arc::new(Weight::new("halves", &[2 * HALF, 256], parts.collect()).unwrap());
            let set = device.weight_set(Precision::Reference);
            // The first graph decides how the weight is laid out.
            let graphs = [product(&table, &weight, Some(gate_first)), product(&table, &weight, None)];
            let lookup = lookup(&weight);
            for graph in graphs.iter().chain([&lookup]) {
                set.add(graph, &mut |_| ControlFlow::Continue(())).unwrap();
            }
            assert_eq!(set.read(&weight).unwrap(), floats(&weight), "{format}");
            let ids: Vec<u32> = (0..40).collect();
            let run = |device: &dyn Backend, graph: &Arc<Graph>| {
                let mut running = match device.info().name.as_str() {
                    "reference" => Running::new(device, graph, Precision::Reference, KvType::F32),
                    _ => Running::with(device, graph, Arc::clone(&set), KvType::F32),
                };
                running.step(&[(1, &ids)])
            };
            for (graph, what) in graphs.iter().zip(["gated", "as it is"]) {
                let found = run(device, graph);
                let comparison = compare(&found, &run(&ReferenceBackend, graph));
                assert!(comparison.within(Tolerance::F32), "{format}, {what}: {comparison}");
            }
            assert_eq!(run(device, &lookup), floats(&weight)[..40 * 256], "{format}, looked up");
        }
    }
}
