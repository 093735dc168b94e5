//! Chains against the steps that they stand for.

use crate::small_model::{Device, VOCAB, tokens};
use brasa_graph::chain::{ChainRow, Finish, Flow};
use brasa_graph::device::{DeviceError, KvType};
use brasa_graph::sampling::{Draw, Sampler, SamplingError, SamplingParams};
use brasa_graph::step::{Outs, Segment, Step};

const PROMPTS: [usize; 3] = [4, 250, 1];

fn sampler(seed: u64) -> Sampler {
    let params = SamplingParams { temperature: 0.9, seed, repeat_penalty: 1.3, ..SamplingParams::default() };
    Sampler::new(params).unwrap()
}

/// Segments of three prompts, their pages reserved for `tokens` tokens.
fn prompts(device: &mut Device, tokens_ahead: usize) -> Vec<Segment> {
    let segment = |(id, &length): (usize, &usize)| {
        let prompt = tokens(length, id as u64);
        let long = [&prompt[..], &vec![0; tokens_ahead - 1]].concat();
        let mut segment = device.sequences.extend(&mut *device.pool, id as u64, &long, Outs::Last).unwrap();
        segment.tokens = prompt;
        segment
    };
    PROMPTS.iter().enumerate().map(segment).collect()
}

/// Runs a chain; by row, what the sink saw, and how it ended.
fn chain(
    segments: Vec<Segment>,
    device: &mut Device,
    tokens: usize,
    answer: impl Fn(usize, usize) -> Flow,
) -> Result<(Vec<Vec<u32>>, Finish), DeviceError> {
    let mut samplers: Vec<Sampler> = (0..segments.len()).map(|row| sampler(row as u64)).collect();
    let mut histories: Vec<Vec<u32>> = segments.iter().map(|segment| segment.tokens.clone()).collect();
    let mut rows: Vec<ChainRow> = (samplers.iter_mut().zip(&mut histories))
        .map(|(sampler, history)| ChainRow { sampler, position: history.len() as u32, history })
        .collect();
    let mut seen = vec![Vec::new(); rows.len()];
    let mut sink = |row: usize, draw: Result<Draw, SamplingError>| {
        seen[row].push(draw.unwrap().token);
        answer(row, seen[row].len())
    };
    let mut step = Step { segments };
    let finish = device.program.run_chain(&mut step, &mut *device.pool, tokens, &mut rows, &mut sink)?;
    for (row, history) in histories.iter().enumerate() {
        assert_eq!(history[history.len() - seen[row].len()..], seen[row], "row {row}");
    }
    Ok((seen, finish))
}

/// What single steps and draws give.
fn stepwise(row: usize, count: usize) -> Vec<u32> {
    let mut device = Device::new(KvType::F16);
    let (mut sampler, mut text) = (sampler(row as u64), tokens(PROMPTS[row], row as u64));
    let mut next = text.clone();
    for _ in 0..count {
        let logits = device.run(&[(1, &next)]);
        let token = sampler.draw(&logits[logits.len() - VOCAB..], text.len() as u32, &text).unwrap().token;
        text.push(token);
        next = vec![token];
    }
    text.split_off(PROMPTS[row])
}

#[test]
fn a_chain_gives_the_tokens_of_its_steps() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let (seen, finish) = chain(segments, &mut device, 20, |_, _| Flow::Continue).unwrap();
    for (row, seen) in seen.iter().enumerate() {
        assert_eq!(seen, &stepwise(row, 20), "row {row}");
    }
    // The last token of each is still to be computed.
    assert_eq!(finish.lengths, [4 + 19, 250 + 19, 1 + 19]);
}

