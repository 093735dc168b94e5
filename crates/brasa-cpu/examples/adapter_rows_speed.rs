//! Decode and prefill speed of a decoder with a bank of low-rank adapters, beside the decoder alone, with random weights in the shapes of
//! Qwen3-0.6B. Steps of both alternate.
//!
//! `cargo run --release -p brasa-cpu --example adapter_rows_speed -- [FORMAT] [THREADS] [RANK] [ADAPTERS] [--profile]`
//!
//! Adapters are BF16, of all seven projections. As many sequences decode together as there are adapters: each with one of its own, all
//! with the same one, all with none. Then a prompt with one adapter.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cpu::{CpuBackend, CpuOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, DeviceError, ProgramLimits};
use brasa_graph::pass::{LowRank, add_low_rank_bank};
use brasa_graph::testing::{BankRun, Decoder, Random, adapter_of_projections, times_over_layers};

const PROMPT: usize = 512;
const DEPTH: usize = 128;
const STEPS: usize = 40;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let place = arguments.iter().position(|argument| argument == "--profile");
    let profile = place.map(|place| arguments.remove(place)).is_some();
    let name = arguments.first().map_or("Q4_0", String::as_str);
    let format = StorageFormat::GGUF.into_iter().find(|format| format.to_string() == name);
    let format = format.ok_or_else(|| format!("no format {name}"))?;
    let number = |place: usize, usual: usize| arguments.get(place).map_or(Ok(usual), |text| text.parse());
    let (threads, rank, count) = (number(1, 2)?, number(2, 16)?, number(3, 8)?);

    let device = CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() })?;
    println!("{}", device.info().description);
    let decoder = Decoder::qwen3_0_6b(format);
    let base = Arc::new(decoder.graph(1));
    let mut random = Random::new(1);
    let mut adapter =
        || adapter_of_projections(&decoder, &base, (rank, StorageFormat::BF16), 0.1, &mut random);
    let bank: Vec<Vec<LowRank>> = (0..count).map(|_| adapter()).collect();
    let adapted = Arc::new(add_low_rank_bank(&base, &bank)?);
    let stored: u64 = bank.iter().flatten().map(|of| of.a.stored_bytes() + of.b.stored_bytes()).sum();
    let model: u64 = base.weights().iter().map(|weight| weight.stored_bytes()).sum();
    println!("{format}: {} MB, {count} adapters of rank {rank}: {} MB", model >> 20, stored >> 20);
    let limits = ProgramLimits { max_rows: PROMPT, max_outs: count, max_segments: count };
    let mut runs = BankRun::pair(&device, [&base, &adapted], count, limits)?;
    let own: Vec<Option<usize>> = (0..count).map(Some).collect();
    let kinds = [("its own", own), ("the same", vec![Some(0); count]), ("none", vec![None; count])];
    for run in &mut runs {
        for id in 0..count {
            timed(run, &[id as u64], DEPTH, &[None])?;
        }
    }
    for (label, chosen) in &kinds {
        let ids: Vec<u64> = (0..count as u64).collect();
        for _ in 0..ROUNDS {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..STEPS {
                for (run, times) in runs.iter_mut().zip(&mut times) {
                    times.push(timed(run, &ids, 1, chosen)?);
                }
            }
            let [base, adapted] = times.map(|times| median(times).as_secs_f64());
            println!(
                "{count} sequences, each with {label}: {:.1} tok/s, {:.1} without a bank: {:.1} %",
                count as f64 / adapted,
                count as f64 / base,
                base / adapted * 100.0
            );
        }
    }
    for round in 0..ROUNDS {
        let mut best = [Duration::MAX; 2];
        for repeat in 0..2 {
            for (run, best) in runs.iter_mut().zip(&mut best) {
                let id = 1000 + (round * 2 + repeat) as u64;
                *best = timed(run, &[id], PROMPT, &[Some(0)])?.min(*best);
            }
        }
        let [base, adapted] = best.map(|time| PROMPT as f64 / time.as_secs_f64());
        println!(
            "pp{PROMPT} with one: {adapted:.1} tok/s, {base:.1} without a bank: {:.1} %",
            adapted / base * 100.0
        );
    }
    if profile {
        for run in &mut runs {
            println!("a token of each of {count}, of {} adapters:", run.adapters);
            print_profile(run, 1, &kinds[0].1)?;
            println!("a prompt of {PROMPT}:");
            print_profile(run, PROMPT, &[Some(0)])?;
        }
    }
    Ok(())
}

/// Time that this thread has spent on a processor, where Linux says: on a busy machine, with one thread, a fairer
/// measure than the clock. The variable `ON_PROCESSOR` asks for it.
fn on_processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = stat.split_whitespace().next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn tokens(rows: usize) -> Vec<u32> {
    (0..rows as u32).map(|row| row * 7919 % 151_936).collect()
}

fn timed(
    run: &mut BankRun,
    ids: &[u64],
    rows: usize,
    chosen: &[Option<usize>],
) -> Result<Duration, DeviceError> {
    let step = run.next(ids, &tokens(rows), chosen)?;
    let (start, before) = (Instant::now(), on_processor());
    black_box(run.program.run(&step, &mut *run.pool)?);
    Ok(if std::env::var_os("ON_PROCESSOR").is_some() {
        on_processor().saturating_sub(before)
    } else {
        start.elapsed()
    })
}

/// Sums over layers, each operation's time the best of a few runs.
fn print_profile(run: &mut BankRun, rows: usize, chosen: &[Option<usize>]) -> Result<(), DeviceError> {
    let ids: Vec<u64> = (0..chosen.len() as u64).collect();
    let mut best = Vec::new();
    for repeat in 0..if rows == 1 { 10 } else { 3 } {
        // Prompts are texts of their own.
        let ids = if rows == 1 { ids.clone() } else { vec![2000 + repeat] };
        let step = run.next(&ids, &tokens(rows), chosen)?;
        let costs = run.program.profile(&step, &mut *run.pool)?;
        if best.is_empty() {
            best = costs;
        } else {
            best.iter_mut().zip(costs).for_each(|(best, cost)| best.time = best.time.min(cost.time));
        }
    }
    for (label, time) in times_over_layers(&best) {
        println!("  {label:40} {:9.3} ms", time.as_secs_f64() * 1e3);
    }
    Ok(())
}
