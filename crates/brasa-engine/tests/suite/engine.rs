//! The engine against itself: batched = alone, chunked = whole, resumed = fresh, on a small random model run by the
//! reference interpreter; and what happens when things end early.

mod on_the_cpu;
mod on_the_mock;

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use brasa_engine::{
    CacheScope, ContextPolicy, Engine, EngineConfig, EngineError, Executor, FinishReason, Fragment,
    GenerateOptions, Outs, PlainIds, Request, SequenceRows, SessionId, TextDecoder, TokenStream, pages_bytes,
};
use brasa_formats::{Bytes, Payload, StorageFormat, Tensor};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::op::{Attention, KvSource, Rope, RopeLayout};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::sampling::{DrawRules, Row, Sampler, SamplingParams, TokenMask};
use brasa_graph::{Builder, CacheSpec, Graph, Input, Weight, WeightPart};

const VOCAB: usize = 61;
const WIDTH: usize = 16;
const WINDOW: usize = 40;

/// Deterministic noise: a model whose next token depends on everything that it sees.
fn tensor(name: &str, shape: &[usize], scale: f32) -> Tensor {
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let values = (0..shape.iter().product()).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((state >> 40) as f32) / (1 << 24) as f32 - 0.5) * scale
    });
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        format: StorageFormat::F32,
        payload: Payload::Blocks(Bytes::from(bytes)),
    }
}

/// One layer with full attention and one with a sliding window.
const LAYERS: &[Option<usize>] = &[None, Some(WINDOW)];

/// A layer for each window.
fn graph(windows: &[Option<usize>]) -> Graph {
    let mut g = Builder::new();
    let weight = |g: &mut Builder, name: &str, shape: &[usize], scale: f32| {
        g.weight(Weight::new(name, shape, vec![WeightPart::whole(tensor(name, shape, scale))]))
    };
    let (ids, positions, outs) =
        (g.input(Input::TokenIds), g.input(Input::Positions), g.input(Input::OutRows));
    let table = weight(&mut g, "table", &[VOCAB, WIDTH], 4.0);
    let frequencies = weight(&mut g, "frequencies", &[4], 1.0);
    let mut h = g.embed(ids, table);
    for &window in windows {
        let cache = g.cache(CacheSpec { kv_heads: 1, head_dim: 8, window });
        let qkv = weight(&mut g, &format!("qkv {window:?}"), &[32, WIDTH], 1.5);
        let out = weight(&mut g, &format!("out {window:?}"), &[WIDTH, 16], 2.0);
        let qkv = g.linear(h, qkv);
        let heads = |g: &mut Builder, start: usize, heads: usize| {
            let slice = g.slice(qkv, start..start + heads * 8);
            g.reshape(slice, &[heads, 8])
        };
        let (q, k, v) = (heads(&mut g, 0, 2), heads(&mut g, 16, 1), heads(&mut g, 24, 1));
        let rope = Rope { layout: RopeLayout::SplitHalf, rotary_dim: 8, magnitude: 1.0 };
        let (q, k) = (g.rope(q, positions, frequencies, rope), g.rope(k, positions, frequencies, rope));
        g.cache_write(k, v, cache);
        let attention = Attention { source: KvSource::Cache(cache), scale: 0.5, window, softcap: None };
        let o = g.attention(&[q], attention);
        let o = g.reshape(o, &[16]);
        let o = g.linear(o, out);
        h = g.add(h, o);
    }
    let h = g.select_rows(h, outs);
    let h = g.rms_norm_unscaled(h, 1e-6);
    let logits = g.linear(h, table);
    g.finish(&[logits]).unwrap()
}

thread_local! {
    /// The device of the engines that the current test starts.
    static DEVICE: RefCell<Box<dyn Backend>> = RefCell::new(Box::new(ReferenceBackend));
}

fn engine(context: usize, chunk: usize, max_sequences: usize) -> Engine {
    engine_of(LAYERS, KvType::F32, context, chunk, max_sequences, 0)
}

fn engine_of(
    windows: &[Option<usize>],
    dtype: KvType,
    context: usize,
    chunk: usize,
    max_sequences: usize,
    prefix_bytes: u64,
) -> Engine {
    engine_for(windows, dtype, context, chunk, max_sequences, prefix_bytes, 2 * max_sequences)
}

