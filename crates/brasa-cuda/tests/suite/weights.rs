//! Weights in tiles: floats are read and written exactly, and halves that one graph gates serve other graphs too.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::{MlxAffine, Payload, StorageFormat};
use brasa_graph::device::{Backend, KvType, Precision};
use brasa_graph::op::Unary;
use brasa_graph::reference::{ReferenceBackend, decode_weight};
use brasa_graph::testing::{Noise, Running, Tolerance, compare, formats, random_tensor};
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
    for (stored, row_len) in [
        (vec![StorageFormat::F16], 100),
        (vec![StorageFormat::BF16, StorageFormat::F16, StorageFormat::F32, StorageFormat::BF16], 64),
        (vec![StorageFormat::F16, StorageFormat::F16, StorageFormat::F16], 130),
    ] {
        let mut part = |&format: &StorageFormat| {
            WeightPart::of_rows(random_tensor(format, 40, row_len, &mut noise), 3..3 + 16)
        };
        let mut parts: Vec<WeightPart> = stored.iter().map(&mut part).collect();
        parts[0].rows.end += 16;
        let rows = parts.iter().map(|part| part.rows.len()).sum();
        let weight = Arc::new(Weight::new("floats", &[rows, row_len], parts).unwrap());
        let set = device.weight_set(Precision::Fast);
        set.add(&lookup(&weight), &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(set.read(&weight).unwrap(), floats(&weight), "{stored:?}");
        let doubled: Vec<f32> = floats(&weight).iter().map(|x| 2.0 * x).collect();
        set.write(&weight, &doubled).unwrap();
        assert_eq!(set.read(&weight).unwrap(), doubled, "{stored:?}, written");
    }
}

#[test]
fn formats_take_the_bytes_that_are_told_before() {
    let Some(device) = device() else { return };
    let mut noise = Noise::new(29);
    for format in formats() {
        let tensor = random_tensor(format, 80, 512, &mut noise);
        let weight = Arc::new(Weight::new("w", &[80, 512], vec![WeightPart::whole(tensor)]).unwrap());
        let graph = lookup(&weight);
        let set = device.weight_set(Precision::Fast);
        set.add(&graph, &mut |_| ControlFlow::Continue(())).unwrap();
        let (told, taken, stored) = (device.weight_bytes(&graph), set.size_bytes(), weight.stored_bytes());
        assert!(taken <= told + 256, "{format}: {taken} bytes, {told} told");
        // Where a format lies in a wider one, the weight is at most 2.5 times as large, which 2-bit codes in four bits are.
        assert!(told <= stored * 5 / 2, "{format}: {told} bytes of {stored}");
    }
}

/// Groups of zeros have MLX's least scale, 1e-7, which is no number of f16 by itself.
#[test]
fn small_scales_lie_in_tiles_too() {
    let Some(device) = device() else { return };
    let mut noise = Noise::new(31);
    // Five bits have scales in f32, which stay as they are.
    for (bits, in_tiles) in [(4, true), (5, false)] {
        let format = StorageFormat::MlxAffine(MlxAffine { bits, group_size: 64 });
        let mut tensor = random_tensor(format, 40, 256, &mut noise);
        if let Payload::Mlx { scales, scale_format: StorageFormat::BF16, .. } = &mut tensor.payload {
            let mut found = scales.to_vec();
            for scale in found.chunks_exact_mut(2).step_by(3) {
                scale.copy_from_slice(&0x33d7_u16.to_le_bytes());
            }
            *scales = found.into();
        }
        let weight = Arc::new(Weight::new("w", &[40, 256], vec![WeightPart::whole(tensor)]).unwrap());
        let table = Arc::new(brasa_graph::testing::weight("table", &[40, 256], &noise.activations(40 * 256)));
        let (looked_up, multiplied) = (lookup(&weight), product(&table, &weight, None));
        let set = device.weight_set(Precision::Fast);
        set.add(&looked_up, &mut |_| ControlFlow::Continue(())).unwrap();
        let wider = set.size_bytes() > weight.stored_bytes() + 512;
        assert_eq!(wider, in_tiles, "{format}: {} bytes of {}", set.size_bytes(), weight.stored_bytes());
        let ids: Vec<u32> = (0..40).collect();
        let run = |device: &dyn Backend, graph: &Arc<Graph>, rows: usize| {
            Running::new(device, graph, Precision::Fast, KvType::F16).step(&[(1, &ids[..rows])])
        };
        assert_eq!(run(device, &looked_up, 40), floats(&weight), "{format}");
        for rows in [1, 3] {
            let comparison =
                compare(&run(device, &multiplied, rows), &run(&ReferenceBackend, &multiplied, rows));
            assert!(comparison.within(Tolerance(2e-3)), "{format}, {rows} rows: {comparison}");
        }
    }
}

#[test]
fn gated_halves_serve_every_graph() {
    let Some(device) = device() else { return };
    let mlx = StorageFormat::MlxAffine(MlxAffine { bits: 4, group_size: 64 });
    for format in [StorageFormat::F16, StorageFormat::BF16, StorageFormat::Q5_0, StorageFormat::Q6_K, mlx] {
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
