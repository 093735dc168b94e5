//! Runs of MLX-LM's trainer, made again (tools/golden/models/mlx_training.py).

use std::path::Path;

use brasa_golden::folder;
use brasa_graph::device::{Precision, ProgramLimits};
use brasa_tokenizer::Tokenizer;
use brasa_train::data::{
    Batches, DataOptions, Dataset, Examples, Learned, Long, MlxBatches, MlxPurpose, Padding, Place,
};
use brasa_train::lora::{Layer, Lora, LoraOptions, Pattern, Scaling, Targets};
use brasa_train::optimizer::{Adafactor, Adam, MlxCourse, MlxSchedule, Muon, MuonKind, Rates, Rule, Sgd};
use brasa_train::{Activations, Extent, Noise, Objective, Parameters, Resources, TrainOptions, Trainer};
use serde_json::Value;

use crate::setup::{begun, cpu, layers, model_in};

/// Batches of the rows of a golden run, and of those that it evaluates.
fn batches(golden: &Value, folder: &Path) -> (Batches, Option<Batches>) {
    let config = &golden["config"];
    let whole = |key: &str, default: u64| config[key].as_u64().unwrap_or(default);
    let tokenizer = Tokenizer::from_directory(folder).expect("a tokenizer");
    let template = tokenizer.chat_template().expect("a template");
    let examples = Examples { tokenizer: &tokenizer, template: Some(&template), vocab_size: 4096 };
    let options = DataOptions {
        learned: if config["mask_prompt"] == true { Learned::FromLastAnswer } else { Learned::Everything },
        max_rows: whole("max_seq_length", 2048) as usize - 1,
        long: Long::Cut,
        padding: Padding::FirstLearned,
        ..DataOptions::default()
    };
    let read = |name: &str| {
        let rows = golden[name].as_array().expect("rows");
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        let lines = lines.join("\n");
        (!rows.is_empty())
            .then(|| Dataset::read_from(lines.as_bytes(), name, &examples, &options).expect("examples"))
    };
    let (train, valid) = (read("train").expect("examples"), read("valid"));
    let own = MlxBatches {
        batch_size: whole("batch_size", 4) as usize,
        seed: whole("seed", 0) as u32,
        iterations: whole("iters", 1000),
        steps_per_eval: whole("steps_per_eval", 200),
        train_documents: train.documents.len(),
        valid_documents: valid.as_ref().map_or(0, |valid| valid.documents.len()),
        purpose: MlxPurpose::Train,
    };
    let most = usize::try_from(config["val_batches"].as_i64().unwrap_or(25)).ok();
    let of = |data: Dataset, purpose| {
        Batches::as_mlx(data.documents, &data.fields, MlxBatches { purpose, ..own }).expect("batches")
    };
    (of(train, MlxPurpose::Train), valid.map(|valid| of(valid, MlxPurpose::Valid(most))))
}

fn rule(config: &Value) -> Rule {
    let name = config["optimizer"].as_str().unwrap_or("adam");
    let own = &config["optimizer_config"][name];
    let number = |key: &str, default: f64| own[key].as_f64().unwrap_or(default);
    let adam = Adam {
        beta1: own["betas"][0].as_f64().unwrap_or(0.9),
        beta2: own["betas"][1].as_f64().unwrap_or(0.999),
        eps: number("eps", 1e-8),
        weight_decay: number("weight_decay", if name == "adamw" { 0.01 } else { 0.0 }),
        bias_correction: own["bias_correction"] == true,
    };
    match name {
        "adam" => Rule::Adam(adam),
        "adamw" => Rule::AdamW(adam),
        "sgd" => Rule::Sgd(Sgd {
            momentum: number("momentum", 0.0),
            nesterov: own["nesterov"] == true,
            weight_decay: number("weight_decay", 0.0),
        }),
        "muon" => Rule::Muon(Muon { weight_decay: 0.01, kind: MuonKind::Mlx, ..Muon::default() }),
        "adafactor" if own.is_null() => Rule::Adafactor(Adafactor::default()),
        "adafactor" => Rule::Adafactor(Adafactor::parse(own).expect("settings")),
        other => panic!("{other}"),
    }
}

fn rates(config: &Value) -> Rates {
    let from = config["learning_rate"].as_f64().expect("a rate");
    let schedule = match &config["lr_schedule"] {
        Value::Null => {
            let course = MlxCourse::Linear { from, to: from, updates: 1 };
            MlxSchedule { course, warm_up: 0, warm_up_from: 0.0 }
        }
        schedule => MlxSchedule::parse(schedule).expect("a schedule"),
    };
    Rates::Mlx(schedule)
}

