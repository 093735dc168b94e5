//! Requests in any company, order and shortage have the text that they have alone; and the queue in front of them.

use std::collections::HashMap;
use std::sync::Arc;

use brasa_engine::{
    Engine, EngineConfig, EngineError, FinishReason, GenerateOptions, PlainIds, ReadRequest, ReadValue,
    Request, RequestOptions, SessionId, TokenStream,
};
use brasa_fuzz::sweep_times;
use brasa_graph::device::{KvPoolSpec, KvType, ProgramLimits};
use brasa_graph::sampling::SamplingParams;
use brasa_graph::testing::Random;

use super::draft_models::{Small, drafted_engine};
use super::snapshots::{bring_back, keep};
use super::{
    CONFIG, DEVICE, EAGER, LAYERS, engine_of, graph, ids, limit, page_bytes, prompt, start, start_engine,
    while_held,
};

/// An engine over `windows` of steps of `chunk` rows.
pub(super) fn sized(windows: &[Option<usize>], chunk: usize, config: EngineConfig) -> Engine {
    let graph = Arc::new(graph(windows));
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: config.max_sequences };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    start_engine(&graph, limits, spec, |_| config)
}

/// Prompts of three families, whose members begin with the same pages.
fn family_prompt(family: usize, member: usize) -> Vec<u32> {
    [prompt(250 * family, family), prompt(20 + 35 * member, 7 + member)].concat()
}

fn sampled(seed: usize, tokens: usize, priority: i32) -> GenerateOptions {
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = SamplingParams { temperature, seed: seed as u64, ..SamplingParams::default() };
    GenerateOptions {
        sampling,
        request: RequestOptions { priority, ..RequestOptions::default() },
        ..limit(tokens)
    }
}

#[test]
pub fn random_schedules_give_everyone_the_text_that_it_has_alone() {
    const LONGEST: usize = 300;
    let mut alone = HashMap::new();
    let quiet = [&[None][..], LAYERS].map(|windows| engine_of(windows, KvType::F32, 1024, 512, 1, 0));
    let (mut preemptions, mut accepted) = (0, 0);
    for seed in 0..sweeps(4) {
        let random = &mut Random::new(seed);
        let layers = random.below(2);
        let config = EngineConfig {
            max_sequences: 1 + random.below(4),
            mixed_prompt_rows: 1 + random.below(60),
            // The longest text needs four pages of the whole text, and three of a window.
            cache_bytes: (4 + 3 * layers + random.below(6)) as u64 * page_bytes(),
            prefix_bytes: random.below(2) as u64 * 4 * page_bytes(),
            ..CONFIG
        };
        let (windows, chunk) = ([&[None][..], LAYERS][layers], 5 + random.below(300));
        // A draft model that agrees with one of the two, and has less room than the texts.
        let small = Small { windows: &[None], context: 700, pages: 6 };
        let engine = if seed.is_multiple_of(2) {
            drafted_engine(windows, chunk, small, None, config)
        } else {
            sized(windows, chunk, config)
        };
        let mut running: Vec<(usize, usize, usize, TokenStream)> = Vec::new();
        let mut ended = Vec::new();
        let mut reading = Vec::new();
        for _ in 0..7 {
            if random.below(3) == 0 {
                let text = family_prompt(random.below(3), random.below(2));
                let first = random.below(text.len());
                let options = RequestOptions {
                    priority: random.below(3) as i32,
                    run_ahead: 1 + random.below(30),
                    ..RequestOptions::default()
                };
                let read = |engine: &Engine, options| {
                    engine
                        .read(ReadRequest { tokens: text.clone(), value: ReadValue::Logits, first, options })
                        .unwrap()
                };
                let expected = read(&quiet[layers], RequestOptions::default()).map(Result::unwrap);
                reading.push((expected.collect::<Vec<_>>(), read(&engine, options)));
            }
            let (family, member, reads) = (random.below(3), random.below(2), random.below(20));
            let tokens = if random.below(3) == 0 { LONGEST } else { 1 + random.below(30) };
            let options = sampled(member, tokens, random.below(3) as i32);
            let speculation = Some(EAGER).filter(|_| random.below(2) == 0);
            let request = RequestOptions { run_ahead: 1 + random.below(200), ..options.request };
            let read_behind = GenerateOptions { request, speculation, ..options };
            let stream = start(&engine, family_prompt(family, member), &read_behind, None);
            running.push((family, member, tokens, stream));
            // Some time passes: one of the streams is read a little, or dropped.
            let place = random.below(running.len());
            if random.below(5) == 0 {
                running.swap_remove(place);
            } else {
                let (family, member, tokens, mut stream) = running.swap_remove(place);
                let begin = ids(&mut stream.by_ref().take(reads));
                ended.push((family, member, tokens, begin, stream));
            }
        }
        ended.extend(
            running
                .into_iter()
                .map(|(family, member, tokens, stream)| (family, member, tokens, Vec::new(), stream)),
        );
        for (family, member, tokens, mut text, mut stream) in ended {
            text.extend(ids(&mut stream));
            let expected = alone.entry((layers, family, member)).or_insert_with(|| {
                let options = sampled(member, LONGEST, 0);
                ids(&mut start(&quiet[layers], family_prompt(family, member), &options, None))
            });
            assert_eq!(text, expected[..tokens], "schedule {seed}, family {family}, member {member}");
            assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
            preemptions += stream.metrics().preemptions;
            accepted += stream.metrics().accepted_tokens;
        }
        for (expected, rows) in reading {
            assert!(rows.map(Result::unwrap).eq(expected), "schedule {seed}: logits differ");
        }
    }
    let tried = sweeps(4);
    assert!(preemptions > 0 || tried == 1, "no schedule met a shortage");
    assert!(accepted > 0 || tried == 1, "no draft was drawn");
}

