//! Training of a model's parameters against torch (tools/golden/models/weights.py), on the CPU.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use brasa_golden::Golden;
use brasa_graph::Graph;
use brasa_graph::device::{Precision, ProgramLimits};
use brasa_train::data::Batches;
use brasa_train::lora::{Layer, Targets};
use brasa_train::optimizer::{Adam, Muon, Rule, Schedule, Sgd, Shape};
use brasa_train::run::{End, Event, RunOptions, run};
use brasa_train::{Activations, Noise, Objective, Parameters, Resources, Result, TrainOptions, Trainer};

use crate::setup::{cpu, documents, layers, model};

fn trainer(graph: &Graph, rule: Rule, peak: f64, longest_gradient: Option<f64>) -> Result<Trainer> {
    let parameters = Parameters::new(graph, |_| true)?;
    of_parameters(graph, parameters, rule, peak, longest_gradient, Noise::default())
}

fn of_parameters(
    graph: &Graph,
    parameters: Parameters,
    rule: Rule,
    peak: f64,
    longest_gradient: Option<f64>,
    noise: Noise,
) -> Result<Trainer> {
    let schedule = Schedule { shape: Shape::Constant, peak, warm_up: 0, updates: 50, floor: 0.0 };
    let options = TrainOptions {
        objective: Objective::Likelihood,
        rule,
        schedule: schedule.into(),
        accumulation: 1,
        longest_gradient,
        noise,
        activations: Activations::Kept,
    };
    let limits = ProgramLimits { max_rows: 200, max_outs: 200, max_segments: 8 };
    let backend = cpu();
    let resources = Resources { backend: &backend, model: graph, precision: Precision::Reference, limits };
    Trainer::of_parameters(&resources, parameters, options, &mut |_| ControlFlow::Continue(()))
}

/// Arrays by the names of torch's parameters, which are those of the stored tensors, but for experts.
fn by_tensor(parameters: &Parameters, arrays: &[Vec<f32>]) -> BTreeMap<String, Vec<f32>> {
    let mut tensors: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    assert_eq!(parameters.changes().count(), arrays.len());
    for ((name, first, _), array) in parameters.changes().zip(arrays) {
        assert_eq!(first, 0, "tensors are stored apart");
        assert!(tensors.insert(name.to_owned(), array.clone()).is_none(), "{name} twice");
    }
    // Torch stacks experts, each gate above its up.
    let mut stacked: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for expert in 0.. {
        let infix = format!(".experts.{expert}.");
        let names: Vec<String> = tensors.keys().filter(|name| name.contains(&infix)).cloned().collect();
        if names.is_empty() {
            break;
        }
        for (part, stack) in
            [("gate_proj", "gate_up_proj"), ("up_proj", "gate_up_proj"), ("down_proj", "down_proj")]
        {
            for name in names.iter().filter(|name| name.contains(&format!("{infix}{part}"))) {
                let values = tensors.remove(name).expect("it is there");
                let layer = name.split(&infix).next().expect("a layer");
                stacked.entry(format!("{layer}.experts.{stack}")).or_default().extend(values);
            }
        }
    }
    tensors.extend(stacked);
    tensors
}

/// Compares norms, and sums weighted by cos(i), with golden ones.
fn check_arrays(golden: &Golden, label: &str, found: &BTreeMap<String, Vec<f32>>, bound: f64) {
    let wanted = golden.names().filter(|name| name.starts_with(&format!("{label}."))).count();
    assert_eq!(wanted, found.len(), "{label}: {:?}", found.keys());
    for (name, found) in found {
        let expected = golden.floats(&format!("{label}.{name}"));
        assert_eq!(found.len(), expected[2] as usize, "{label}, {name}");
        let norm = found.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let along: f64 = found.iter().enumerate().map(|(i, &x)| f64::from(x) * (i as f64).cos()).sum();
        for (found, expected_) in [norm, along].iter().zip(&expected[..2]) {
            let error = (found - f64::from(*expected_)).abs() / f64::from(expected[0]);
            assert!(error <= bound, "{label}, {name}: {found}, expected {expected_}");
        }
    }
}

