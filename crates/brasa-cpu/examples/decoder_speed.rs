//! Decode and prefill speed of a decoder with random weights in the shapes of Qwen3-0.6B, beside the machine's read
//! bandwidth as measured in the same run.
//!
//! `cargo run --release -p brasa-cpu --example decoder_speed -- [FORMAT] [THREADS] [DEPTH] [--q8-kv] [--profile]`
//!
//! Then 4, 8, 16 and 32 sequences decode together, each at that depth: tokens per second of all, beside those of one.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cpu::{CpuBackend, CpuOptions, Team};
use brasa_formats::StorageFormat;
use brasa_graph::device::{
    Backend, DeviceError, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits,
};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Decoder, Sequences};

const PROMPT: usize = 512;
const DECODED: usize = 48;
const TOGETHER: [usize; 4] = [4, 8, 16, 32];
const MOST_TOGETHER: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let profile = flag("--profile");
    let dtype = if flag("--q8-kv") { KvType::Q8 } else { KvType::F16 };
    let name = arguments.first().map_or("Q4_0", String::as_str);
    let format = StorageFormat::GGUF
        .into_iter()
        .find(|format| format.to_string() == name)
        .ok_or_else(|| format!("no format {name}"))?;
    let threads = arguments.get(1).map(|threads| threads.parse()).transpose()?;
    let depth: usize = arguments.get(2).map_or(Ok(PROMPT), |depth| depth.parse())?;

    let device = CpuBackend::new(CpuOptions { threads, ..CpuOptions::default() })?;
    println!("{}", device.info().description);
    let graph = Arc::new(Decoder::qwen3_0_6b(format).graph(1));
    let stored_bytes: u64 = graph.weights().iter().map(|weight| weight.stored_bytes()).sum();
    let start = Instant::now();
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let load = start.elapsed();
    println!(
        "{format}: {} MB stored, {} MB packed in {load:.2?}",
        stored_bytes >> 20,
        weights.size_bytes() >> 20
    );

    let limits = ProgramLimits { max_rows: PROMPT, max_outs: MOST_TOGETHER, max_segments: MOST_TOGETHER };
    let program = device.compile(Arc::clone(&graph), weights, limits.with(dtype))?;
    let pool = device.kv_pool(KvPoolSpec::of(&graph, dtype))?;
    let sequences = Sequences::new(&*pool);
    let mut run = Run { program, pool, sequences, current: 0, length: 0 };

    let mut fastest = Duration::MAX;
    for id in 0..3 {
        fastest = fastest.min(run.step(id, PROMPT)?);
    }
    println!("pp{PROMPT}: {:.1} tok/s", PROMPT as f64 / fastest.as_secs_f64());
    while run.length < depth {
        run.step(2, PROMPT.min(depth - run.length))?;
    }
    run.step(2, 1)?;
    let bandwidth = read_bandwidth(device.threads());
    let mut times: Vec<Duration> = (0..DECODED).map(|_| run.step(2, 1)).collect::<Result<_, _>>()?;
    times.sort_unstable();
    let median = times[DECODED / 2].as_secs_f64();
    let costs = run.profile(&[2], 1)?;
    let read: u64 = costs.iter().map(|cost| cost.bytes).sum();
    println!(
        "tg at depth {}: {:.1} tok/s (median of {DECODED}), best {:.1}; reads {} MB a token = {:.1} GB/s, {:.0} % of the {:.1} GB/s that plain reads reach",
        run.length,
        1.0 / median,
        1.0 / times[0].as_secs_f64(),
        read >> 20,
        read as f64 / median / 1e9,
        read as f64 / median / bandwidth * 100.0,
        bandwidth / 1e9
    );
    let ids: Vec<u64> = (100..).take(MOST_TOGETHER).collect();
    for id in &ids {
        let mut length = 0;
        while length < depth {
            let rows = PROMPT.min(depth - length);
            run.timed(&[*id], rows)?;
            length += rows;
        }
    }
    for sequences in TOGETHER {
        let ids = &ids[..sequences];
        run.timed(ids, 1)?;
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for _ in 0..DECODED {
            alone.push(run.timed(&ids[..1], 1)?);
            together.push(run.timed(ids, 1)?);
        }
        alone.sort_unstable();
        together.sort_unstable();
        let count = sequences as f64;
        let [alone, together] =
            [alone, together].map(|times| (times[0].as_secs_f64(), times[DECODED / 2].as_secs_f64()));
        println!(
            "{sequences} sequences: {:.1} tok/s (median of {DECODED}), {:.2} × those of one; at best {:.2} ×",
            count / together.1,
            count * alone.1 / together.1,
            count * alone.0 / together.0
        );
        if profile {
            println!("a token of each of {sequences}:");
            run.print_profile(ids, 1)?;
        }
    }
    if profile {
        println!("one token:");
        run.print_profile(&[2], 1)?;
        println!("{PROMPT} tokens:");
        run.print_profile(&[2], PROMPT)?;
    }
    Ok(())
}

