//! Drafts change the time of a text and nothing else: alone, in company, with masks, penalties, stops and limits, and in contexts
//! that slide.

use std::sync::Arc;

use brasa_engine::{ContextPolicy, Engine, FinishReason, GenerateOptions, Metrics, Speculation, Token};
use brasa_graph::device::KvType;
use brasa_graph::sampling::{Distribution, Logprobs, SamplingParams};

use super::texts::ThirdsFromZero;
use super::{LAYERS, engine, engine_of, limit, prompt, start};

/// Every draft that there is, whatever it costs.
pub const EAGER: Speculation = Speculation { most: 5, adaptive: false, ..Speculation::LOOKUP };

/// A text that comes again and again, so that its answer is easily guessed.
fn refrain(seed: usize) -> Vec<u32> {
    prompt(21 + seed, seed).repeat(5)
}

/// Ways to generate that have nothing in common.
fn ways(seed: usize) -> Vec<GenerateOptions> {
    let sampling = |temperature, repeat_penalty, presence_penalty| SamplingParams {
        temperature,
        repeat_penalty,
        presence_penalty,
        seed: seed as u64,
        ..SamplingParams::default()
    };
    let logprobs = Some(Logprobs { top: 2, of: Distribution::Raw });
    let with = |sampling, tokens| GenerateOptions { sampling, ..limit(tokens) };
    vec![
        limit(60),
        with(sampling(0.4, 1.0, 0.0), 60),
        with(sampling(0.0, 1.1, 0.2), 60),
        GenerateOptions { mask: Some(Arc::new(ThirdsFromZero)), ..limit(60) },
        GenerateOptions { mask: Some(Arc::new(ThirdsFromZero)), ..with(sampling(0.7, 1.0, 0.0), 45) },
        with(SamplingParams { logprobs, min_tokens: 9, ..sampling(0.3, 1.0, 0.0) }, 33),
        limit(1),
        limit(2),
    ]
}

/// The tokens of an answer, with log-probabilities, and its end.
fn answer(
    engine: &Engine,
    text: Vec<u32>,
    options: &GenerateOptions,
) -> (Vec<Token>, Option<FinishReason>, Metrics) {
    let mut stream = start(engine, text, options, None);
    let tokens = stream.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
    (tokens, stream.finish_reason(), *stream.metrics())
}

#[test]
pub fn drafts_leave_the_text_as_it_is() {
    let (plain, drafting) = (engine(1024, 64, 4), engine(1024, 64, 4));
    let mut accepted = 0;
    for seed in 0..3 {
        let ways = ways(seed);
        let expected: Vec<_> = ways.iter().map(|way| answer(&plain, refrain(seed), way)).collect();
        let drafted = |way: &GenerateOptions| GenerateOptions { speculation: Some(EAGER), ..way.clone() };
        for (number, (way, expected)) in ways.iter().zip(&expected).enumerate() {
            let (tokens, reason, metrics) = answer(&drafting, refrain(seed), &drafted(way));
            assert_eq!((&tokens, reason), (&expected.0, expected.1), "seed {seed}, way {number}");
            assert!(metrics.accepted_tokens <= metrics.drafted_tokens);
            assert_eq!(metrics.generated_tokens, expected.2.generated_tokens);
            assert_eq!(expected.2.drafted_tokens, 0);
            accepted += metrics.accepted_tokens;
        }
        // In company, some with drafts and some without: all of them, which leaves few rows for drafts, and pairs.
        for together in [ways.len(), 2] {
            let numbered: Vec<_> = ways.iter().zip(&expected).enumerate().collect();
            for company in numbered.chunks(together) {
                let begin = |&(number, (way, _)): &(usize, (&GenerateOptions, _))| {
                    let way = if number % 3 == 1 { way.clone() } else { drafted(way) };
                    start(&drafting, refrain(seed), &way, None)
                };
                let streams: Vec<_> = company.iter().map(begin).collect();
                for (stream, (number, (_, expected))) in streams.into_iter().zip(company) {
                    let tokens: Vec<Token> = stream.filter_map(|fragment| fragment.unwrap().token).collect();
                    assert_eq!(tokens, expected.0, "seed {seed}, way {number}, {together} together");
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted} drafts were drawn: nothing was tried");
    let stats = drafting.stats();
    assert!(stats.accepted_rows as usize > accepted && stats.draft_rows > stats.accepted_rows, "{stats:?}");
    assert!(stats.steps < stats.decode_rows, "{stats:?}");
}

/// Stop ids and stop strings among drafts end the text where they end it otherwise.
#[test]
pub fn drafts_end_where_the_text_ends() {
    let (plain, drafting) = (engine(1024, 64, 2), engine(1024, 64, 2));
    let (text, _, _) = answer(&plain, refrain(1), &limit(60));
    for place in [5, 20, 21, 22, 40, 59] {
        let stops = GenerateOptions { stop_ids: vec![text[place].id], ..limit(60) };
        let expected = answer(&plain, refrain(1), &stops);
        let found = answer(&drafting, refrain(1), &GenerateOptions { speculation: Some(EAGER), ..stops });
        assert_eq!((found.0, found.1), (expected.0, expected.1));
        // What is cached behind the end is the text's and nothing of the drafts.
        let session = drafting.open_session();
        let options = GenerateOptions { speculation: Some(EAGER), ..limit(place) };
        start(&drafting, refrain(1), &options, Some(session)).for_each(drop);
        let longer: Vec<u32> =
            refrain(1).into_iter().chain(text[..place].iter().map(|token| token.id)).collect();
        let mut rest = start(&drafting, longer, &limit(60 - place), Some(session));
        let tokens: Vec<Token> = rest.by_ref().filter_map(|fragment| fragment.unwrap().token).collect();
        assert_eq!(tokens, text[place..]);
        assert_eq!(rest.metrics().cached_tokens, refrain(1).len() + place - 1);
    }
}

/// A context that is full, slides or is nearly full has drafts up to its end and none behind it.
#[test]
pub fn drafts_fit_the_context() {
    let engine = || engine_of(LAYERS, KvType::F32, 300, 64, 2, 0);
    for context_policy in [ContextPolicy::Stop, ContextPolicy::Slide { keep: 8 }] {
        let plain = GenerateOptions { context_policy, ..limit(400) };
        let expected = answer(&engine(), refrain(3), &plain);
        let found = answer(&engine(), refrain(3), &GenerateOptions { speculation: Some(EAGER), ..plain });
        assert_eq!((found.0, found.1), (expected.0, expected.1), "{context_policy:?}");
        assert!(found.2.accepted_tokens > 20);
    }
}
