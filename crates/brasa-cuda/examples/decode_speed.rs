//! Speed of chains of one text or of several together, greedy or sampled as llama.cpp does by default, on a decoder with random weights in the shapes of Llama-3.2-1B, Llama-3.1-8B or Qwen3-0.6B, all of whose
//! matrices have one format.
//!
//! `cargo run --release -p brasa-cuda --example decode_speed -- [1b | 8b | 0.6b] [FORMAT] [DEPTH] [TEXTS] [--plain] [--sampled] [--masked | --logprobs]`
//!
//! With `--masked` the texts have a mask that allows everything, which goes to the device before each draw; with `--logprobs` drawing stays on the host.

mod shapes;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_graph::chain::{Chain, Flow, RowDraw};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::sampling::{
    Distribution, DrawRules, Logprobs, Sampler, SamplingError, SamplingOrder, SamplingParams, TokenMask,
};
use brasa_graph::step::{Outs, Step};
use brasa_graph::testing::Sequences;

/// Tokens that a measurement decodes, and measurements.
const DECODED: usize = 128;
const ROUNDS: u64 = 5;
/// Rows of a step of the prompt.
const CHUNK: usize = 512;

/// A mask that forbids nothing.
#[derive(Clone, Copy)]
struct Everything;

impl TokenMask for Everything {
    fn fill(&mut self, _drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        words.fill(u32::MAX);
        Ok(())
    }

    fn accept(&mut self, _token: u32) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let (deterministic, sampled) = (flag("--plain"), flag("--sampled"));
    let (masked, logprobs) = (flag("--masked"), flag("--logprobs"));
    let name = arguments.get(1).map_or("Q4_0", String::as_str);
    let format = shapes::format(name).ok_or_else(|| format!("no format {name}"))?;
    let depth: usize = arguments.get(2).map_or(Ok(128), |depth| depth.parse())?;
    let texts: usize = arguments.get(3).map_or(Ok(1), |texts| texts.parse())?;
    let model = arguments.first().map_or("1b", String::as_str);
    let decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;

    let device = CudaBackend::new(&CudaOptions { deterministic, ..CudaOptions::default() })?;
    let start = Instant::now();
    let graph = Arc::new(decoder.graph(1));
    let (made, start) = (start.elapsed(), Instant::now());
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let megabytes = weights.size_bytes() >> 20;
    let limits = ProgramLimits { max_rows: CHUNK, max_outs: texts, max_segments: texts };
    let mut program = device.compile(Arc::clone(&graph), weights, limits)?;
    println!(
        "{}, {model} {format}, {megabytes} MB, made in {made:.1?}, ready in {:.1?}",
        device.device().name,
        start.elapsed()
    );
    println!("  {}", program.describe().lines().next().unwrap_or_default());
    let mut pool = device.kv_pool(KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F16 })?;
    let mut sequences = Sequences::new(&*pool);
    let greedy = SamplingParams::default();
    let usual = SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        order: SamplingOrder::LlamaCpp,
        ..SamplingParams::default()
    };
    let logprobs = logprobs.then_some(Logprobs { top: 0, of: Distribution::default() });
    let rules = DrawRules::new(SamplingParams { logprobs, ..if sampled { usual } else { greedy } })?;
    let vocab = decoder.vocab as u32;
    let text: Vec<u32> = (0..depth as u32).map(|row| row * 7919 % vocab).collect();
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let ids = round * texts as u64..(round + 1) * texts as u64;
        let mut segments = Vec::new();
        for id in ids {
            for chunk in text.chunks(CHUNK) {
                let segment = sequences.extend(&mut *pool, id, chunk, Outs::Last)?;
                program.run(&Step { segments: vec![segment] }, &mut *pool)?;
            }
            sequences.extend(&mut *pool, id, &[0; DECODED], Outs::None)?;
            sequences.truncate(id, depth);
            segments.push(sequences.extend(&mut *pool, id, &[1], Outs::Last)?);
        }
        let mut histories = vec![text.clone(); texts];
        let (mut first_index, mut left) = (depth, DECODED);
        let start = Instant::now();
        while left > 0 {
            let limit = left.min(program.max_chain(masked));
            for (segment, history) in segments.iter_mut().zip(&histories) {
                segment.first_index = first_index;
                segment.set_tokens(history.last().map_or(&[], std::slice::from_ref));
            }
            let mut masks = vec![Everything; texts];
            let row = |(history, mask)| RowDraw {
                rules: &rules,
                position: first_index as u32,
                history,
                limit,
                stops: &[],
                mask: masked.then_some(mask as &mut dyn TokenMask),
            };
            let mut rows: Vec<RowDraw<'_>> = histories.iter_mut().zip(&mut masks).map(row).collect();
            let chain =
                Chain { rows: &mut rows, sampler: &mut Sampler::default(), sink: &mut |_, _| Flow::Continue };
            let mut step = Step { segments: segments.clone() };
            let finish = program.run_chain(&mut step, &mut *pool, chain)?;
            (first_index, left) = (finish.lengths[0], left - limit);
        }
        rates.push((texts * DECODED) as f64 / start.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "  tg{DECODED} of {texts} at depth {depth}: {:.1} tok/s (median of {ROUNDS}), {:.1} to {:.1}",
        rates[rates.len() / 2],
        rates[0],
        rates[rates.len() - 1]
    );
    Ok(())
}
