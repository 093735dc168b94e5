//! One culprit ends alone: texts that a device does not take, steps that are too much together, numbers that are none, adapters that are
//! gone, hidden states whose program was exchanged.

use std::sync::Arc;

use brasa_engine::{
    AdapterRows, CacheScope, Engine, EngineConfig, EngineError, EngineParts, Flow, GenerateOptions,
    MakeProgram, Outs, PlainIds, ReadRequest, ReadValue, Request, RequestOptions, SequenceChain,
    SequenceRows, Speculation, TokenStream, pages_bytes,
};
use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, DeviceError, DeviceInfo, KvPool, KvPoolSpec, KvType, LostPart, OpTime, Precision, Program,
    ProgramLimits, ProgramSpec, WeightSet,
};
use brasa_graph::output::Outputs;
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::sampling::{DrawRules, SamplingError, SamplingParams};
use brasa_graph::step::{PageId, Step};
use brasa_graph::testing::MockBackend;

use super::small_model::poisoned;
use super::{
    CONFIG, DEVICE, LAYERS, VOCAB, engine_for, hidden_parts, ids, limit, prompt, start, start_engine,
    try_start, while_held,
};

/// A token that no prompt of these tests has by itself.
const BAD: u32 = VOCAB as u32 - 1;

/// The steps that a [`Picky`] device refuses, without saying whose fault it is.
#[derive(Clone, Copy, Debug)]
enum Refuses {
    /// Steps with this token.
    Token(u32),
    /// Steps of more than one text.
    Company,
}

/// The reference device, which refuses some steps.
#[derive(Debug)]
struct Picky(Refuses);

impl Backend for Picky {
    fn info(&self) -> DeviceInfo {
        ReferenceBackend.info()
    }

    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        ReferenceBackend.weight_set(precision)
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        ReferenceBackend.kv_pool(spec)
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let program = ReferenceBackend.compile(graph, weights, spec)?;
        Ok(Box::new(PickyProgram { program, refuses: self.0 }))
    }
}

struct PickyProgram {
    program: Box<dyn Program>,
    refuses: Refuses,
}

impl Program for PickyProgram {
    fn limits(&self) -> ProgramLimits {
        self.program.limits()
    }

    fn arena_bytes(&self) -> u64 {
        self.program.arena_bytes()
    }

    fn run(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Outputs<'_>, DeviceError> {
        let refused = match self.refuses {
            Refuses::Token(id) => step.segments.iter().any(|segment| segment.tokens.contains(&id)),
            Refuses::Company => step.segments.len() > 1,
        };
        if refused {
            return Err(DeviceError::OutOfMemory { bytes: 1 << 40, what: "a step".into() });
        }
        self.program.run(step, pool)
    }

    fn check_shift(&self, pool: &dyn KvPool) -> Result<(), DeviceError> {
        self.program.check_shift(pool)
    }

    fn shift(&mut self, pool: &mut dyn KvPool, pages: &[Vec<PageId>], by: i32) -> Result<(), DeviceError> {
        self.program.shift(pool, pages, by)
    }

    fn profile(&mut self, step: &Step, pool: &mut dyn KvPool) -> Result<Vec<OpTime>, DeviceError> {
        self.program.profile(step, pool)
    }
}

/// A prompt without the bad token.
fn good(length: usize, seed: usize) -> Vec<u32> {
    prompt(length, seed).into_iter().map(|id| if id == BAD { 0 } else { id }).collect()
}

fn bad(length: usize, seed: usize) -> Vec<u32> {
    let mut ids = good(length, seed);
    ids[length / 2] = BAD;
    ids
}

/// Options that never draw the bad token.
fn without_bad(tokens: usize) -> GenerateOptions {
    let mut options = limit(tokens);
    options.sampling.suppressed = vec![BAD];
    options
}

/// A new engine on the device of this thread, with places for four texts.
fn new() -> Engine {
    engine_for(LAYERS, KvType::F32, 1024, 64, 4, 0, 8)
}