/// An engine with pages for `texts` texts.
fn engine_for(
    windows: &[Option<usize>],
    dtype: KvType,
    context: usize,
    chunk: usize,
    max_sequences: usize,
    prefix_bytes: u64,
    texts: usize,
) -> Engine {
    let graph = Arc::new(graph(windows));
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: max_sequences };
    let spec = KvPoolSpec { groups: graph.cache_groups(), dtype };
    let cache_bytes = pages_bytes(&spec, context) * texts as u64;
    let config = EngineConfig { context, max_sequences, vocab_size: VOCAB, cache_bytes, prefix_bytes };
    start_engine(&graph, limits, spec, config)
}

/// An engine on the device of this thread.
fn start_engine(graph: &Arc<Graph>, limits: ProgramLimits, spec: KvPoolSpec, config: EngineConfig) -> Engine {
    let (program, pool) = DEVICE.with_borrow(|backend| {
        let ignore = &mut |_| std::ops::ControlFlow::Continue(());
        let weights = backend.upload(graph, Precision::Reference, ignore).unwrap();
        let program = backend.compile(Arc::clone(graph), weights, limits).unwrap();
        (program, backend.kv_pool(spec).unwrap())
    });
    Engine::start(program, pool, config).unwrap()
}

fn prompt(length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|index| ((index * index * 7 + index * 3 + seed * 11) % VOCAB) as u32).collect()
}

fn limit(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ..GenerateOptions::default() }
}

fn start(
    engine: &Engine,
    prompt: Vec<u32>,
    options: &GenerateOptions,
    session: Option<SessionId>,
) -> TokenStream {
    engine
        .generate(Request {
            prompt,
            options: options.clone(),
            decoder: Box::new(PlainIds),
            session,
            mask: None,
        })
        .unwrap()
}

fn ids(stream: &mut impl Iterator<Item = Result<Fragment, EngineError>>) -> Vec<u32> {
    stream.filter_map(|fragment| fragment.unwrap().token).map(|token| token.id).collect()
}

#[test]
fn chunked_prefill_equals_whole() {
    let expected = ids(&mut start(&engine(1024, 700, 4), prompt(600, 1), &limit(24), None));
    assert!(
        expected.iter().collect::<HashSet<_>>().len() > 5,
        "the model says the same thing again: {expected:?}"
    );
    for chunk in [5, 64, 300] {
        let engine = engine(1024, chunk, 4);
        assert_eq!(ids(&mut start(&engine, prompt(600, 1), &limit(24), None)), expected, "chunks of {chunk}");
    }
}

#[test]
fn sequences_together_equal_each_alone() {
    let prompts: Vec<_> = (0..5).map(|seed| prompt(3 + 70 * seed, seed)).collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| ids(&mut start(&engine(1024, 64, 1), prompt.clone(), &limit(30), None)))
        .collect();
    let engine = engine(1024, 64, 3);
    let mut streams: Vec<_> =
        prompts.iter().map(|prompt| start(&engine, prompt.clone(), &limit(30), None)).collect();
    let together: Vec<_> = streams.iter_mut().map(ids).collect();
    assert_eq!(together, alone);
}

/// What one step and one draw after the other gives.
fn stepwise(engine: &Engine, prompt: Vec<u32>, sampling: SamplingParams, count: usize) -> Vec<u32> {
    let draw_all = move |executor: &mut Executor| {
        let (rules, mut sampler) = (DrawRules::new(sampling).unwrap(), Sampler::default());
        let (mut sequence, mut tokens, start) = (executor.sequence(), prompt.clone(), prompt.len());
        for _ in 0..count {
            let next = tokens[sequence.tokens().len()..].to_vec();
            let rows = SequenceRows { sequence: &mut sequence, tokens: &next, outs: Outs::Last };
            let output = executor.run(&mut [rows]).unwrap();
            let draw = sampler.draw(&rules, &Row::new(output.row(0), tokens.len() as u32, &tokens));
            tokens.push(draw.unwrap().token);
        }
        executor.release(sequence);
        tokens.split_off(start)
    };
    engine.with(draw_all).unwrap()
}

