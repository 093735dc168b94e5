//! How fast packed weights are multiplied, beside what this machine's memory gives.
//!
//! `cargo run --release -p brasa-cpu --example linear_speed -- [prefill] [FORMAT …]`
//!
//! Decode: one row through 320 MiB of weights, bytes read per second on one and two threads, each with a plain
//! read of a buffer of that size right before; and the same through 512 KiB, which stay in the cache: what the
//! kernel could do if memory were no limit. Batch: how many times as many rows 4 and 8 rows together get through
//! the large weights as one row does, on two threads, and operations per second with weights in the cache, on one.
//! Prefill: 512 rows, operations per second.
//!
//! With `prefill` only that, on one thread, on every instruction set of this machine but plain Rust, those that round to
//! bf16 included.
//!
//! Times are those of the slowest thread: on a machine that does other things, run it with real-time priority.

#[path = "../tests/suite/common/tensors.rs"]
mod tensors;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use brasa_cpu::linear::{FloatRows, Input, Output, PackedLinear, Packer, RowMap};
use brasa_cpu::quantize::QuantizedRows;
use brasa_cpu::rounded::RoundedRows;
use brasa_cpu::shared::SharedSlice;
use brasa_cpu::{Isa, Team};
use brasa_formats::StorageFormat;
use brasa_graph::WeightPart;
use brasa_graph::device::Precision;
use tensors::{Noise, formats, tensor};

const WORKING_SET_BYTES: usize = 320 << 20;
const CACHED_BYTES: usize = 512 << 10;
const K: usize = 2048;
const BATCHES: [usize; 2] = [4, 8];
const PREFILL_ROWS: usize = 512;
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.first().is_some_and(|first| first == "prefill") {
        return prefill(&wanted.split_off(1));
    }
    let isa = Isa::detect()?;
    let mut probe = memmap2::MmapMut::map_anon(WORKING_SET_BYTES)?;
    #[cfg(target_os = "linux")]
    probe.advise(memmap2::Advice::HugePage)?;
    probe.fill(1);
    let packing_team = Team::new(Team::default_threads())?;
    println!(
        "{}; decode GB/s (share of a plain read), batch ×, in cache GB/s and GOP/s, prefill GOP/s",
        isa.name()
    );
    println!(
        "{:<16} {:>21} {:>21} {:>6} {:>6} {:>8} {:>5} {:>5} {:>9} {:>9}",
        "format",
        "decode, 1 thread",
        "2 threads",
        "of 4",
        "of 8",
        "in cache",
        "of 4",
        "of 8",
        "prefill 1",
        "2"
    );
    for (format, name) in chosen(&wanted) {
        // The same rows again and again: making weights must not take longer than timing them.
        let mut noise = Noise::new(7);
        let part = WeightPart::whole(tensor(format, 1024, K, &mut noise));
        let packer = Packer::new(&packing_team);
        let copies = WORKING_SET_BYTES.div_ceil(part.tensor.size_bytes());
        let packed = PackedLinear::new(&name, &vec![part.clone(); copies], Precision::Fast, &packer)?;
        let n = CACHED_BYTES / (part.tensor.size_bytes() / 1024) / 16 * 16;
        let cached = PackedLinear::new(
            &name,
            &[WeightPart { rows: 0..n.min(1024), ..part.clone() }],
            Precision::Fast,
            &packer,
        )?;
        let small = PackedLinear::new(&name, &[part], Precision::Fast, &packer)?;

        let mut line = format!("{name:<16}");
        for threads in [1, 2] {
            let team = Team::new(threads)?;
            let (mut decode, mut read) = (0.0_f64, 0.0_f64);
            for _ in 0..REPEATS {
                read = read.max(WORKING_SET_BYTES as f64 / read_all(&team, &probe)?);
                decode = decode.max(packed.size_bytes() as f64 / multiply(isa, &team, &packed, 1, 1)?);
            }
            write!(line, " {decode:>6.1} {:>4.0}% of {read:>4.1}", 100.0 * decode / read)?;
        }
        let team = Team::new(2)?;
        let mut best = [f64::INFINITY; BATCHES.len() + 1];
        for _ in 0..REPEATS {
            for (best, rows) in best.iter_mut().zip([1].into_iter().chain(BATCHES)) {
                *best = best.min(multiply(isa, &team, &packed, rows, 1)?);
            }
        }
        for (rows, time) in BATCHES.into_iter().zip(&best[1..]) {
            write!(line, " {:>6.2}", rows as f64 * best[0] / time)?;
        }
        let team = Team::new(1)?;
        let bytes = (200 * cached.size_bytes()) as f64;
        write!(line, " {:>8.1}", bytes / multiply(isa, &team, &cached, 1, 200)?)?;
        for rows in BATCHES {
            let operations = (200 * 2 * rows * K * cached.n()) as f64;
            let mut rate = 0.0_f64;
            for _ in 0..REPEATS {
                rate = rate.max(operations / multiply(isa, &team, &cached, rows, 200)?);
            }
            write!(line, " {rate:>5.0}")?;
        }
        for threads in [1, 2] {
            write!(line, " {:>9.0}", prefill_rate(isa, &Team::new(threads)?, &small)?)?;
        }
        println!("{line}");
    }
    Ok(())
}