fn adapter(config: &Value, graph: &brasa_graph::Graph) -> Lora {
    let own = &config["lora_parameters"];
    let keys = own["keys"].as_array().cloned().unwrap_or_default();
    let wanted = |name: &str| {
        keys.is_empty()
            || keys.iter().any(|key| name.ends_with(&format!(".{}", key.as_str().expect("a key"))))
    };
    let mut layers = layers(graph, wanted);
    layers.extend(experts(graph).into_iter().filter(|layer| wanted(&layer.name)));
    let last_blocks = config["num_layers"].as_i64().and_then(|blocks| usize::try_from(blocks).ok());
    let (rank, scale) = (own["rank"].as_u64().expect("a rank"), own["scale"].as_f64().expect("a scale"));
    let options = LoraOptions {
        targets: Targets { patterns: vec![Pattern::parse("/./").expect("a pattern")], last_blocks },
        rank: rank as usize,
        alpha: (scale * rank as f64) as f32,
        scaling: Scaling::Rank,
        ..LoraOptions::default()
    };
    begun(Lora::new(&layers, &options).expect("an adapter"))
}

/// The stacks of experts of a graph, by MLX's names.
fn experts(graph: &brasa_graph::Graph) -> Vec<Layer> {
    let names = [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];
    let layer = |(id, weight): (u32, &std::sync::Arc<brasa_graph::Weight>)| {
        let &[experts, rows, inputs] = &weight.shape[..] else { return None };
        let (block, name) = weight.name.rsplit_once('.')?;
        let (_, name) = names.iter().find(|(own, _)| *own == name)?;
        let name = format!("{block}.mlp.switch_mlp.{name}");
        let (weight, experts) = (brasa_graph::WeightId(id), Some(experts));
        Some(Layer { name, aliases: Vec::new(), weight, rows: 0..rows, inputs, experts })
    };
    (0..).zip(graph.weights()).filter_map(layer).collect()
}

fn near(what: &str, found: f64, expected: f64, bound: f64) {
    assert!((found - expected).abs() <= bound * expected.abs(), "{what}: {found}, expected {expected}");
}