#[test]
fn chained_equals_stepwise() {
    let sampling = |seed| SamplingParams {
        temperature: if seed == 0 { 0.0 } else { 1.1 },
        repeat_penalty: 1.2,
        seed,
        ..SamplingParams::default()
    };
    // Chains end at pages' ends, at the end of the answer, and at 1, 31, 32 and 33 tokens.
    let lengths = [(20, 33), (250, 70), (3, 1), (490, 31), (9, 32), (224, 300)];
    let engine = engine(1024, 512, 3);
    let expected: Vec<_> = (0..lengths.len())
        .map(|seed| stepwise(&engine, prompt(lengths[seed].0, seed), sampling(seed as u64), lengths[seed].1))
        .collect();
    // All at once: three are served, three wait, and each that ends lets another in.
    let mut streams: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(seed, &(length, count))| {
            let options = GenerateOptions { sampling: sampling(seed as u64), ..limit(count) };
            start(&engine, prompt(length, seed), &options, None)
        })
        .collect();
    for (stream, expected) in streams.iter_mut().zip(&expected) {
        assert_eq!(&ids(stream), expected);
    }
    // One by one.
    for (seed, expected) in expected.iter().enumerate() {
        let options = GenerateOptions { sampling: sampling(seed as u64), ..limit(expected.len()) };
        assert_eq!(&ids(&mut start(&engine, prompt(lengths[seed].0, seed), &options, None)), expected);
    }
}

#[test]
fn a_continued_session_equals_a_fresh_run() {
    let (shared, fresh) = (engine(1024, 64, 2), engine(1024, 64, 2));
    let session = shared.open_session();
    let mut text = prompt(100, 3);
    for turn in 0..4 {
        let mut stream = start(&shared, text.clone(), &limit(20), Some(session));
        let answer = ids(&mut stream);
        assert_eq!(answer, ids(&mut start(&fresh, text.clone(), &limit(20), None)), "turn {turn}");
        if turn > 0 {
            assert!(stream.metrics().cached_tokens > 90, "{:?}", stream.metrics());
        }
        text.extend(answer);
        text.extend(prompt(30, turn));
    }
    // History rewritten in the middle, behind what the window still holds or not.
    for changed in [180, 5] {
        text[changed] = (text[changed] + 1) % VOCAB as u32;
        let answer = ids(&mut start(&shared, text.clone(), &limit(20), Some(session)));
        assert_eq!(answer, ids(&mut start(&fresh, text.clone(), &limit(20), None)), "change at {changed}");
    }
}

#[test]
fn one_seed_gives_one_text() {
    let sampled = |seed| GenerateOptions {
        sampling: SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() },
        ..limit(40)
    };
    let engine = engine(1024, 64, 4);
    let first = ids(&mut start(&engine, prompt(9, 0), &sampled(7), None));
    let mut noise = start(&engine, prompt(200, 4), &limit(60), None);
    assert_eq!(ids(&mut start(&engine, prompt(9, 0), &sampled(7), None)), first);
    assert_ne!(ids(&mut start(&engine, prompt(9, 0), &sampled(8), None)), first);
    ids(&mut noise);
}

#[test]
fn a_full_context_is_an_error_or_the_chosen_policy() {
    let engine = engine(64, 32, 2);
    let too_long = engine.generate(Request {
        prompt: prompt(65, 0),
        options: limit(1),
        decoder: Box::new(PlainIds),
        session: None,
        mask: None,
    });
    assert_eq!(too_long.err(), Some(EngineError::PromptTooLong { tokens: 65, context: 64 }));

    let unlimited = GenerateOptions::default();
    let results: Vec<_> = start(&engine, prompt(60, 0), &unlimited, None).collect();
    assert_eq!(results.len(), 6, "positions 60..64 hold four tokens, a fifth is drawn from the last");
    assert_eq!(results[5], Err(EngineError::ContextFull { context: 64 }));

    let stop = GenerateOptions { context_policy: ContextPolicy::Stop, ..GenerateOptions::default() };
    let mut stream = start(&engine, prompt(60, 0), &stop, None);
    assert_eq!(ids(&mut stream).len(), 5);
    assert_eq!(stream.finish_reason(), Some(FinishReason::ContextFull));

    let slide = GenerateOptions { context_policy: ContextPolicy::Slide { keep: 8 }, ..limit(200) };
    let mut stream = start(&engine, prompt(60, 0), &slide, None);
    let text = ids(&mut stream);
    assert_eq!((text.len(), stream.finish_reason()), (200, Some(FinishReason::Length)));
    // After the first slide the text is that of the shortened prompt.
    let mut whole = prompt(60, 0);
    whole.extend(&text[..5]);
    let shortened: Vec<u32> = whole[..8].iter().chain(&whole[8 + 29..]).copied().collect();
    assert_eq!(ids(&mut start(&engine, shortened, &limit(20), None)), text[5..25]);
}

