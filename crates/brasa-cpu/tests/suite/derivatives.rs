//! Gradients of whole models: every instruction set against the interpreter in f64.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_cpu::Isa;
use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{
    Attention, CrossEntropy, KvSource, LayerNorm, LinearTransposed, Mask, MeanPool, Reduce, ReduceFn, Unary,
};
use brasa_graph::reference::Array;
use brasa_graph::rewrite::extend;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{
    Case, Decoder, Random, Tolerance, check as check_case, check_near, evaluate_with, f32_weight,
    random_adapter, varying_weights, weight,
};
use brasa_graph::{Builder, DType, Dim, DraftTree, Graph, Input, Weight, WeightPart, pass};

use crate::common::running::device;
use crate::common::sets::rounding_sets;
use crate::common::tensors::{Noise, formats, tensor};

/// Texts of these numbers of rows, which learn the tokens that follow, around the end.
fn training_step(rows: &[usize]) -> Step {
    let mut random = Random::new(7);
    let segments = rows.iter().enumerate().map(|(id, &rows)| {
        let tokens: Arc<[u32]> = (0..rows).map(|_| random.below(97) as u32).collect();
        let mut targets = tokens.to_vec();
        targets.rotate_left(1);
        let segment = Segment::text(SequenceId(id as u64), 0, tokens.to_vec(), Outs::All, Vec::new());
        Segment { given: vec![GivenValues::U32(targets.into())], ..segment }
    });
    Step { segments: segments.collect() }
}

/// A decoder whose rows attend to the rows of the step.
fn decoder(
    format: StorageFormat,
    width: usize,
    experts: Option<(usize, usize)>,
    softcap: Option<f32>,
) -> Graph {
    let spec = Decoder {
        vocab: 97,
        hidden: width,
        heads: 4,
        kv_heads: 2,
        head_dim: width / 2,
        feed_forward: width,
        windows: vec![None, Some(3)],
        experts,
        softcap,
        ..Decoder::small(format)
    };
    pass::attend_to_rows(&spec.graph(5)).unwrap()
}

/// The mean loss of a decoder over the rows that have targets, straight from hidden states.
fn loss(graph: &Graph) -> Graph {
    let plain = extend(graph, |b| {
        let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
        let losses = b.apply(CrossEntropy, &[graph.outputs()[0], targets])[0];
        Ok(b.apply(Reduce { function: ReduceFn::Mean, axis: 0 }, &[losses]))
    });
    pass::fuse_cross_entropy(&plain.unwrap())
}

/// Adapters of a frozen decoder's first layer, to be trained.
fn adapted(graph: &Graph, width: usize) -> Graph {
    let mut random = Random::new(3);
    let mut adapter = |name: &str, rows| {
        let mut adapter = random_adapter(graph, name, rows, 3, 0.5, &mut random);
        (adapter.a.trainable, adapter.b.trainable) = (true, true);
        adapter
    };
    let adapters = [
        adapter("layers.0.qkv", 0..2 * width),
        adapter("layers.0.qkv", 3 * width..4 * width),
        adapter("layers.0.down", 0..width),
    ];
    loss(&pass::add_low_rank(graph, &adapters).unwrap())
}

