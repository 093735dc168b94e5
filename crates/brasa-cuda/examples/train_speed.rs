//! Speed of training an adapter of all linear layers of a decoder with random weights in real shapes.
//!
//! `cargo run --release -p brasa-cuda --example train_speed -- [8b | 1b | 0.6b | 1b/LAYERS …] [FORMAT] [--rows 2048] [--updates 5] [--memory GIB] [--keep | --products] [--profile]`
//!
//! Each update learns one text of `--rows` tokens, all of them; `--keep` keeps what blocks compute until their gradient in place of computing it
//! again, `--products` the results of products alone, and `--memory` is for a GPU of so many GiB. The first update is left out of the mean.

mod shapes;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{Random, loss_of, random_adapter};
use brasa_graph::{Graph, WeightId, pass};
use brasa_train::data::{Batches, Document, Span};
use brasa_train::lora::{Layer, Lora, LoraOptions, Scaling, Targets};
use brasa_train::optimizer::{Adam, Rates, Rule, Schedule, Shape};
use brasa_train::{Activations, Noise, Objective, Resources, TrainOptions, Trainer};

const RANK: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let (keep, products, profile) = (flag("--keep"), flag("--products"), flag("--profile"));
    let mut number = |name: &str, usual: usize| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map_or(Ok(usual), |place| {
            arguments.remove(place);
            arguments.remove(place).parse()
        })
    };
    let (rows, updates, memory) = (number("--rows", 2048)?, number("--updates", 5)?, number("--memory", 0)?);
    let name = arguments.get(1).map_or("BF16", String::as_str);
    let format = shapes::format(name).ok_or_else(|| format!("no format {name}"))?;
    let model = arguments.first().map_or("1b", String::as_str);
    let decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;

    let memory_limit = Some((memory as u64) << 30).filter(|&bytes| bytes > 0);
    let device = CudaBackend::new(&CudaOptions { memory_limit, ..CudaOptions::default() })?;
    println!("{}", device.info().description);
    let graph = decoder.graph(1);
    let limits = ProgramLimits { max_rows: rows, max_outs: rows, max_segments: 1 };
    if profile {
        print_profile(&device, &graph, limits)?;
    }
    let activations = match (keep, products) {
        (true, _) => Activations::Kept,
        (_, true) => Activations::Products,
        _ => Activations::Recomputed,
    };
    let options = TrainOptions {
        objective: Objective::default(),
        rule: Rule::AdamW(Adam::default()),
        schedule: Rates::Schedule(Schedule {
            shape: Shape::Constant,
            peak: 1e-4,
            warm_up: 0,
            updates: 100,
            floor: 0.0,
        }),
        accumulation: 1,
        longest_gradient: Some(1.0),
        noise: Noise::default(),
        activations,
    };
    let resources = Resources { backend: &device, model: &graph, precision: Precision::Fast, limits };
    let mut trainer =
        Trainer::new(&resources, adapter(&graph)?, options, &mut |_| ControlFlow::Continue(()))?;
    let mut random = Random::new(7);
    let text = |_| {
        let tokens: Vec<u32> = (0..=rows).map(|_| random.below(decoder.vocab) as u32).collect();
        let spans = [Span { tokens: 1..rows as u32 + 1, weight: 1.0 }].into();
        Document { tokens: tokens.into(), spans }
    };
    let texts: Vec<Document> = (0..4).map(text).collect();
    let mut batches = Batches::new(texts, rows, 1, None);
    let mut all = Duration::ZERO;
    for number in 0..=updates {
        let start = Instant::now();
        let update = trainer.update(&mut batches)?;
        if number > 0 {
            all += start.elapsed();
        }
        println!("update {number}: {:.1?}, loss {:.4}", start.elapsed(), update.loss);
    }
    let per_second = (rows * updates) as f64 / all.as_secs_f64();
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (trained, held) = (gib(trainer.device_bytes()), gib(device.held_bytes()));
    println!("{model} {format}, {rows} rows: {per_second:.0} tokens/s, {trained:.1} GiB, {held:.1} in all");
    Ok(())
}

/// All linear layers of the decoder's blocks.
fn adapter(graph: &Graph) -> Result<Lora, Box<dyn std::error::Error>> {
    let weights = graph.weights().iter().enumerate();
    let blocks = weights.filter(|(_, weight)| weight.name.contains("layers.") && weight.shape.len() == 2);
    let layers: Vec<Layer> = blocks
        .map(|(number, weight)| Layer {
            name: weight.name.clone(),
            aliases: Vec::new(),
            weight: WeightId(number as u32),
            rows: 0..weight.shape[0],
            inputs: weight.shape[1],
            experts: None,
        })
        .collect();
    let (targets, scaling) = (Targets::default(), Scaling::Rank);
    let options =
        LoraOptions { targets, rank: RANK, alpha: 16.0, scaling, seed: 5, ..LoraOptions::default() };
    Ok(Lora::new(&layers, &options)?)
}

/// Prints the time of each kind of operation of a gradient.
fn print_profile(
    device: &CudaBackend,
    graph: &Graph,
    limits: ProgramLimits,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut random = Random::new(3);
    let names = graph.weights().iter().filter(|w| w.name.contains("layers.") && w.shape.len() == 2);
    let mut adapters: Vec<_> =
        names.map(|w| random_adapter(graph, &w.name, 0..w.shape[0], RANK, 0.5, &mut random)).collect();
    for adapter in &mut adapters {
        (adapter.a.trainable, adapter.b.trainable) = (true, true);
    }
    let learned = loss_of(&pass::attend_to_rows(&pass::add_low_rank(graph, &adapters)?)?);
    let gradient = Arc::new(vjp(&learned, &Wrt::trainable(&learned))?.graph);
    let weights = device.upload(&gradient, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let mut program = device.compile(Arc::clone(&gradient), weights, limits.into())?;
    let mut pool = device.kv_pool(KvPoolSpec::of(&gradient, KvType::F32))?;
    let tokens: Vec<u32> = (0..limits.max_rows).map(|row| (row * 7919 % 128_256) as u32).collect();
    let targets = GivenValues::U32(tokens.clone().into());
    let segment = Segment::text(SequenceId(0), 0, tokens, Outs::All, Vec::new());
    let step = Step { segments: vec![Segment { given: vec![targets], ..segment }] };
    for _ in 0..3 {
        let start = Instant::now();
        program.run(&step, &mut *pool)?;
        println!("a gradient: {:.1?}", start.elapsed());
    }
    let mut kinds: BTreeMap<String, (Duration, u64)> = BTreeMap::new();
    for time in program.profile(&step, &mut *pool)? {
        // Layers differ by their number alone.
        let kind = time.label.split('.').map(|part| if part.parse::<u32>().is_ok() { "n" } else { part });
        let kind = kinds.entry(kind.collect::<Vec<_>>().join(".")).or_default();
        *kind = (kind.0 + time.time, kind.1 + time.flops);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (time, _))| std::cmp::Reverse(*time));
    for (kind, (time, flops)) in kinds {
        println!(
            "{:>9.3} ms {:>7.1} TFLOP/s  {kind}",
            time.as_secs_f64() * 1e3,
            flops as f64 / time.as_secs_f64() / 1e12
        );
    }
    Ok(())
}