/// Conversations go on turn by turn, in any company. Between two turns a text may be read out of the engine and written into
/// another session or another engine, be rolled back, give way or be left alone. Its tokens are those of the undisturbed
/// conversation, and of the whole text in one request.
#[test]
pub fn random_conversations_resume_as_if_never_interrupted() {
    const TURNS: usize = 4;
    const WHOLE: usize = 700;
    let (mut preemptions, mut resumed, mut accepted, mut refused) = (0, 0, 0, 0);
    let (mut moved, mut gone) = (0, 0);
    let quiet = [&[None][..], LAYERS].map(|windows| engine_of(windows, KvType::F32, 1024, 512, 1, 0));
    let mut fresh = HashMap::new();
    for seed in 0..sweeps(2) {
        let random = &mut Random::new(1000 + seed);
        let layers = random.below(2);
        let new_engine = |random: &mut Random| {
            let config = EngineConfig {
                max_sequences: 2 + random.below(3),
                mixed_prompt_rows: 1 + random.below(60),
                cache_bytes: (4 + 3 * layers + random.below(2)) as u64 * page_bytes(),
                prefix_bytes: random.below(2) as u64 * 3 * page_bytes(),
                ..CONFIG
            };
            sized([&[None][..], LAYERS][layers], 5 + random.below(200), config)
        };
        let engines = [new_engine(random), new_engine(random)];
        // Each conversation lives in a session of one of the engines.
        let mut talks: Vec<Talk> = (0..3)
            .map(|number| {
                let home = random.below(2);
                let member = random.below(2);
                let text = family_prompt(random.below(2), member);
                Talk { home, session: engines[home].open_session(), text, member, turn: 0, begun: number }
            })
            .collect();
        for _ in 0..TURNS {
            let (mut running, mut others) = (Vec::new(), Vec::new());
            for (number, talk) in talks.iter_mut().enumerate() {
                let tokens = 1 + random.below(40);
                let mut options = sampled(talk.member, tokens, random.below(3) as i32);
                options.speculation = Some(EAGER).filter(|_| random.below(3) == 0);
                options.request.run_ahead = 1 + random.below(60);
                let engine = &engines[talk.home];
                // Others come and go meanwhile.
                if random.below(2) == 0 {
                    let other = family_prompt(random.below(3), random.below(2));
                    let mut other = start(engine, other, &sampled(1, 1 + random.below(300), 0), None);
                    if random.below(2) == 0 {
                        ids(&mut other.by_ref().take(random.below(5)));
                    }
                    others.push(other);
                }
                let stream = start(engine, talk.text.clone(), &options, Some(talk.session));
                running.push((number, tokens, stream));
            }
            while !running.is_empty() {
                let (number, tokens, mut stream) = running.swap_remove(random.below(running.len()));
                let answer = ids(&mut stream);
                let talk = &mut talks[number];
                let expected = fresh.entry((layers, talk.member, talk.text.clone())).or_insert_with(|| {
                    let options = sampled(talk.member, 40, 0);
                    ids(&mut start(&quiet[layers], talk.text.clone(), &options, None))
                });
                assert_eq!(answer, expected[..tokens], "conversations {seed}, {}", talk.begun);
                assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
                preemptions += stream.metrics().preemptions;
                accepted += stream.metrics().accepted_tokens;
                resumed += usize::from(talk.turn > 0 && stream.metrics().cached_tokens > 0);
                talk.text.extend(answer);
                talk.turn += 1;
            }
            for talk in &mut talks {
                talk.text.extend(prompt(random.below(60), talk.turn));
                talk.text.truncate(WHOLE);
                match random.below(4) {
                    0 => {
                        let to = random.below(2);
                        let kept = keep(&engines[talk.home], talk.session).unwrap();
                        let session = engines[to].open_session();
                        match bring_back(&engines[to], session, &kept) {
                            Ok(()) => {
                                // A request that still runs may have taken the pages of the idle session meanwhile.
                                let there = keep(&engines[to], session).unwrap();
                                gone += usize::from(there.0.tokens.is_empty() && !kept.0.tokens.is_empty());
                                assert!(there == kept || there.0.tokens.is_empty(), "{seed}");
                                moved += 1;
                                engines[talk.home].close_session(talk.session);
                                (talk.home, talk.session) = (to, session);
                            }
                            // Running requests may leave no room. The text is then where it was.
                            Err(EngineError::CacheFull { .. }) => refused += 1,
                            Err(error) => panic!("{seed}: {error}"),
                        }
                    }
                    1 => {
                        let length = random.below(talk.text.len());
                        engines[talk.home].truncate_session(talk.session, length).unwrap();
                    }
                    _ => {}
                }
            }
        }
    }
    println!(
        "{preemptions} preemptions, {resumed} turns resumed, {accepted} drafts drawn, {moved} moved, {gone} of these gone, \
         {refused} refused"
    );
    assert!(gone < moved, "{gone} of {moved} texts that moved were gone at once");
    assert!(resumed > 0 && accepted > 0, "{resumed} turns resumed, {accepted} drafts drawn");
    assert!(preemptions > 0 || sweep_times() == 0, "no conversation met a shortage");
}