fn check(name: &str) {
    let path = format!("tests/golden/weights/{name}.safetensors");
    let golden = Golden::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path));
    let model = model(name);
    let mut batches = Batches::new(documents(name), 200, 8, None);
    let rate = f64::from(golden.floats("rate.sgd")[0]);
    let adamw = Rule::AdamW(Adam { weight_decay: 0.01, ..Adam::default() });
    for (label, rule, rate, clip, bound) in
        [("sgd", Rule::Sgd(Sgd::default()), rate, None, 1e-5), ("adamw", adamw, 0.001, Some(1.0), 1e-4)]
    {
        let mut trainer = trainer(&model.graph, rule, rate, clip).expect("a trainer");
        let begin = trainer.arrays();
        if label == "sgd" {
            for steps in [vec![vec![0, 1]], vec![vec![0], vec![1]]] {
                let (_, gradients) = trainer.gradients(&batches, &steps).expect("gradients");
                let gradients = by_tensor(trainer.parameters().expect("parameters"), &gradients);
                check_arrays(&golden, "gradient", &gradients, 1e-5);
            }
        }
        for (update, expected) in golden.floats(&format!("loss.{label}")).into_iter().enumerate() {
            let found = trainer.update(&mut batches).expect("an update").loss;
            let error = (found - f64::from(expected)).abs() / f64::from(expected);
            assert!(error <= bound, "{name}, {label}, update {update}: {found}, expected {expected}");
        }
        let end = trainer.arrays();
        let changes: Vec<Vec<f32>> = (end.iter().zip(&begin))
            .map(|(new, old)| new.iter().zip(old).map(|(new, old)| new - old).collect())
            .collect();
        let changes = by_tensor(trainer.parameters().expect("parameters"), &changes);
        check_arrays(&golden, label, &changes, 1e-3);
    }
}

#[test]
fn stacked_projections_and_a_head() {
    check("llama31");
}

#[test]
fn a_table_that_is_the_head_too_and_norms_of_heads() {
    check("qwen3");
}

#[test]
fn biases() {
    check("qwen2");
}

#[test]
fn norms_that_are_stored_less_one() {
    check("gemma3");
}

#[test]
fn experts_and_routers() {
    check("qwen3moe");
}

/// The linear layers of a model without routers, and its stacks of experts.
fn targets_of(graph: &Graph) -> Vec<Layer> {
    let mut all = layers(graph, |name| !name.ends_with("mlp.gate"));
    for (number, weight) in graph.weights().iter().enumerate() {
        let &[experts, outputs, inputs] = &weight.shape[..] else { continue };
        let block = weight.name.rsplit_once('.').expect("a block").0;
        let parts: &[&str] = if weight.parts.len() == experts { &["down"] } else { &["gate", "up"] };
        for (place, part) in parts.iter().enumerate() {
            let rows = outputs / parts.len();
            all.push(Layer {
                name: format!("{block}.ffn_{part}_exps"),
                aliases: Vec::new(),
                weight: brasa_graph::WeightId(number as u32),
                rows: place * rows..(place + 1) * rows,
                inputs,
                experts: Some(experts),
            });
        }
    }
    all
}

/// Targets are the tensors that `is_target` names, and have the gradients that they have when everything is learned; the other values of their weights stay.
fn check_targets(name: &str, targets: &str, last_blocks: Option<usize>, is_target: fn(&str) -> bool) {
    let model = model(name);
    let batches = Batches::new(documents(name), 200, 8, None);
    let gradients = |parameters: Parameters| {
        let sgd = Rule::Sgd(Sgd::default());
        let mut trainer =
            of_parameters(&model.graph, parameters, sgd, 0.1, None, Noise::default()).expect("a trainer");
        let (_, gradients) = trainer.gradients(&batches, &[vec![0, 1]]).expect("gradients");
        let before = trainer.parameters().expect("parameters").clone();
        trainer.update(&mut batches.clone()).expect("an update");
        trainer.fetch().expect("values");
        let arrays = trainer.arrays();
        trainer.take(&arrays).expect("arrays of this run");
        let after = trainer.parameters().expect("parameters").clone();
        for (before, after) in before.all.iter().zip(&after.all) {
            for place in &before.stored {
                let [old, new] = [before, after].map(|parameter| &parameter.values[place.elements.clone()]);
                assert_eq!(old != new, place.is_learned, "{}: {place:?}", before.name);
            }
        }
        let found = after.changes().zip(gradients);
        found
            .map(|((tensor, first, _), found)| ((tensor.to_owned(), first), found))
            .collect::<BTreeMap<_, _>>()
    };
    let mut whole = gradients(Parameters::new(&model.graph, |_| true).expect("parameters"));
    whole.retain(|(tensor, _), _| is_target(tensor));
    let targets = Targets::parse(targets, last_blocks).expect("targets");
    let parameters =
        Parameters::of_targets(&model.graph, &targets_of(&model.graph), &targets).expect("parameters");
    assert_eq!(parameters.count(), whole.values().map(Vec::len).sum::<usize>());
    let found = gradients(parameters);
    assert!(!found.is_empty());
    assert_eq!(found.keys().collect::<Vec<_>>(), whole.keys().collect::<Vec<_>>(), "{name}");
    // Weights that stay are multiplied as they are stored, so sums may have another order.
    for ((tensor, first), found) in &found {
        let wanted = &whole[&(tensor.clone(), *first)];
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let error =
            norm(&mut found.iter().zip(wanted).map(|(x, y)| x - y)) / norm(&mut wanted.iter().copied());
        assert!(error < 1e-5, "{name}, {tensor}: off by {error:e} from a run that learns everything");
    }
}

