//! Small decoders whole: dense, with experts, with windows and soft-caps.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Vjp, Wrt, between, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{Binary, CrossEntropy, Reduce, ReduceFn};
use brasa_graph::reference::{Array, ReferenceBackend};
use brasa_graph::rewrite::extend;
use brasa_graph::step::{GivenValues, Step};
use brasa_graph::testing::{
    Decoder, Random, check_derivatives as check, check_near as near, evaluate_with as run, random_adapter,
    varying_weights as weights,
};
use brasa_graph::{DType, Dim, Graph, Op, Sizes, ValueId, ValueKind, pass};

use super::checks::step;

fn decoder(experts: Option<(usize, usize)>, softcap: Option<f32>) -> Graph {
    let spec = Decoder {
        vocab: 97,
        hidden: 12,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        feed_forward: 10,
        windows: vec![None, Some(3)],
        experts,
        softcap,
        ..Decoder::small(StorageFormat::F32)
    };
    pass::attend_to_rows(&spec.graph(5)).unwrap()
}

/// The mean loss of a decoder over the rows that have targets, each of which has a logit row.
fn loss(graph: &Graph) -> Graph {
    extend(graph, |b| {
        let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
        let losses = b.apply(CrossEntropy, &[graph.outputs()[0], targets])[0];
        Ok(b.apply(Reduce { function: ReduceFn::Mean, axis: 0 }, &[losses]))
    })
    .unwrap()
}

/// A step of texts whose targets are the tokens that follow, around the end.
fn training_step(rows: &[usize], seed: u64) -> Step {
    let mut step = step(rows, seed);
    for segment in &mut step.segments {
        let mut targets = segment.tokens.clone();
        targets.rotate_left(1);
        segment.given = vec![GivenValues::U32(targets.into())];
    }
    step
}

#[test]
fn models_obey_the_rules() {
    for (experts, softcap) in [(None, Some(5.0)), (Some((4, 2)), None)] {
        let graph = decoder(experts, softcap);
        check("logits", &graph, &weights(&graph), &step(&[6, 3], 2), true);
        let graph = loss(&graph);
        check("loss", &graph, &weights(&graph), &training_step(&[6, 3], 2), true);
    }
}

/// The loss straight from hidden states is that of logits, and so are its gradients, without the room that logits need.
#[test]
fn a_fused_loss_is_the_plain_one_without_logits() {
    for softcap in [None, Some(5.0)] {
        let plain = loss(&decoder(None, softcap));
        let fused = pass::fuse_cross_entropy(&plain);
        let names: Vec<_> = fused.nodes().iter().map(|node| node.op.name()).collect();
        assert!(names.contains(&"linear_cross_entropy") && !names.contains(&"cross_entropy"), "{names:?}");
        let (wrt, step) = (Wrt::new(weights(&plain)), training_step(&[6, 3], 2));
        assert_eq!(weights(&fused), wrt.values);
        check("fused loss", &fused, &wrt.values, &step, true);
        let [plain, fused] = [plain, fused].map(|graph| vjp(&graph, &wrt).unwrap());
        let [found, expected] = [&fused, &plain].map(|of| run::<f64>(&of.graph, &step, &[]));
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            near(&format!("output {number}"), found, expected, 1e-12);
        }
        let (less, more) = (most_live(&fused, 512), most_live(&plain, 512));
        assert!(less + 512 * 97 < more, "{less} elements fused, {more} plain");
    }
}

#[test]
fn logits_that_are_of_other_use_stay() {
    let graph = loss(&decoder(None, None));
    let logits = graph.nodes().iter().find(|node| node.op == CrossEntropy.into()).unwrap().inputs[0];
    let outputs = [graph.outputs(), &[logits]].concat();
    let graph = graph.returning(&outputs);
    assert_eq!(pass::fuse_cross_entropy(&graph).nodes(), graph.nodes());
}

/// Attention to rows computes what attention to caches does, where texts are whole.
#[test]
fn rows_and_caches_agree() {
    let spec = Decoder { vocab: 97, windows: vec![None, Some(3)], ..Decoder::small(StorageFormat::F32) };
    let (cached, step) = (spec.graph(2), step(&[9, 4], 1));
    let rows = pass::attend_to_rows(&cached).unwrap();
    let [cached, rows] = [cached, rows].map(|graph| run::<f64>(&graph, &step, &[]).remove(0));
    assert_eq!(rows.floats(), cached.floats());
}

