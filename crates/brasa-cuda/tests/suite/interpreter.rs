//! Steps and chains of one row on the interpreter: near the plain kernels and the reference, and the same bits however tokens are
//! chained.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_cuda::{CudaBackend, CudaOptions};
use brasa_formats::{MlxAffine, StorageFormat};
use brasa_golden::{argmax, folder, load_strictly};
use brasa_graph::Graph;
use brasa_graph::chain::{Chain, Finish, Flow, RowDraw};
use brasa_graph::device::{Backend, KvPoolSpec, KvType, Precision, ProgramLimits};
use brasa_graph::reference::ReferenceBackend;
use brasa_graph::sampling::{DrawRules, Row, Sampler, SamplingError, SamplingParams};
use brasa_graph::step::Outs;
use brasa_graph::testing::{
    Decoder, Random, Running, Sequences, Tolerance, assert_same_bits, compare, tokens,
};

use crate::device::{device, is_emulated};

/// The device, if it has an interpreter.
fn hopper() -> Option<&'static CudaBackend> {
    let found = device()?;
    if is_emulated(found) || found.device().capability != (9, 0) {
        brasa_fuzz::skipped("the interpreter of CUDA", "needs a GPU of compute capability 9.0");
        return None;
    }
    Some(found)
}

fn decoder(format: StorageFormat) -> Decoder {
    Decoder { head_dim: 64, ..Decoder::small(format) }
}

fn mixture(format: StorageFormat) -> Decoder {
    Decoder { experts: Some((6, 3)), router: Some(StorageFormat::F32), ..decoder(format) }
}

fn decoders() -> Vec<Decoder> {
    let wide = |format| Decoder {
        heads: 4,
        kv_heads: 1,
        head_dim: 128,
        hidden: 512,
        feed_forward: 1280,
        ..decoder(format)
    };
    // Products whose warps have whole rounds of 1,024 and 2,048 inputs.
    let long = |format| Decoder { hidden: 1024, feed_forward: 2048, ..decoder(format) };
    let mlx = |bits, group_size| StorageFormat::MlxAffine(MlxAffine { bits, group_size });
    vec![
        long(StorageFormat::Q5_K),
        long(StorageFormat::Q3_K),
        long(mlx(4, 64)),
        decoder(StorageFormat::Q2_K),
        decoder(StorageFormat::Q4_1),
        decoder(StorageFormat::Q5_0),
        decoder(StorageFormat::Q5_1),
        decoder(StorageFormat::IQ4_NL),
        decoder(StorageFormat::IQ4_XS),
        decoder(mlx(8, 32)),
        wide(StorageFormat::Q3_K),
        wide(mlx(6, 64)),
        long(StorageFormat::Q8_0),
        long(StorageFormat::Q4_0),
        long(StorageFormat::Q4_K),
        long(StorageFormat::Q6_K),
        decoder(StorageFormat::F16),
        decoder(StorageFormat::BF16),
        decoder(StorageFormat::Q8_0),
        decoder(StorageFormat::Q4_0),
        Decoder { softcap: Some(20.0), ..decoder(StorageFormat::Q4_K) },
        decoder(StorageFormat::Q6_K),
        wide(StorageFormat::F16),
        wide(StorageFormat::Q4_0),
        Decoder { hidden: 192, heads: 6, kv_heads: 3, feed_forward: 320, ..decoder(StorageFormat::F16) },
    ]
}

/// On the device, whose steps of one row run on the interpreter.
fn running(device: &CudaBackend, graph: &Arc<Graph>) -> Running {
    let running = Running::new(device, graph, Precision::Fast, KvType::F16);
    let description = running.program.describe();
    assert!(description.starts_with("one row: "), "the graph runs on the interpreter: {description}");
    assert_eq!((running.program.max_chain(false), running.program.max_chain(true)), (128, 32));
    running
}

/// Rules by which the interpreter draws, and rules by which launches between its own do.
fn rules() -> [DrawRules; 3] {
    let sampled = SamplingParams {
        temperature: 0.9,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        logit_bias: vec![(7, 1.5)],
        suppressed: vec![3],
        seed: 5,
        ..SamplingParams::default()
    };
    let several_phases = SamplingParams {
        temperature: 0.9,
        typical_p: 0.9,
        top_n_sigma: 2.0,
        xtc_probability: 0.5,
        xtc_threshold: 0.02,
        dynatemp_range: 0.4,
        seed: 6,
        ..SamplingParams::default()
    };
    [SamplingParams::default(), sampled, several_phases].map(|params| DrawRules::new(params).unwrap())
}