#[test]
fn projections_of_a_stack_by_name() {
    check_targets("llama31", "q_proj, v_proj", None, |tensor| {
        tensor.ends_with(".q_proj.weight") || tensor.ends_with(".v_proj.weight")
    });
    check_targets("qwen2", "k_proj.bias,model.norm", None, |tensor| {
        tensor.ends_with(".k_proj.bias") || tensor == "model.norm.weight"
    });
}

#[test]
fn layers_by_expression_in_the_last_blocks() {
    check_targets("qwen3", "/mlp\\.(gate|down)_proj/,/norm/", Some(1), |tensor| {
        tensor.starts_with("model.layers.1.")
            && ["mlp.gate_proj", "mlp.down_proj", "norm"].iter().any(|part| tensor.contains(part))
    });
}

#[test]
fn all_linear_layers_or_experts() {
    check_targets("qwen3moe", "all", None, |tensor| {
        tensor.contains(".self_attn.") && tensor.contains("_proj.")
    });
    check_targets("qwen3moe", "experts", None, |tensor| tensor.contains(".experts."));
    check_targets("qwen3moe", "ffn_up_exps,mlp.gate", Some(1), |tensor| {
        tensor.starts_with("model.layers.1.")
            && (tensor.ends_with(".up_proj.weight") || tensor.ends_with(".mlp.gate.weight"))
    });
}

/// A weight that is stored in blocks may stay, beside others that are learned.
#[test]
fn only_targets_have_to_be_floats() {
    let path = brasa_golden::folder("lexicon-qwen3").join("lexicon-qwen3-Q6_K.gguf");
    let model = crate::setup::model_in(&path);
    let of = |names: &str| {
        let targets = Targets::parse(names, None).expect("targets");
        Parameters::of_targets(&model.graph, &[], &targets).map(|parameters| parameters.all.len())
    };
    let blocks = model.spec.layers.len();
    assert_eq!(of("attn_norm").expect("norms are floats"), blocks);
    let told = of("attn_norm,attn_q").unwrap_err().to_string();
    assert!(told.starts_with("blk.0.attn_q.weight is stored as Q6_K\nhint: "), "{told}");
    let told = of("c_proj").unwrap_err().to_string();
    assert!(told.starts_with("no parameter is named `c_proj`\nhint: the parameters are "), "{told}");
}

/// Blocks by Muon, and everything by moments of eight bits, which embeddings and head are long enough for.
#[test]
fn a_run_that_goes_on_has_the_bits_of_a_whole_one() {
    check_resumed(Rule::Muon(Muon { weight_decay: 0.1, ..Muon::default() }), |name| {
        name.starts_with("layers.1.")
    });
    check_resumed(Rule::AdamW8(Adam::default()), |_| true);
}

fn check_resumed(rule: Rule, wanted: fn(&str) -> bool) {
    let model = model("llama31");
    let folder = tempfile::tempdir().expect("a folder");
    let run_in = |name: &str, resume: bool, last: u64| {
        let parameters = Parameters::new(&model.graph, wanted).expect("parameters");
        let noise = Noise { embedding: 5.0, ..Noise::default() };
        let mut trainer =
            of_parameters(&model.graph, parameters, rule, 0.01, Some(1.0), noise).expect("a trainer");
        let mut train = Batches::new(documents("llama31"), 200, 8, Some(3));
        let options = RunOptions {
            folder: folder.path().join(name),
            updates: 6,
            evaluate_every: 0,
            save_every: 0,
            patience: None,
            resume,
            settings: BTreeMap::new(),
        };
        let mut watch = |event: Event<'_>| match event {
            Event::Update(update, _) if update.number == last => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let outcome = run(&mut trainer, &mut train, None, &options, &mut watch).expect("a run");
        (outcome.end, outcome.values)
    };
    let (end, whole) = run_in("whole", false, 9);
    assert_eq!((end, whole.len() > 2), (End::Finished, true));
    assert_eq!(run_in("halted", false, 2).0, End::Stopped);
    assert_eq!(run_in("halted", true, 9), (End::Finished, whole));
}

#[test]
fn what_cannot_be_learned_is_named() {
    let model = model("llama31");
    let refused = |result: Result<Trainer>| result.err().expect("an error").to_string();
    let none = Parameters::new(&model.graph, |_| false).unwrap_err().to_string();
    assert!(none.starts_with("no parameter is learned\nhint: "), "{none}");
    let parameters = Parameters::new(&model.graph, |_| true).expect("parameters");
    let noise = Noise { dropout: 0.1, ..Noise::default() };
    let found = refused(of_parameters(&model.graph, parameters, Rule::Sgd(Sgd::default()), 0.1, None, noise));
    assert!(found.starts_with("dropout without an adapter\nhint: "), "{found}");
    let path = brasa_golden::folder("lexicon-qwen3").join("lexicon-qwen3-Q6_K.gguf");
    let found = Parameters::new(&crate::setup::model_in(&path).graph, |_| true).unwrap_err().to_string();
    assert!(
        found.contains(" is stored as Q6_K\nhint: train an adapter, or convert the model to BF16 first"),
        "{found}"
    );
}