#[test]
fn rows_stop_by_themselves_and_together() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let answer = |row, count| match (row, count) {
        (0, 1) | (2, 5) => Flow::StopRow,
        (1, 9) => Flow::StopAll,
        _ => Flow::Continue,
    };
    let (seen, finish) = chain(segments, &mut device, 20, answer).unwrap();
    assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [1, 9, 5]);
    assert_eq!(finish.lengths, [4, 250 + 8, 1 + 4]);
    for (row, seen) in seen.iter().enumerate() {
        assert_eq!(seen, &stepwise(row, seen.len()), "row {row}");
    }
    // What the chain left in the cache is what steps would have: the texts go on alike.
    let [_, mut second, _]: [Segment; 3] = prompts(&mut Device::three(KvType::F16), 20).try_into().unwrap();
    second.first_index = finish.lengths[1];
    second.tokens = vec![seen[1][8]];
    let step = Step { segments: vec![second] };
    let logits = device.program.run(&step, &mut *device.pool).unwrap().values.to_vec();
    let text = [&tokens(250, 1)[..], &seen[1]].concat();
    let fresh = Device::new(KvType::F16).run(&[(1, &text)]);
    assert_eq!(logits, fresh[fresh.len() - VOCAB..]);
}

#[test]
fn the_last_row_that_hears_of_it_still_has_its_token() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let (seen, finish) =
        chain(segments, &mut device, 20, |row, _| if row == 0 { Flow::StopAll } else { Flow::Continue })
            .unwrap();
    assert_eq!(
        (seen.iter().map(Vec::len).collect::<Vec<_>>(), finish.lengths),
        (vec![1; 3], PROMPTS.to_vec())
    );
}

#[test]
fn a_segment_without_logits_runs_once() {
    let mut device = Device::three(KvType::F16);
    let mut segments = prompts(&mut device, 20);
    segments[1].outs = Outs::None;
    let (seen, finish) = chain(segments, &mut device, 3, |_, _| Flow::Continue).unwrap();
    assert_eq!((seen[0].len(), seen[1].len(), seen[2].len()), (3, 0, 3));
    assert_eq!(finish.lengths, [6, 250, 3]);
}

#[test]
fn bad_chains_are_refused_before_anything_runs() {
    let mut device = Device::three(KvType::F16);
    let good = prompts(&mut device, 20);
    let mut refuse = |change: &dyn Fn(&mut Vec<Segment>), tokens: usize| {
        let mut segments = good.clone();
        change(&mut segments);
        let result = chain(segments, &mut device, tokens, |_, _| unreachable!("nothing runs"));
        result.unwrap_err().to_string()
    };
    assert_eq!(refuse(&|_| {}, 0), "step cannot run: a chain of no tokens");
    assert_eq!(
        refuse(&|s| s[2].outs = Outs::All, 2),
        "step cannot run: segment 2 of a chain, expected plain text with logits of the last row"
    );
    assert_eq!(
        refuse(&|_| {}, 300),
        "step cannot run: segment 0, cache group 0: a chain of 300 tokens without a page for indices 256..512"
    );
    assert_eq!(
        refuse(&|s| s[1].pages[0].truncate(1), 20),
        "step cannot run: segment 1, cache group 0: a chain of 20 tokens without a page for indices 256..512"
    );
    assert!(refuse(&|s| s[0].tokens[0] = VOCAB as u32, 2).contains("token 31, expected below 31"));
}

/// A row whose logits cannot be drawn from ends; the others do not.
#[test]
fn a_failed_draw_ends_its_row_alone() {
    let mut device = Device::three(KvType::F16);
    let mut samplers = [sampler(0), sampler(1), sampler(2)];
    samplers[1] =
        Sampler::new(SamplingParams { suppressed: (0..VOCAB as u32).collect(), ..SamplingParams::default() })
            .unwrap();
    let mut step = Step { segments: prompts(&mut device, 4) };
    let mut histories: Vec<Vec<u32>> = step.segments.iter().map(|segment| segment.tokens.clone()).collect();
    let mut rows: Vec<ChainRow> = (samplers.iter_mut().zip(&mut histories))
        .map(|(sampler, history)| ChainRow { sampler, position: history.len() as u32, history })
        .collect();
    let mut seen = [(0, 0); 3];
    let mut sink = |row: usize, draw: Result<Draw, SamplingError>| {
        let count = if draw.is_ok() { &mut seen[row].0 } else { &mut seen[row].1 };
        *count += 1;
        Flow::Continue
    };
    let finish = device.program.run_chain(&mut step, &mut *device.pool, 4, &mut rows, &mut sink).unwrap();
    assert_eq!(seen, [(4, 0), (0, 1), (4, 0)]);
    assert_eq!(finish.lengths, [7, 250, 4]);
    assert_eq!(histories[1].len(), 250);
}
