//! Time of a training step: adapters of rank 8 at all projections of a decoder with random weights in the shapes of
//! Qwen3-0.6B, which are frozen; loss and gradients of one text.
//!
//! `cargo run --release -p brasa-cpu --example training_step_speed -- [FORMAT] [THREADS] [ROWS] [--profile]`

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_formats::StorageFormat;
use brasa_graph::derivative::{Wrt, vjp};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{CrossEntropy, Reduce, ReduceFn};
use brasa_graph::rewrite::extend;
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::{Decoder, Random, random_adapter};
use brasa_graph::{DType, Dim, Graph, pass};

const RANK: usize = 8;
const STEPS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let profile = arguments.iter().position(|argument| argument == "--profile");
    let profile = profile.map(|place| arguments.remove(place)).is_some();
    let name = arguments.first().map_or("BF16", String::as_str);
    let format = StorageFormat::GGUF
        .into_iter()
        .find(|format| format.to_string() == name)
        .ok_or_else(|| format!("no format {name}"))?;
    let threads = arguments.get(1).map(|threads| threads.parse()).transpose()?;
    let rows: usize = arguments.get(2).map_or(Ok(512), |rows| rows.parse())?;

    let device = CpuBackend::new(CpuOptions { threads, ..CpuOptions::default() })?;
    println!("{}", device.info().description);
    let spec = Decoder::qwen3_0_6b(format);
    let (graph, frozen) = training_graph(&spec)?;
    let graph = Arc::new(graph);
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let limits = ProgramLimits { max_rows: rows, max_outs: rows, max_segments: 1 };
    let mut program = device.compile(Arc::clone(&graph), Arc::clone(&weights), limits.into())?;
    let mut pool = device.kv_pool(KvPoolSpec::of(&graph, KvType::F32))?;
    let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7919 % spec.vocab as u32).collect();
    let mut targets = tokens.clone();
    targets.rotate_left(1);
    let segment = Segment::text(SequenceId(0), 0, tokens, Outs::All, Vec::new());
    let segment = Segment { given: vec![GivenValues::U32(targets.into())], ..segment };
    let step = Step { segments: vec![segment] };

    let mut fastest = Duration::MAX;
    for _ in 0..STEPS {
        let start = Instant::now();
        black_box(program.run(&step, &mut *pool)?);
        fastest = fastest.min(start.elapsed());
    }
    let seconds = fastest.as_secs_f64();
    println!(
        "{format}, rank {RANK}, {rows} rows: {:.0} ms a step, {:.1} tokens/s; {:.0} GFLOP/s by 4 × {:.0} M frozen \
         parameters; arena {} MB, weights {} MB",
        seconds * 1e3,
        rows as f64 / seconds,
        4.0 * frozen as f64 * rows as f64 / seconds / 1e9,
        frozen as f64 / 1e6,
        program.arena_bytes() >> 20,
        weights.size_bytes() >> 20
    );
    if profile {
        let mut best = program.profile(&step, &mut *pool)?;
        for _ in 1..STEPS {
            for (best, time) in best.iter_mut().zip(program.profile(&step, &mut *pool)?) {
                best.time = best.time.min(time.time);
            }
        }
        let mut sums: BTreeMap<String, (Duration, u64, usize)> = BTreeMap::new();
        for time in best {
            let label: String = time.label.chars().filter(|c| !c.is_ascii_digit()).collect();
            let sum = sums.entry(label).or_default();
            *sum = (sum.0 + time.time, sum.1 + time.flops, sum.2 + 1);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, (time, ..))| std::cmp::Reverse(*time));
        for (label, (time, flops, count)) in sums {
            let seconds = time.as_secs_f64();
            println!(
                "  {label:48} {count:4} × {:9.3} ms {:8.1} GFLOP/s",
                seconds * 1e3,
                flops as f64 / seconds / 1e9
            );
        }
    }
    Ok(())
}

/// Loss and gradients, and the number of frozen parameters that rows are multiplied with.
fn training_graph(spec: &Decoder) -> Result<(Graph, usize), Box<dyn std::error::Error>> {
    let graph = pass::attend_to_rows(&spec.graph(1))?;
    let mut random = Random::new(3);
    let (queries, keys) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let mut adapters = Vec::new();
    let mut frozen = spec.vocab * spec.hidden;
    for layer in 0..spec.windows.len() {
        let projections = [
            ("qkv", spec.hidden, vec![queries, keys, keys]),
            ("o", queries, vec![spec.hidden]),
            ("gate_up", spec.hidden, vec![spec.feed_forward; 2]),
            ("down", spec.feed_forward, vec![spec.hidden]),
        ];
        for (name, inputs, outputs) in projections {
            let mut first = 0;
            for count in outputs {
                let name = format!("layers.{layer}.{name}");
                let rows = first..first + count;
                let mut adapter = random_adapter(&graph, &name, rows, RANK, 0.1, &mut random);
                (adapter.a.trainable, adapter.b.trainable) = (true, true);
                adapters.push(adapter);
                first += count;
                frozen += inputs * count;
            }
        }
    }
    let adapted = pass::add_low_rank(&graph, &adapters)?;
    let plain = extend(&adapted, |b| {
        let targets = b.given("targets", DType::U32, Dim::OUTS, &[]);
        let losses = b.apply(CrossEntropy, &[adapted.outputs()[0], targets])[0];
        Ok(b.apply(Reduce { function: ReduceFn::Mean, axis: 0 }, &[losses]))
    })?;
    let fused = pass::fuse_cross_entropy(&plain);
    Ok((vjp(&fused, &Wrt::trainable(&fused))?.graph, frozen))
}