fn prefill(wanted: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let mut choices = Isa::choices();
    choices.retain(|isa| *isa != Isa::Scalar);
    let mut head = format!("{:<16}", "GOP/s");
    for isa in &choices {
        write!(head, " {:>10}", isa.name())?;
    }
    println!("{head}");
    let team = Team::new(1)?;
    for (format, name) in chosen(wanted) {
        let part = WeightPart::whole(tensor(format, 1024, K, &mut Noise::new(7)));
        let weights = PackedLinear::new(&name, &[part], Precision::Fast, &Packer::new(&team))?;
        let mut line = format!("{name:<16}");
        for &isa in &choices {
            write!(line, " {:>10.0}", prefill_rate(isa, &team, &weights)?)?;
        }
        println!("{line}");
    }
    Ok(())
}

/// The formats that are asked for, with names without spaces.
fn chosen(wanted: &[String]) -> impl Iterator<Item = (StorageFormat, String)> {
    let named = formats().into_iter().map(|format| (format, format.to_string().replace(' ', "-")));
    named.filter(|(_, name)| {
        wanted.is_empty() || wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(name))
    })
}

/// Operations per nanosecond of many rows.
fn prefill_rate(isa: Isa, team: &Team, weights: &PackedLinear) -> Result<f64, brasa_cpu::Error> {
    let operations = (2 * PREFILL_ROWS * K * weights.n()) as f64;
    let mut rate = 0.0_f64;
    for _ in 0..REPEATS {
        rate = rate.max(operations / multiply(isa, team, weights, PREFILL_ROWS, 1)?);
    }
    Ok(rate)
}

/// Nanoseconds of the slowest thread.
fn multiply(
    isa: Isa,
    team: &Team,
    weights: &PackedLinear,
    rows: usize,
    repeats: usize,
) -> Result<f64, brasa_cpu::Error> {
    let x = Noise::new(1).activations(rows * K);
    // Not zero: memory that was never written is fetched page by page while the clock runs.
    let mut y = vec![f32::NAN; rows * weights.n()];
    let mut quantized = QuantizedRows::new(rows, K);
    quantized.quantize(isa, &x, 0..rows);
    let mut rounded = RoundedRows::default();
    rounded.reshape(rows, K);
    rounded.round(isa, &x, K, 0..rows);
    let float = FloatRows { values: &x, k: K, stride: K };
    let input = Input { float: Some(float), int8: Some(quantized.view()), bf16: Some(rounded.view()) };
    let output = Output { values: SharedSlice::new(&mut y), stride: weights.n(), column: 0 };
    timed(team, |thread, threads| {
        for _ in 0..repeats {
            #[expect(unsafe_code, reason = "the shares of threads are disjoint")]
            // SAFETY: as the reason says.
            unsafe {
                weights.multiply(isa, &input, RowMap::All(rows), &output, weights.share(threads, thread));
            }
        }
    })
}

/// Nanoseconds of the slowest thread.
fn read_all(team: &Team, bytes: &[u8]) -> Result<f64, brasa_cpu::Error> {
    timed(team, |thread, threads| {
        let share = &bytes[Team::split(bytes.len(), 4096, threads, thread)];
        let sums = share.as_chunks::<256>().0.iter().fold([0_u8; 256], |mut sums, bytes| {
            for (sum, byte) in sums.iter_mut().zip(bytes) {
                *sum ^= byte;
            }
            sums
        });
        std::hint::black_box(sums);
    })
}

fn timed(team: &Team, work: impl Fn(usize, usize) + Sync) -> Result<f64, brasa_cpu::Error> {
    let slowest = AtomicU64::new(0);
    team.run(|thread, barrier| {
        barrier.wait();
        let started = Instant::now();
        work(thread, barrier.threads());
        slowest.fetch_max(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    })?;
    Ok(slowest.into_inner() as f64)
}
