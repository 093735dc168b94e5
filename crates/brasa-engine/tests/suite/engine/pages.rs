//! Pages that outlive a request: sessions, prefixes and their scopes; and who gives way when pages run out.

use std::collections::HashSet;
use std::sync::Arc;

use brasa_engine::{
    CacheScope, Engine, EngineConfig, EngineError, Executor, GenerateOptions, RequestOptions,
};
use brasa_graph::device::{KvPoolSpec, KvType, ProgramLimits};

use super::{
    CONFIG, LAYERS, VOCAB, engine, engine_for, engine_of, graph, ids, limit, page_bytes, prompt, start,
    start_engine, while_held,
};

#[test]
pub fn a_continued_session_equals_a_fresh_run() {
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
pub fn a_busy_session_refuses_a_second_request() {
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
pub fn a_cached_prefix_equals_a_fresh_run() {
    // Layers that see all, and one that sees a page: it must still hold what the next row sees.
    for windows in [&[None][..], &[None, Some(256)]] {
        let shared = engine_of(windows, KvType::F32, 2048, 300, 3, 1 << 20);
        let fresh = engine_of(windows, KvType::F32, 2048, 300, 3, 0);
        let first = prompt(1000, 1);
        let answer = ids(&mut start(&shared, first.clone(), &limit(30), None));
        assert_eq!(answer, ids(&mut start(&fresh, first.clone(), &limit(30), None)));
        // The same prompt; one that parts from it within its last page; one that goes on behind the answer, whose last token
        // was never computed.
        let parting = [&first[..900], &prompt(150, 9)].concat();
        let longer = [&first[..], &answer, &prompt(200, 8)].concat();
        for (text, cached) in [(first.clone(), 999), (parting, 900), (longer, 1029)] {
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
            assert_eq!(stream.metrics().cached_tokens, 999);
        }
        // A request that asks for it computes its prompt by itself, and leaves nothing behind.
        let alone = GenerateOptions {
            request: RequestOptions { cache_prompt: Some(false), ..RequestOptions::default() },
            ..limit(30)
        };
        let other = prompt(600, 7);
        for (text, cached) in [(&first, 0), (&other, 0), (&other, 0)] {
            let mut stream = start(&shared, text.clone(), &alone, None);
            assert_eq!(ids(&mut stream), ids(&mut start(&fresh, text.clone(), &limit(30), None)));
            assert_eq!(stream.metrics().cached_tokens, cached);
        }
        assert_eq!(start_and_count(&shared, &other), 0);
    }
}

fn start_and_count(engine: &Engine, text: &[u32]) -> usize {
    let mut stream = start(engine, text.to_vec(), &limit(1), None);
    assert!(stream.by_ref().all(|fragment| fragment.is_ok()));
    stream.metrics().cached_tokens
}

/// Texts that part anywhere, from texts that have ended, rest in sessions or are being generated.
#[test]
pub fn a_prefix_is_found_to_the_token() {
    let fresh = engine_of(&[None], KvType::F32, 1024, 300, 1, 0);
    let engine = engine_of(&[None], KvType::F32, 1024, 300, 3, 1 << 20);
    let text = prompt(700, 1);
    let parting = |at: usize| [&text[..at], &prompt(9, 60 - text[at] as usize % 7)].concat();
    let check = |at: usize, cached: usize| {
        let text = parting(at);
        let mut stream = start(&engine, text.clone(), &limit(9), None);
        assert_eq!(ids(&mut stream), ids(&mut start(&fresh, text, &limit(9), None)), "parting at {at}");
        let found = stream.metrics().cached_tokens;
        assert!((cached..=cached + 1).contains(&found), "{found} at {at}, not {cached}");
    };
    let session = engine.open_session();
    assert_eq!(start(&engine, text[..650].to_vec(), &limit(1), Some(session)).count(), 1);
    for at in [1, 255, 256, 257, 511, 640] {
        check(at, at);
    }
    engine.close_session(session);
    check(645, 645);
    // A text that is being generated, whose reader is behind.
    let long = GenerateOptions {
        request: RequestOptions { run_ahead: 1, ..RequestOptions::default() },
        ..limit(300)
    };
    let mut running = start(&engine, text.clone(), &long, None);
    running.next().unwrap().unwrap();
    check(690, 690);
    let mut said = ids(&mut running);
    let expected = ids(&mut start(&fresh, text.clone(), &limit(300), None));
    assert_eq!(said.split_off(0), expected[1..], "the text that was shared goes on as it would");
}

#[test]
pub fn an_engine_tells_what_it_does() {
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 1, 3 * page_bytes());
    let first = engine.stats();
    assert_eq!((first.running, first.requests, first.steps, first.pages_used), (0, 0, 0, 0));
    for _ in 0..2 {
        assert_eq!(start(&engine, prompt(600, 1), &limit(40), None).count(), 40);
    }
    // Work runs between two steps, so the state before it has been left by then; the idle engine leaves its last.
    let stats = || {
        (0..1000)
            .map(|_| {
                engine.with(|_| ()).unwrap();
                engine.stats()
            })
            .find(|stats| stats.running == 0)
            .unwrap()
    };
    let mut found = stats();
    assert_eq!((found.requests, found.prompt_tokens, found.cached_tokens), (2, 1200, 599));
    assert_eq!((found.prefix_queries, found.prefix_hits, found.prefix_evictions), (2, 1, 0));
    assert_eq!((found.prompt_rows, found.decode_rows), (600, 39 + 40));
    assert!(found.steps >= 2 + 39 + 40, "{found:?}");
    assert_eq!((found.pages_used, found.prefix_bytes_used), (3, 3 * page_bytes()));
    assert_eq!((found.cache_bytes_used, found.prefix_bytes), (3 * page_bytes(), 3 * page_bytes()));
    // Another text takes the room of the first one.
    assert_eq!(start(&engine, prompt(600, 2), &limit(1), None).count(), 1);
    found = stats();
    assert_eq!((found.prefix_bytes_used, found.prefix_evictions), (3 * page_bytes(), 3));
    assert_eq!((found.waiting, found.paused, found.preemptions, found.idle_sessions), (0, 0, 0, 0));
}

#[test]
pub fn prefixes_fit_their_budget_and_give_way() {
    // Room for four pages: of two prompts of two pages and a part each, the older loses its end, then all.
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 1, 4 * page_bytes());
    let cached = |seed: usize| {
        let mut stream = start(&engine, prompt(600, seed), &limit(1), None);
        assert_eq!(ids(&mut stream).len(), 1);
        stream.metrics().cached_tokens
    };
    assert_eq!([cached(1), cached(1)], [0, 599]);
    assert_eq!([cached(2), cached(2), cached(1)], [0, 599, 256]);
    // Pages for two texts exist: running ones need them all in the end.
    let small = engine_of(&[None], KvType::F32, 512, 512, 1, 1 << 30);
    for seed in 0..9 {
        let session = small.open_session();
        assert_eq!(start(&small, prompt(500, seed), &limit(5), Some(session)).count(), 5);
    }
}

