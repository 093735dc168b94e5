//! Chains against the steps that they stand for.

use crate::small_model::{Device, VOCAB, tokens};
use brasa_graph::chain::{Chain, Finish, Flow, RowDraw};
use brasa_graph::device::{DeviceError, KvType};
use brasa_graph::sampling::{Draw, DrawRules, Row, Sampler, SamplingError, SamplingParams, TokenMask};
use brasa_graph::step::{Outs, Segment, Step};

pub(crate) const PROMPTS: [usize; 3] = [4, 250, 1];

pub(crate) fn rules(seed: u64) -> DrawRules {
    let params = SamplingParams { temperature: 0.9, seed, repeat_penalty: 1.3, ..SamplingParams::default() };
    DrawRules::new(params).unwrap()
}

/// How the rows of a chain end, and what they may draw.
#[derive(Default)]
pub(crate) struct Ask {
    pub(crate) rules: Vec<DrawRules>,
    pub(crate) limits: Vec<usize>,
    pub(crate) stops: Vec<Vec<u32>>,
    /// A mask for the first row.
    pub(crate) mask: Option<Evens>,
}

impl Ask {
    /// A script with one number of tokens for every row, without stops and masks.
    pub(crate) fn tokens(limit: usize) -> Self {
        let rules = (0..PROMPTS.len() as u64).map(rules).collect();
        Self { rules, limits: vec![limit; PROMPTS.len()], stops: vec![Vec::new(); PROMPTS.len()], mask: None }
    }
}

/// Allows even ids and odd ids in turn.
#[derive(Default)]
pub(crate) struct Evens {
    pub(crate) accepted: Vec<u32>,
}

impl TokenMask for Evens {
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) {
        let odd = (self.accepted.len() + drafts.len()) % 2;
        words.fill(0x5555_5555 << odd);
    }

    fn accept(&mut self, id: u32) {
        assert_eq!(id as usize % 2, self.accepted.len() % 2, "a token that the mask did not allow");
        self.accepted.push(id);
    }
}

/// Segments of three prompts, their pages reserved for `tokens` tokens.
pub(crate) fn prompts(device: &mut Device, tokens_ahead: usize) -> Vec<Segment> {
    let segment = |(id, &length): (usize, &usize)| {
        let prompt = tokens(length, id as u64);
        let long = [&prompt[..], &vec![0; tokens_ahead - 1]].concat();
        let mut segment = device.sequences.extend(&mut *device.pool, id as u64, &long, Outs::Last).unwrap();
        segment.set_tokens(&prompt);
        segment
    };
    PROMPTS.iter().enumerate().map(segment).collect()
}

/// Events of a chain: by row, its draws and failed draws, and how the chain ended.
pub(crate) struct Shown {
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) failures: Vec<usize>,
    pub(crate) finish: Finish,
}

/// Runs a chain whose sink answers by row and number of the token.
pub(crate) fn chain(
    segments: Vec<Segment>,
    device: &mut Device,
    ask: &mut Ask,
    answer: impl Fn(usize, usize) -> Flow,
) -> Result<Shown, DeviceError> {
    let mut histories: Vec<Vec<u32>> = segments.iter().map(|segment| segment.tokens.clone()).collect();
    let mut mask = ask.mask.as_mut();
    let mut rows: Vec<RowDraw> = Vec::new();
    for (row, history) in histories.iter_mut().enumerate() {
        rows.push(RowDraw {
            rules: &ask.rules[row],
            position: history.len() as u32,
            history,
            limit: ask.limits[row],
            stops: &ask.stops[row],
            mask: mask.take().map(|mask| mask as &mut dyn TokenMask),
        });
    }
    let (mut tokens, mut failures) = (vec![Vec::new(); rows.len()], vec![0; rows.len()]);
    let mut sink = |row: usize, drawn: Result<Draw, SamplingError>| {
        match drawn {
            Ok(draw) => tokens[row].push(draw.token),
            Err(_) => failures[row] += 1,
        }
        answer(row, tokens[row].len())
    };
    let mut step = Step { segments };
    let chain = Chain { rows: &mut rows, sampler: &mut Sampler::default(), sink: &mut sink };
    let finish = device.program.run_chain(&mut step, &mut *device.pool, chain)?;
    for (row, history) in histories.iter().enumerate() {
        assert_eq!(history[history.len() - tokens[row].len()..], tokens[row], "row {row}");
    }
    Ok(Shown { tokens, failures, finish })
}

pub(crate) fn lengths(tokens: &[Vec<u32>]) -> Vec<usize> {
    tokens.iter().map(Vec::len).collect()
}

/// Tokens that single steps and draws give.
pub(crate) fn stepwise(row: usize, count: usize) -> Vec<u32> {
    let mut device = Device::new(KvType::F16);
    let (rules, mut sampler, mut text) =
        (rules(row as u64), Sampler::default(), tokens(PROMPTS[row], row as u64));
    let mut next = text.clone();
    for _ in 0..count {
        let logits = device.run(&[(1, &next)]);
        let row = Row::new(&logits[logits.len() - VOCAB..], text.len() as u32, &text);
        let token = sampler.draw(&rules, &row).unwrap().token;
        text.push(token);
        next = vec![token];
    }
    text.split_off(PROMPTS[row])
}

