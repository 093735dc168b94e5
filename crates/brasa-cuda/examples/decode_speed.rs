//! Speed of chains of one text or of several together, on a decoder with random weights in the shapes of Llama-3.2-1B, Llama-3.1-8B,
//! Qwen3-0.6B or mixtures of experts, all of whose matrices have one format.
//!
//! `cargo run --release -p brasa-cuda --example decode_speed -- [1b | 8b | 0.6b | 30b-a3b | 20b-a4b | 26b-a4b] [FORMAT] [DEPTH] [TEXTS,…] [--plain] [--draws]`
//!
//! Tokens are the likeliest. With `--draws` all ways to draw are timed: the likeliest and sampled as llama.cpp does by default, each
//! also with a mask, which allows everything and goes to the device before each draw, and with log-probabilities, whose logits come to
//! the host, of one text or of all. Every row of the head is then another one, which takes some seconds to make: rows that repeat have
//! equal logits by the thousand, which no filter tells apart.

mod shapes;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_graph::chain::{Chain, Flow, RowDraw};
use brasa_graph::device::{Backend, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits};
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

type Failure = Box<dyn std::error::Error>;

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

/// How the tokens of a measurement are drawn.
struct Way {
    name: &'static str,
    /// Rules of the first text, and of the others.
    rules: [DrawRules; 2],
    masked: bool,
}

/// A program with random weights, its pages, and how many texts were begun on them.
struct Bench {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
    sequences: Sequences,
    vocab: u32,
    /// Texts that were begun.
    begun: u64,
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut flag = |name: &str| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map(|place| arguments.remove(place)).is_some()
    };
    let (deterministic, draws) = (flag("--plain"), flag("--draws"));
    let name = arguments.get(1).map_or("Q4_0", String::as_str);
    let format = shapes::format(name).ok_or_else(|| format!("no format {name}"))?;
    let depth: usize = arguments.get(2).map_or(Ok(128), |depth| depth.parse())?;
    let texts = arguments.get(3).map_or("1", String::as_str).split(',').map(str::parse);
    let texts: Vec<usize> = texts.collect::<Result<_, _>>()?;
    let model = arguments.first().map_or("1b", String::as_str);
    let mut decoder = shapes::decoder(model, format).ok_or_else(|| format!("no model {model}"))?;
    if draws {
        decoder.fresh_rows = decoder.vocab;
    }

    let device = CudaBackend::new(&CudaOptions { deterministic, ..CudaOptions::default() })?;
    let start = Instant::now();
    let graph = Arc::new(decoder.graph(1));
    let (made, start) = (start.elapsed(), Instant::now());
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(()))?;
    let megabytes = weights.size_bytes() >> 20;
    let most = texts.iter().copied().max().unwrap_or(1);
    let limits = ProgramLimits { max_rows: CHUNK, max_outs: most, max_segments: most };
    let program = device.compile(Arc::clone(&graph), weights, limits.into())?;
    println!(
        "{}, {model} {format}, {megabytes} MB, made in {made:.1?}, ready in {:.1?}",
        device.device().name,
        start.elapsed()
    );
    println!("  {}", program.describe().lines().next().unwrap_or_default());
    let pool = device.kv_pool(KvPoolSpec::of(&graph, KvType::F16))?;
    let sequences = Sequences::new(&*pool);
    let mut bench = Bench { program, pool, sequences, vocab: decoder.vocab as u32, begun: 0 };
    let ways = ways()?;
    let ways = if draws { &ways[..] } else { &ways[..1] };
    for &texts in &texts {
        for way in ways {
            let mut rates =
                (0..ROUNDS).map(|_| bench.rate(way, depth, texts)).collect::<Result<Vec<_>, _>>()?;
            rates.sort_by(f64::total_cmp);
            println!(
                "  {}: tg{DECODED} of {texts} at depth {depth}: {:.1} tok/s (median of {ROUNDS}), {:.1} to {:.1}",
                way.name,
                rates[rates.len() / 2],
                rates[0],
                rates[rates.len() - 1]
            );
        }
    }
    Ok(())
}

/// The ways to draw; the first is greedy.
fn ways() -> Result<Vec<Way>, Failure> {
    let sampled = SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        order: SamplingOrder::LLAMA_CPP,
        ..SamplingParams::default()
    };
    let logprobs = Some(Logprobs { top: 0, of: Distribution::default() });
    let rules = |sampled: bool, reports: bool, usual: &SamplingParams| {
        let params = if sampled { usual.clone() } else { SamplingParams::default() };
        DrawRules::new(SamplingParams { logprobs: logprobs.filter(|_| reports), ..params })
    };
    let way = |name, is_sampled, masked, reports: [bool; 2]| {
        let [first, others] = reports.map(|reports| rules(is_sampled, reports, &sampled));
        Ok(Way { name, rules: [first?, others?], masked })
    };
    [
        way("greedy", false, false, [false; 2]),
        way("greedy, masked", false, true, [false; 2]),
        way("sampled", true, false, [false; 2]),
        way("sampled, masked", true, true, [false; 2]),
        way("sampled, one with log-probabilities", true, false, [true, false]),
        way("sampled, all with log-probabilities", true, false, [true; 2]),
    ]
    .into_iter()
    .collect()
}

impl Bench {
    /// Tokens a second of so many texts behind prompts of `depth` tokens.
    fn rate(&mut self, way: &Way, depth: usize, texts: usize) -> Result<f64, Failure> {
        let Self { program, pool, sequences, vocab, begun } = self;
        let text: Vec<u32> = (0..depth as u32).map(|row| row * 7919 % *vocab).collect();
        let mut segments = Vec::new();
        for id in *begun..*begun + texts as u64 {
            for chunk in text.chunks(CHUNK) {
                let segment = sequences.extend(&mut **pool, id, chunk, Outs::Last)?;
                program.run(&Step { segments: vec![segment] }, &mut **pool)?;
            }
            sequences.extend(&mut **pool, id, &[0; DECODED], Outs::None)?;
            sequences.truncate(id, depth);
            segments.push(sequences.extend(&mut **pool, id, &[1], Outs::Last)?);
        }
        *begun += texts as u64;
        let mut histories = vec![text; texts];
        let (mut first_index, mut left) = (depth, DECODED);
        let start = Instant::now();
        while left > 0 {
            let limit = left.min(program.max_chain(way.masked));
            for (segment, history) in segments.iter_mut().zip(&histories) {
                segment.first_index = first_index;
                segment.set_tokens(history.last().map_or(&[], std::slice::from_ref));
            }
            let mut masks = vec![Everything; texts];
            let row = |(number, (history, mask)): (usize, (_, _))| RowDraw {
                rules: &way.rules[number.min(1)],
                position: first_index as u32,
                history,
                limit,
                stops: &[],
                mask: way.masked.then_some(mask as &mut dyn TokenMask),
            };
            let rows = histories.iter_mut().zip(&mut masks).enumerate();
            let mut rows: Vec<RowDraw<'_>> = rows.map(row).collect();
            let chain =
                Chain { rows: &mut rows, sampler: &mut Sampler::default(), sink: &mut |_, _| Flow::Continue };
            let mut step = Step { segments: segments.clone() };
            let finish = program.run_chain(&mut step, &mut **pool, chain)?;
            (first_index, left) = (finish.lengths[0], left - limit);
        }
        Ok((texts * DECODED) as f64 / start.elapsed().as_secs_f64())
    }
}
