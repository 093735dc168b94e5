//! Gradients of every family and variant against torch, on tiny random checkpoints (`tools/golden/models/gradients.py`), and
//! against differences and themselves.

use std::collections::BTreeMap;

use brasa_golden::{Golden, folder, load_strictly};
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::op::{CrossEntropy, Reduce, ReduceFn};
use brasa_graph::reference::Array;
use brasa_graph::rewrite::extend;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{check_derivatives, check_near, evaluate_with, varying_weights};
use brasa_graph::{DType, Dim, Graph, Op, Sizes, ValueId, ValueKind, pass};

/// The bound: torch computed in f32, and is off by up to 2e-5 (the embedding of gemma4-moe).
const BOUND: f64 = 3e-5;

/// Vectors that the builders make of stored ones, by the end of their names: `W + 1` for norms of Gemma, stacked biases.
const VECTORS: &[(&str, &[&str])] = &[
    ("output_norm", &["model.norm.weight"]),
    ("per_layer_proj_norm", &["model.per_layer_projection_norm.weight"]),
    ("attn_norm", &["input_layernorm.weight"]),
    ("attn_q_norm", &["self_attn.q_norm.weight"]),
    ("attn_k_norm", &["self_attn.k_norm.weight"]),
    ("qkv.bias", &["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"]),
    ("attn_output.bias", &["self_attn.o_proj.bias"]),
    ("gate_up.bias", &["mlp.gate_proj.bias", "mlp.up_proj.bias"]),
    ("ffn_down.bias", &["mlp.down_proj.bias"]),
    ("post_attention_norm", &["post_attention_layernorm.weight"]),
    ("ffn_norm", &["pre_feedforward_layernorm.weight"]),
    ("ffn_norm", &["post_attention_layernorm.weight"]),
    ("post_ffw_norm", &["post_feedforward_layernorm.weight"]),
    ("pre_ffw_norm_2", &["pre_feedforward_layernorm_2.weight"]),
    ("post_ffw_norm_1", &["post_feedforward_layernorm_1.weight"]),
    ("post_ffw_norm_2", &["post_feedforward_layernorm_2.weight"]),
    ("post_norm", &["post_per_layer_input_norm.weight"]),
    ("ffn_down_exps.scale", &["router.per_expert_scale"]),
];

/// Stored tensors whose gradients are not compared: graphs hold them times a factor.
const SCALED: &[&str] = &["router.scale"];

/// A model of rows of the step, and the mean loss of the tokens that follow its output rows.
fn loss(graph: &Graph) -> Graph {
    let graph = pass::attend_to_rows(graph).expect("caches are written");
    let loss = extend(&graph, |b| {
        let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
        let losses = b.apply(CrossEntropy, &[graph.outputs()[0], targets])[0];
        Ok(b.apply(Reduce { function: ReduceFn::Mean, axis: 0 }, &[losses]))
    });
    pass::fuse_cross_entropy(&loss.expect("logits have a loss"))
}

fn step(ids: &[u32]) -> Step {
    let rows: Vec<u32> = (0..ids.len() as u32 - 1).collect();
    let mut segment = Segment::text(SequenceId(0), 0, ids.to_vec(), Outs::Rows(rows.into()), Vec::new());
    segment.given = vec![GivenValues::U32(ids[1..].into())];
    Step { segments: vec![segment] }
}

/// The names of the stored tensors that a vector of a graph is made of, and that `golden` has.
fn stored_names(golden: &Golden, label: &str) -> Vec<String> {
    let (layer, end) = match label.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, end)) => (format!("model.layers.{layer}."), end),
        None => (String::new(), label),
    };
    let spelled = VECTORS.iter().filter(|(ours, _)| *ours == end).map(|(_, theirs)| {
        let names = theirs.iter().map(|name| format!("{layer}{name}"));
        names.filter(|name| golden.has(&format!("{name}.summary"))).collect::<Vec<_>>()
    });
    spelled.into_iter().find(|names| !names.is_empty()).unwrap_or_default()
}