/// A text encoder of one layer: a window, layer norms, biases, the mean of each text's rows, classes.
fn encoder() -> Graph {
    let (mut g, mut random) = (Builder::new(), Random::new(11));
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        g.weight(Ok(weight(name, shape, &random.normals(shape.iter().product(), 0.4))))
    };
    let ids = g.input(Input::TokenIds);
    let table = w(&mut g, "embed", &[97, 24]);
    let mut h = g.embed(ids, table);
    for window in [None, Some(5)] {
        let qkv = w(&mut g, "qkv", &[72, 24]);
        let bias = w(&mut g, "bias", &[72]);
        let qkv = g.linear(h, qkv);
        let qkv = g.add(qkv, bias);
        let [q, k, v] = [0..24, 24..48, 48..72].map(|columns| {
            let part = g.slice(qkv, columns);
            g.reshape(part, &[3, 8])
        });
        let source = KvSource::Step(Mask::Bidirectional);
        let attention = Attention { source, scale: 0.35, window, softcap: None };
        let y = g.apply(attention, &[q, k, v])[0];
        let y = g.reshape(y, &[24]);
        let (up, down) = (w(&mut g, "up", &[40, 24]), w(&mut g, "down", &[24, 40]));
        let (scale, shift) = (w(&mut g, "scale", &[24]), w(&mut g, "shift", &[24]));
        let sum = g.add(h, y);
        let x = g.apply(LayerNorm { eps: 1e-5 }, &[sum, scale, shift])[0];
        let x = g.linear(x, up);
        let x = g.unary(x, Unary::GeluErf);
        let x = g.linear(x, down);
        h = g.add(sum, x);
    }
    let pooled = g.apply(MeanPool, &[h])[0];
    let classes = w(&mut g, "classes", &[5, 24]);
    let scores = g.linear(pooled, classes);
    let squares = g.mul(scores, scores);
    let each = g.sum(squares, 1);
    let loss = g.sum(each, 0);
    g.finish(&[loss]).unwrap()
}

/// The outputs of a graph on a CPU device.
fn run(graph: &Arc<Graph>, isa: Isa, threads: usize, precision: Precision, step: &Step) -> Vec<Array<f64>> {
    let device = device(threads, isa);
    let weights = device.upload(graph, precision, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut pool = device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F32 }).unwrap();
    let limits = ProgramLimits { max_rows: 512, max_outs: 512, max_segments: 4 };
    let mut program = device.compile(Arc::clone(graph), weights, limits).unwrap();
    let mut found = Vec::new();
    // A second run meets the memory that the first has left.
    for _ in 0..2 {
        let outputs = program.run(step, &mut *pool).unwrap();
        found = (0..outputs.len())
            .map(|number| {
                let values = outputs.get(number).floats().iter().map(|&x| x.into()).collect();
                Array::of(vec![outputs.get(number).floats().len()], values)
            })
            .collect();
    }
    found
}

/// Checks values and gradients: near the interpreter's, and the same bits for any number of threads.
fn check(
    name: &str,
    graph: &Graph,
    wrt: &Wrt,
    step: &Step,
    isas: &[Isa],
    (precision, bound): (Precision, f64),
) {
    let gradient = vjp(graph, wrt).unwrap();
    assert!(gradient.gradients.iter().all(Option::is_some), "{name}: nothing to check");
    let gradient = Arc::new(gradient.graph);
    let expected: Vec<Array<f64>> = evaluate_with(&gradient, step, &[]);
    for &isa in isas {
        let found = run(&gradient, isa, 2, precision, step);
        assert_eq!(found.len(), expected.len());
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let expected = Array::of(vec![expected.floats().len()], expected.floats().to_vec());
            check_near(&format!("{name}, output {number} on {}", isa.name()), found, &expected, bound);
        }
        for threads in [1, 3] {
            let other = run(&gradient, isa, threads, precision, step);
            let same = other.iter().zip(&found).all(|(other, found)| other.floats() == found.floats());
            assert!(same, "{name}: {threads} threads on {} make other bits than 2", isa.name());
        }
    }
}

const EXACT: (Precision, f64) = (Precision::Reference, 1e-5);

/// More rows than queries, logits or summed elements that are together at a time, beside a single row.
#[test]
fn gradients_of_decoders_equal_the_interpreters() {
    let step = training_step(&[270, 1, 40]);
    for softcap in [None, Some(5.0)] {
        let graph = loss(&decoder(StorageFormat::F32, 12, None, softcap));
        check("decoder", &graph, &Wrt::new(varying_weights(&graph)), &step, &Isa::available(), EXACT);
    }
}

#[test]
fn gradients_of_experts_equal_the_interpreters() {
    let graph = loss(&decoder(StorageFormat::F32, 12, Some((4, 2)), None));
    let wrt = Wrt::new(varying_weights(&graph));
    check("experts", &graph, &wrt, &training_step(&[30, 5]), &Isa::available(), EXACT);
}

