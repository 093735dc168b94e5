//! Requests in any company, order and shortage have the text that they have alone; and the queue in front of them.

use std::collections::HashMap;
use std::sync::Arc;

use brasa_engine::{
    Engine, EngineConfig, EngineError, FinishReason, GenerateOptions, PlainIds, Request, TokenStream,
};
use brasa_graph::device::{KvPoolSpec, KvType, ProgramLimits};
use brasa_graph::sampling::SamplingParams;
use brasa_graph::testing::Random;

use super::{
    CONFIG, LAYERS, engine_of, graph, ids, limit, page_bytes, prompt, start, start_engine, while_held,
};

/// An engine over `windows` of steps of `chunk` rows.
fn sized(windows: &[Option<usize>], chunk: usize, config: EngineConfig) -> Engine {
    let graph = Arc::new(graph(windows));
    let limits = ProgramLimits { max_rows: chunk, max_outs: chunk, max_segments: config.max_sequences };
    let spec = KvPoolSpec { groups: graph.cache_groups(), dtype: KvType::F32 };
    start_engine(&graph, limits, spec, |_| config)
}

/// Prompts of three families, whose members begin with the same pages.
fn family_prompt(family: usize, member: usize) -> Vec<u32> {
    [prompt(250 * family, family), prompt(20 + 35 * member, 7 + member)].concat()
}

fn sampled(seed: usize, tokens: usize, priority: i32) -> GenerateOptions {
    let temperature = if seed.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = SamplingParams { temperature, seed: seed as u64, ..SamplingParams::default() };
    GenerateOptions { sampling, priority, ..limit(tokens) }
}

#[test]
pub fn random_schedules_give_everyone_the_text_that_it_has_alone() {
    const LONGEST: usize = 300;
    let sweep = std::env::var_os("BRASA_SWEEPS").is_some_and(|value| value != "0");
    let mut alone = HashMap::new();
    let quiet = [&[None][..], LAYERS].map(|windows| engine_of(windows, KvType::F32, 1024, 512, 1, 0));
    let mut preemptions = 0;
    for seed in 0..if sweep { 200 } else { 4 } {
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
        let engine = sized([&[None][..], LAYERS][layers], 5 + random.below(300), config);
        let mut running: Vec<(usize, usize, usize, TokenStream)> = Vec::new();
        let mut ended = Vec::new();
        for _ in 0..7 {
            let (family, member, reads) = (random.below(3), random.below(2), random.below(20));
            let tokens = if random.below(3) == 0 { LONGEST } else { 1 + random.below(30) };
            let options = sampled(member, tokens, random.below(3) as i32);
            let read_behind = GenerateOptions { run_ahead: 1 + random.below(200), ..options };
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
        }
    }
    assert!(preemptions > 0, "no schedule met a shortage");
}

#[test]
pub fn higher_priorities_are_served_first() {
    let engine = sized(LAYERS, 64, EngineConfig { max_sequences: 1, ..CONFIG });
    let mut streams = Vec::new();
    while_held(&engine, || {
        let options = [0, -1, 5].map(|priority| GenerateOptions { priority, ..limit(20) });
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
    assert_eq!(cached.collect::<Vec<_>>(), [0, 512, 512, 0]);
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
            decoder: Box::new(PlainIds),
            session: None,
            mask: None,
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