/// A context of four pages loses two of the three behind the kept one, and later again.
#[test]
fn a_sliding_context_moves_its_keys_where_it_can() {
    let slide =
        |tokens| GenerateOptions { context_policy: ContextPolicy::Slide { keep: 8 }, ..limit(tokens) };
    // One layer: its keys know nothing of their neighbours, so that moved is fresh.
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 2, 0);
    let text = ids(&mut start(&engine, prompt(1000, 0), &slide(1300), None));
    assert_eq!(text.len(), 1300);
    let mut whole = prompt(1000, 0);
    whole.extend(&text[..25]);
    let shortened: Vec<u32> = whole[..256].iter().chain(&whole[768..]).copied().collect();
    let fresh = ids(&mut start(&engine, shortened, &limit(512), None));
    assert_eq!(fresh[..500], text[25..525]);

    // Keys that cannot move are computed afresh: exactly the older half goes.
    let engine = engine_of(&[None], KvType::Q8, 1024, 512, 2, 0);
    let text = ids(&mut start(&engine, prompt(1000, 0), &slide(60), None));
    let mut whole = prompt(1000, 0);
    whole.extend(&text[..25]);
    let shortened: Vec<u32> = whole[..8].iter().chain(&whole[8 + 509..]).copied().collect();
    assert_eq!(ids(&mut start(&engine, shortened, &limit(35), None)), text[25..]);
}

#[test]
fn a_session_that_slid_is_resumed_as_fresh() {
    let engine = || engine_of(LAYERS, KvType::F32, 1024, 512, 1, 0);
    let (engine, fresh) = (engine(), engine());
    let session = engine.open_session();
    let slide = GenerateOptions { context_policy: ContextPolicy::Slide { keep: 300 }, ..limit(100) };
    let answer = ids(&mut start(&engine, prompt(1000, 0), &slide, Some(session)));
    let mut whole = prompt(1000, 0);
    whole.extend(&answer);
    // Two pages are kept and one is dropped; its neighbours remember it, so they are computed anew.
    let text: Vec<u32> = whole[..512].iter().chain(&whole[768..]).copied().collect();
    let mut resumed = start(&engine, text.clone(), &limit(20), Some(session));
    assert_eq!(ids(&mut resumed), ids(&mut start(&fresh, text, &limit(20), None)));
    assert!(resumed.metrics().cached_tokens <= 512, "{:?}", resumed.metrics());
}

/// Bytes of a page of one layer.
const PAGE_BYTES: u64 = 256 * 8 * 2 * 4;

#[test]
fn a_cached_prefix_equals_a_fresh_run() {
    // Layers that see all, and one that sees a page: it must still hold what the next row sees.
    for windows in [&[None][..], &[None, Some(256)]] {
        let shared = engine_of(windows, KvType::F32, 2048, 300, 3, 1 << 20);
        let fresh = engine_of(windows, KvType::F32, 2048, 300, 3, 0);
        let first = prompt(1000, 1);
        let answer = ids(&mut start(&shared, first.clone(), &limit(30), None));
        assert_eq!(answer, ids(&mut start(&fresh, first.clone(), &limit(30), None)));
        // The same prompt; one that parts from it within its last page; one that goes on behind the answer.
        let parting = [&first[..900], &prompt(150, 9)].concat();
        let longer = [&first[..], &answer, &prompt(200, 8)].concat();
        for (text, cached) in [(first.clone(), 768), (parting, 768), (longer, 1024)] {
            let mut stream = start(&shared, text.clone(), &limit(30), None);
            assert_eq!(ids(&mut stream), ids(&mut start(&fresh, text, &limit(30), None)), "{windows:?}");
            assert_eq!(stream.metrics().cached_tokens, cached, "{windows:?}");
        }
        // A session may begin with what another request left behind, and several at once with the same.
        let session = shared.open_session();
        let mut streams: Vec<_> = [Some(session), None, None]
            .map(|session| start(&shared, first.clone(), &limit(30), session))
            .into_iter()
            .collect();
        for stream in &mut streams {
            assert_eq!(ids(stream), answer);
            assert_eq!(stream.metrics().cached_tokens, 768);
        }
    }
}