#[test]
fn packed_documents_are_those_apart() {
    for experts in [None, Some((4, 2))] {
        let graph = decoder(experts, None);
        let sum = extend(&graph, |b| {
            let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
            let losses = b.apply(CrossEntropy, &[graph.outputs()[0], targets])[0];
            Ok(vec![b.sum(losses, 0)])
        })
        .unwrap();
        let gradient = vjp(&sum, &Wrt::new(weights(&graph))).unwrap().graph;
        let packed = training_step(&[5, 1, 7], 3);
        let together = run::<f64>(&gradient, &packed, &[]);
        let mut apart: Vec<Array<f64>> = together.iter().map(|x| x.map(|_| 0.0)).collect();
        for segment in &packed.segments {
            let alone = run::<f64>(&gradient, &Step { segments: vec![segment.clone()] }, &[]);
            for (sum, x) in apart.iter_mut().zip(alone) {
                let added = sum.floats().iter().zip(x.floats()).map(|(a, b)| a + b).collect();
                *sum = Array::of(x.shape.clone(), added);
            }
        }
        for (together, apart) in together.iter().zip(&apart) {
            near("packed", together, apart, 1e-12);
        }
    }
}

/// A gradient on the reference device, in f32 and through its contract: steps, weights, outputs.
#[test]
fn a_device_runs_a_gradient_like_any_graph() {
    let graph = loss(&decoder(None, Some(5.0)));
    let gradient = vjp(&graph, &Wrt::new(weights(&graph))).unwrap().graph;
    let (step, device, graph) = (training_step(&[6, 3], 2), ReferenceBackend, Arc::new(gradient));
    let uploaded = device.upload(&graph, Precision::Reference, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut pool = device.kv_pool(KvPoolSpec::of(&graph, KvType::F32)).unwrap();
    let limits = ProgramLimits { max_rows: 16, max_outs: 16, max_segments: 4 };
    let mut program = device.compile(Arc::clone(&graph), uploaded, limits.into()).unwrap();
    let found = program.run(&step, &mut *pool).unwrap();
    let exact = run::<f64>(&graph, &step, &[]);
    assert_eq!(found.len(), exact.len());
    for (number, exact) in exact.iter().enumerate() {
        let found = found.get(number).floats().iter().map(|&x| x.into()).collect();
        near(&format!("output {number}"), &Array::of(exact.shape.clone(), found), exact, 1e-5);
    }
}

/// Values that the layers compute between their inputs and outputs.
fn inside(graph: &Graph) -> Vec<ValueId> {
    let residual = graph.nodes().iter().filter(|node| node.op == Op::Binary(Binary::Add));
    let embedded = graph.nodes()[0].outputs[0];
    let states: Vec<ValueId> =
        std::iter::once(embedded).chain(residual.map(|node| node.outputs[0])).collect();
    states.windows(3).step_by(2).flat_map(|layer| between(graph, &layer[..1], &layer[2..])).collect()
}

/// Most elements that are needed at one time, of values from their makers to their last readers.
fn most_live(gradient: &Vjp, rows: usize) -> usize {
    let (graph, sizes) = (&gradient.graph, Sizes { rows, outs: rows, segments: 1 });
    let root = |value: ValueId| graph.view(value).root;
    let mut last = vec![0; graph.values().len()];
    for (number, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|&input| last[root(input).0 as usize] = number);
    }
    graph.outputs().iter().for_each(|&output| last[root(output).0 as usize] = graph.nodes().len());
    let elements = |value: ValueId| graph.value(value).shape.resolve(&sizes).iter().product::<usize>();
    let (mut live, mut most) = (0, 0);
    for (number, node) in graph.nodes().iter().enumerate() {
        let made = node.outputs.iter().copied().filter(|&output| root(output) == output);
        live += made.clone().map(elements).sum::<usize>();
        most = most.max(live);
        let mut ending: Vec<ValueId> = node.inputs.iter().copied().map(root).chain(made).collect();
        ending.sort_unstable();
        ending.dedup();
        let is_temporary = |value: &ValueId| graph.producer(*value).is_some();
        let ends = ending.into_iter().filter(is_temporary).filter(|value| last[value.0 as usize] <= number);
        live -= ends.map(elements).sum::<usize>();
    }
    most
}