/// The error that ends a stream.
fn error_of(mut stream: TokenStream) -> Option<EngineError> {
    stream.find_map(Result::err)
}

/// The device fails without a word of whose fault it is: the culprit is found among those of its step, also among texts that are read and
/// texts with drafts, and the others are what they are alone.
#[test]
fn a_text_that_no_step_takes_ends_alone() {
    let lookup = || GenerateOptions { speculation: Some(Speculation::LOOKUP), ..without_bad(40) };
    let texts = [(good(20, 1), without_bad(40)), (good(90, 2), lookup()), (good(7, 3), lookup())];
    let expected = texts.clone().map(|(text, options)| ids(&mut start(&new(), text, &options, None)));
    let read = |engine: &Engine, tokens| {
        let options = RequestOptions::DEFAULT;
        engine.read(ReadRequest { tokens, value: ReadValue::Logits, first: 3, options }).unwrap()
    };
    let rows: Vec<_> = read(&new(), good(30, 4)).map(Result::unwrap).collect();
    DEVICE.set(Box::new(Picky(Refuses::Token(BAD))));
    for first in [true, false] {
        let engine = new();
        let mut begun = None;
        while_held(&engine, || {
            let spoilt = |yes: bool| yes.then(|| start(&engine, bad(30, 1), &without_bad(9), None));
            let early = spoilt(first);
            let streams = texts.clone().map(|(text, options)| start(&engine, text, &options, None));
            begun =
                Some((early, streams, read(&engine, good(30, 4)), read(&engine, bad(30, 4)), spoilt(!first)));
        });
        let (early, streams, good_rows, mut bad_rows, late) = begun.unwrap();
        let out_of_memory = |error: Option<EngineError>| {
            matches!(error, Some(EngineError::Device(DeviceError::OutOfMemory { .. })))
        };
        assert!(out_of_memory(error_of(early.or(late).unwrap())));
        assert!(out_of_memory(bad_rows.find_map(Result::err)));
        for (stream, expected) in streams.into_iter().zip(&expected) {
            assert_eq!(
                &stream.map(|fragment| fragment.unwrap().token.unwrap().id).collect::<Vec<_>>(),
                expected
            );
        }
        assert!(good_rows.map(Result::unwrap).eq(rows.iter().cloned()));
    }
}

/// Texts that each fit in a step and do not fit together come to their ends nevertheless.
#[test]
fn texts_that_fit_in_no_step_together_run_apart() {
    let texts: Vec<Vec<u32>> = (0..4).map(|seed| good(10 + 40 * seed, seed)).collect();
    let expected: Vec<Vec<u32>> =
        texts.iter().map(|text| ids(&mut start(&new(), text.clone(), &limit(12), None))).collect();
    DEVICE.set(Box::new(Picky(Refuses::Company)));
    let engine = new();
    let streams: Vec<TokenStream> =
        texts.into_iter().map(|text| start(&engine, text, &limit(12), None)).collect();
    for (mut stream, expected) in streams.into_iter().zip(expected) {
        assert_eq!(ids(&mut stream), expected);
    }
}

/// A text whose numbers are none ends alone, and leaves nothing to later texts that begin like it or take its pages.
#[test]
fn numbers_that_are_none_end_their_text_alone() {
    for mock in [false, true] {
        if mock {
            DEVICE.set(Box::new(MockBackend::new(3)));
        }
        let graph = Arc::new(poisoned(LAYERS, BAD));
        let limits = ProgramLimits { max_rows: 64, max_outs: 64, max_segments: 4 };
        let new = || {
            let spec = KvPoolSpec::of(&graph, KvType::F16);
            start_engine(&graph, limits, spec, |pool| {
                let cache_bytes = pages_bytes(pool, 1024) * 8;
                EngineConfig { max_sequences: 4, cache_bytes, prefix_bytes: cache_bytes / 2, ..CONFIG }
            })
        };
        let texts = [good(20, 1), good(300, 2), good(7, 3)];
        let expected = texts.clone().map(|text| ids(&mut start(&new(), text, &without_bad(40), None)));
        let engine = new();
        let session = engine.open_session();
        for _ in 0..3 {
            let mut begun = None;
            while_held(&engine, || {
                let spoilt = start(&engine, bad(300, 2), &without_bad(40), Some(session));
                begun =
                    Some((spoilt, texts.clone().map(|text| start(&engine, text, &without_bad(40), None))));
            });
            let (spoilt, streams) = begun.unwrap();
            let error = error_of(spoilt);
            assert!(matches!(error, Some(EngineError::Sampling(SamplingError::NoToken { .. }))), "{error:?}");
            for (mut stream, expected) in streams.into_iter().zip(&expected) {
                assert_eq!(&ids(&mut stream), expected);
            }
            assert!(engine.session_tokens(session).unwrap().is_empty(), "nothing is kept of it");
        }
    }
}

