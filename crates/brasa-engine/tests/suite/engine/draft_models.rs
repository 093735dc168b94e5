//! A draft model changes the time of a text and nothing else, whatever it guesses, and when it fails too.

use std::sync::Arc;

use brasa_engine::{
    ContextPolicy, DraftModel, Engine, EngineConfig, EngineParts, GenerateOptions, Speculation, Token,
    pages_bytes,
};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, ProgramLimits};
use brasa_graph::sampling::SamplingParams;
use brasa_graph::testing::MockBackend;

use super::speculation::{answer, ways};
use super::{CONFIG, DEVICE, LAYERS, VOCAB, compiled, engine, engine_of, graph, limit, prompt, start};

/// Every guess of the draft model, whatever it costs.
const EAGER: Speculation = Speculation { most: 5, adaptive: false, ..Speculation::MODEL };

/// The layers of a draft model, and the room that it has.
#[derive(Clone, Copy)]
pub struct Small {
    pub windows: &'static [Option<usize>],
    pub context: usize,
    /// Pages of all layers together.
    pub pages: u64,
}

/// A draft model that agrees with the tests' engines, and one that seldom does.
const SAME: Small = Small { windows: LAYERS, context: 1024, pages: 100 };
const OTHER: Small = Small { windows: &[None], context: 1024, pages: 100 };

/// A draft model on `backend`.
fn draft_model(backend: &dyn Backend, small: Small, limits: ProgramLimits) -> DraftModel {
    let graph = Arc::new(graph(small.windows));
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    let (program, pool) = compiled(backend, &graph, limits, spec);
    let cache_bytes = pages_bytes(&*pool, 1) / small.windows.len() as u64 * small.pages;
    DraftModel { program, pool, context: small.context, vocab_size: VOCAB, cache_bytes }
}

/// An engine on the device of this thread with a draft model on `backend`, or on the same device.
pub fn drafted_engine(
    windows: &[Option<usize>],
    chunk: usize,
    small: Small,
    backend: Option<&dyn Backend>,
    config: EngineConfig,
) -> Engine {
    let graph = Arc::new(graph(windows));
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: config.max_sequences };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    DEVICE.with_borrow(|own| {
        let model = draft_model(backend.unwrap_or(&**own), small, limits);
        let (program, pool) = compiled(&**own, &graph, limits, spec);
        Engine::start(EngineParts { draft_model: Some(model), ..EngineParts::new(program, pool) }, config)
            .unwrap()
    })
}

fn wanting(way: &GenerateOptions, speculation: Speculation) -> GenerateOptions {
    GenerateOptions { speculation: Some(speculation), ..way.clone() }
}

#[test]
pub fn a_draft_model_leaves_the_text_as_it_is() {
    let config = EngineConfig { max_sequences: 4, ..CONFIG };
    let plain = engine(1024, 64, 4);
    let ways = ways(2);
    let expected: Vec<_> = ways.iter().map(|way| answer(&plain, prompt(150, 2), way)).collect();
    for small in [SAME, OTHER, Small { pages: 3, ..SAME }, Small { context: 190, ..SAME }] {
        let drafting = drafted_engine(LAYERS, 64, small, None, config);
        let mut all = (0, 0);
        for (number, (way, expected)) in ways.iter().zip(&expected).enumerate() {
            for speculation in [EAGER, Speculation { lookup: true, ..EAGER }, Speculation::MODEL] {
                let (tokens, reason, metrics) = answer(&drafting, prompt(150, 2), &wanting(way, speculation));
                assert_eq!((&tokens, reason), (&expected.0, expected.1), "way {number}");
                assert_eq!(metrics.generated_tokens, expected.2.generated_tokens);
                if speculation == EAGER && way.mask.is_none() {
                    all = (all.0 + metrics.drafted_tokens, all.1 + metrics.accepted_tokens);
                }
            }
        }
        let (drafted, accepted) = all;
        assert!(drafted > 100 && accepted <= drafted, "{accepted} of {drafted} drafts were drawn");
        if small.windows == LAYERS {
            // It guesses with the same noise.
            assert!(accepted * 10 > drafted * 9, "{accepted} of {drafted} drafts were drawn");
        } else {
            assert!(accepted * 2 < drafted, "{accepted} of {drafted} drafts were drawn");
        }
        // In company, with prompts of other lengths.
        let prompts: Vec<Vec<u32>> = (0..6).map(|seed| prompt(20 + 60 * seed, seed)).collect();
        let streams: Vec<_> = prompts
            .iter()
            .zip(&ways)
            .map(|(prompt, way)| start(&drafting, prompt.clone(), &wanting(way, EAGER), None))
            .collect();
        for ((stream, prompt), way) in streams.into_iter().zip(&prompts).zip(&ways) {
            let tokens: Vec<Token> = stream.filter_map(|fragment| fragment.unwrap().token).collect();
            assert_eq!(tokens, answer(&plain, prompt.clone(), way).0);
        }
    }
}