fn check(name: &str, bound: f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/mlx/{name}.json"));
    let golden: Value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    let config = &golden["config"];
    let folder =
        folder(config["model"].as_str().and_then(|path| path.strip_prefix("models/")).expect("a name"));
    let model = model_in(&folder);
    let (mut train, mut valid) = batches(&golden, &folder);
    let accumulation = config["grad_accumulation_steps"].as_u64().unwrap_or(1) as usize;
    let options = TrainOptions {
        objective: Objective::LikelihoodByStep,
        rule: rule(config),
        schedule: rates(config),
        accumulation,
        longest_gradient: None,
        noise: Noise::default(),
        activations: Activations::Kept,
    };
    let rows = valid.iter().chain([&train]).map(Batches::most_rows).max().expect("batches");
    let limits = ProgramLimits { max_rows: rows, max_outs: rows, max_segments: 8 };
    let device = cpu();
    let resources =
        Resources { backend: &device, model: &model.graph, precision: Precision::Reference, limits };
    let mut progress = |_| std::ops::ControlFlow::Continue(());
    let mut trainer = if config["fine_tune_type"] == "full" {
        let blocks = config["num_layers"].as_u64().expect("blocks") as usize;
        let parameters = Parameters::of(&model.graph, Extent::LastBlocks(blocks)).expect("parameters");
        Trainer::of_parameters(&resources, parameters, options, &mut progress).expect("a trainer")
    } else {
        Trainer::new(&resources, adapter(config, &model.graph), options, &mut progress).expect("a trainer")
    };
    let numbers = |key: &str| -> Vec<f64> {
        golden[key].as_array().expect("numbers").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let (losses, tokens, learning_rates) = (numbers("losses"), numbers("tokens"), numbers("rates"));
    let mut evaluations =
        golden["valid_losses"].as_array().expect("evaluations").iter().enumerate().peekable();
    for (update, (losses, tokens)) in
        losses.chunks_exact(accumulation).zip(tokens.chunks_exact(accumulation)).enumerate()
    {
        // MLX-LM evaluates between the batches of an update too, which change nothing.
        let end = ((update + 1) * accumulation) as u64;
        while let Some((number, evaluation)) =
            evaluations.next_if(|(_, evaluation)| evaluation[0].as_u64().is_some_and(|done| done < end))
        {
            let valid = valid.as_mut().expect("rows to evaluate");
            valid.go_to(Place { epoch: number as u64, step: 0 });
            let found = trainer.evaluate(valid).expect("an evaluation");
            let expected = evaluation[1].as_f64().expect("a loss");
            near(&format!("{name}, evaluation {number}"), found.loss, expected, bound);
        }
        let found = trainer.update(&mut train).expect("an update");
        let expected = losses.iter().sum::<f64>() / accumulation as f64;
        near(&format!("{name}, update {update}"), found.loss, expected, bound);
        assert_eq!(found.learned, tokens.iter().sum::<f64>() as usize, "{name}, update {update}");
        // The rate of a later update is that of `optimizer.learning_rate` behind it.
        let rate = learning_rates[end as usize - 1];
        near(&format!("{name}, rate {update}"), found.learning_rate, rate, 1e-5);
    }
    assert!(evaluations.next().is_none());
    let values = golden["values"].as_object().expect("values");
    let found: Vec<(String, &[f32])> = match trainer.parameters() {
        Some(parameters) => {
            parameters.changes().map(|(tensor, _, values)| (tensor.to_owned(), values)).collect()
        }
        None => (trainer.lora().pairs.iter())
            .flat_map(|pair| {
                [("lora_a", &*pair.a), ("lora_b", &*pair.b)].map(|(part, own)| (pair, part, own))
            })
            .map(|(pair, part, own)| (format!("model.{}.{part}", pair.layer.name), own))
            .collect(),
    };
    assert_eq!(values.len(), found.len());
    for (label, found) in found {
        let expected = [0, 1].map(|at| values[&label][at].as_f64().expect("a number"));
        let norm = found.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let along: f64 = found.iter().enumerate().map(|(i, &x)| f64::from(x) * (i as f64).cos()).sum();
        for (found, expected_) in [norm, along].into_iter().zip(expected) {
            let error = (found - expected_).abs() / expected[0];
            assert!(error < 10.0 * bound, "{name}, {label}: {found}, expected {expected_}");
        }
    }
}

#[test]
fn adam_without_bias_correction_and_rows_by_their_fields() {
    check("adam", 1e-4);
}

#[test]
fn accumulated_batches_of_cut_rows_behind_a_prompt() {
    check("adamw", 1e-4);
}

#[test]
fn momentum_in_steps() {
    check("sgd", 1e-4);
}

#[test]
fn orthogonal_updates() {
    check("muon", 1e-3);
}

#[test]
fn means_of_rows_and_columns_with_relative_steps() {
    check("adafactor", 1e-4);
}

#[test]
fn means_of_rows_and_columns_with_rates_and_momentum() {
    check("adafactor-rates", 1e-4);
}

#[test]
fn whole_blocks() {
    check("full", 1e-4);
}

#[test]
fn experts_of_a_mixture() {
    check("experts", 1e-4);
}

#[test]
fn experts_by_orthogonal_updates() {
    check("experts-muon", 1e-3);
}

#[test]
fn orders_beyond_the_run_are_still_orders() {
    let documents = || -> Vec<brasa_train::data::Document> {
        let span = brasa_train::data::Span { tokens: 1..3, weight: 1.0 };
        let document = brasa_train::data::Document { tokens: [1, 2, 3].into(), spans: [span].into() };
        vec![document; 7]
    };
    let options = MlxBatches {
        batch_size: 2,
        seed: 3,
        iterations: 4,
        steps_per_eval: 2,
        train_documents: 9,
        valid_documents: 7,
        purpose: MlxPurpose::Valid(None),
    };
    let mut valid = Batches::as_mlx(documents(), &[1; 7], options).expect("batches");
    for epoch in 0..9 {
        valid.go_to(Place { epoch, step: 0 });
        let mut all = valid.epoch().concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5], "the last document is in no whole batch");
    }
    let test = MlxBatches { purpose: MlxPurpose::Test(Some(2)), ..options };
    assert_eq!(Batches::as_mlx(documents(), &[1; 7], test).expect("batches").steps_per_epoch(), 2);
    let refused = Batches::as_mlx(documents(), &[1; 7], MlxBatches { batch_size: 8, ..options });
    assert!(refused.unwrap_err().to_string().starts_with("batches of 8 examples, the file has 7\nhint: "));
}