/// Hidden states are read on when the programs have been exchanged; readers of an engine that has no program for them any more end alone.
#[test]
fn hidden_states_outlive_an_exchange_of_programs() {
    let text = prompt(300, 3);
    let ask = |engine: &Engine| {
        let options = RequestOptions { run_ahead: 1, ..RequestOptions::DEFAULT };
        let value = ReadValue::Hidden;
        engine.read(ReadRequest { tokens: text.clone(), value, first: 0, options }).unwrap()
    };
    let made = |hidden| hidden_parts(1024, 32, 4, hidden).0;
    let make = || -> MakeProgram {
        let mut hidden = Some(hidden_parts(1024, 32, 4, true).0);
        Box::new(move || Ok(hidden.take().expect("one program is asked for")))
    };
    let new = || {
        let (program, pool, config) = hidden_parts(1024, 32, 4, false);
        let rows = Arc::new(AdapterRows::new(&[], &[]).unwrap());
        let (hidden, adapter_rows) = (Some(make()), Some(rows));
        Engine::start(EngineParts { hidden, adapter_rows, ..EngineParts::new(program, pool) }, config)
            .unwrap()
    };
    let states: Vec<_> = ask(&new()).map(Result::unwrap).collect();
    let expected = ids(&mut start(&new(), prompt(20, 1), &limit(200), None));
    let engine = new();
    let slow =
        GenerateOptions { request: RequestOptions { run_ahead: 1, ..RequestOptions::DEFAULT }, ..limit(200) };
    let mut beside = start(&engine, prompt(20, 1), &slow, None);
    let mut rows = ask(&engine);
    let mut read: Vec<_> = rows.by_ref().take(40).map(Result::unwrap).collect();
    engine.replace_program(made(false), Some(make()), Vec::new()).unwrap();
    read.extend(rows.map(Result::unwrap));
    assert!(read == states, "rows of the other program");
    let mut rows = ask(&engine);
    assert!(rows.by_ref().take(40).all(|row| row.is_ok()));
    engine.replace_program(made(false), None, Vec::new()).unwrap();
    assert!(matches!(rows.find_map(Result::err), Some(EngineError::Options(_))));
    assert_eq!(ids(&mut beside), expected);
}

/// A text whose adapters are not known any more is refused, and the text beside it goes on.
#[test]
fn a_text_of_an_adapter_that_is_gone_is_refused_alone() {
    let (program, pool, config) = hidden_parts(1024, 32, 4, false);
    let rows = Arc::new(AdapterRows::new(&[7], &[]).unwrap());
    rows.insert(9, &[(7, 1.0)]).unwrap();
    let adapter_rows = Some(Arc::clone(&rows));
    let engine =
        Engine::start(EngineParts { adapter_rows, ..EngineParts::new(program, pool) }, config).unwrap();
    let cache_scope = CacheScope { adapter: 9, ..CacheScope::default() };
    let adapted =
        GenerateOptions { request: RequestOptions { cache_scope, ..RequestOptions::DEFAULT }, ..limit(30) };
    let other = hidden_parts(1024, 32, 4, false).0;
    engine.replace_program(other, None, Vec::new()).unwrap();
    let mut begun = None;
    while_held(&engine, || {
        let beside = start(&engine, prompt(20, 1), &limit(30), None);
        begun = Some((try_start(&engine, prompt(20, 2), &adapted, None).map(drop), beside));
    });
    let (gone, mut beside) = begun.unwrap();
    assert!(matches!(gone, Err(EngineError::Options(_))), "{gone:?}");
    assert_eq!(ids(&mut beside).len(), 30);
}

