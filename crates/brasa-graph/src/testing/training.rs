//! Graphs for training: losses of small decoders and encoders, to be differentiated.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;

use super::{Decoder, Random, random_adapter, weight};
use crate::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use crate::op::{
    Attention, CrossEntropy, KvSource, LayerNorm, LinearCrossEntropy, Mask, MeanPool, Reduce, ReduceFn,
    RmsNorm, Unary,
};
use crate::reference::Array;
use crate::rewrite::extend;
use crate::step::{GivenValues, Outs, Segment, SequenceId, Step};
use crate::{Builder, DType, Dim, Graph, Input, pass};

/// A step with texts of `rows` rows. Each token's target is the next one, and the last token's target is the first.
pub fn training_step(rows: &[usize]) -> Step {
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
///
/// # Panics
///
/// If the graph does not fit together: a bug of this crate.
pub fn learner(
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
    pass::attend_to_rows(&spec.graph(5)).expect("a graph")
}

/// The mean loss of a decoder over the rows that have targets, computed from hidden states without logits of all rows.
///
/// # Panics
///
/// If the graph does not fit together: a bug of this crate.
pub fn loss_of(graph: &Graph) -> Graph {
    let plain = extend(graph, |b| {
        let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
        let losses = b.apply(CrossEntropy, &[graph.outputs()[0], targets])[0];
        Ok(b.apply(Reduce { function: ReduceFn::Mean, axis: 0 }, &[losses]))
    });
    pass::fuse_cross_entropy(&plain.expect("a graph"))
}

/// The graph of a frozen decoder with adapters of its first layer, which are trainable.
///
/// # Panics
///
/// If the graph does not fit together: a bug of this crate.
pub fn with_adapters(graph: &Graph, width: usize) -> Graph {
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
    loss_of(&pass::add_low_rank(graph, &adapters).expect("a graph"))
}

/// A text encoder of one layer with a window, layer norms, biases, mean pooling and classes.
///
/// # Panics
///
/// If the graph does not fit together: a bug of this crate.
pub fn pooled_encoder() -> Graph {
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
    g.finish(&[loss]).expect("a graph")
}

/// The loss of a network of rows without attention, which has second derivatives of many kinds: embeddings, both norms, a layer
/// with an activation, a head with a soft-cap. Each token is its own target.
///
/// # Panics
///
/// If the graph does not fit together: a bug of this crate.
pub fn row_network() -> Graph {
    let (mut g, mut random) = (Builder::new(), Random::new(3));
    let mut w = |g: &mut Builder, name: &str, shape: &[usize]| {
        g.weight(Ok(weight(name, shape, &random.normals(shape.iter().product(), 0.4))))
    };
    let ids = g.input(Input::TokenIds);
    let table = w(&mut g, "table", &[97, 12]);
    let h = g.embed(ids, table);
    let (scale, up, down) =
        (w(&mut g, "scale", &[12]), w(&mut g, "up", &[20, 12]), w(&mut g, "down", &[12, 20]));
    let x = g.apply(RmsNorm { eps: 1e-3 }, &[h, scale])[0];
    let x = g.linear(x, up);
    let x = g.unary(x, Unary::GeluTanh);
    let x = g.linear(x, down);
    let h = g.add(h, x);
    let h = g.apply(LayerNorm { eps: 1e-3 }, &[h])[0];
    let head = w(&mut g, "head", &[97, 12]);
    let losses = g.apply(LinearCrossEntropy { softcap: Some(3.0) }, &[h, head, ids])[0];
    let loss = g.sum(losses, 0);
    g.finish(&[loss]).expect("a graph")
}

/// The outputs of a graph on a device, each as one row. They are those of a second run, which uses the memory that the first has
/// written.
///
/// # Panics
///
/// If the device fails.
pub fn outputs_on(
    device: &dyn Backend,
    graph: &Arc<Graph>,
    precision: Precision,
    step: &Step,
) -> Vec<Array<f64>> {
    let weights = device.upload(graph, precision, &mut |_| ControlFlow::Continue(())).expect("an upload");
    let spec = KvPoolSpec::of(graph, KvType::F32);
    let mut pool = device.kv_pool(spec).expect("a pool");
    let most = step.rows().max(512);
    let limits = ProgramLimits { max_rows: most, max_outs: most, max_segments: 4 };
    let mut program = device.compile(Arc::clone(graph), weights, limits.into()).expect("a program");
    program.run(step, &mut *pool).expect("a step");
    let outputs = program.run(step, &mut *pool).expect("a step");
    let output = |number: usize| {
        let values: Vec<f64> = outputs.get(number).floats().iter().map(|&x| x.into()).collect();
        Array::of(vec![values.len()], values)
    };
    (0..outputs.len()).map(output).collect()
}
