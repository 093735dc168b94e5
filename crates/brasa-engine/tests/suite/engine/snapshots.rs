//! Texts that leave an engine and come back: as they were, in any company, and never at the cost of another text.

use std::time::{Duration, Instant};

use brasa_engine::{CacheScope, Engine, EngineConfig, EngineError, RequestOptions, SessionId, SnapshotState};
use brasa_graph::device::KvType;

use super::schedules::sized;
use super::{CONFIG, LAYERS, VOCAB, engine, engine_of, ids, limit, page_bytes, prompt, start};

/// A text outside of any engine: its state, and the pages of each cache group.
pub(super) type Kept = (SnapshotState, Vec<Vec<Vec<u8>>>);

/// Reads the text of a session.
pub(super) fn keep(engine: &Engine, session: SessionId) -> Result<Kept, EngineError> {
    let snapshot = engine.snapshot(session)?;
    let groups = snapshot.state().pages.iter().enumerate();
    let pages = groups.map(|(group, pages)| {
        pages.clone().map(|entry| snapshot.read_page(group, entry, Vec::new())).collect()
    });
    Ok((snapshot.state().clone(), pages.collect::<Result<_, _>>()?))
}

/// Writes a text into a session.
pub(super) fn bring_back(engine: &Engine, session: SessionId, kept: &Kept) -> Result<(), EngineError> {
    let mut restoration = engine.restore(kept.0.clone())?;
    for (group, pages) in kept.1.iter().enumerate() {
        for page in pages {
            restoration.write_page(group, page.clone())?;
        }
    }
    restoration.finish(session)
}

#[test]
pub fn a_text_that_left_and_came_back_goes_on() {
    for (windows, dtype) in [(LAYERS, KvType::F32), (&[None, Some(256)], KvType::F16), (LAYERS, KvType::Q8)] {
        let [here, there] = [0, 1].map(|_| engine_of(windows, dtype, 1024, 64, 2, 0));
        let (session, other) = (here.open_session(), there.open_session());
        let mut text = prompt(500, 3);
        text.extend(ids(&mut start(&here, text.clone(), &limit(90), Some(session))));
        let kept = keep(&here, session).unwrap();
        assert_eq!(kept.0.tokens, text[..589]);
        bring_back(&there, other, &kept).unwrap();
        assert_eq!(keep(&there, other).unwrap(), kept);
        assert_eq!(there.session_tokens(other).unwrap(), text[..589]);
        text.extend(prompt(20, 9));
        let expected = ids(&mut start(&here, text.clone(), &limit(40), Some(session)));
        let mut stream = start(&there, text.clone(), &limit(40), Some(other));
        assert_eq!(ids(&mut stream), expected, "{dtype:?}");
        assert_eq!(stream.metrics().cached_tokens, 589);
        // What replaces a text of the session frees its pages.
        let used = there.stats().pages_used;
        bring_back(&there, other, &kept).unwrap();
        there.with(|_| ()).unwrap();
        assert_eq!(ids(&mut start(&there, text.clone(), &limit(40), Some(other))), expected);
        assert_eq!(there.stats().pages_used, used);
    }
}

#[test]
pub fn a_busy_session_is_not_read_or_replaced() {
    let engine = engine(1024, 64, 2);
    let (session, idle) = (engine.open_session(), engine.open_session());
    let kept = keep(&engine, idle).unwrap();
    assert!(kept.0.tokens.is_empty());
    let options = brasa_engine::GenerateOptions {
        request: RequestOptions { run_ahead: 2, ..RequestOptions::default() },
        ..limit(900)
    };
    let mut stream = start(&engine, prompt(9, 0), &options, Some(session));
    stream.next().unwrap().unwrap();
    assert_eq!(keep(&engine, session).err(), Some(EngineError::SessionBusy));
    assert_eq!(bring_back(&engine, session, &kept), Err(EngineError::SessionBusy));
    assert_eq!(engine.truncate_session(session, 0), Err(EngineError::SessionBusy));
    drop(stream);
    engine.with(|_| ()).unwrap();
    assert!(!keep(&engine, session).unwrap().0.tokens.is_empty());
}

