//! Tokens that the device draws, against those of the host.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_cuda::CudaBackend;
use brasa_graph::device::{
    Backend, DrawInputs, Drawn, KvPool, KvPoolSpec, KvType, Precision, Program, ProgramLimits,
};
use brasa_graph::op::Binary;
use brasa_graph::sampling::{
    Distribution, DrawRules, Dry, DryBreakers, Logprobs, Row, Sampler, SamplingOrder, SamplingParams, Stage,
    exp_nonpositive, tree_sum,
};
use brasa_graph::step::{GivenValues, Outs, Segment, SequenceId, Step};
use brasa_graph::testing::Random;
use brasa_graph::{Builder, DType, Dim, Graph, Input};

use crate::device::{device, full_or_few};

/// Rows of a step.
const ROWS: usize = 12;

/// Logits are quotients of what is given, since infinite numbers cannot be.
fn graph(vocab_size: usize) -> Arc<Graph> {
    let mut g = Builder::new();
    let x = g.given("x", DType::F32, Dim::ROWS, &[vocab_size]);
    let divisors = g.given("divisors", DType::F32, Dim::ROWS, &[vocab_size]);
    let rows = g.input(Input::OutRows);
    let quotients = g.apply(Binary::Div, &[x, divisors])[0];
    let logits = g.select_rows(quotients, rows);
    Arc::new(g.finish(&[logits]).unwrap())
}

fn one_of<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.below(values.len())]
}

/// Logits of usual and unusual spreads, with ties, forbidden tokens and numbers that are none.
fn logits(random: &mut Random, vocab_size: usize) -> Vec<f32> {
    let scale = one_of(random, &[0.01, 1.0, 3.0, 30.0, 1e30]);
    let steps = one_of(random, &[4.0, 1e4]);
    let mut z: Vec<f32> =
        (0..vocab_size).map(|_| (random.normal() * steps).round() / steps * scale).collect();
    for _ in 0..random.below(3) * vocab_size / 8 {
        z[random.below(vocab_size)] = one_of(random, &[f32::NEG_INFINITY, f32::NAN, 0.0, -0.0]);
    }
    match random.below(20) {
        0 => z.fill(f32::NEG_INFINITY),
        1 => z[vocab_size / 2] = f32::INFINITY,
        _ => {}
    }
    z
}

/// An order that has a name, or some stages in any order.
fn order(random: &mut Random) -> SamplingOrder {
    if random.below(2) == 0 {
        return one_of(random, &SamplingOrder::NAMED).1;
    }
    let mut stages: Vec<Stage> = Stage::ALL.into_iter().filter(|_| random.below(4) > 0).collect();
    if stages.contains(&Stage::TopP) {
        stages.retain(|&stage| stage != Stage::TopPOfAll);
    }
    for i in (1..stages.len()).rev() {
        stages.swap(i, random.below(i + 1));
    }
    SamplingOrder::new(&stages).unwrap()
}