#[test]
fn gradients_of_adapters_equal_the_interpreters() {
    for format in [StorageFormat::F32, StorageFormat::F16, StorageFormat::Q4_0] {
        let graph = adapted(&decoder(format, 32, None, None), 32);
        let wrt = Wrt::trainable(&graph);
        assert_eq!(wrt.values.len(), 4);
        check("adapters", &graph, &wrt, &training_step(&[80, 1, 9]), &Isa::available(), EXACT);
    }
}

#[test]
fn gradients_of_encoders_equal_the_interpreters() {
    let graph = encoder();
    let mut step = training_step(&[70, 1, 9]);
    step.segments.iter_mut().for_each(|segment| segment.given = Vec::new());
    let wrt = Wrt::new(varying_weights(&graph));
    check("encoder", &graph, &wrt, &step, &Isa::available(), EXACT);
}

/// Rows of a tree of drafts see their own branch alone, backwards too.
#[test]
fn gradients_pass_along_the_branches_of_a_tree() {
    let graph = loss(&decoder(StorageFormat::F32, 12, None, None));
    let mut step = training_step(&[70, 6]);
    let mut random = Random::new(5);
    let parents: Vec<Option<u32>> = (0..70).map(|row| (row > 0).then(|| random.below(row) as u32)).collect();
    step.segments[0].tree = Some(Arc::new(DraftTree::new(&parents).unwrap()));
    let wrt = Wrt::new(varying_weights(&graph));
    check("tree", &graph, &wrt, &step, &Isa::available(), EXACT);
}

/// Weights and activations rounded to bf16, as in products of many rows; or activations rounded to int8 on the way forward.
#[test]
fn rounded_gradients_are_near_the_interpreters() {
    let step = training_step(&[80, 1, 40]);
    for (format, bound) in [(StorageFormat::BF16, 2e-2), (StorageFormat::Q8_0, 6e-2)] {
        let graph = adapted(&decoder(format, 64, None, None), 64);
        let wrt = Wrt::trainable(&graph);
        check("rounded", &graph, &wrt, &step, &rounding_sets(), (Precision::Fast, bound));
    }
}

/// The other side of a weight of `parts`, times `rows` rows.
fn other_side(name: String, parts: Vec<WeightPart>, rows: usize) -> Case {
    let (n, k) = (parts.iter().map(|part| part.rows.len()).sum(), parts[0].tensor.row_len());
    let mut case = Case::new(name, 5, &f32_weight, |b| {
        let y = b.rows(&[n]);
        let w = b.graph.weight(Weight::new("w", &[n, k], parts));
        b.graph.apply(LinearTransposed, &[y, w])
    });
    (case.steps, case.precision) = (vec![vec![(1, rows)], vec![(2, 1)]], Precision::Fast);
    case
}

/// Every stored format, with columns that three threads share unevenly and sums longer than a piece: in bf16, and in f32 where a set
/// has none.
#[test]
fn the_other_side_of_weights_is_multiplied_in_every_format() {
    let mut noise = Noise::new(17);
    let exact = Isa::detect().unwrap().without_bf16();
    let sets = rounding_sets().into_iter().map(|isa| (isa, Tolerance::BITS_16));
    for (isa, tolerance) in sets.chain([(exact, Tolerance::F32)]) {
        let device = device(3, isa);
        for format in formats() {
            for (n, columns, rows) in [(1100, 300, 70), (48, 1, 9), (37, 64, 33)] {
                let k = usize::next_multiple_of(columns, format.block_len().max(32));
                let part = WeightPart::whole(tensor(format, n, k, &mut noise));
                let name = format!("{format} {n} × {k}, {rows} rows, {}", isa.name());
                check_case(&device, &other_side(name, vec![part], rows), tolerance);
            }
        }
        // Parts that begin where tiles do not, and a part that begins where strips do not.
        for first in [48, 41] {
            let formats = [StorageFormat::Q4_0, StorageFormat::BF16, StorageFormat::Q8_0];
            let counts = [0..first, 5..37, 1..40];
            let parts = formats.into_iter().zip(counts).map(|(format, rows)| {
                let tensor = tensor(format, rows.end + 3, 96, &mut noise);
                WeightPart { tensor, rows }
            });
            let name = format!("parts, the first of {first} rows, {}", isa.name());
            check_case(&device, &other_side(name, parts.collect(), 40), tolerance);
        }
    }
}