/// Gradients by the names of stored tensors, put together from the rows of the graph's weights.
fn by_tensor(
    golden: &Golden,
    graph: &Graph,
    gradients: &[(ValueId, Array<f64>)],
) -> BTreeMap<String, Vec<f64>> {
    let mut tensors: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (id, gradient) in gradients {
        let ValueKind::Weight(weight) = graph.value(*id).kind else { unreachable!("weights vary") };
        let weight = graph.weight(weight);
        let mut rest = gradient.floats();
        let vectors = stored_names(golden, &weight.name);
        for name in &vectors {
            let elements = golden.floats(&format!("{name}.summary"))[2] as usize;
            let (own, after) = rest.split_at(elements);
            tensors.insert(name.clone(), own.to_vec());
            rest = after;
        }
        if !vectors.is_empty() {
            assert!(rest.is_empty(), "{}: {} elements too many", weight.name, rest.len());
            continue;
        }
        for part in &weight.parts {
            let row_len = weight.row_len();
            let (own, after) = rest.split_at(part.rows.len() * row_len);
            let tensor = tensors.entry(part.tensor.name.clone()).or_default();
            tensor.resize(part.tensor.rows() * row_len, 0.0);
            for (sum, x) in tensor[part.rows.start * row_len..].iter_mut().zip(own) {
                *sum += x;
            }
            rest = after;
        }
    }
    tensors
}

/// Norm, and the sum weighted by cos(i).
fn summary(gradient: &[f64]) -> [f64; 2] {
    let along = gradient.iter().enumerate().map(|(i, x)| x * (i as f64).cos()).sum();
    [gradient.iter().map(|x| x * x).sum::<f64>().sqrt(), along]
}

/// Compares gradients with golden ones, those that `wanted` names, all of which must be there; returns how many.
fn check_against(
    name: &str,
    golden: &Golden,
    found: &BTreeMap<String, Vec<f64>>,
    wanted: impl Fn(&str) -> bool,
) -> usize {
    let mut compared = 0;
    for array in golden.names() {
        let Some(tensor) = array.strip_suffix(".summary") else { continue };
        if !wanted(tensor) {
            continue;
        }
        let gradient = found.get(tensor).unwrap_or_else(|| panic!("{name}: no gradient of {tensor}"));
        let [norm, along] = summary(gradient);
        let expected: Vec<f64> = golden.floats(array).into_iter().map(f64::from).collect();
        let bound = BOUND * expected[0].max(1e-6);
        assert_eq!(gradient.len(), expected[2] as usize, "{name}, {tensor}: elements");
        assert!(
            (norm - expected[0]).abs() <= bound,
            "{name}, {tensor}: norm {norm}, expected {}",
            expected[0]
        );
        assert!(
            (along - expected[1]).abs() <= bound,
            "{name}, {tensor}: sum {along}, expected {}",
            expected[1]
        );
        if golden.has(tensor) {
            let whole: Vec<f64> = golden.floats(tensor).into_iter().map(f64::from).collect();
            let [found, whole] = [gradient, &whole].map(|x| Array::of([x.len()], x.clone()));
            check_near(&format!("{name}, {tensor}"), &found, &whole, BOUND);
        }
        compared += 1;
    }
    compared
}

fn check(name: &str) {
    let path = folder("random").join(name);
    let texts = Golden::read(&path.join("golden.safetensors"));
    let [ids, other] = ["long.ids", "short.ids"].map(|label| texts.ids(label));
    let golden = Golden::read(&path.join("gradients.safetensors"));
    let graph = loss(&load_strictly(&path, Some(ids.len())).graph);
    let (step, wrt) = (step(&ids), varying_weights(&graph));

    let gradient = vjp(&graph, &Wrt::new(wrt.iter().copied())).expect("a gradient");
    check_packed(name, &gradient.graph, [&ids, &other]);
    check_recomputed(name, &graph, &Wrt::new(wrt.iter().copied()), &gradient.graph, &step);
    let mut outputs = evaluate_with::<f64>(&gradient.graph, &step, &[]);
    let expected = f64::from(golden.floats("loss")[0]);
    let loss = outputs.remove(0).floats()[0];
    assert!((loss - expected).abs() < 1e-5 * expected, "{name}: loss {loss}, expected {expected}");
    let reached = wrt.iter().zip(&gradient.gradients).filter(|(_, gradient)| gradient.is_some());
    let gradients: Vec<_> = reached.map(|(&id, _)| id).zip(outputs).collect();
    let found = by_tensor(&golden, &graph, &gradients);

    let compared =
        check_against(name, &golden, &found, |tensor| !SCALED.iter().any(|end| tensor.ends_with(end)));
    assert!(compared > 8, "{name}: {compared} tensors");
    // Where weights move, a router may choose other experts: a step, which no difference shows.
    let smooth = !graph.nodes().iter().any(|node| matches!(node.op, Op::RouterTopK(_)));
    check_derivatives(name, &graph, &wrt, &step, smooth);
}