/// A draft model that agrees saves steps: a text of 60 tokens takes ten of six tokens.
#[test]
pub fn a_draft_model_that_agrees_saves_steps() {
    let drafting = drafted_engine(LAYERS, 64, SAME, None, CONFIG);
    for temperature in [0.0, 1.0] {
        let sampling = SamplingParams { temperature, ..SamplingParams::default() };
        let options = GenerateOptions { sampling, speculation: Some(EAGER), ..limit(61) };
        let before = drafting.stats().steps;
        let (tokens, _, metrics) = answer(&drafting, prompt(40, 1), &options);
        drafting.with(|_| ()).unwrap();
        assert_eq!((tokens.len(), metrics.drafted_tokens, metrics.accepted_tokens), (61, 50, 50));
        assert_eq!(drafting.stats().steps - before, 1 + 10);
    }
}

/// The draft model follows a text that goes back, goes on elsewhere, slides and resumes.
#[test]
pub fn a_draft_model_follows_its_text() {
    let config = EngineConfig { context: 300, ..CONFIG };
    let drafting = drafted_engine(LAYERS, 64, Small { context: 300, ..SAME }, None, config);
    let plain = engine_of(LAYERS, KvType::F32, 300, 64, 2, 0);
    let slide = GenerateOptions { context_policy: ContextPolicy::Slide { keep: 8 }, ..limit(400) };
    let expected = answer(&plain, prompt(100, 3), &slide);
    let found = answer(&drafting, prompt(100, 3), &wanting(&slide, EAGER));
    assert_eq!((found.0, found.1), (expected.0, expected.1));
    assert!(found.2.accepted_tokens > 200, "{:?}", found.2);
    let session = drafting.open_session();
    let mut text = prompt(120, 1);
    for turn in 0..4 {
        let options = wanting(&limit(20), EAGER);
        let expected = answer(&plain, text.clone(), &limit(20)).0;
        let mut stream = start(&drafting, text.clone(), &options, Some(session));
        let tokens: Vec<Token> = stream.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
        assert_eq!(tokens, expected, "turn {turn}");
        assert!(stream.metrics().accepted_tokens > 10);
        text.extend(tokens.iter().map(|token| token.id));
        text.truncate(text.len() - 9 * turn);
        text.extend(prompt(7, turn));
    }
}

/// A draft model whose device fails is asked no more, and texts go on.
#[test]
pub fn texts_outlive_their_draft_model() {
    let plain = engine(1024, 64, 4);
    for steps in [0, 1, 2, 5, 20] {
        let device = MockBackend::new(0);
        let drafting = drafted_engine(LAYERS, 64, SAME, Some(&device), CONFIG);
        device.fail_after(steps);
        let streams: Vec<_> = (0..3)
            .map(|seed| start(&drafting, prompt(50, seed), &wanting(&limit(50), EAGER), None))
            .collect();
        for (seed, stream) in streams.into_iter().enumerate() {
            let tokens: Vec<Token> = stream.filter_map(|fragment| fragment.unwrap().token).collect();
            assert_eq!(tokens, answer(&plain, prompt(50, seed), &limit(50)).0, "{steps} steps");
        }
        drafting.with(|_| ()).unwrap();
        assert_eq!(drafting.stats().draft_model_bytes, 0);
        let (tokens, _, metrics) = answer(&drafting, prompt(50, 0), &wanting(&limit(50), EAGER));
        assert_eq!((tokens.len(), metrics.drafted_tokens), (50, 0));
    }
}