/// Decodes sequence 1 behind `token`, by chains of up to `limit` tokens. `answer` sees each token and its number.
fn chain(
    running: &mut Running,
    rules: &DrawRules,
    token: u32,
    limit: usize,
    stops: &[u32],
    answer: &mut dyn FnMut(usize, u32) -> Flow,
) -> (Vec<u32>, Finish) {
    let Running { program, pool, sequences } = running;
    // Pages for all of them.
    let reserved = sequences.extend(&mut **pool, 1, &vec![0; limit], Outs::None).unwrap();
    sequences.truncate(1, reserved.first_index);
    let segment = sequences.extend(&mut **pool, 1, &[token], Outs::Last).unwrap();
    let begin = segment.first_index;
    let (mut history, mut seen, position) = (vec![token], Vec::new(), begin as u32 + 1);
    let row = RowDraw { rules, position, history: &mut history, limit, stops, mask: None };
    let finish = program
        .run_chain(
            &mut brasa_graph::step::Step { segments: vec![segment] },
            &mut **pool,
            Chain {
                rows: &mut [row],
                sampler: &mut Sampler::default(),
                sink: &mut |number, drawn| {
                    assert_eq!(number, 0);
                    let draw = drawn.unwrap();
                    seen.push(draw.token);
                    answer(seen.len() - 1, draw.token)
                },
            },
        )
        .unwrap();
    assert_eq!(history[1..], seen, "the history holds every token that was seen");
    assert_eq!(finish.lengths, [begin + seen.len()], "the last token is not computed");
    sequences.extend(&mut **pool, 1, &vec![0; seen.len() - 1], Outs::None).unwrap();
    (seen, finish)
}

/// Draws a text by single steps, in place of a chain.
fn single_steps(running: &mut Running, rules: &DrawRules, mut token: u32, count: usize) -> Vec<u32> {
    let mut drawn = Vec::new();
    while drawn.len() < count {
        let segment = running.segment(1, &[token]);
        let position = segment.first_index as u32 + 1;
        let logits = running.run(vec![segment]);
        token = Sampler::default().draw(rules, &Row::new(&logits, position, &[])).unwrap().token;
        drawn.push(token);
    }
    drawn
}

#[test]
fn single_rows_agree_with_the_reference() {
    let Some(device) = hopper() else { return };
    for (number, decoder) in decoders().iter().enumerate() {
        let graph = Arc::new(decoder.graph(7));
        for begin in [0, 3, 247, 530] {
            let (text, next) = (tokens(begin, 1), tokens(24, 2));
            let run = |mut running: Running| {
                if !text.is_empty() {
                    running.step(&[(1, &text)]);
                }
                running.chunked(1, &next, &[1])
            };
            let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16));
            let comparison = compare(&run(running(device, &graph)), &expected);
            println!("decoder {number}, {} behind {begin} rows: {comparison}", decoder.format);
            assert!(comparison.within(Tolerance(3e-3)), "{decoder:?} behind {begin} rows: {comparison}");
        }
    }
}

#[test]
fn mixtures_agree_with_the_reference_and_with_their_chains() {
    let Some(device) = hopper() else { return };
    for decoder in [
        mixture(StorageFormat::F16),
        Decoder { router: None, ..mixture(StorageFormat::Q8_0) },
        mixture(StorageFormat::Q4_K),
        Decoder { experts: Some((140, 16)), feed_forward: 256, ..mixture(StorageFormat::Q6_K) },
        Decoder { hidden: 2304, feed_forward: 64, experts: Some((33, 8)), ..mixture(StorageFormat::Q4_0) },
    ] {
        let graph = Arc::new(decoder.graph(7));
        let (text, next) = (tokens(40, 1), tokens(24, 2));
        let run = |mut running: Running| {
            running.step(&[(1, &text)]);
            running.chunked(1, &next, &[1])
        };
        let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16));
        let found = run(running(device, &graph));
        let rows = found.chunks(decoder.vocab).zip(expected.chunks(decoder.vocab));
        let errors: Vec<f64> = rows.map(|(found, expected)| compare(found, expected).relative_l2).collect();
        println!("{decoder:?}: {errors:?}");
        // Where two experts are as good to within the rounding of activations, either is right.
        let near = errors.iter().filter(|&&error| error < 3e-3).count();
        assert!(near >= 20 && errors.iter().all(|&error| error < 0.2), "{decoder:?}: {errors:?}");
        let rules = &rules()[0];
        let (mut one, mut other) = (running(device, &graph), running(device, &graph));
        let (chained, _) = chain(&mut other, rules, 5, 70, &[], &mut |_, _| Flow::Continue);
        assert_eq!(chained, single_steps(&mut one, rules, 5, 70), "{decoder:?}");
    }
}