fn rules(random: &mut Random, vocab_size: usize) -> DrawRules {
    let ids = |random: &mut Random| -> Vec<u32> {
        (0..random.below(9)).map(|_| random.below(vocab_size + 2) as u32).collect()
    };
    let penalties = random.below(2) == 0;
    let biases = if random.below(4) == 0 { ids(random) } else { Vec::new() };
    let reported = Logprobs { top: 2, of: Distribution::default() };
    let more = random.below(2) == 0;
    let mut rule = |values: &[f32]| if more { one_of(random, values) } else { values[0] };
    let (typical_p, top_n_sigma) = (rule(&[1.0, 0.95, 0.4, 0.0]), rule(&[0.0, 0.5, 2.0]));
    let (xtc_probability, xtc_threshold) = (rule(&[0.0, 0.5, 1.0]), rule(&[0.1, 0.0, 0.01, 0.5]));
    let (dynatemp_range, dynatemp_exponent) = (rule(&[0.0, 0.4, 6.0]), rule(&[1.0, 0.0, 2.5]));
    let dry = Dry {
        multiplier: rule(&[0.0, 0.8, 3.0]),
        base: rule(&[1.75, 1.0]),
        allowed_length: random.below(3),
        last_n: one_of(random, &[None, Some(30)]),
        breakers: DryBreakers::new([&[random.below(40) as u32][..], &[3, 5]]),
    };
    let params = SamplingParams {
        typical_p,
        top_n_sigma,
        xtc_probability,
        xtc_threshold,
        dynatemp_range,
        dynatemp_exponent,
        dry,
        logprobs: (random.below(8) == 0).then_some(reported),
        temperature: one_of(random, &[0.0, 1e-40, 0.3, 0.8, 1.0, 5.0]),
        top_k: one_of(random, &[0, 0, 1, 3, 40, 1000, 3000, usize::MAX]),
        top_p: one_of(random, &[1.0, 0.999_999_94, 0.95, 0.5, 1e-6, 0.0]),
        min_p: one_of(random, &[0.0, 0.0, 0.05, 0.6, 1.0]),
        repeat_penalty: if penalties { 1.3 } else { 1.0 },
        frequency_penalty: if penalties { 0.2 } else { 0.0 },
        presence_penalty: if penalties { -0.5 } else { 0.0 },
        repeat_last_n: one_of(random, &[None, Some(0), Some(20)]),
        logit_bias: biases
            .iter()
            .flat_map(|&id| [(id, 1.5), (id ^ 1, f32::NEG_INFINITY), (id, -0.1)])
            .collect(),
        suppressed: if random.below(4) == 0 { ids(random) } else { Vec::new() },
        seed: random.below(1 << 40) as u64,
        order: order(random),
        ..SamplingParams::default()
    };
    DrawRules::new(params).unwrap()
}

/// The ids that a grammar allows: most, few or none of them; no mask in one of two rows.
fn mask(random: &mut Random, vocab_size: usize) -> Option<Vec<u32>> {
    let allowed = one_of(random, &[0, 1, 3, vocab_size]);
    let mut words = vec![if allowed == vocab_size { u32::MAX } else { 0 }; vocab_size.div_ceil(32)];
    for _ in 0..allowed.min(100) {
        let id = random.below(vocab_size);
        words[id / 32] ^= 1 << (id % 32);
    }
    (random.below(2) == 0).then_some(words)
}

/// A program that returns the logits it is given, and a pool for it.
struct Rows {
    program: Box<dyn Program>,
    pool: Box<dyn KvPool>,
}

impl Rows {
    fn new(device: &CudaBackend, vocab_size: usize) -> Self {
        let graph = graph(vocab_size);
        let limits = ProgramLimits { max_rows: ROWS, max_outs: ROWS, max_segments: ROWS };
        let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
        let program = device.compile(Arc::clone(&graph), weights, limits.into()).unwrap();
        Self { program, pool: device.kv_pool(KvPoolSpec::of(&graph, KvType::F16)).unwrap() }
    }

