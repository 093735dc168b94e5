//! Decode and prefill speed of the plain kernels on a decoder with random weights in the shapes of Llama-3.2-1B or Qwen3-0.6B.
//!
//! `cargo run --release -p brasa-cuda --example plain_speed -- [1b | 0.6b] [FORMAT] [--profile]`

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, OpTime, Precision, ProgramLimits};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Decoder, Sequences};

const PROMPT: usize = 512;
const DECODED: usize = 48;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let profile = arguments.iter().position(|argument| argument == "--profile");
    let profile = profile.map(|place| arguments.remove(place)).is_some();
    let name = arguments.get(1).map_or("Q4_0", String::as_str);
    let format = StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name);
    let format = format.ok_or_else(|| format!("no format {name}"))?;
    let small = Decoder {
        format,
        vocab: 151_936,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 3072,
        windows: vec![None; 28],
        experts: None,
        softcap: None,
    };
    let model = arguments.first().map_or("1b", String::as_str);
    let decoder = match model {
        "0.6b" => small,
        "1b" => Decoder {
            vocab: 128_256,
            hidden: 2048,
            heads: 32,
            head_dim: 64,
            feed_forward: 8192,
            windows: vec![None; 16],
            ..small
        },
        other => return Err(format!("no model {other}").into()),
    };

    let device = CudaBackend::new(&CudaOptions::default())?;
    println!("{}", device.info().description);
    let graph = Arc::new(decoder.graph(1));
    let start = Instant::now();
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let megabytes = weights.size_bytes() >> 20;
    println!("{model} {format}: {megabytes} MB uploaded in {:.2?}", start.elapsed());
    let limits = ProgramLimits { max_rows: PROMPT, max_outs: 1, max_segments: 1 };
    let mut program = device.compile(Arc::clone(&graph), weights, limits)?;
    let mut pool = device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F16 })?;
    let mut sequences = Sequences::new(&*pool);
    let mut next = |pool: &mut dyn KvPool, id: u64, rows: u32| {
        let tokens: Vec<u32> = (0..rows).map(|row| row * 7919 % 128_256).collect();
        let segment = sequences.extend(pool, id, &tokens, Outs::Last)?;
        Ok::<_, brasa_graph::device::DeviceError>(Step { segments: vec![segment] })
    };

    let mut fastest = Duration::MAX;
    for id in 0..3 {
        let step = next(&mut *pool, id, PROMPT as u32)?;
        let start = Instant::now();
        program.run(&step, &mut *pool)?;
        fastest = fastest.min(start.elapsed());
    }
    println!("pp{PROMPT}: {:.1} tok/s", PROMPT as f64 / fastest.as_secs_f64());
    let mut times = Vec::new();
    for _ in 0..DECODED {
        let step = next(&mut *pool, 2, 1)?;
        let start = Instant::now();
        program.run(&step, &mut *pool)?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let (median, best) = (times[DECODED / 2].as_secs_f64(), times[0].as_secs_f64());
    println!("tg at depth {PROMPT}: {:.1} tok/s (median of {DECODED}), best {:.1}", 1.0 / median, 1.0 / best);
    if profile {
        for (label, id, rows) in [("one token", 2, 1), ("a prompt", 9, PROMPT as u32)] {
            let step = next(&mut *pool, id, rows)?;
            println!("{label}:");
            print_profile(&program.profile(&step, &mut *pool)?);
        }
    }
    Ok(())
}

/// Sums over layers.
fn print_profile(times: &[OpTime]) {
    let mut sums: BTreeMap<String, (Duration, u64, u64)> = BTreeMap::new();
    for cost in times {
        let label: String = cost.label.chars().filter(|c| !c.is_ascii_digit()).collect();
        let sum = sums.entry(label).or_default();
        *sum = (sum.0 + cost.time, sum.1 + cost.bytes, sum.2 + cost.flops);
    }
    for (label, (time, bytes, flops)) in sums {
        let (seconds, gigabytes, gigaflops) = (time.as_secs_f64(), bytes as f64 / 1e9, flops as f64 / 1e9);
        println!(
            "  {label:36} {:9.3} ms {:8.2} GB/s {:9.1} GFLOP/s",
            seconds * 1e3,
            gigabytes / seconds,
            gigaflops / seconds
        );
    }
}
