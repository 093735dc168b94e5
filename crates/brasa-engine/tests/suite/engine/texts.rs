//! One request has one text: batched = alone, chunked = whole, chained = stepwise, and a mask holds for its own row.

use std::collections::HashSet;
use std::sync::Arc;

use brasa_engine::{
    Engine, EngineConfig, EngineError, Executor, GenerateOptions, MaskSource, Outs, PlainIds, ReadRequest,
    ReadRows, ReadValue, Request, RequestOptions, SequenceRows,
};
use brasa_graph::device::{DeviceError, KvPoolSpec, KvType, ProgramLimits};
use brasa_graph::sampling::{DrawRules, Dry, Row, Sampler, SamplingError, SamplingParams, TokenMask};

use super::{
    CONFIG, LAYERS, VOCAB, engine, engine_of, engine_without_memory_for_hidden, graph, hidden_engines, ids,
    limit, prompt, start, start_engine,
};

#[test]
pub fn chunked_prefill_equals_whole() {
    let expected = ids(&mut start(&engine(1024, 700, 4), prompt(600, 1), &limit(24), None));
    assert!(
        expected.iter().collect::<HashSet<_>>().len() > 5,
        "the model says the same thing again: {expected:?}"
    );
    for chunk in [5, 64, 300] {
        let engine = engine(1024, chunk, 4);
        assert_eq!(ids(&mut start(&engine, prompt(600, 1), &limit(24), None)), expected, "chunks of {chunk}");
    }
}

#[test]
pub fn sequences_together_equal_each_alone() {
    let prompts: Vec<_> = (0..5).map(|seed| prompt(3 + 70 * seed, seed)).collect();
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| ids(&mut start(&engine(1024, 64, 1), prompt.clone(), &limit(30), None)))
        .collect();
    let engine = engine(1024, 64, 3);
    let mut streams: Vec<_> =
        prompts.iter().map(|prompt| start(&engine, prompt.clone(), &limit(30), None)).collect();
    let together: Vec<_> = streams.iter_mut().map(ids).collect();
    assert_eq!(together, alone);
}

#[test]
pub fn more_sequences_than_rows_wait_for_a_place() {
    let alone = engine_of(LAYERS, KvType::F32, 1024, 64, 1, 0);
    let expected: Vec<_> =
        (0..5).map(|seed| ids(&mut start(&alone, prompt(3 + seed, seed), &limit(20), None))).collect();
    // Five sequences at once, and steps of two rows.
    let graph = Arc::new(graph(LAYERS));
    let limits = ProgramLimits { max_rows: 2, max_outs: 8, max_segments: 8 };
    let spec = KvPoolSpec::of(&graph, KvType::F32);
    let config = EngineConfig { max_sequences: 5, ..CONFIG };
    let engine = start_engine(&graph, limits, spec, |_| config);
    let mut streams: Vec<_> =
        (0..5).map(|seed| start(&engine, prompt(3 + seed, seed), &limit(20), None)).collect();
    let together: Vec<_> = streams.iter_mut().map(ids).collect();
    assert_eq!(together, expected);
}

#[test]
pub fn chained_equals_stepwise() {
    let sampling = |seed| SamplingParams {
        temperature: if seed == 0 { 0.0 } else { 1.1 },
        repeat_penalty: 1.2,
        typical_p: if seed == 1 { 0.7 } else { 1.0 },
        top_n_sigma: if seed == 2 { 1.5 } else { 0.0 },
        xtc_probability: if seed == 3 || seed == 5 { 0.5 } else { 0.0 },
        xtc_threshold: 0.02,
        dynatemp_range: if seed == 4 { 0.8 } else { 0.0 },
        dry: Dry { multiplier: if seed == 5 { 1.0 } else { 0.0 }, ..Dry::default() },
        seed,
        ..SamplingParams::default()
    };
    // Chains end at pages' ends, at the end of the answer, and at 1, 31, 32 and 33 tokens.
    let lengths = [(20, 33), (250, 70), (3, 1), (490, 31), (9, 32), (224, 300)];
    let engine = engine(1024, 512, 3);
    let expected: Vec<_> = (0..lengths.len())
        .map(|seed| stepwise(&engine, prompt(lengths[seed].0, seed), sampling(seed as u64), lengths[seed].1))
        .collect();
    // All at once: three are served, three wait, and each that ends lets another in.
    let mut streams: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(seed, &(length, count))| {
            let options = GenerateOptions { sampling: sampling(seed as u64), ..limit(count) };
            start(&engine, prompt(length, seed), &options, None)
        })
        .collect();
    for (stream, expected) in streams.iter_mut().zip(&expected) {
        assert_eq!(&ids(stream), expected);
    }
    // One by one.
    for (seed, expected) in expected.iter().enumerate() {
        let options = GenerateOptions { sampling: sampling(seed as u64), ..limit(expected.len()) };
        assert_eq!(&ids(&mut start(&engine, prompt(lengths[seed].0, seed), &options, None)), expected);
    }
}

