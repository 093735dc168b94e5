//! Adapters that come and go while texts run: each text is that of its own adapters alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brasa_engine::{
    AdapterRows, CacheScope, Engine, EngineConfig, EngineError, EngineParts, GenerateOptions, RequestOptions,
    TokenStream, pages_bytes,
};
use brasa_formats::Tensor;
use brasa_graph::device::{KvPoolSpec, KvType, Precision, ProgramLimits, WeightSet};
use brasa_graph::pass::{LowRank, add_low_rank_bank};
use brasa_graph::testing::Random;
use brasa_graph::{Graph, Weight, WeightId, WeightPart};

use super::{CONFIG, DEVICE, LAYERS, graph, ids, limit, prompt, start};

const LIMITS: ProgramLimits = ProgramLimits { max_rows: 24, max_outs: 24, max_segments: 3 };

/// An adapter of every linear layer but the head, by its number.
fn adapter(number: u64) -> Vec<LowRank> {
    let mut random = Random::new(number);
    let base = graph(LAYERS);
    let rank = 1 + number as usize % 5;
    let weights = base
        .weights()
        .iter()
        .zip(0..)
        .filter(|(weight, _)| weight.name.starts_with("qkv") || weight.name.starts_with("out"));
    weights
        .map(|(weight, id)| {
            let mut matrix = |shape: [usize; 2]| {
                let values: Vec<f32> = (0..shape[0] * shape[1]).map(|_| random.normal()).collect();
                let part = WeightPart::whole(Tensor::of_floats("t", shape.to_vec(), &values));
                Weight::new("t", &shape, vec![part]).unwrap()
            };
            let (a, b) = (matrix([rank, weight.row_len()]), matrix([weight.rows(), rank]));
            LowRank { weight: WeightId(id), rows: 0..weight.rows(), a, b, scale: 0.4, gain: None }
        })
        .collect()
}

fn graph_of(bank: &[u64]) -> Arc<Graph> {
    let base = graph(LAYERS);
    if bank.is_empty() {
        return Arc::new(base);
    }
    let bank: Vec<Vec<LowRank>> = bank.iter().map(|&number| adapter(number)).collect();
    Arc::new(add_low_rank_bank(&base, &bank).unwrap())
}

/// An engine whose bank changes.
struct Changing {
    engine: Engine,
    rows: Arc<AdapterRows>,
    weights: Arc<dyn WeightSet>,
    bank: Vec<u64>,
}