/// A device that is lost ends the requests that run, pause and wait, and refuses those that come, all with an error that is final.
#[test]
fn a_lost_device_ends_everything_with_its_reason() {
    let device = MockBackend::new(2);
    DEVICE.set(Box::new(device.clone()));
    let engine = engine_for(LAYERS, KvType::F32, 1024, 64, 2, 0, 4);
    let slow =
        GenerateOptions { request: RequestOptions { run_ahead: 1, ..RequestOptions::DEFAULT }, ..limit(900) };
    let mut paused = start(&engine, prompt(20, 9), &slow, None);
    paused.next().unwrap().unwrap();
    device.fail_after(2);
    let request = |seed| Request {
        prompt: prompt(20, seed),
        options: limit(500),
        end_ids: Vec::new(),
        decoder: Box::new(PlainIds),
        session: None,
    };
    let all: Vec<TokenStream> = (0..5).map(|seed| engine.generate(request(seed)).unwrap()).collect();
    for stream in all.into_iter().chain([paused]) {
        let error = error_of(stream).unwrap();
        assert!(error.is_final() && error.lost() == Some(LostPart::Program), "{error:?}");
    }
    let error = error_of(engine.generate(request(1)).unwrap()).unwrap();
    assert_eq!(error.lost(), Some(LostPart::Program), "{error:?}");
}

/// Steps and chains without anything to compute, and contexts beyond what positions can count, are refused by name.
#[test]
fn steps_of_nothing_and_endless_contexts_are_refused() {
    let engine = new();
    engine
        .with(|executor| {
            let refused = |error: Option<EngineError>| matches!(error, Some(EngineError::Options(_)));
            let rules = DrawRules::new(SamplingParams::default()).unwrap();
            let mut sequence = executor.sequence();
            assert!(refused(executor.run(&mut []).err()));
            let part = SequenceRows { sequence: &mut sequence, tokens: &[], outs: Outs::Last };
            assert!(refused(executor.run(&mut [part]).err()));
            assert!(refused(executor.run_chain(&mut [], &mut |_, _| Flow::StopRow).err().map(Into::into)));
            for (count, rows, limit) in [(0, 0, 1), (2, 3, 1), (2, 0, 1), (2, 1, 0), (2, usize::MAX, 1)] {
                let mut tokens = prompt(count, 1);
                let chain = SequenceChain {
                    sequence: &mut sequence,
                    tokens: &mut tokens,
                    rows,
                    reads: None,
                    rules: &rules,
                    position: 0,
                    limit,
                    stops: &[],
                    mask: None,
                    drafts: &[],
                };
                let error = executor.run_chain(&mut [chain], &mut |_, _| Flow::StopRow).unwrap_err();
                assert!(error.parts == [0] && refused(Some(error.into())), "{count} {rows} {limit}");
            }
            let endless = SequenceChain {
                sequence: &mut sequence,
                tokens: &mut prompt(5, 1),
                rows: 5,
                reads: None,
                rules: &rules,
                position: u32::MAX,
                limit: usize::MAX,
                stops: &[],
                mask: None,
                drafts: &[],
            };
            executor.run_chain(&mut [endless], &mut |_, _| Flow::StopRow).unwrap();
            executor.release(sequence);
        })
        .unwrap();
    let (program, pool, config) = hidden_parts(1024, 32, 4, false);
    let refused =
        Engine::start(EngineParts::new(program, pool), EngineConfig { context: 1 << 40, ..config }).err();
    assert!(matches!(refused, Some(EngineError::Options(_))));
}
