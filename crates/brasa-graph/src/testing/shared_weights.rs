//! Checks of weights that two graphs share: one upload, read and written.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::codec::encode_row;
use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};

use crate::device::{Backend, DeviceError, KvPoolSpec, KvType, Precision, Program, ProgramLimits, WeightSet};
use crate::step::{Outs, Step};
use crate::{Builder, Graph, Input, Weight, WeightPart};

use super::{Random, Sequences, f32_weight};

const VOCAB: usize = 20;
const WIDTH: usize = 64;

/// Checks that graphs share the upload of shared weights, and that a weight can be read and written between two steps.
///
/// # Panics
///
/// If the device behaves in another way.
pub fn check_shared_weights(device: &dyn Backend) {
    let mut random = Random::new(3);
    let table = Arc::new(f32_weight(&mut random, "table", &[VOCAB, WIDTH]));
    let w = Arc::new(quantised(&mut random, "w", VOCAB));
    let float = Arc::new(f32_weight(&mut random, "float", &[VOCAB, WIDTH]));
    let base = graph(&table, &[&w]);
    let more = graph(&table, &[&w, &float]);

    let weights = device.weight_set(Precision::Reference);
    assert_eq!(add(&*weights, &base), table.stored_bytes() + w.stored_bytes());
    let base_bytes = weights.size_bytes();
    assert_eq!(add(&*weights, &base), 0, "an upload of what is there");
    assert_eq!(weights.size_bytes(), base_bytes);
    assert_eq!(add(&*weights, &more), float.stored_bytes(), "bytes of the weight that was missing");
    let float_bytes = weights.size_bytes() - base_bytes;
    assert!(float_bytes < 2 * float.stored_bytes(), "{float_bytes} bytes for one more weight");

    let mut programs =
        [&base, &more].map(|graph| compile(device, graph, &weights).expect("all weights are there"));
    let [first, second] = &mut programs;
    let (alone, together) = (run(device, &base, &mut **first), run(device, &more, &mut **second));
    assert_ne!(alone, together);

    assert_eq!(weights.read(&w).expect("added"), decoded(&w), "a quantised weight");
    assert_eq!(weights.read(&float).expect("added"), decoded(&float), "a weight of floats");
    let doubled: Vec<f32> = decoded(&float).iter().map(|x| 2.0 * x).collect();
    weights.write(&float, &doubled).expect("a weight of floats can be written");
    assert_eq!(weights.read(&float).expect("added"), doubled);
    assert_eq!(run(device, &base, &mut **first), alone, "a graph without the written weight");
    // The second graph adds the product of the written weight: twice as much is added.
    for ((x, before), after) in alone.iter().zip(&together).zip(run(device, &more, &mut **second)) {
        let expected = x + 2.0 * (before - x);
        assert!((after - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{after}, expected {expected}");
    }

    let refused = |result: Result<(), DeviceError>| result.expect_err("refused").to_string();
    let quantised = refused(weights.write(&w, &decoded(&w)));
    assert!(quantised.contains("w: values for rows stored as Q8_0"), "{quantised}");
    let short = refused(weights.write(&float, &doubled[1..]));
    assert!(short.contains("1279 values for shape [20, 64]"), "{short}");
    let strange = Arc::new(f32_weight(&mut random, "strange", &[VOCAB, WIDTH]));
    for result in [weights.read(&strange).map(drop), weights.write(&strange, &doubled)] {
        assert!(refused(result).contains("strange, a weight that was not added to this set"));
    }
    let other = graph(&table, &[&strange]);
    assert!(refused(compile(device, &other, &weights).map(drop)).contains("strange"));
}

/// `Σ_w linear(embed(ids), w)`.
fn graph(table: &Arc<Weight>, weights: &[&Arc<Weight>]) -> Arc<Graph> {
    let mut g = Builder::new();
    let ids = g.input(Input::TokenIds);
    let table = g.weight(Ok(Arc::clone(table)));
    let x = g.embed(ids, table);
    let mut y = None;
    for &weight in weights {
        let w = g.weight(Ok(Arc::clone(weight)));
        let product = g.linear(x, w);
        y = Some(y.map_or(product, |y| g.add(y, product)));
    }
    Arc::new(g.finish(&[y.expect("a weight")]).expect("a graph of fitting shapes"))
}

fn quantised(random: &mut Random, name: &str, rows: usize) -> Weight {
    let format = StorageFormat::Q8_0;
    let mut bytes = Vec::new();
    for _ in 0..rows {
        let mut row = vec![0; format.row_bytes(WIDTH).expect("whole blocks")];
        encode_row(format, &random.normals(WIDTH, 1.0), None, &mut row).expect("finite values");
        bytes.extend(row);
    }
    let payload = Payload::Blocks(Bytes::from(bytes));
    let tensor = Tensor { name: name.into(), shape: vec![rows, WIDTH], format, payload };
    Weight::new(name, &[rows, WIDTH], vec![WeightPart::whole(tensor)]).expect("one whole part")
}

fn decoded(weight: &Weight) -> Vec<f32> {
    crate::reference::decode_weight(weight).expect("valid rows").floats().to_vec()
}

/// Adds the weights of `graph`; returns the bytes that the progress reported.
fn add(weights: &dyn WeightSet, graph: &Graph) -> u64 {
    let mut total = 0;
    let mut progress = |upload: crate::device::UploadProgress| {
        total = upload.total_bytes;
        ControlFlow::Continue(())
    };
    weights.add(graph, &mut progress).expect("an upload");
    total
}

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 8, max_outs: 8, max_segments: 1 };

fn compile(
    device: &dyn Backend,
    graph: &Arc<Graph>,
    weights: &Arc<dyn WeightSet>,
) -> Result<Box<dyn Program>, DeviceError> {
    device.compile(Arc::clone(graph), Arc::clone(weights), LIMITS.into())
}

fn run(device: &dyn Backend, graph: &Graph, program: &mut dyn Program) -> Vec<f32> {
    let spec = KvPoolSpec::of(graph, KvType::F32);
    let mut pool = device.kv_pool(spec).expect("a pool");
    let segment = Sequences::new(&*pool).extend(&mut *pool, 1, &[3, 1, 4, 1, 5], Outs::All).expect("pages");
    program.run(&Step { segments: vec![segment] }, &mut *pool).expect("a step").only().floats().to_vec()
}