/// A conversation.
struct Talk {
    home: usize,
    session: SessionId,
    text: Vec<u32>,
    member: usize,
    turn: usize,
    begun: usize,
}

/// How many schedules are tried on the device of this thread: a few, and far more in sweeps.
fn sweeps(few: u64) -> u64 {
    let device = DEVICE.with_borrow(|backend| backend.info().name);
    match (sweep_times(), device.as_str()) {
        (0, "cpu") => 1,
        (0, _) => few,
        (times, "mock") => 250 * times,
        (times, _) => 40 * times,
    }
}

#[test]
pub fn higher_priorities_are_served_first() {
    let engine = sized(LAYERS, 64, EngineConfig { max_sequences: 1, ..CONFIG });
    let mut streams = Vec::new();
    while_held(&engine, || {
        let options = [0, -1, 5].map(|priority| GenerateOptions {
            request: RequestOptions { priority, ..RequestOptions::default() },
            ..limit(20)
        });
        streams.extend(options.map(|options| start(&engine, prompt(30, 1), &options, None)));
    });
    let waited = streams.iter_mut().map(|stream| {
        assert_eq!(stream.by_ref().count(), 20);
        stream.metrics().queue_time
    });
    let waited: Vec<_> = waited.collect();
    assert!(waited[2] < waited[0] && waited[0] < waited[1], "{waited:?}");
}

#[test]
pub fn a_prompt_that_is_being_computed_is_computed_once() {
    let config = EngineConfig { max_sequences: 3, prefix_bytes: 1 << 20, ..CONFIG };
    let engine = sized(&[None, Some(256)], 1000, config);
    let long = prompt(600, 1);
    // Only the window of the whole prompt is kept, so a text that parts from it earlier cannot wait for it.
    let early = [&long[..300], &prompt(20, 9)].concat();
    let mut streams = Vec::new();
    while_held(&engine, || {
        let texts = [&long, &long, &[&long[..550], &prompt(20, 9)].concat(), &early];
        streams.extend(texts.map(|text| start(&engine, text.clone(), &limit(5), None)));
    });
    let cached = streams.iter_mut().map(|stream| {
        assert_eq!(stream.by_ref().count(), 5);
        stream.metrics().cached_tokens
    });
    assert_eq!(cached.collect::<Vec<_>>(), [0, 599, 550, 0]);
}

#[test]
pub fn a_full_queue_refuses_requests_until_one_is_served() {
    let engine = sized(LAYERS, 64, EngineConfig { max_sequences: 1, max_waiting: 2, ..CONFIG });
    let mut streams = Vec::new();
    while_held(&engine, || {
        streams.extend([0, 1].map(|seed| start(&engine, prompt(9, seed), &limit(4), None)));
        let request = Request {
            prompt: prompt(9, 2),
            options: limit(4),
            end_ids: Vec::new(),
            decoder: Box::new(PlainIds),
            session: None,
        };
        assert_eq!(engine.generate(request).err(), Some(EngineError::QueueFull { waiting: 2 }));
    });
    assert!(streams.into_iter().all(|stream| stream.count() == 4));
    // A request that is cancelled while it waits makes room as well.
    while_held(&engine, || drop([0, 1].map(|seed| start(&engine, prompt(9, seed), &limit(4), None))));
    // Work runs behind the commands that were sent before it.
    engine.with(|_| ()).unwrap();
    let both = [0, 1].map(|seed| start(&engine, prompt(9, seed), &limit(4), None));
    assert!(both.into_iter().all(|stream| stream.count() == 4));
}