#[test]
fn prefixes_fit_their_budget_and_give_way() {
    // Room for three pages: of two prompts of two pages each, the older loses its end, then all.
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 1, 3 * PAGE_BYTES);
    let cached = |seed: usize| {
        let mut stream = start(&engine, prompt(600, seed), &limit(1), None);
        assert_eq!(ids(&mut stream).len(), 1);
        stream.metrics().cached_tokens
    };
    assert_eq!([cached(1), cached(1)], [0, 512]);
    assert_eq!([cached(2), cached(2), cached(1)], [0, 512, 256]);
    // Pages for two texts exist: running ones need them all in the end.
    let small = engine_of(&[None], KvType::F32, 512, 512, 1, 1 << 30);
    for seed in 0..9 {
        let session = small.open_session();
        assert_eq!(start(&small, prompt(500, seed), &limit(5), Some(session)).count(), 5);
    }
}

/// One character per token.
struct Letters;

impl TextDecoder for Letters {
    fn push(&mut self, token: u32) -> String {
        char::from(b'A' + token as u8).to_string()
    }

    fn finish(&mut self) -> String {
        "~".into()
    }
}

/// Allows the ids that leave the remainder of the number of accepted tokens when divided by three.
struct Thirds(u32);

impl TokenMask for Thirds {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) {
        words.fill(0);
        let remainder = (self.0 + drafts.len() as u32) % 3;
        (0..VOCAB as u32)
            .filter(|id| id % 3 == remainder)
            .for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
    }

    fn accept(&mut self, _: u32) {
        self.0 += 1;
    }
}

/// A grammar holds over single steps and chains, and for its own row alone.
#[test]
fn a_mask_decides_which_tokens_come() {
    let engine = engine(1024, 64, 2);
    let plain = ids(&mut start(&engine, prompt(30, 1), &limit(50), None));
    let masked = Request {
        prompt: prompt(12, 2),
        options: limit(50),
        decoder: Box::new(PlainIds),
        session: None,
        mask: Some(Box::new(Thirds(0))),
    };
    let mut masked = engine.generate(masked).unwrap();
    let mut beside = start(&engine, prompt(30, 1), &limit(50), None);
    let masked = ids(&mut masked);
    assert_eq!(masked.len(), 50);
    assert!(masked.iter().enumerate().all(|(place, id)| *id as usize % 3 == place % 3), "{masked:?}");
    assert_eq!(ids(&mut beside), plain);
}

#[test]
fn stop_ids_and_strings_end_the_text_before_them() {
    let engine = engine(512, 64, 2);
    let run = |options: GenerateOptions| {
        let request =
            Request { prompt: prompt(20, 2), options, decoder: Box::new(Letters), session: None, mask: None };
        let mut stream = engine.generate(request).unwrap();
        let fragments: Vec<_> = (&mut stream).map(|fragment| fragment.unwrap()).collect();
        let text: String = fragments.iter().map(|fragment| fragment.text.as_str()).collect();
        let tokens = fragments.iter().filter(|fragment| fragment.token.is_some()).count();
        (text, tokens, stream.finish_reason().unwrap())
    };
    let (text, count, reason) = run(limit(30));
    assert_eq!((count, reason), (30, FinishReason::Length));
    assert_eq!(text.len(), 31);

    let stop = text[10..13].to_owned();
    let before = text.find(&stop).unwrap();
    let (stopped, _, reason) = run(GenerateOptions { stop_strings: vec![stop.clone()], ..limit(30) });
    assert_eq!((stopped.as_str(), reason), (&text[..before], FinishReason::Stop));

    let id = u32::from(text.as_bytes()[7] - b'A');
    let before = text.find(char::from(b'A' + id as u8)).unwrap();
    let (stopped, count, reason) = run(GenerateOptions { stop_ids: vec![id], ..limit(30) });
    assert_eq!((&stopped[..before], count, reason), (&text[..before], before, FinishReason::Stop));

    let ignoring =
        GenerateOptions { stop_ids: vec![id], stop_strings: vec![stop], ignore_eos: true, ..limit(30) };
    assert_eq!(run(ignoring).0, text);
}