/// Checks the gradients of an encoder's matrices: of the mean over its hidden states, which are the output of `graph`, times
/// cos(i).
pub fn check_encoder(name: &str, golden: &Golden, graph: &Graph, step: &Step) {
    let wrt = varying_weights(graph);
    let gradient = vjp(graph, &Wrt::new(wrt.iter().copied())).expect("a gradient");
    let cotangent = gradient.cotangents[0].expect("weights reach the hidden states");
    let shape = graph.value(graph.outputs()[0]).shape.resolve(&Sizes::of(step));
    let elements: usize = shape.iter().product();
    let weights = (0..elements).map(|i| (i as f64).cos() / elements as f64).collect();
    let mut outputs = evaluate_with(&gradient.graph, step, &[(cotangent, Array::of(shape, weights))]);
    let states = outputs.remove(0);
    let loss =
        states.floats().iter().enumerate().map(|(i, x)| x * (i as f64).cos()).sum::<f64>() / elements as f64;
    let expected = f64::from(golden.floats("loss")[0]);
    assert!((loss - expected).abs() < 1e-5, "{name}: loss {loss}, expected {expected}");
    let reached = wrt.iter().zip(&gradient.gradients).filter(|(_, gradient)| gradient.is_some());
    let gradients: Vec<_> = reached.map(|(&id, _)| id).zip(outputs).collect();
    let found = by_tensor(golden, graph, &gradients);
    // Graphs keep the names of matrices alone.
    let compared = check_against(name, golden, &found, |tensor| found.contains_key(tensor));
    assert!(compared >= 9, "{name}: {compared} tensors");
}

/// Two texts in one step have the mean of their gradients, by their numbers of targets.
fn check_packed(name: &str, gradient: &Graph, texts: [&[u32]; 2]) {
    let [first, second] = texts.map(step);
    let packed = Step { segments: [first.segments.clone(), second.segments.clone()].concat() };
    let total: usize = texts.map(|ids| ids.len() - 1).iter().sum();
    let [together, first, second] =
        [packed, first, second].map(|step| evaluate_with::<f64>(gradient, &step, &[]));
    for (together, (a, b)) in together.iter().zip(first.iter().zip(&second)) {
        let [a_share, b_share] = texts.map(|ids| (ids.len() - 1) as f64 / total as f64);
        let mean = a.floats().iter().zip(b.floats()).map(|(a, b)| a_share * a + b_share * b).collect();
        check_near(&format!("{name}, packed"), together, &Array::of(a.shape.clone(), mean), 1e-6);
    }
}

/// A gradient that keeps nothing of the forward pass has the bits of one that keeps everything.
fn check_recomputed(name: &str, graph: &Graph, wrt: &Wrt, plain: &Graph, step: &Step) {
    let results = graph.nodes().iter().flat_map(|node| node.outputs.iter().copied());
    let again = vjp(graph, &wrt.clone().recomputing(results)).expect("a gradient");
    let [found, expected] = [&again.graph, plain].map(|graph| evaluate_with::<f32>(graph, step, &[]));
    for (found, expected) in found.iter().zip(&expected) {
        let bits = |x: &Array| x.floats().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(found), bits(expected), "{name}, recomputed");
    }
}

crate::families::each_family!(check);