#[test]
pub fn states_that_cannot_be_are_refused() {
    let engine = engine(600, 64, 2);
    let session = engine.open_session();
    start(&engine, prompt(300, 0), &limit(2), Some(session)).for_each(drop);
    let kept = keep(&engine, session).unwrap();
    let changed = |change: &dyn Fn(&mut Kept)| {
        let mut kept = kept.clone();
        change(&mut kept);
        bring_back(&engine, session, &kept)
    };
    let is_options = |result| matches!(result, Err(EngineError::Options(_)));
    assert!(is_options(changed(&|kept| kept.0.pages[0] = 1..2)));
    assert!(is_options(changed(&|kept| kept.0.pages[0] = 0..usize::MAX)));
    assert!(is_options(changed(&|kept| kept.0.pages.clear())));
    assert!(is_options(changed(&|kept| kept.0.tokens.truncate(200))));
    assert!(is_options(changed(&|kept| kept.0.shifted_from = Some(400))));
    assert!(is_options(changed(&|kept| kept.1[0].truncate(1))));
    assert!(is_options(changed(&|kept| kept.1[0].push(Vec::new()))));
    assert!(matches!(changed(&|kept| kept.1[0][1].truncate(9)), Err(EngineError::Device(_))));
    let unknown = changed(&|kept| kept.0.tokens[7] = VOCAB as u32);
    assert!(matches!(unknown, Err(EngineError::UnknownToken { .. })));
    let long = changed(&|kept| kept.0.tokens.resize(601, 0));
    assert_eq!(long, Err(EngineError::PromptTooLong { tokens: 601, context: 600 }));
    // What was refused has given its pages back, and the session holds what it held.
    assert_eq!(keep(&engine, session).unwrap(), kept);
    engine.close_session(session);
    start(&engine, prompt(2, 0), &limit(1), None).for_each(drop);
    assert_eq!(engine.stats().pages_used, 0);
}

/// Pages that are being read cannot give way; the request that needs them waits and fails not.
#[test]
pub fn a_request_waits_for_pages_that_are_being_read() {
    let four = EngineConfig { cache_bytes: 4 * page_bytes(), ..CONFIG };
    let engine = sized(&[None], 64, four);
    let expected = ids(&mut start(&engine, prompt(700, 1), &limit(9), None));
    let session = engine.open_session();
    start(&engine, prompt(400, 0), &limit(2), Some(session)).for_each(drop);
    let snapshot = engine.snapshot(session).unwrap();
    let before = snapshot.read_page(0, 1, Vec::new()).unwrap();
    let mut stream = start(&engine, prompt(700, 1), &limit(9), None);
    let gave_way = || engine.stats().preemptions > 0;
    for _ in 0..10_000 {
        if gave_way() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(gave_way(), "the request never came to the pages that are being read");
    assert!(stream.try_next().is_pending());
    // The engine rests until a command may have brought pages back.
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let tries = engine.stats().preemptions;
    assert!(tries < 20, "the engine tried {tries} times in vain");
    let late = RequestOptions {
        deadline: Some(Instant::now() + Duration::from_millis(20)),
        ..RequestOptions::DEFAULT
    };
    let late = brasa_engine::GenerateOptions { request: late, ..limit(9) };
    let error = start(&engine, prompt(700, 2), &late, None).next();
    assert!(matches!(error, Some(Err(EngineError::DeadlineExceeded { .. }))), "{error:?}");
    assert_eq!(snapshot.read_page(0, 1, Vec::new()).unwrap(), before);
    drop(snapshot);
    assert_eq!(ids(&mut stream), expected);
    assert!(stream.metrics().preemptions > 0);
}

#[test]
pub fn a_text_that_is_forgotten_is_computed_anew() {
    let engine = engine_of(&[None], KvType::F32, 1024, 64, 1, 1 << 20);
    let (long, other) = (prompt(600, 1), [&prompt(600, 1)[..300], &prompt(200, 5)].concat());
    let cached = |text: &[u32]| {
        let mut stream = start(&engine, text.to_vec(), &limit(1), None);
        stream.by_ref().for_each(drop);
        stream.metrics().cached_tokens
    };
    assert_eq!((cached(&long), cached(&other), cached(&long)), (0, 300, 599));
    engine.forget(CacheScope::default(), long.clone()).unwrap();
    // The first page is a part of the other text too.
    assert_eq!((cached(&other), cached(&long)), (499, 300));
}