    /// Draws from each row as the host does, and returns how many tokens there were.
    fn check(
        &mut self,
        rows: &[Vec<f32>],
        rules: &[DrawRules],
        masks: &[Option<Vec<u32>>],
        history: &[u32],
    ) -> usize {
        let segments = rows.iter().map(|row| {
            let mut segment = Segment::text(SequenceId(1), 0, Vec::new(), Outs::Last, Vec::new());
            segment.rows = 1;
            let infinite = |z: f32| if z > 0.0 { 1.0 } else { -1.0 };
            let whole = |&z: &f32| match z {
                _ if z.is_finite() => (z, 1.0),
                _ if z.is_nan() => (0.0, 0.0),
                _ => (infinite(z), 0.0),
            };
            let (x, divisors): (Vec<f32>, Vec<f32>) = row.iter().map(whole).unzip();
            segment.given = vec![GivenValues::F32(x.into()), GivenValues::F32(divisors.into())];
            segment
        });
        let step = Step { segments: segments.collect() };
        let draws = rules.iter().zip(masks).zip(100..);
        let draws: Vec<DrawInputs<'_>> = draws
            .map(|((rules, mask), position)| {
                let masked = mask.is_some() && !rules.params().reports_logits();
                DrawInputs { rules, position, history, masked }
            })
            .collect();
        let mut fill = |draw: usize, words: &mut [u32]| {
            words.copy_from_slice(masks[draw].as_ref().expect("the mask of a row that has one"));
            Ok(())
        };
        let found = self.program.run_drawn(&step, &mut *self.pool, &draws, &mut fill).unwrap();
        let found = found.expect("the device draws");
        assert_eq!(found.len(), rows.len());
        let mut drawn = 0;
        for (((found, logits), draw), mask) in found.into_iter().zip(rows).zip(&draws).zip(masks) {
            let found = match found {
                Drawn::Token(id) => Some(id),
                Drawn::Nothing => None,
                Drawn::Logits(found) => {
                    assert!(draw.rules.params().reports_logits());
                    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                    assert!(found.len() == logits.len() && found.iter().zip(logits).all(same));
                    drawn += 1;
                    continue;
                }
            };
            let row = Row { mask: mask.as_deref(), ..Row::new(logits, draw.position, history) };
            let expected = Sampler::default().draw(draw.rules, &row);
            let expected = expected.map(|draw| draw.token).ok();
            assert_eq!(found, expected, "{} tokens, {:?}", row.logits.len(), draw.rules.params());
            drawn += usize::from(found.is_some());
        }
        drawn
    }
}

#[test]
fn tokens_are_those_of_the_host() {
    let Some(device) = device() else { return };
    let mut random = Random::new(21);
    let mut drawn = 0;
    let all = [(1, 1), (150, 40), (4097, 20), (70_000, 20), (262_145, 10), (700_000, 3)];
    for &(vocab_size, times) in
        full_or_few(device, &all[..], &[(1, 1), (150, 20), (4097, 6), (70_000, 1)][..])
    {
        let mut program = Rows::new(device, vocab_size);
        for _ in 0..times {
            let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| logits(&mut random, vocab_size)).collect();
            let rules: Vec<DrawRules> = (0..ROWS).map(|_| rules(&mut random, vocab_size)).collect();
            let ids = one_of(&mut random, &[2, 40]);
            let history: Vec<u32> = (0..60).map(|_| random.below(vocab_size.min(ids)) as u32).collect();
            let masks: Vec<_> = (0..ROWS).map(|_| mask(&mut random, vocab_size)).collect();
            drawn += program.check(&rows, &rules, &masks, &history);
        }
    }
    assert!(drawn > 100, "{drawn} drawn");
}

/// If the target of top-p equals the sum of the first few tokens up to a rounding, the order of the sum decides whether one more
/// token is kept.
#[test]
fn sums_beside_the_target_of_top_p_are_those_of_the_tree() {
    let Some(device) = device() else { return };
    let mut random = Random::new(22);
    let vocab_size = 50;
    let mut program = Rows::new(device, vocab_size);
    for _ in 0..full_or_few(device, 100, 40) {
        let (mut rows, mut all_rules) = (Vec::new(), Vec::new());
        for _ in 0..ROWS {
            let z: Vec<f32> = (0..vocab_size).map(|_| random.normal() * 0.3).collect();
            let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut order: Vec<usize> = (0..vocab_size).collect();
            order.sort_by(|&a, &b| z[b].total_cmp(&z[a]));
            let sum_of_first = |count: usize| {
                let mut shares = vec![0.0; vocab_size];
                order[..count].iter().for_each(|&id| shares[id] = exp_nonpositive(z[id] - max));
                tree_sum(&shares)
            };
            let (few, top_k) = (1 + random.below(6), 20 + random.below(20));
            let params = SamplingParams {
                top_k,
                top_p: sum_of_first(few) / sum_of_first(top_k),
                seed: random.below(1 << 30) as u64,
                order: SamplingOrder::LLAMA_CPP,
                temperature: 1.0,
                ..SamplingParams::default()
            };
            all_rules.push(DrawRules::new(params).unwrap());
            rows.push(z);
        }
        assert_eq!(program.check(&rows, &all_rules, &[const { None }; ROWS], &[]), ROWS);
    }
}