#[test]
pub fn one_seed_gives_one_text() {
    let sampled = |seed| GenerateOptions {
        sampling: SamplingParams { temperature: 1.0, seed, ..SamplingParams::default() },
        ..limit(40)
    };
    let engine = engine(1024, 64, 4);
    let first = ids(&mut start(&engine, prompt(9, 0), &sampled(7), None));
    let mut noise = start(&engine, prompt(200, 4), &limit(60), None);
    assert_eq!(ids(&mut start(&engine, prompt(9, 0), &sampled(7), None)), first);
    assert_ne!(ids(&mut start(&engine, prompt(9, 0), &sampled(8), None)), first);
    ids(&mut noise);
}

/// A grammar holds over single steps and chains, and for its own row alone.
#[test]
pub fn a_mask_decides_which_tokens_come() {
    let engine = engine(1024, 64, 2);
    let plain = ids(&mut start(&engine, prompt(30, 1), &limit(50), None));
    let masked = Request {
        prompt: prompt(12, 2),
        options: GenerateOptions { mask: Some(Arc::new(ThirdsFromZero)), ..limit(50) },
        end_ids: Vec::new(),
        decoder: Box::new(PlainIds),
        session: None,
    };
    let mut masked = engine.generate(masked).unwrap();
    let mut beside = start(&engine, prompt(30, 1), &limit(50), None);
    let masked = ids(&mut masked);
    assert_eq!(masked.len(), 50);
    assert!(masked.iter().enumerate().all(|(place, id)| *id as usize % 3 == place % 3), "{masked:?}");
    assert_eq!(ids(&mut beside), plain);
}

/// A mask that fails after four tokens ends its own request with its reason; the text beside it goes on.
#[test]
pub fn a_mask_that_fails_ends_its_request_and_no_other() {
    let engine = engine(1024, 64, 2);
    let plain = ids(&mut start(&engine, prompt(30, 1), &limit(50), None));
    let options = GenerateOptions { mask: Some(Arc::new(FourTokens)), ..limit(50) };
    let mut failing = start(&engine, prompt(12, 2), &options, None);
    let mut beside = start(&engine, prompt(30, 1), &limit(50), None);
    assert_eq!(failing.by_ref().take(4).flatten().count(), 4);
    let error = SamplingError::Mask { reason: "four tokens".into() };
    assert_eq!(failing.next(), Some(Err(EngineError::Sampling(error))));
    assert_eq!(failing.next(), None);
    assert_eq!(ids(&mut beside), plain);
}

/// Makes masks that allow any four tokens and then fail.
#[derive(Debug)]
struct FourTokens;

/// The number of tokens that may still come.
struct Left(usize);

impl MaskSource for FourTokens {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Left(4))
    }
}

impl TokenMask for Left {
    fn fill(&mut self, _: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        words.fill(u32::MAX);
        if self.0 > 0 { Ok(()) } else { Err(SamplingError::Mask { reason: "four tokens".into() }) }
    }

    fn accept(&mut self, _: u32) {
        self.0 -= 1;
    }
}

/// The text made by one step and one draw after the other.
fn stepwise(engine: &Engine, prompt: Vec<u32>, sampling: SamplingParams, count: usize) -> Vec<u32> {
    let draw_all = move |executor: &mut Executor| {
        let (rules, mut sampler) = (DrawRules::new(sampling).unwrap(), Sampler::default());
        let (mut sequence, mut tokens, start) = (executor.sequence(), prompt.clone(), prompt.len());
        for _ in 0..count {
            let next = tokens[sequence.tokens().len()..].to_vec();
            let rows = SequenceRows { sequence: &mut sequence, tokens: &next, outs: Outs::Last };
            let output = executor.run(&mut [rows]).unwrap();
            let draw = sampler.draw(&rules, &Row::new(output.row(0), tokens.len() as u32, &tokens));
            tokens.push(draw.unwrap().token);
        }
        executor.release(sequence);
        tokens.split_off(start)
    };
    engine.with(draw_all).unwrap()
}

/// Allows the ids that leave the remainder of the number of accepted tokens when divided by three.
struct Thirds(u32);

/// Makes masks that begin with ids divisible by three.
#[derive(Debug)]
pub struct ThirdsFromZero;

impl MaskSource for ThirdsFromZero {
    fn start(&self) -> Box<dyn TokenMask> {
        Box::new(Thirds(0))
    }
}

impl TokenMask for Thirds {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        words.fill(0);
        let remainder = (self.0 + drafts.len() as u32) % 3;
        (0..VOCAB as u32)
            .filter(|id| id % 3 == remainder)
            .for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
        Ok(())
    }

    fn accept(&mut self, _: u32) {
        self.0 += 1;
    }
}