#[test]
fn a_multiprocessor_attends_to_several_pages() {
    let Some(device) = hopper() else { return };
    // So many key heads that few multiprocessors share one.
    let multiprocessors = device.device().multiprocessors;
    let kv_heads = (multiprocessors / 4).min(32);
    let many = Decoder { heads: kv_heads, kv_heads, ..decoder(StorageFormat::F16) };
    for windows in [vec![None, None], vec![Some(1100), None]] {
        let graph = Arc::new(Decoder { windows, ..many.clone() }.graph(9));
        for begin in [1270, 1500] {
            let (text, next) = (tokens(begin, 1), tokens(24, 2));
            let run = |mut running: Running| {
                running.chunked(1, &text, &[500]);
                running.chunked(1, &next, &[1])
            };
            let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16));
            let comparison = compare(&run(running(device, &graph)), &expected);
            println!("{kv_heads} key heads, behind {begin} rows: {comparison}");
            assert!(comparison.within(Tolerance(3e-3)), "behind {begin} rows: {comparison}");
        }
    }
}

#[test]
fn projections_in_two_formats_agree_with_the_reference() {
    let Some(device) = hopper() else { return };
    for (format, values) in [
        (StorageFormat::Q4_K, StorageFormat::Q6_K),
        (StorageFormat::F16, StorageFormat::Q8_0),
        (StorageFormat::Q4_0, StorageFormat::BF16),
        (StorageFormat::Q3_K, StorageFormat::Q5_K),
    ] {
        let graph = Arc::new(decoder(format).mixed_graph(15, values));
        let (text, next) = (tokens(250, 1), tokens(24, 2));
        let run = |mut running: Running| {
            running.step(&[(1, &text)]);
            running.chunked(1, &next, &[1])
        };
        let expected = run(Running::new(&ReferenceBackend, &graph, Precision::Reference, KvType::F16));
        let comparison = compare(&run(running(device, &graph)), &expected);
        println!("{format} and {values}: {comparison}");
        assert!(comparison.within(Tolerance(3e-3)), "{format} and {values}: {comparison}");
        for rules in &rules() {
            let (mut one, mut other) = (running(device, &graph), running(device, &graph));
            let (found, _) = chain(&mut other, rules, 5, 80, &[], &mut |_, _| Flow::Continue);
            assert_eq!(found, single_steps(&mut one, rules, 5, 80), "{format} and {values}");
        }
    }
}

#[test]
fn chains_equal_single_steps_bit_for_bit() {
    let Some(device) = hopper() else { return };
    for decoder in &decoders() {
        let graph = Arc::new(decoder.graph(9));
        for (begin, rules) in [1, 200, 700].into_iter().flat_map(|begin| rules().map(|rules| (begin, rules)))
        {
            let text = tokens(begin, 3);
            let begun = || {
                let mut running = running(device, &graph);
                running.step(&[(1, &text)]);
                running
            };
            let (mut one, mut other) = (begun(), begun());
            let expected = single_steps(&mut one, &rules, 5, 100);
            // More than a launch makes.
            let (found, _) = chain(&mut other, &rules, 5, 100, &[], &mut |_, _| Flow::Continue);
            assert_eq!(found, expected, "{decoder:?} behind {begin} rows");
            let [next, again] = [&mut one, &mut other].map(|running| running.step(&[(1, &[7])]));
            assert_same_bits(&again, &next, "the step behind a chain");
        }
    }
}

