//! How fast packed weights are multiplied, beside what this machine's memory gives.
//!
//! `cargo run --release -p brasa-cpu --example linear_speed -- [FORMAT …]`
//!
//! Decode: one row through 320 MiB of weights, bytes read per second on one and two threads, each with a plain
//! read of a buffer of that size right before. Prefill: 512 rows, integer operations per second.

#[path = "../tests/common/mod.rs"]
mod common;

use std::fmt::Write;
use std::time::{Duration, Instant};

use brasa_cpu::linear::PackedLinear;
use brasa_cpu::{Isa, Team};
use brasa_graph::WeightPart;
use brasa_graph::device::Precision;
use common::{Noise, formats, tensor};

const WORKING_SET_BYTES: usize = 320 << 20;
const K: usize = 2048;
const PREFILL_ROWS: usize = 512;
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let isa = Isa::detect()?;
    let probe: Vec<u64> = vec![1; WORKING_SET_BYTES / 8];
    let packers = Team::new(Team::default_threads())?;
    println!("{}; decode GB/s (share of a plain read), prefill GOP/s", isa.name());
    println!("{:<16} {:>21} {:>21} {:>9} {:>9}", "format", "decode, 1 thread", "2 threads", "prefill 1", "2");
    for format in formats() {
        let name = format.to_string().replace(' ', "-");
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted.eq_ignore_ascii_case(&name)) {
            continue;
        }
        // The same rows again and again: making weights must not take longer than timing them.
        let mut noise = Noise::new(7);
        let part = WeightPart::whole(tensor(format, 1024, K, &mut noise));
        let copies = WORKING_SET_BYTES.div_ceil(part.tensor.size_bytes());
        let packed = PackedLinear::new(&name, &vec![part.clone(); copies], Precision::Fast, &packers)?;
        let small = PackedLinear::new(&name, &[part], Precision::Fast, &packers)?;

        let mut line = format!("{name:<16}");
        let rate = |amount: usize, time: Duration| amount as f64 / time.as_secs_f64() / 1e9;
        for threads in [1, 2] {
            let team = Team::new(threads)?;
            let x = noise.activations(K);
            let mut y = vec![0.0; packed.n()];
            let (mut decode, mut read) = (Duration::MAX, Duration::MAX);
            for _ in 0..REPEATS {
                read = read.min(timed(|| read_all(&team, &probe)));
                decode = decode.min(timed(|| packed.apply(isa, &team, &x, &mut y).is_ok()));
            }
            let (read, decode) = (rate(WORKING_SET_BYTES, read), rate(packed.size_bytes(), decode));
            write!(line, " {decode:>6.1} {:>4.0}% of {read:>4.1}", 100.0 * decode / read)?;
        }
        for threads in [1, 2] {
            let team = Team::new(threads)?;
            let x = noise.activations(PREFILL_ROWS * K);
            let mut y = vec![0.0; PREFILL_ROWS * small.n()];
            let time = (0..REPEATS).map(|_| timed(|| small.apply(isa, &team, &x, &mut y).is_ok())).min();
            let operations = 2 * PREFILL_ROWS * K * small.n();
            write!(line, " {:>9.0}", rate(operations, time.unwrap_or_default()))?;
        }
        println!("{line}");
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> bool) -> Duration {
    let start = Instant::now();
    assert!(std::hint::black_box(work()), "a worker panicked");
    start.elapsed()
}

fn read_all(team: &Team, words: &[u64]) -> bool {
    team.run(|thread, barrier| {
        let share = &words[Team::split(words.len(), 4096, barrier.threads(), thread)];
        let sums = share.as_chunks::<64>().0.iter().fold([0_u64; 64], |mut sums, words| {
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(*word);
            }
            sums
        });
        std::hint::black_box(sums);
    })
    .is_ok()
}
