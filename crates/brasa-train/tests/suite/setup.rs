//! Models, documents and adapters of tests.

use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_golden::{Golden, folder, load_strictly};
use brasa_graph::device::{Backend, Precision, ProgramLimits};
use brasa_graph::{Graph, Op, ValueKind, WeightId};
use brasa_models::Model;
use brasa_train::data::{Document, Span};
use brasa_train::lora::{Layer, Lora, LoraOptions, Scaling};
use brasa_train::optimizer::{Rule, Schedule};
use brasa_train::{Activations, Noise, Objective, Resources, TrainOptions, Trainer};

/// The modules of an adapter, in the order of their numbers in tools/golden/models/lora.py.
const MODULES: [&str; 9] =
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"];

/// One thread of this processor, reproducible: tests run beside each other, and results have the same bits for any number of threads.
pub fn cpu() -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(1), deterministic: true, ..CpuOptions::default() })
        .expect("a processor")
}

/// A tiny random checkpoint.
pub fn model(name: &str) -> Model {
    model_in(&folder("random").join(name))
}

/// A checkpoint.
pub fn model_in(folder: &std::path::Path) -> Model {
    load_strictly(folder, None)
}

/// The two golden documents.
pub fn documents(name: &str) -> Vec<Document> {
    let golden = Golden::read(&folder("random").join(name).join("golden.safetensors"));
    let document = |label: &str, first| {
        let tokens = golden.ids(label);
        let spans = [Span { tokens: first..tokens.len() as u32, weight: 1.0 }].into();
        Document { tokens: tokens.into(), spans }
    };
    vec![document("long.ids", 20), document("short.ids", 1)]
}

/// The linear layers of a graph whose names are wanted, `layers.0.self_attn.q_proj` and so on.
pub fn layers(graph: &Graph, wanted: impl Fn(&str) -> bool) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (id, weight) in graph.weights().iter().enumerate() {
        let id = WeightId(id as u32);
        let is_it = |node: &brasa_graph::Node| {
            matches!(node.op, Op::Linear(_)) && graph.value(node.inputs[1]).kind == ValueKind::Weight(id)
        };
        if weight.shape.len() != 2 || !graph.nodes().iter().any(is_it) {
            continue;
        }
        let mut start = 0;
        for part in &weight.parts {
            let rows = start..start + part.rows.len();
            start = rows.end;
            let full = part.tensor.name.trim_end_matches(".weight");
            let Some(at) = full.find("layers.") else { continue };
            let name = full[at..].to_owned();
            if wanted(&name) {
                let aliases = vec![full.to_owned()];
                let inputs = weight.row_len();
                layers.push(Layer { name, aliases, weight: id, rows, inputs, experts: None });
            }
        }
    }
    layers
}

/// The adapter that golden runs begin with.
pub fn adapter(layers: &[Layer], scaling: Scaling) -> Lora {
    let options = LoraOptions { rank: 4, alpha: 8.0, scaling, ..LoraOptions::default() };
    begun(Lora::new(layers, &options).expect("an adapter"))
}

/// The adapter with the values that golden runs begin with.
pub fn begun(mut lora: Lora) -> Lora {
    for pair in &mut lora.pairs {
        let module = pair.layer.name.rsplit('.').next().expect("a name");
        let module = MODULES.iter().position(|name| *name == module).expect("a module");
        let k = (16 * pair.layer.block().expect("a block") + module) as f64;
        let root = (pair.layer.inputs as f64).sqrt();
        let a = |i: usize| ((0.7 * i as f64 + k).cos() / root) as f32;
        let b = |i: usize| (0.1 * (1.3 * i as f64 + k).sin()) as f32;
        pair.a = (0..pair.a.len()).map(a).collect();
        pair.b = (0..pair.b.len()).map(b).collect();
    }
    lora
}

/// A trainer whose updates have one step of at most 200 rows.
pub fn trainer(
    backend: &dyn Backend,
    model: &Graph,
    lora: Lora,
    rule: Rule,
    schedule: Schedule,
    longest_gradient: Option<f64>,
) -> Trainer {
    noisy_trainer(backend, model, lora, (rule, schedule, longest_gradient), Noise::default())
}

/// Like [`trainer`], with noise.
pub fn noisy_trainer(
    backend: &dyn Backend,
    model: &Graph,
    lora: Lora,
    rules: (Rule, Schedule, Option<f64>),
    noise: Noise,
) -> Trainer {
    try_trainer(backend, model, lora, rules, noise).expect("a trainer")
}

/// Like [`noisy_trainer`], of settings that may be refused.
pub fn try_trainer(
    backend: &dyn Backend,
    model: &Graph,
    lora: Lora,
    (rule, schedule, longest_gradient): (Rule, Schedule, Option<f64>),
    noise: Noise,
) -> brasa_train::Result<Trainer> {
    let activations = Activations::Kept;
    let options = TrainOptions {
        objective: Objective::default(),
        rule,
        schedule: schedule.into(),
        accumulation: 1,
        longest_gradient,
        noise,
        activations,
    };
    trainer_of(backend, model, lora, options)
}

/// A trainer for steps of at most 200 rows.
pub fn trainer_of(
    backend: &dyn Backend,
    model: &Graph,
    lora: Lora,
    options: TrainOptions,
) -> brasa_train::Result<Trainer> {
    let limits = ProgramLimits { max_rows: 200, max_outs: 200, max_segments: 8 };
    let resources = Resources { backend, model, precision: Precision::Reference, limits };
    Trainer::new(&resources, lora, options, &mut |_| std::ops::ControlFlow::Continue(()))
}