/// Logits are read beside generations, in any company, from any token on; they are those of a text alone.
#[test]
pub fn logits_are_read_beside_running_generations() {
    let engine = engine(1024, 32, 4);
    let text = prompt(300, 3);
    let whole = engine
        .with({
            let text = text.clone();
            move |executor: &mut Executor| {
                let mut sequence = executor.sequence();
                let mut rows = Vec::new();
                for tokens in text.chunks(32) {
                    let part = SequenceRows { sequence: &mut sequence, tokens, outs: Outs::All };
                    let output = executor.run(&mut [part]).unwrap();
                    rows.extend((0..output.rows()).map(|row| output.row(row).to_vec()));
                }
                executor.release(sequence);
                rows
            }
        })
        .unwrap();
    let alone = ids(&mut start(&engine, prompt(40, 1), &limit(60), None));
    let read = |first, run_ahead| {
        let options = RequestOptions { run_ahead, ..RequestOptions::default() };
        engine.read(ReadRequest { tokens: text.clone(), value: ReadValue::Logits, first, options }).unwrap()
    };
    let collect = |rows: ReadRows| rows.map(|row| row.unwrap()).collect::<Vec<_>>();
    assert_eq!(collect(read(0, 1000)), whole);
    let mut beside = start(&engine, prompt(40, 1), &limit(60), None);
    let readers = [read(0, 3), read(299, 9), read(170, 1)];
    for (rows, first) in readers.into_iter().zip([0, 299, 170]) {
        assert!(collect(rows) == whole[first..], "rows from {first} on");
    }
    assert_eq!(ids(&mut beside), alone);
    // One that is dropped, and one that asks for nothing.
    drop(read(0, 1));
    let options = RequestOptions::default();
    let request = ReadRequest { tokens: text.clone(), value: ReadValue::Logits, first: 300, options };
    assert!(matches!(engine.read(request).err(), Some(EngineError::Options(_))));
    assert_eq!(ids(&mut start(&engine, prompt(40, 1), &limit(60), None)), alone);
}

/// Hidden states are read beside generations and beside logits, from any token on. They are those that their program gives alone,
/// and other requests do not change.
#[test]
pub fn hidden_states_are_read_beside_running_generations() {
    let alone = engine(1024, 32, 4);
    let (hidden, engine) = hidden_engines(1024, 32, 4);
    let text = prompt(300, 3);
    let ask = |engine: &Engine, value, first, run_ahead| {
        let options = RequestOptions { run_ahead, ..RequestOptions::default() };
        engine.read(ReadRequest { tokens: text.clone(), value, first, options })
    };
    let collect = |rows: ReadRows| rows.map(|row| row.unwrap()).collect::<Vec<_>>();
    let logits = collect(ask(&alone, ReadValue::Logits, 0, 1000).unwrap());
    // The outputs of this engine's program are hidden states.
    let states = collect(ask(&hidden, ReadValue::Logits, 0, 1000).unwrap());
    assert!(states[0].len() < logits[0].len() && states[0] != states[1]);
    let generated = ids(&mut start(&alone, prompt(40, 1), &limit(60), None));
    assert!(matches!(ask(&alone, ReadValue::Hidden, 0, 9).err(), Some(EngineError::Options(_))));

    let read = |value, first, run_ahead| ask(&engine, value, first, run_ahead).unwrap();
    for _ in 0..2 {
        let mut beside = start(&engine, prompt(40, 1), &limit(60), None);
        let wanted = [
            (ReadValue::Hidden, 0, 3),
            (ReadValue::Logits, 7, 9),
            (ReadValue::Hidden, 299, 9),
            (ReadValue::Hidden, 170, 1),
            (ReadValue::Logits, 299, 1),
        ];
        let readers = wanted.map(|(value, first, run_ahead)| read(value, first, run_ahead));
        for (rows, (value, first, _)) in readers.into_iter().zip(wanted) {
            let whole = if value == ReadValue::Hidden { &states } else { &logits };
            assert!(collect(rows) == whole[first..], "{value:?} from {first} on");
        }
        assert_eq!(ids(&mut beside), generated);
    }
    // A reader that leaves, and one that asks for nothing.
    drop(read(ReadValue::Hidden, 0, 1));
    assert!(matches!(ask(&engine, ReadValue::Hidden, 300, 9).err(), Some(EngineError::Options(_))));
    assert_eq!(ids(&mut start(&engine, prompt(40, 1), &limit(60), None)), generated);
}

/// A program for hidden states that cannot be made is the error of those who ask for them, each time.
#[test]
pub fn hidden_states_that_cannot_be_had_are_their_readers_error() {
    let generated = ids(&mut start(&engine(1024, 32, 4), prompt(40, 1), &limit(60), None));
    let engine = engine_without_memory_for_hidden(1024, 32, 4);
    for _ in 0..2 {
        let mut beside = start(&engine, prompt(40, 1), &limit(60), None);
        let options = RequestOptions::default();
        let request = ReadRequest { tokens: prompt(9, 1), value: ReadValue::Hidden, first: 0, options };
        let mut rows = engine.read(request).unwrap();
        assert!(matches!(rows.next(), Some(Err(EngineError::Device(DeviceError::OutOfMemory { .. })))));
        assert!(rows.next().is_none());
        assert_eq!(ids(&mut beside), generated);
    }
}
