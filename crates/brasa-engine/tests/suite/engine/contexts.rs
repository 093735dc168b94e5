//! A context that is full: an error, an end, or a text that slides.

use brasa_engine::{ContextPolicy, EngineError, FinishReason, GenerateOptions, PlainIds, Request};
use brasa_graph::device::KvType;

use super::{LAYERS, engine, engine_of, ids, limit, prompt, start};

#[test]
pub fn a_full_context_is_an_error_or_the_chosen_policy() {
    let engine = engine(64, 32, 2);
    let too_long = engine.generate(Request {
        prompt: prompt(65, 0),
        options: limit(1),
        end_ids: Vec::new(),
        decoder: Box::new(PlainIds),
        session: None,
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
pub fn a_sliding_context_moves_its_keys_where_it_can() {
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
pub fn a_session_that_slid_is_resumed_as_fresh() {
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