#[test]
pub fn scopes_share_nothing() {
    let engine = engine_of(&[None], KvType::F32, 1024, 512, 2, 1 << 20);
    let session = engine.open_session();
    let run = |salt, session| {
        let cache_scope = CacheScope { salt, ..CacheScope::default() };
        let mut stream = start(
            &engine,
            prompt(600, 1),
            &GenerateOptions {
                request: RequestOptions { cache_scope, ..RequestOptions::default() },
                ..limit(3)
            },
            session,
        );
        (ids(&mut stream), stream.metrics().cached_tokens)
    };
    let (expected, cached) = run(1, None);
    assert_eq!(cached, 0);
    assert_eq!(run(1, None), (expected.clone(), 599), "a prefix of its own scope");
    assert_eq!(run(2, Some(session)), (expected.clone(), 0), "another scope");
    assert_eq!(run(2, Some(session)), (expected.clone(), 599), "a session in its own scope");
    assert_eq!(run(1, Some(session)), (expected.clone(), 599), "a session that changes its scope");
    assert_eq!(run(3, None), (expected, 0));
}

#[test]
pub fn idle_sessions_give_way_to_running_requests() {
    let engine = engine_of(LAYERS, KvType::F32, 512, 64, 1, 0);
    for seed in 0..6 {
        let session = engine.open_session();
        assert_eq!(start(&engine, prompt(500, seed), &limit(5), Some(session)).count(), 5);
    }
}