#[test]
fn a_gradient_that_recomputes_has_the_same_bits_and_needs_less_room() {
    for experts in [None, Some((4, 2))] {
        let spec = Decoder {
            vocab: 97,
            hidden: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 4,
            feed_forward: 48,
            windows: vec![None; 6],
            experts,
            ..Decoder::small(StorageFormat::F32)
        };
        let graph = loss(&pass::attend_to_rows(&spec.graph(5)).unwrap());
        let wrt = Wrt::new(weights(&graph));
        let plain = vjp(&graph, &wrt).unwrap();
        let again = vjp(&graph, &wrt.recomputing(inside(&graph))).unwrap();
        assert!(again.graph.nodes().len() > plain.graph.nodes().len());
        let step = training_step(&[6, 3], 2);
        let [found, expected] = [&again, &plain].map(|of| run::<f32>(&of.graph, &step, &[]));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let bits = |x: &Array| x.floats().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(found), bits(expected));
        }
        let (less, more) = (most_live(&again, 64), most_live(&plain, 64));
        assert!(less * 2 < more, "{less} elements with recomputation, {more} without");
    }
}

/// A decoder of one layer in Q4_0, whose rows attend to the rows of the step.
fn quantised_decoder() -> Graph {
    let spec = Decoder {
        vocab: 97,
        hidden: 32,
        heads: 2,
        kv_heads: 2,
        head_dim: 32,
        feed_forward: 32,
        windows: vec![None],
        ..Decoder::small(StorageFormat::Q4_0)
    };
    pass::attend_to_rows(&spec.graph(5)).unwrap()
}

/// Gradients of adapters: the base is quantised and frozen, `A` and `B` vary.
#[test]
fn adapters_of_quantised_weights_have_gradients() {
    let graph = quantised_decoder();
    let mut random = Random::new(3);
    let mut adapter = |name: &str, rows| {
        let mut adapter = random_adapter(&graph, name, rows, 2, 0.5, &mut random);
        (adapter.a.trainable, adapter.b.trainable) = (true, true);
        adapter
    };
    let adapters =
        [adapter("layers.0.qkv", 0..64), adapter("layers.0.qkv", 128..192), adapter("layers.0.down", 0..32)];
    let adapted = loss(&pass::add_low_rank(&graph, &adapters).unwrap());
    let wrt = Wrt::trainable(&adapted);
    assert_eq!(wrt.values.len(), 4);
    check("adapters", &adapted, &wrt.values, &training_step(&[6, 3], 2), true);
    let names: Vec<_> =
        vjp(&adapted, &wrt).unwrap().graph.nodes().iter().map(|node| node.op.name()).collect();
    assert_eq!(names.iter().filter(|&&name| name == "linear_gradient").count(), 4, "{names:?}");
}

/// A step may bring rows in place of token ids: what is recomputed starts from the same ones.
#[test]
fn rows_that_a_step_brings_are_not_looked_up_again() {
    let graph = loss(&decoder(None, None));
    let results = graph.nodes().iter().flat_map(|node| node.outputs.iter().copied());
    let (wrt, mut step) = (Wrt::new(weights(&graph)), training_step(&[6, 3], 2));
    for segment in &mut step.segments {
        segment.embeddings = Some(Random::new(1).normals(segment.rows * 12, 1.0).into());
    }
    let [plain, again] = [wrt.clone(), wrt.recomputing(results)].map(|wrt| {
        let gradient = vjp(&graph, &wrt).unwrap();
        run::<f64>(&gradient.graph, &step, &[])
    });
    for (plain, again) in plain.iter().zip(&again) {
        assert_eq!(again.floats(), plain.floats());
    }
}

/// Frozen quantised weights let gradients through to what lies before them.
#[test]
fn gradients_pass_quantised_weights() {
    let graph = quantised_decoder();
    let norms = weights(&graph).into_iter().filter(|&id| match graph.value(id).kind {
        ValueKind::Weight(weight) => graph.weight(weight).name.ends_with("norm"),
        _ => false,
    });
    check("norms", &graph, &norms.collect::<Vec<_>>(), &step(&[4, 2], 1), true);
}