/// A few steps of each decoder, one by one and as a chain: short enough to be watched by racecheck.
fn brief(device: &CudaBackend, decoders: &[Decoder], begin: usize, rules: &DrawRules) {
    for decoder in decoders {
        let graph = Arc::new(Decoder { windows: vec![Some(300)], ..decoder.clone() }.graph(9));
        let begun = || {
            let mut running = running(device, &graph);
            running.step(&[(1, &tokens(begin, 3))]);
            running
        };
        let expected = single_steps(&mut begun(), rules, 5, 3);
        let (found, _) = chain(&mut begun(), rules, 5, 3, &[], &mut |_, _| Flow::Continue);
        assert_eq!(found, expected, "{decoder:?} behind {begin} rows");
    }
}

#[test]
fn brief_chains_of_heads_of_64() {
    let Some(device) = hopper() else { return };
    let formats = [
        StorageFormat::F16,
        StorageFormat::Q8_0,
        StorageFormat::Q4_0,
        StorageFormat::Q4_K,
        StorageFormat::Q6_K,
    ];
    brief(device, &formats.map(decoder), 20, &rules()[0]);
}

#[test]
fn brief_chains_of_other_formats() {
    let Some(device) = hopper() else { return };
    let formats = [
        StorageFormat::BF16,
        StorageFormat::Q5_K,
        StorageFormat::Q3_K,
        StorageFormat::Q2_K,
        StorageFormat::Q4_1,
        StorageFormat::Q5_1,
        StorageFormat::IQ4_XS,
    ];
    brief(device, &formats.map(decoder), 20, &rules()[0]);
}

#[test]
fn brief_chains_of_heads_of_128() {
    let Some(device) = hopper() else { return };
    let wide = |format| Decoder {
        heads: 4,
        kv_heads: 1,
        head_dim: 128,
        hidden: 512,
        feed_forward: 1280,
        ..decoder(format)
    };
    brief(device, &[StorageFormat::F16, StorageFormat::Q4_0, StorageFormat::Q4_K].map(wide), 20, &rules()[0]);
}

#[test]
fn brief_chains_over_pages() {
    let Some(device) = hopper() else { return };
    brief(device, &[decoder(StorageFormat::F16), decoder(StorageFormat::Q4_0)], 700, &rules()[0]);
}

#[test]
fn brief_chains_of_long_rows() {
    let Some(device) = hopper() else { return };
    let long = |format| Decoder { hidden: 1024, feed_forward: 2048, ..decoder(format) };
    brief(device, &[StorageFormat::F16, StorageFormat::Q4_0, StorageFormat::Q4_K].map(long), 20, &rules()[0]);
}

#[test]
fn brief_chains_that_sample() {
    let Some(device) = hopper() else { return };
    brief(device, &[decoder(StorageFormat::Q4_0)], 20, &rules()[1]);
}

#[test]
fn brief_chains_of_mixtures() {
    let Some(device) = hopper() else { return };
    let mixtures = [mixture(StorageFormat::F16), mixture(StorageFormat::Q4_K)];
    brief(device, &mixtures, 20, &rules()[0]);
}

#[test]
fn a_chain_ends_where_it_should() {
    let Some(device) = hopper() else { return };
    let graph = Arc::new(decoder(StorageFormat::Q4_0).graph(11));
    let rules = rules();
    let expected = rules.each_ref().map(|rules| single_steps(&mut running(device, &graph), rules, 5, 90));
    let mut random = Random::new(4);
    for round in 0..300 {
        let (rules, expected) = (&rules[round % 2], &expected[round % 2]);
        let mut running = running(device, &graph);
        let (mut all, mut token) = (Vec::new(), 5);
        while all.len() < 80 {
            let limit = 1 + random.below(75).min(89 - all.len());
            let rest = &expected[all.len()..];
            let chosen = random.below(limit);
            let (stops, end): (Vec<u32>, usize) = match random.below(3) {
                // Ids that do not occur, and one that may: enough of them that the device does not know all.
                0 => {
                    let stop = rest[chosen];
                    let stops = (1000..1000 + random.below(40) as u32).chain([stop]).collect();
                    (stops, rest.iter().position(|&id| id == stop).unwrap())
                }
                _ => (Vec::new(), limit - 1),
            };
            let flow = if random.below(2) == 0 { Flow::StopRow } else { Flow::StopAll };
            let asks = random.below(3) == 0;
            let end = if asks { end.min(chosen) } else { end }.min(limit - 1);
            let (seen, _) = chain(&mut running, rules, token, limit, &stops, &mut |number, _| {
                if asks && number == chosen { flow } else { Flow::Continue }
            });
            assert_eq!(seen, rest[..=end], "limit {limit}, stops {stops:?}, asks {asks} at {chosen}");
            token = seen[end];
            all.extend(seen);
        }
    }
}