#[test]
fn a_chain_gives_the_tokens_of_its_steps() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let Shown { tokens: seen, finish, .. } =
        chain(segments, &mut device, &mut Ask::tokens(20), |_, _| Flow::Continue).unwrap();
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
    let Shown { tokens: seen, finish, .. } =
        chain(segments, &mut device, &mut Ask::tokens(20), answer).unwrap();
    assert_eq!(lengths(&seen), [1, 9, 5]);
    assert_eq!(finish.lengths, [4, 250 + 8, 1 + 4]);
    for (row, seen) in seen.iter().enumerate() {
        assert_eq!(seen, &stepwise(row, seen.len()), "row {row}");
    }
    // What the chain left in the cache is what steps would have: the texts go on alike.
    let [_, mut second, _]: [Segment; 3] = prompts(&mut Device::three(KvType::F16), 20).try_into().unwrap();
    second.first_index = finish.lengths[1];
    second.set_tokens(&[seen[1][8]]);
    let step = Step { segments: vec![second] };
    let logits = device.program.run(&step, &mut *device.pool).unwrap().only().floats().to_vec();
    let text = [&tokens(250, 1)[..], &seen[1]].concat();
    let fresh = Device::new(KvType::F16).run(&[(1, &text)]);
    assert_eq!(logits, fresh[fresh.len() - VOCAB..]);
}

#[test]
fn the_last_row_that_hears_of_it_still_has_its_token() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let answer = |row, _| if row == 0 { Flow::StopAll } else { Flow::Continue };
    let shown = chain(segments, &mut device, &mut Ask::tokens(20), answer).unwrap();
    assert_eq!((lengths(&shown.tokens), shown.finish.lengths), (vec![1; 3], PROMPTS.to_vec()));
}

/// A row that may draw few tokens shortens nobody else's chain, and needs no pages for more.
#[test]
fn every_row_has_its_own_limit() {
    let mut device = Device::three(KvType::F16);
    let mut segments = prompts(&mut device, 20);
    segments[1].pages.iter_mut().for_each(|table| table.truncate(1));
    let mut ask = Ask { limits: vec![20, 7, 1], ..Ask::tokens(20) };
    let shown = chain(segments, &mut device, &mut ask, |_, _| Flow::Continue).unwrap();
    assert_eq!(lengths(&shown.tokens), [20, 7, 1]);
    assert_eq!(shown.finish.lengths, [4 + 19, 250 + 6, 1]);
    for (row, tokens) in shown.tokens.iter().enumerate() {
        assert_eq!(tokens, &stepwise(row, tokens.len()), "row {row}");
    }
}

#[test]
fn stop_ids_end_their_row() {
    let plain: Vec<Vec<u32>> = (0..3).map(|row| stepwise(row, 20)).collect();
    // Each row stops at a token that the others may draw freely.
    let stops: Vec<Vec<u32>> = plain.iter().map(|tokens| vec![VOCAB as u32 + 5, tokens[6]]).collect();
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let mut ask = Ask { stops: stops.clone(), ..Ask::tokens(20) };
    let shown = chain(segments, &mut device, &mut ask, |_, _| Flow::Continue).unwrap();
    for row in 0..3 {
        let end = plain[row].iter().position(|id| stops[row].contains(id)).unwrap() + 1;
        assert_eq!(shown.tokens[row], plain[row][..end], "row {row}");
        assert_eq!(shown.finish.lengths[row], PROMPTS[row] + end - 1);
    }
}

#[test]
fn a_mask_allows_and_hears_what_is_drawn() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let mut ask = Ask { mask: Some(Evens::default()), ..Ask::tokens(20) };
    let shown = chain(segments, &mut device, &mut ask, |_, _| Flow::Continue).unwrap();
    assert_eq!(shown.tokens[0].len(), 20);
    assert_eq!(ask.mask.unwrap().accepted, shown.tokens[0]);
    // Other rows draw as they do without a mask beside them.
    assert_eq!(shown.tokens[1..], [stepwise(1, 20), stepwise(2, 20)]);
}

#[test]
fn a_segment_without_logits_runs_once() {
    let mut device = Device::three(KvType::F16);
    let mut segments = prompts(&mut device, 20);
    segments[1].outs = Outs::None;
    let shown = chain(segments, &mut device, &mut Ask::tokens(3), |_, _| Flow::Continue).unwrap();
    assert_eq!(lengths(&shown.tokens), [3, 0, 3]);
    assert_eq!(shown.finish.lengths, [6, 250, 3]);
}

#[test]
fn bad_chains_are_refused_before_anything_runs() {
    let mut device = Device::three(KvType::F16);
    let good = prompts(&mut device, 20);
    let mut refuse = |change: &dyn Fn(&mut Vec<Segment>), tokens: usize| {
        let mut segments = good.clone();
        change(&mut segments);
        let result =
            chain(segments, &mut device, &mut Ask::tokens(tokens), |_, _| unreachable!("nothing runs"));
        result.err().unwrap().to_string()
    };
    assert_eq!(refuse(&|_| {}, 0), "step cannot run: segment 0 of a chain draws no tokens");
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
    let nothing = SamplingParams { suppressed: (0..VOCAB as u32).collect(), ..SamplingParams::default() };
    let mut ask = Ask::tokens(4);
    ask.rules[1] = DrawRules::new(nothing).unwrap();
    let segments = prompts(&mut device, 4);
    let shown = chain(segments, &mut device, &mut ask, |_, _| Flow::Continue).unwrap();
    assert_eq!((lengths(&shown.tokens), shown.failures), (vec![4, 0, 4], vec![0, 1, 0]));
    assert_eq!(shown.finish.lengths, [7, 250, 4]);
}