#[test]
fn the_last_fragment_holds_the_text_that_was_held_back() {
    let engine = engine(64, 64, 2);
    let run = |options: GenerateOptions| {
        let request =
            Request { prompt: prompt(20, 2), options, decoder: Box::new(Letters), session: None, mask: None };
        engine.generate(request).unwrap()
    };
    let whole = run(limit(10)).into_text().unwrap();
    assert_eq!((whole.len(), &whole[10..]), (11, "~"), "the last of ten tokens takes the rest along");
    // Without a last token the rest comes by itself: behind a stopping token, and before an error.
    let stop = u32::from(whole.as_bytes()[9] - b'A');
    let fragments: Vec<_> = run(GenerateOptions { stop_ids: vec![stop], ..limit(10) }).collect();
    assert_eq!(fragments.last(), Some(&Ok(Fragment { text: "~".into(), token: None })));
    let held = GenerateOptions { stop_strings: vec!["\0".repeat(50)], ..GenerateOptions::default() };
    let fragments: Vec<_> = run(held).collect();
    assert_eq!(fragments.len(), 20 + 26, "45 tokens fit behind 20, and the error: {fragments:?}");
    assert_eq!(fragments.last(), Some(&Err(EngineError::ContextFull { context: 64 })));
    let last = fragments[fragments.len() - 2].as_ref().unwrap();
    assert!(last.token.is_some() && last.text.ends_with('~'), "{last:?}");
}

/// Runs `work` while the engine's thread waits for it.
fn while_held(engine: &Engine, work: impl FnOnce()) {
    let (held, is_held) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = move |_: &mut Executor| {
                held.send(()).unwrap();
                // A `work` that panics has dropped the sender.
                let _ = released.recv();
            };
            engine.with(wait).unwrap();
        });
        is_held.recv().unwrap();
        work();
        drop(release);
    });
}

#[test]
fn a_stream_can_be_polled() {
    struct Flag(AtomicUsize);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let engine = engine(512, 64, 2);
    let expected = ids(&mut start(&engine, prompt(20, 2), &limit(12), None));
    let flag = Arc::new(Flag(AtomicUsize::new(0)));
    let waker = std::task::Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    let mut stream = None;
    while_held(&engine, || {
        let stream = stream.insert(start(&engine, prompt(20, 2), &limit(12), None));
        assert!(stream.try_next().is_pending() && stream.poll_next(&mut context).is_pending());
    });
    let mut stream = stream.unwrap();
    let mut found = Vec::new();
    let mut woken = 0;
    loop {
        // The first poll has been made; each that finds nothing is followed by a call of the waker.
        while flag.0.load(Ordering::SeqCst) == woken {
            std::thread::yield_now();
        }
        woken = flag.0.load(Ordering::SeqCst);
        let poll = loop {
            match stream.poll_next(&mut context) {
                Poll::Ready(Some(fragment)) => found.push(fragment.unwrap().token.unwrap().id),
                poll => break poll,
            }
        };
        if poll.is_ready() {
            break;
        }
    }
    assert_eq!(found, expected);
    assert!(stream.poll_next(&mut context).is_ready() && stream.try_next() == Poll::Ready(None));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
}

#[test]
fn a_reader_who_is_behind_pauses_its_generation_alone() {
    let expected = ids(&mut start(&engine(16_384, 64, 1), prompt(10, 0), &limit(700), None));
    // One request at a time: a paused one must not keep the others out.
    let engine = engine(16_384, 64, 1);
    let ahead = |run_ahead| GenerateOptions { run_ahead, ..limit(700) };
    for run_ahead in [1, 2, 33] {
        let mut slow = start(&engine, prompt(10, 0), &ahead(run_ahead), None);
        let mut first = vec![slow.next().unwrap().unwrap().token.unwrap().id];
        for seed in 0..3 {
            assert_eq!(start(&engine, prompt(30, seed), &limit(40), None).count(), 40);
        }
        // With the engine's thread held up, what is there can be counted; then the generation goes on.
        while_held(&engine, || {
            while let Poll::Ready(Some(fragment)) = slow.try_next() {
                first.push(fragment.unwrap().token.unwrap().id);
            }
        });
        assert!((run_ahead..=run_ahead + 1).contains(&first.len()), "{} fragments", first.len());
        first.extend(ids(&mut slow));
        assert_eq!(first, expected, "at most {run_ahead} ahead");
    }
    // One that is cancelled, or dropped, while it is paused.
    let mut paused = start(&engine, prompt(10, 0), &ahead(4), None);
    assert!(paused.next().unwrap().is_ok());
    assert_eq!(start(&engine, prompt(10, 1), &limit(9), None).count(), 9);
    paused.canceller().cancel();
    assert!(paused.by_ref().count() <= 4);
    assert_eq!(paused.finish_reason(), Some(FinishReason::Cancelled));
    let session = engine.open_session();
    drop(start(&engine, prompt(10, 0), &ahead(4), Some(session)));
    let mut again = start(&engine, prompt(10, 0), &limit(3), Some(session));
    while again.try_next() == Poll::Ready(Some(Err(EngineError::SessionBusy))) {
        again = start(&engine, prompt(10, 0), &limit(3), Some(session));
    }
    assert_eq!(ids(&mut again), expected[..3]);
}