#[test]
fn logits_that_are_no_numbers_end_a_chain_with_a_reason() {
    let Some(device) = hopper() else { return };
    let graph = Arc::new(decoder(StorageFormat::F16).graph(13));
    let weights = device.upload(&graph, Precision::Fast, &mut |_| ControlFlow::Continue(())).unwrap();
    let norm = graph.weights().iter().find(|weight| weight.name == "norm").unwrap();
    weights.write(norm, &[f32::NAN; 256]).unwrap();
    let limits = ProgramLimits { max_rows: 8, max_outs: 8, max_segments: 1 };
    let program = device.compile(Arc::clone(&graph), weights, limits.into()).unwrap();
    let pool = device.kv_pool(KvPoolSpec::of(&graph, KvType::F16)).unwrap();
    let sequences = Sequences::new(&*pool);
    let Running { mut program, mut pool, mut sequences } = Running { program, pool, sequences };
    assert!(program.describe().starts_with("one row: "));
    let segment = sequences.extend(&mut *pool, 1, &[3], Outs::Last).unwrap();
    let [_, rules, _] = rules();
    let (mut history, mut seen) = (vec![3], Vec::new());
    let row = RowDraw { rules: &rules, position: 1, history: &mut history, limit: 9, stops: &[], mask: None };
    let finish = program.run_chain(
        &mut brasa_graph::step::Step { segments: vec![segment] },
        &mut *pool,
        Chain {
            rows: &mut [row],
            sampler: &mut Sampler::default(),
            sink: &mut |_, drawn| {
                seen.push(drawn);
                Flow::Continue
            },
        },
    );
    assert_eq!(finish.unwrap().lengths, [1]);
    assert!(
        matches!(seen[..], [Err(SamplingError::NoToken { vocab_size: 150, not_finite: 150 })]),
        "{seen:?}"
    );
}

#[test]
fn a_trained_model_agrees_with_the_plain_kernels() {
    const STEPS: usize = 96;
    let Some(device) = hopper() else { return };
    let plain = CudaBackend::new(&CudaOptions { deterministic: true, ..CudaOptions::default() }).unwrap();
    let graph = Arc::new(load_strictly(&folder("lexicon-qwen3").join("lexicon-qwen3-Q6_K.gguf"), None).graph);
    let prompt: Vec<u32> = (0..40).map(|i| i * 131 % 8000 + 10).collect();
    let (mut fast, mut oracle) =
        (running(device, &graph), Running::new(&plain, &graph, Precision::Fast, KvType::F16));
    assert!(!oracle.program.describe().starts_with("one row: "), "the oracle is plain");
    let last = |logits: Vec<f32>| logits[logits.len() - 8192..].to_vec();
    let [_, expected] = [&mut fast, &mut oracle].map(|running| last(running.step(&[(1, &prompt)])));
    let mut token = argmax(&expected);
    let (mut compared, mut worst) = (0, 0.0_f64);
    for step in 0..STEPS {
        let [found, expected] = [&mut fast, &mut oracle].map(|running| running.step(&[(1, &[token])]));
        let comparison = compare(&found, &expected);
        worst = worst.max(comparison.relative_l2);
        token = argmax(&expected);
        let mut others = expected.clone();
        others[token as usize] = f32::NEG_INFINITY;
        let margin = expected[token as usize] - others.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if margin > 2.0 * (comparison.found - comparison.expected).abs() {
            assert_eq!(argmax(&found), token, "step {step}, margin {margin}");
            compared += 1;
        }
    }
    println!("{compared} of {STEPS} tokens compared; largest relative L2 {worst:.1e}");
    assert!(worst < 5e-3, "relative L2 {worst}");
    assert!(compared * 10 >= STEPS * 9, "only {compared} of {STEPS} tokens were compared");
}