#[test]
pub fn a_paused_generation_gives_its_pages_to_running_ones() {
    // Pages for two texts of a context exist.
    let small = engine_of(LAYERS, KvType::F32, 512, 512, 1, 0);
    let options = GenerateOptions {
        request: RequestOptions { run_ahead: 8, ..RequestOptions::default() },
        ..limit(500)
    };
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
pub fn pages_fit_a_budget_of_bytes() {
    let graph = Arc::new(graph(&[None]));
    let limits = ProgramLimits { max_rows: 64, max_outs: 64, max_segments: 2 };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    let engine = start_engine(&graph, limits, spec, |_| EngineConfig {
        context: 512,
        // Not quite six pages of the device, padding included.
        cache_bytes: 6 * page_bytes() - 1,
        prefix_bytes: 2 * page_bytes(),
        ..CONFIG
    });
    let held_bytes = || engine.with(|executor: &mut Executor| executor.memory_bytes()).unwrap();
    let before = held_bytes();
    for seed in 0..5 {
        let session = engine.open_session();
        assert_eq!(start(&engine, prompt(300, seed), &limit(5), Some(session)).count(), 5);
    }
    // Scratch memory of a program may grow as well, by less than a page.
    assert_eq!((held_bytes() - before) / page_bytes(), 5);
}

#[test]
pub fn the_youngest_request_waits_when_pages_run_out() {
    // Four pages, and two texts that come to need three each; with kept prefixes and without.
    let prompts = [prompt(240, 1), prompt(250, 2)];
    let alone = engine_for(&[None], KvType::F32, 1024, 512, 1, 0, 1);
    let expected = prompts.clone().map(|prompt| ids(&mut start(&alone, prompt, &limit(290), None)));
    for prefix_bytes in [0, 1 << 20] {
        let engine = engine_for(&[None], KvType::F32, 1024, 512, 2, prefix_bytes, 1);
        let mut streams = Vec::new();
        while_held(&engine, || {
            streams.extend(prompts.clone().map(|prompt| start(&engine, prompt, &limit(290), None)));
        });
        for (stream, expected) in streams.iter_mut().zip(&expected) {
            assert_eq!(&ids(stream), expected);
        }
        let preemptions: Vec<_> = streams.iter().map(|stream| stream.metrics().preemptions).collect();
        assert_eq!(preemptions, [0, 1]);
    }
}

#[test]
pub fn a_request_that_alone_does_not_fit_fails() {
    // One page for texts that want two.
    let graph = Arc::new(graph(&[None]));
    let limits = ProgramLimits { max_rows: 64, max_outs: 64, max_segments: 2 };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    let engine = start_engine(&graph, limits, spec, |_| EngineConfig { cache_bytes: page_bytes(), ..CONFIG });
    let large = engine_of(&[None], KvType::F32, 1024, 64, 1, 0);
    for seed in 0..2 {
        let expected = ids(&mut start(&large, prompt(200, seed), &limit(100), None));
        let mut said = Vec::new();
        let mut error = None;
        for fragment in start(&engine, prompt(200, seed), &limit(100), None) {
            match fragment {
                Ok(fragment) => said.extend(fragment.token.map(|token| token.id)),
                Err(failure) => error = Some(failure),
            }
        }
        assert_eq!(error, Some(EngineError::CacheFull { pages: 1, budget_bytes: page_bytes() }));
        assert_eq!(said, expected[..57], "the tokens before are those of a request with enough pages");
        // A short one goes on to be served.
        assert_eq!(start(&engine, prompt(9, seed), &limit(5), None).count(), 5);
    }
}

#[test]
pub fn a_sequence_keeps_its_id() {
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