#[test]
fn a_paused_generation_gives_its_pages_to_running_ones() {
    // Pages for two texts of a context exist.
    let small = engine_of(LAYERS, KvType::F32, 512, 512, 1, 0);
    let options = GenerateOptions { run_ahead: 8, ..limit(500) };
    let expected = ids(&mut start(&small, prompt(10, 0), &limit(500), None));
    let mut paused: Vec<_> = (0..4).map(|_| start(&small, prompt(10, 0), &options, None)).collect();
    for stream in &mut paused {
        // Far enough that every text has begun its second page; then its reader stops.
        assert_eq!(ids(&mut stream.take(300)).len(), 300);
    }
    for seed in 0..3 {
        assert_eq!(start(&small, prompt(500, seed), &limit(5), None).count(), 5);
    }
    for stream in &mut paused {
        assert_eq!(ids(stream), expected[300..]);
    }
}

#[test]
fn dropping_or_cancelling_a_stream_frees_its_place() {
    // Long enough that it is not over before it is cancelled.
    let engine = engine(16_384, 64, 1);
    let mut first = start(&engine, prompt(10, 0), &limit(16_000), None);
    assert!(first.next().unwrap().is_ok());
    let second = start(&engine, prompt(10, 1), &limit(3), None);
    drop(first);
    assert_eq!(second.count(), 3);

    let mut stream = start(&engine, prompt(10, 0), &limit(16_000), None);
    stream.next().unwrap().unwrap();
    stream.cancel();
    let rest = (&mut stream).count();
    assert!(rest < 15_999);
    assert_eq!(stream.finish_reason(), Some(FinishReason::Cancelled));
}

#[test]
fn a_deadline_ends_a_stream_with_an_error() {
    let engine = engine(512, 64, 1);
    let options = GenerateOptions { deadline: Some(Instant::now()), ..limit(10) };
    let mut stream = start(&engine, prompt(10, 0), &options, None);
    assert_eq!(stream.next(), Some(Err(EngineError::DeadlineExceeded { tokens: 0 })));
    assert_eq!(stream.next(), None);
    let options = GenerateOptions { deadline: Some(Instant::now() + Duration::from_hours(1)), ..limit(10) };
    assert_eq!(start(&engine, prompt(10, 0), &options, None).count(), 10);
}

#[test]
fn a_busy_session_refuses_a_second_request() {
    let engine = engine(16_384, 64, 2);
    let session = engine.open_session();
    let mut first = start(&engine, prompt(10, 0), &limit(16_000), Some(session));
    first.next().unwrap().unwrap();
    let mut second = start(&engine, prompt(10, 0), &limit(3), Some(session));
    assert_eq!(second.next(), Some(Err(EngineError::SessionBusy)));
    first.cancel();
    assert!(first.all(|token| token.is_ok()));
    assert_eq!(start(&engine, prompt(10, 0), &limit(3), Some(session)).count(), 3);
}

#[test]
fn idle_sessions_give_way_to_running_requests() {
    let engine = engine_of(LAYERS, KvType::F32, 512, 64, 1, 0);
    for seed in 0..6 {
        let session = engine.open_session();
        assert_eq!(start(&engine, prompt(500, seed), &limit(5), Some(session)).count(), 5);
    }
}

