//! Speed of prompts, of single tokens and of tokens of several sequences, on a decoder with random weights in real shapes.
//!
//! `cargo run --release -p brasa-cuda --example speed -- [8b | 1b | 0.6b | 30b-a3b | 20b-a4b | 26b-a4b] [FORMAT] [--q8] [--exact] [--separate] [--profile] [--steps] [--sustained]`
//!
//! `--q8` keeps keys and values in eight bits; `--separate` launches everything between products apart, to be compared with; `--steps` times
//! tokens of 16 sequences and more alone, `--sustained` prompts alone, for seconds: a GPU that is warm lowers its clock.

mod shapes;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, OpTime, Precision, ProgramLimits};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::Sequences;

/// Rows of prompts.
const PROMPTS: [usize; 2] = [512, 4096];
/// Rows of all prompts of a length that are measured for seconds.
const SUSTAINED_ROWS: usize = 100_000;
/// Tokens that each sequence decodes behind a prompt of 512, for so many sequences.
const DECODED: usize = 64;
const SEQUENCES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let (profile, exact, separate) = (flag("--profile"), flag("--exact"), flag("--separate"));
    let (steps_only, sustained) = (flag("--steps"), flag("--sustained"));
    let dtype = if flag("--q8") { KvType::Q8 } else { KvType::F16 };
    let name = arguments.get(1).map_or("Q4_0", String::as_str);
    let format = shapes::format(name).ok_or_else(|| format!("no format {name}"))?;
    let model = arguments.first().map_or("1b", String::as_str);
    let decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;

    let options = CudaOptions { deterministic: exact, separate_launches: separate, ..CudaOptions::default() };
    let device = CudaBackend::new(&options)?;
    println!("{}", device.info().description);
    let graph = Arc::new(decoder.graph(1));
    let start = Instant::now();
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let megabytes = weights.size_bytes() >> 20;
    println!("{model} {format}: {megabytes} MB uploaded in {:.2?}", start.elapsed());
    let limits = ProgramLimits { max_rows: PROMPTS[1], max_outs: 64, max_segments: 64 };
    let mut program = device.compile(Arc::clone(&graph), weights, limits.with(dtype))?;
    let mut pool = device.kv_pool(KvPoolSpec::of(&graph, dtype))?;
    let mut sequences = Sequences::new(&*pool);
    let mut next = |pool: &mut dyn KvPool, ids: std::ops::Range<u64>, rows: u32| {
        // Texts differ, so that their rows choose different experts.
        let token = |id: u64, row: u32| ((u64::from(row) * 7919 + id * 104_729) % 128_256) as u32;
        let mut extend = |id: u64| {
            let tokens: Vec<u32> = (0..rows).map(|row| token(id, row)).collect();
            sequences.extend(pool, id, &tokens, Outs::Last)
        };
        let segments = ids.map(&mut extend).collect::<Result<_, _>>()?;
        Ok::<_, brasa_graph::device::DeviceError>(Step { segments })
    };

    let mut id = 100;
    for rows in PROMPTS.into_iter().filter(|_| !steps_only) {
        let mut times = Vec::new();
        let repetitions = if sustained { SUSTAINED_ROWS / rows } else { 5 };
        for _ in 0..repetitions {
            let step = next(&mut *pool, id..id + 1, rows as u32)?;
            id += 1;
            let start = Instant::now();
            program.run(&step, &mut *pool)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let speed = |time: Duration| rows as f64 / time.as_secs_f64();
        let median = speed(times[repetitions / 2]);
        println!("pp{rows}: {median:.0} tok/s (median of {repetitions}), best {:.0}", speed(times[0]));
    }
    let counts = SEQUENCES.into_iter().filter(|&count| !sustained && (!steps_only || count >= 16));
    for count in counts {
        let (mut times, first) = (Vec::new(), id);
        for id in first..first + count {
            let step = next(&mut *pool, id..id + 1, PROMPTS[0] as u32)?;
            program.run(&step, &mut *pool)?;
        }
        id += count;
        for _ in 0..DECODED {
            let step = next(&mut *pool, first..id, 1)?;
            let start = Instant::now();
            program.run(&step, &mut *pool)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let speed = |time: Duration| count as f64 / time.as_secs_f64();
        let (median, best) = (speed(times[DECODED / 2]), speed(times[0]));
        println!("tg of {count} at depth 512: {median:.0} tok/s (median of {DECODED}), best {best:.0}");
    }
    if profile {
        for (label, rows) in [("a prompt of 512", PROMPTS[0]), ("a prompt of 4096", PROMPTS[1])] {
            let step = next(&mut *pool, 0..1, rows as u32)?;
            println!("{label}:");
            print_profile(&program.profile(&step, &mut *pool)?);
        }
        for count in [4, 16, 64] {
            let (first, prompt) = (id, PROMPTS[0] as u32);
            for id in first..first + count {
                let step = next(&mut *pool, id..id + 1, prompt)?;
                program.run(&step, &mut *pool)?;
            }
            id += count;
            let step = next(&mut *pool, first..id, 1)?;
            println!("a token of {count} at depth 512:");
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