impl Changing {
    fn new(bank: &[u64], prefix_bytes: u64) -> Self {
        let graph = graph_of(bank);
        let rows = Arc::new(AdapterRows::new(bank, &[]).unwrap());
        let (weights, engine) = DEVICE.with_borrow(|device| {
            let spec = KvPoolSpec::of(&graph, KvType::F32);
            let weights = device.weight_set(Precision::Reference);
            weights.add(&graph, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
            let program = device.compile(graph, Arc::clone(&weights), LIMITS.with(KvType::F32)).unwrap();
            let pool = device.kv_pool(spec).unwrap();
            let cache_bytes = pages_bytes(&*pool, CONFIG.context) * 6;
            let config = EngineConfig { max_sequences: 3, cache_bytes, prefix_bytes, ..CONFIG };
            let adapter_rows = Some(Arc::clone(&rows));
            let parts = EngineParts { adapter_rows, ..EngineParts::new(program, pool) };
            (weights, Engine::start(parts, config).unwrap())
        });
        Self { engine, rows, weights, bank: bank.to_vec() }
    }

    /// Goes on with another bank.
    fn change(&mut self, bank: Vec<u64>) {
        let graph = graph_of(&bank);
        self.weights.add(&graph, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let weights = Arc::clone(&self.weights);
        let program =
            DEVICE.with_borrow(|device| device.compile(graph, weights, LIMITS.with(KvType::F32)).unwrap());
        self.engine.replace_program(program, None, bank.clone()).unwrap();
        self.bank = bank;
    }

    /// Waits until no request has an adapter: one whose reader has gone may still run.
    fn seal(&self, adapter: u64) {
        let begun = Instant::now();
        while !self.rows.seal(adapter, Duration::ZERO) {
            self.rows.wait_for_an_end(Duration::from_millis(50));
            assert!(begun.elapsed().as_secs() < 60, "the adapter is in use for ever");
        }
    }

    /// Starts a text with one adapter, or none for 0.
    fn start(&self, prompt: Vec<u32>, options: &GenerateOptions, adapter: u64) -> TokenStream {
        if adapter != 0 {
            self.rows.insert(adapter, &[(adapter, 1.0)]).unwrap();
        }
        let cache_scope = CacheScope { adapter, ..CacheScope::default() };
        start(
            &self.engine,
            prompt,
            &GenerateOptions {
                request: RequestOptions { cache_scope, ..RequestOptions::default() },
                ..options.clone()
            },
            None,
        )
    }
}

/// Requests with and without adapters arrive, are cancelled or read on, while adapters are brought, exchanged and taken away.
#[test]
pub fn random_banks_give_everyone_the_text_that_it_has_alone() {
    const LONGEST: usize = 60;
    let mut alone: HashMap<(u64, usize), Vec<u32>> = HashMap::new();
    let (mut changes, mut taken) = (0, 0);
    for seed in 0..8 {
        let random = &mut Random::new(seed);
        let mut changing = Changing::new(&[], [0, 1 << 20][random.below(2)]);
        let mut running: Vec<(u64, usize, Vec<u32>, TokenStream)> = Vec::new();
        let mut next = 1;
        for _ in 0..16 {
            match random.below(5) {
                0 => {
                    let bank = [&changing.bank[..], &[next]].concat();
                    next += 1;
                    changing.change(bank);
                    changes += 1;
                }
                // Whoever no running text has may go; what a running text has stays beside its follower.
                1 if !changing.bank.is_empty() => {
                    let place = random.below(changing.bank.len());
                    let gone = changing.bank[place];
                    let mut bank = changing.bank.clone();
                    if running.iter().all(|(adapter, ..)| *adapter != gone) {
                        changing.seal(gone);
                        bank.remove(place);
                        taken += 1;
                    }
                    bank.insert(random.below(bank.len() + 1), next);
                    next += 1;
                    changing.change(bank);
                }
                2 if !running.is_empty() => drop(running.swap_remove(random.below(running.len()))),
                _ => {
                    let choice = random.below(changing.bank.len() + 1);
                    let adapter = choice.checked_sub(1).map_or(0, |place| changing.bank[place]);
                    let member = random.below(3);
                    let stream = changing.start(prompt(20 + 90 * member, member), &limit(LONGEST), adapter);
                    running.push((adapter, member, Vec::new(), stream));
                }
            }
            if !running.is_empty() {
                let place = random.below(running.len());
                let (.., text, stream) = &mut running[place];
                text.extend(ids(&mut stream.by_ref().take(random.below(30))));
            }
        }
        for (adapter, member, mut text, mut stream) in running {
            text.extend(ids(&mut stream));
            let expected = alone.entry((adapter, member)).or_insert_with(|| {
                let bank: &[u64] = if adapter == 0 { &[] } else { &[adapter] };
                let quiet = Changing::new(bank, 0);
                ids(&mut quiet.start(prompt(20 + 90 * member, member), &limit(LONGEST), adapter))
            });
            assert_eq!(&text, expected, "seed {seed}, adapter {adapter}, text {member}");
        }
    }
    assert!(changes > 3 && taken > 3, "{changes} adapters came, {taken} went");
    let mut texts: Vec<&Vec<u32>> =
        alone.iter().filter(|((_, member), _)| *member == 0).map(|(_, text)| text).collect();
    texts.sort_unstable();
    texts.dedup();
    assert!(texts.len() > 3, "adapters say something of their own");
}

/// An adapter in use is not sealed, and a sealed one is refused.
#[test]
pub fn an_adapter_is_sealed_when_its_last_request_has_ended() {
    let changing = Changing::new(&[7], 0);
    let stream = changing.start(
        prompt(20, 1),
        &GenerateOptions {
            request: RequestOptions { run_ahead: 1, ..RequestOptions::default() },
            ..limit(900)
        },
        7,
    );
    assert!(!changing.rows.seal(7, Duration::ZERO), "a request has it");
    drop(stream);
    assert!(!changing.rows.seal(7, Duration::from_hours(1)), "somebody has just named it");
    changing.seal(7);
    let cache_scope = CacheScope { adapter: 7, ..CacheScope::default() };
    let options =
        GenerateOptions { request: RequestOptions { cache_scope, ..RequestOptions::default() }, ..limit(3) };
    let request = brasa_engine::Request {
        prompt: prompt(3, 1),
        options,
        end_ids: Vec::new(),
        decoder: Box::new(brasa_engine::PlainIds),
        session: None,
    };
    let refused = changing.engine.generate(request).map(drop).unwrap_err();
    assert!(matches!(&refused, EngineError::Options(what) if what.contains("is not known")), "{refused}");
    // Named again, it is there again.
    assert_eq!(ids(&mut changing.start(prompt(20, 1), &limit(3), 7)).len(), 3);
}

/// However many mixtures are named, another one can be; those that requests have, and the default, stay.
#[test]
pub fn mixtures_that_no_request_has_give_way() {
    let changing = Changing::new(&[7], 0);
    let expected = ids(&mut changing.start(prompt(20, 1), &limit(300), 7));
    let mut running = changing.start(
        prompt(20, 1),
        &GenerateOptions {
            request: RequestOptions { run_ahead: 1, ..RequestOptions::DEFAULT },
            ..limit(300)
        },
        7,
    );
    changing.rows.insert(8, &[(7, 0.5)]).unwrap();
    changing.rows.set_plain(8).unwrap();
    for number in 100..20_000 {
        changing.rows.insert(number, &[(7, number as f32)]).unwrap();
    }
    assert!(changing.rows.of(100).is_err() && changing.rows.of(19_999).is_ok());
    assert_eq!(&changing.rows.of(8).unwrap()[..], [0.5]);
    let mut beside = changing.start(prompt(20, 1), &limit(9), 0);
    assert_eq!(ids(&mut beside).len(), 9);
    assert_eq!(ids(&mut running), expected);
}

/// The default scope can stand for a mixture; texts that were cached before are not its texts.
#[test]
pub fn the_default_scope_follows_its_mixture() {
    let changing = Changing::new(&[3], 1 << 20);
    let text = |adapter| {
        let mut stream = changing.start(
            prompt(300, 1),
            &GenerateOptions {
                request: RequestOptions { cache_prompt: Some(true), ..RequestOptions::default() },
                ..limit(20)
            },
            adapter,
        );
        (ids(&mut stream), stream.metrics().cached_tokens)
    };
    let (base, _) = text(0);
    assert_eq!(text(0), (base.clone(), 299));
    let (adapted, _) = text(3);
    assert_ne!(adapted, base);
    changing.rows.set_plain(3).unwrap();
    assert_eq!(text(0), (adapted, 299));
    let refused = changing.rows.set_plain(9).unwrap_err();
    assert!(refused.to_string().contains("is not known"), "{refused}");
}