#[test]
fn the_youngest_request_fails_when_pages_run_out() {
    // Pages for one text of two pages, and two texts that want both.
    let engine = engine_for(&[None], KvType::F32, 512, 512, 2, 0, 1);
    let expected = ids(&mut start(&engine, prompt(200, 1), &limit(200), None));
    let mut first = None;
    let mut second = None;
    while_held(&engine, || {
        first = Some(start(&engine, prompt(200, 1), &limit(200), None));
        second = Some(start(&engine, prompt(250, 2), &limit(200), None));
    });
    let mut said = Vec::new();
    let error = second.unwrap().find_map(|fragment| match fragment {
        Ok(fragment) => {
            said.push(fragment.token.unwrap().id);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(error, Some(EngineError::CacheFull { pages: 2, budget_bytes: 2 * PAGE_BYTES }));
    assert_eq!(ids(&mut first.unwrap()), expected, "the older request has all it needs");
    // The tokens that were handed out before are those of a request with enough pages.
    let whole = ids(&mut start(&engine, prompt(250, 2), &limit(200), None));
    assert!(!said.is_empty() && said[..] == whole[..said.len()], "{said:?}");
    assert!(said.len() < 200);
}

#[test]
fn more_sequences_than_rows_take_turns() {
    let alone = engine_of(LAYERS, KvType::F32, 1024, 64, 1, 0);
    let expected: Vec<_> =
        (0..5).map(|seed| ids(&mut start(&alone, prompt(3 + seed, seed), &limit(20), None))).collect();
    // Five sequences at once, and steps of two rows.
    let graph = Arc::new(graph(LAYERS));
    let limits = ProgramLimits { max_rows: 2, max_outs: 8, max_segments: 8 };
    let spec = KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F32 };
    let config = EngineConfig {
        context: 1024,
        max_sequences: 5,
        vocab_size: VOCAB,
        cache_bytes: u64::MAX,
        prefix_bytes: 0,
    };
    let engine = start_engine(&graph, limits, spec, config);
    let mut streams: Vec<_> =
        (0..5).map(|seed| start(&engine, prompt(3 + seed, seed), &limit(20), None)).collect();
    let together: Vec<_> = streams.iter_mut().map(ids).collect();
    assert_eq!(together, expected);
}

#[test]
fn scopes_share_nothing() {
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 2, 1 << 20);
    let session = engine.open_session();
    let run = |salt, session| {
        let cache_scope = CacheScope { salt, ..CacheScope::default() };
        let mut stream =
            start(&engine, prompt(600, 1), &GenerateOptions { cache_scope, ..limit(3) }, session);
        (ids(&mut stream), stream.metrics().cached_tokens)
    };
    let (expected, cached) = run(1, None);
    assert_eq!(cached, 0);
    assert_eq!(run(1, None), (expected.clone(), 512), "a prefix of its own scope");
    assert_eq!(run(2, Some(session)), (expected.clone(), 0), "another scope");
    assert_eq!(run(2, Some(session)), (expected.clone(), 599), "a session in its own scope");
    assert_eq!(run(1, Some(session)), (expected.clone(), 512), "a session that changes its scope");
    assert_eq!(run(3, None), (expected, 0));
}

#[test]
fn a_sequence_keeps_its_id() {
    let engine = engine(1024, 64, 2);
    let ids = |executor: &mut Executor| {
        let (mut first, second) = (executor.sequence(), executor.sequence());
        let before = first.id();
        executor.prefill(&mut first, &prompt(100, 0)).unwrap();
        let fork = executor.fork(&first);
        executor.truncate(&mut first, 0);
        let found = [before, first.id(), second.id(), fork.id()];
        for sequence in [first, second, fork] {
            executor.release(sequence);
        }
        found
    };
    let [before, after, second, fork] = engine.with(ids).unwrap();
    assert_eq!(before, after);
    assert_eq!(HashSet::from([before, second, fork]).len(), 3);
}

#[test]
fn bad_requests_are_refused_at_once() {
    let engine = engine(64, 32, 1);
    let refuse = |prompt: Vec<u32>, options: GenerateOptions| {
        engine
            .generate(Request { prompt, options, decoder: Box::new(PlainIds), session: None, mask: None })
            .err()
            .unwrap()
    };
    assert_eq!(refuse(Vec::new(), limit(1)), EngineError::EmptyPrompt);
    assert_eq!(
        refuse(vec![VOCAB as u32], limit(1)),
        EngineError::UnknownToken { id: VOCAB as u32, vocab_size: VOCAB }
    );
    let empty_stop = GenerateOptions { stop_strings: vec![String::new()], ..limit(1) };
    assert!(matches!(refuse(vec![1], empty_stop), EngineError::Options(_)));
    assert_eq!(start(&engine, vec![1], &limit(0), None).count(), 0);
}