struct Run {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
    sequences: Sequences,
    /// The sequence that was extended last, and its rows.
    current: u64,
    length: usize,
}

impl Run {
    /// A step in which each sequence goes on by `rows` tokens.
    fn next(&mut self, ids: &[u64], rows: usize) -> Result<Step, DeviceError> {
        let tokens: Vec<u32> = (0..rows as u32).map(|row| row * 7919 % 151_936).collect();
        let (sequences, pool) = (&mut self.sequences, &mut *self.pool);
        let segments = ids.iter().map(|id| sequences.extend(pool, *id, &tokens, Outs::Last));
        Ok(Step { segments: segments.collect::<Result<_, _>>()? })
    }

    fn step(&mut self, id: u64, rows: usize) -> Result<Duration, DeviceError> {
        if self.current != id {
            (self.current, self.length) = (id, 0);
        }
        self.length += rows;
        self.timed(&[id], rows)
    }

    fn timed(&mut self, ids: &[u64], rows: usize) -> Result<Duration, DeviceError> {
        let step = self.next(ids, rows)?;
        let (start, on_processor) = (Instant::now(), on_processor());
        black_box(self.program.run(&step, &mut *self.pool)?);
        Ok(if std::env::var_os("ON_PROCESSOR").is_some() {
            crate::on_processor().saturating_sub(on_processor)
        } else {
            start.elapsed()
        })
    }

    fn profile(&mut self, ids: &[u64], rows: usize) -> Result<Vec<brasa_graph::device::OpTime>, DeviceError> {
        let step = self.next(ids, rows)?;
        self.program.profile(&step, &mut *self.pool)
    }

    /// Sums over layers, each operation's time the best of a few runs.
    fn print_profile(&mut self, ids: &[u64], rows: usize) -> Result<(), DeviceError> {
        let mut sums: BTreeMap<String, (Duration, u64, u64)> = BTreeMap::new();
        let mut best = self.profile(ids, rows)?;
        for _ in 0..(64 / rows).clamp(2, 20) {
            for (best, cost) in best.iter_mut().zip(self.profile(ids, rows)?) {
                best.time = best.time.min(cost.time);
            }
        }
        for cost in best {
            let label: String = cost.label.chars().filter(|c| !c.is_ascii_digit()).collect();
            let sum = sums.entry(label).or_default();
            *sum = (sum.0 + cost.time, sum.1 + cost.bytes, sum.2 + cost.flops);
        }
        for (label, (time, bytes, flops)) in sums {
            let seconds = time.as_secs_f64();
            println!(
                "  {label:40} {:9.3} ms {:7.2} GB/s {:8.1} GFLOP/s",
                seconds * 1e3,
                bytes as f64 / seconds / 1e9,
                flops as f64 / seconds / 1e9
            );
        }
        Ok(())
    }
}

/// Time that this thread has spent on a processor, where Linux says: on a busy machine, with one thread, a fairer
/// measure than the clock.
fn on_processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Bytes per second that all threads together read from memory, best of several passes over 1 GiB.
fn read_bandwidth(threads: usize) -> f64 {
    let words = vec![1_u64; 1 << 27];
    let Ok(team) = Team::new(threads) else { return f64::NAN };
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        let ran = team.run(|thread, barrier| {
            let (groups, _) =
                words[Team::split(words.len(), 64, barrier.threads(), thread)].as_chunks::<64>();
            let mut sums = [0_u64; 64];
            for group in groups {
                for (sum, word) in sums.iter_mut().zip(group) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        });
        if ran.is_ok() {
            fastest = fastest.min(start.elapsed());
        }
    }
    (words.len() * 8) as f64 / fastest.as_secs_f64()
}
