//! How fast recurrent states are read and written, beside what this machine's memory gives.
//!
//! `cargo run --release -p brasa-cpu --example recurrence_speed`
//!
//! A gated delta rule of 32 value heads with keys and values of 128 elements, as in Qwen3.5-9B. Decode: one row through 48 states of
//! 2 MiB each, bytes of states read and written per second, beside a plain read. Prefill: 512 rows through one state, operations per
//! second, 7 for each element of the state and row.
//!
//! Times are those of the slowest thread: on a machine that does other things, run it with real-time priority.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_cpu::probe::ReadProbe;
use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, OpTime, Precision, ProgramLimits};
use brasa_graph::op::{HeadSharing, ScanRule, StateScan, Unary};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::{Random, Sequences, weight};
use brasa_graph::{Builder, Graph, Input, ValueId};

const KEY_HEADS: usize = 16;
const HEADS: usize = 32;
const DIM: usize = 128;
const TOKENS: usize = 64;
const DECODE_STATES: usize = 48;
const PREFILL_ROWS: usize = 512;
const REPEATS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for isa in Isa::available() {
        for threads in [1, 2] {
            let options = CpuOptions { threads: Some(threads), isa: Some(isa), ..CpuOptions::default() };
            let device = CpuBackend::new(options)?;
            let read = ReadProbe::new(isa, threads, 320 << 20)?.bytes_per_second()?;
            let decode = rate(&device, DECODE_STATES, 1, |time| time.bytes)?;
            let prefill = rate(&device, 1, PREFILL_ROWS, |time| time.flops)?;
            println!(
                "{:<8} {threads} threads: decode {:>6.1} GB/s of {:>5.1} GB/s read, prefill {:>6.1} GFLOP/s",
                isa.name(),
                decode / 1e9,
                read / 1e9,
                prefill / 1e9
            );
        }
    }
    Ok(())
}

/// The best rate per second of what `count` says of the scans of a step.
fn rate(
    device: &CpuBackend,
    states: usize,
    rows: usize,
    count: impl Fn(&OpTime) -> u64,
) -> Result<f64, Box<dyn std::error::Error>> {
    let graph = Arc::new(graph(states));
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let mut pool = device.kv_pool(KvPoolSpec::of(&graph, KvType::F16))?;
    let limits = ProgramLimits { max_rows: rows, max_outs: 1, max_segments: 1 };
    let mut program = device.compile(graph, weights, limits.into())?;
    let mut sequences = Sequences::new(&*pool);
    let tokens: Vec<u32> = (0..rows).map(|row| (row % TOKENS) as u32).collect();
    let first = sequences.extend(&mut *pool, 1, &tokens, Outs::Last)?;
    program.run(&Step { segments: vec![first] }, &mut *pool)?;
    let next = sequences.extend(&mut *pool, 1, &tokens, Outs::Last)?;
    let step = Step { segments: vec![next] };
    let mut best = 0.0_f64;
    for _ in 0..REPEATS {
        let times = program.profile(&step, &mut *pool)?;
        let scans = times.iter().filter(|time| time.label == "state_scan");
        let (total, seconds) = scans.fold((0, 0.0), |(total, seconds), time| {
            (total + count(time), seconds + time.time.as_secs_f64())
        });
        best = best.max(total as f64 / seconds);
    }
    Ok(best)
}

/// Scans of the same rows, each with a state of its own.
fn graph(states: usize) -> Graph {
    let (mut b, mut random) = (Builder::new(), Random::new(1));
    let ids = b.input(Input::TokenIds);
    let mut rows = |b: &mut Builder, inner: &[usize]| -> ValueId {
        let width = inner.iter().product();
        let table = weight("rows", &[TOKENS, width], &random.normals(TOKENS * width, 1.0));
        let table = b.weight(Ok(table));
        let x = b.embed(ids, table);
        if inner.len() > 1 { b.reshape(x, inner) } else { x }
    };
    let [q, k] = [(); 2].map(|()| rows(&mut b, &[KEY_HEADS, DIM]));
    let (v, decay, beta) = (rows(&mut b, &[HEADS, DIM]), rows(&mut b, &[HEADS]), rows(&mut b, &[HEADS]));
    let k = b.rms_norm_unscaled(k, 1e-6);
    let k = b.unary(k, Unary::Scale((DIM as f32).sqrt().recip()));
    let (decay, beta) = (b.unary(decay, Unary::Sigmoid), b.unary(beta, Unary::Sigmoid));
    let mut y = v;
    for _ in 0..states {
        let state = Some(b.state(HEADS * DIM * DIM));
        let scan = StateScan { state, rule: ScanRule::Delta, sharing: HeadSharing::Grouped };
        y = b.state_scan(&[q, k, v, decay, beta], scan);
    }
    b.finish(&[y]).expect("a graph of scans")
}
