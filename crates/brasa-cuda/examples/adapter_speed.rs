//! Speed of several sequences that decode together, each with a low-rank adapter of its own, beside the same without adapters, on a decoder with
//! random weights in real shapes. Steps of both alternate.
//!
//! `cargo run --release -p brasa-cuda --example adapter_speed -- [8b | 1b | 0.6b] [FORMAT] [RANK] [ADAPTERS] [--qv] [--profile]`
//!
//! Adapters are BF16, of all seven projections; with `--qv` of queries and values alone, as PEFT chooses by default. Then a prompt with one adapter.

mod shapes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::StorageFormat;
use brasa_graph::device::{Backend, DeviceError, ProgramLimits};
use brasa_graph::pass::{LowRank, add_low_rank_bank};
use brasa_graph::testing::{BankRun, Random, adapter_of_projections, times_over_layers};

const PROMPT: usize = 512;
const DEPTH: usize = 128;
/// Steps of which a median is told, and medians.
const STEPS: usize = 60;
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let (only_qv, profile) = (flag("--qv"), flag("--profile"));
    let model = arguments.first().map_or("1b", String::as_str);
    let name = arguments.get(1).map_or("BF16", String::as_str);
    let format = shapes::format(name).ok_or_else(|| format!("no format {name}"))?;
    let number = |place: usize, usual: usize| arguments.get(place).map_or(Ok(usual), |text| text.parse());
    let (rank, count) = (number(2, 16)?, number(3, 8)?);
    let decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;

    let device = CudaBackend::new(&CudaOptions::default())?;
    println!("{}", device.info().description);
    let base = Arc::new(decoder.graph(1));
    let mut random = Random::new(1);
    let mut adapter = || {
        let mut all = adapter_of_projections(&decoder, &base, (rank, StorageFormat::BF16), 0.1, &mut random);
        let keys = decoder.heads * decoder.head_dim;
        let is_qv = |of: &LowRank| base.weight(of.weight).name.ends_with("qkv") && of.rows.start != keys;
        all.retain(|of| !only_qv || is_qv(of));
        all
    };
    let bank: Vec<Vec<LowRank>> = (0..count).map(|_| adapter()).collect();
    let adapted = Arc::new(add_low_rank_bank(&base, &bank)?);
    let stored: u64 = bank.iter().flatten().map(|of| of.a.stored_bytes() + of.b.stored_bytes()).sum();
    let of_base: u64 = base.weights().iter().map(|weight| weight.stored_bytes()).sum();
    println!("{model} {format}: {} MB, {count} adapters of rank {rank}: {} MB", of_base >> 20, stored >> 20);
    let limits = ProgramLimits { max_rows: PROMPT, max_outs: count, max_segments: count };
    let mut runs = BankRun::pair(&device, [&base, &adapted], count, limits)?;
    let own: Vec<Option<usize>> = (0..count).map(Some).collect();
    let ids: Vec<u64> = (0..count as u64).collect();
    for run in &mut runs {
        for &id in &ids {
            timed(run, &[id], DEPTH, &[None])?;
        }
    }
    for (label, chosen) in [("its own", &own), ("none", &vec![None; count])] {
        for _ in 0..ROUNDS {
            let [base, adapted] = medians(&mut runs, STEPS, |run, _| timed(run, &ids, 1, chosen))?;
            println!(
                "{count} sequences, each with {label}: {:.1} tok/s, {:.1} without a bank: {:.1} %",
                count as f64 / adapted,
                count as f64 / base,
                base / adapted * 100.0
            );
        }
    }
    let [base, adapted] =
        medians(&mut runs, 7, |run, number| timed(run, &[1000 + number], PROMPT, &[Some(0)]))?
            .map(|seconds| PROMPT as f64 / seconds);
    println!(
        "pp{PROMPT} with one: {adapted:.0} tok/s, {base:.0} without a bank: {:.1} %",
        adapted / base * 100.0
    );
    if profile {
        for run in &mut runs {
            println!("a token of each of {count}, of {} adapters:", run.adapters);
            print_profile(run, &ids, 1, &own)?;
            println!("a prompt of {PROMPT} tokens:");
            print_profile(run, &[2000], PROMPT, &own[..1])?;
        }
    }
    Ok(())
}

/// Median seconds of `count` steps without and with the bank, which take turns.
fn medians(
    runs: &mut [BankRun],
    count: usize,
    mut step: impl FnMut(&mut BankRun, u64) -> Result<Duration, DeviceError>,
) -> Result<[f64; 2], DeviceError> {
    let mut times = [Vec::new(), Vec::new()];
    for number in 0..count as u64 {
        for (run, times) in runs.iter_mut().zip(&mut times) {
            times.push(step(run, number)?);
        }
    }
    Ok(times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    }))
}

fn tokens(rows: usize) -> Vec<u32> {
    (0..rows as u32).map(|row| row * 7919 % 128_256).collect()
}

fn timed(
    run: &mut BankRun,
    ids: &[u64],
    rows: usize,
    chosen: &[Option<usize>],
) -> Result<Duration, DeviceError> {
    let step = run.next(ids, &tokens(rows), chosen)?;
    let start = Instant::now();
    run.program.run(&step, &mut *run.pool)?;
    Ok(start.elapsed())
}

/// Sums over layers.
fn print_profile(
    run: &mut BankRun,
    ids: &[u64],
    rows: usize,
    chosen: &[Option<usize>],
) -> Result<(), DeviceError> {
    let step = run.next(ids, &tokens(rows), chosen)?;
    for (label, time) in times_over_layers(&run.program.profile(&step, &mut *run.pool)?) {
        println!("  {label:40} {:9.3} ms", time.as_secs_f64() * 1e3);
    }
    Ok(())
}
