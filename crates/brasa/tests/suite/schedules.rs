//! Random requests on the trained model: alone, together, speculated, cancelled beside, preempted, and resumed from a file,
//! they say the same, bit for bit.

use std::io::Cursor;
use std::ops::ControlFlow;

use brasa::sampling::{Distribution, Logprobs};
use brasa::{GenerateOptions, LoadOptions, Model, SamplingParams, Session, Speculation, TokenStream};
use brasa_fuzz::{Rng, sweep_times};
use brasa_golden::folder;

fn model(cache_bytes: Option<u64>, sequences: usize, chunk: usize) -> Model {
    let options = LoadOptions {
        context: Some(1024),
        threads: Some(1),
        deterministic: true,
        chunk: Some(chunk),
        max_sequences: Some(sequences),
        cache_bytes,
        ..LoadOptions::default()
    };
    Model::load(folder("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf"), &options).unwrap()
}

fn prompt(family: usize, length: usize) -> Vec<u32> {
    (0..length).map(|index| (300 + (index * index * 7 + index * 31 + family * 101) % 3000) as u32).collect()
}

fn options(kind: usize, tokens: usize) -> GenerateOptions {
    let sampling = SamplingParams {
        temperature: [0.0, 0.8][kind % 2],
        repeat_penalty: [1.0, 1.1][kind / 2 % 2],
        seed: kind as u64,
        logprobs: Some(Logprobs { top: 0, of: Distribution::Raw }),
        ..SamplingParams::default()
    };
    GenerateOptions { sampling, max_tokens: Some(tokens), ignore_eos: true, ..GenerateOptions::default() }
}

/// Ids, each with the bits of its log-probability.
fn said(stream: TokenStream) -> Vec<(u32, u32)> {
    let tokens = stream.filter_map(|fragment| fragment.unwrap().token);
    tokens.map(|token| (token.id, token.logprob.unwrap().to_bits())).collect()
}

fn carried_over(session: &Session, to: &Model) -> Option<Session> {
    let mut file = Vec::new();
    session.write_to(&mut file, |_| ControlFlow::Continue(())).unwrap();
    // Requests that run there may leave no room.
    to.read_session(&mut Cursor::new(file), |_| ControlFlow::Continue(())).ok()
}

#[test]
fn random_requests_say_what_they_say_alone() {
    let alone = model(None, 1, 512);
    // Room for two contexts of four pages.
    let page = alone.engine().config().cache_bytes / 8;
    let mut carried = 0;
    for seed in 0..(15 * sweep_times()).max(1) {
        let rng = &mut Rng::new(seed);
        let models = [0, 1].map(|_| {
            let budget = Some(page * (4 + rng.below(3)) as u64);
            model(budget, 2 + rng.below(3), 16 + rng.below(200))
        });
        let mut talks: Vec<_> = (0..3)
            .map(|kind| {
                // Half of the prompts almost fill a page, so that their answers ask for another one.
                let length = if rng.below(2) == 0 { 240 + rng.below(16) } else { 100 + rng.below(300) };
                (models[kind % 2].session(), prompt(kind % 2, length), kind + seed as usize)
            })
            .collect();
        for _ in 0..2 {
            let mut running = Vec::new();
            let mut others = Vec::new();
            for (session, text, kind) in &talks {
                let tokens = 1 + rng.below(24);
                let mut options = options(*kind, tokens);
                if rng.below(2) == 0 {
                    options.speculation = Some(Speculation { adaptive: false, ..Speculation::LOOKUP });
                }
                others
                    .push(models[rng.below(2)].generate_ids(prompt(5, 245), &self::options(1, 20)).unwrap());
                running.push((tokens, session.generate_ids(text.clone(), &options).unwrap()));
                if rng.below(2) == 0 {
                    others.swap_remove(rng.below(others.len()));
                }
            }
            for ((tokens, stream), (_, text, kind)) in running.into_iter().zip(&mut talks) {
                let expected = said(alone.generate_ids(text.clone(), &options(*kind, tokens)).unwrap());
                let found = said(stream);
                assert_eq!(found, expected, "schedule {seed}, kind {kind}");
                text.extend(found.iter().map(|(id, _)| id));
                text.extend(prompt(9, 1 + rng.below(30)));
            }
            for (session, _, _) in &mut talks {
                if rng.below(2) == 0
                    && let Some(loaded) = carried_over(session, &models[rng.below(2)])
                {
                    *session = loaded;
                    carried += 1;
                }
            }
        }
    }
    println!("{carried} sessions carried over");
    assert!(carried > 0, "no session went through a file");
}

#[test]
fn requests_that_outgrow_the_cache_say_what_they_say_alone() {
    let alone = model(None, 1, 512);
    // Four pages for two texts that come to need three each.
    let page = alone.engine().config().cache_bytes / 8;
    let crowded = model(Some(4 * page), 2, 512);
    let prompts = [prompt(0, 240), prompt(1, 250)];
    let options = options(1, 290);
    let streams = prompts.clone().map(|prompt| crowded.generate_ids(prompt, &options).unwrap());
    for (stream, prompt) in streams.into_iter().zip(prompts) {
        assert_eq!(said(stream), said(alone.generate_ids(prompt, &options).unwrap()));
    }
    assert_eq!(crowded.engine().stats().preemptions, 1);
}
