//! Chains on the reference: how they end, and which are refused. `testing::check_chains` compares them with single steps.

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
    fn fill(&mut self, drafts: &[u32], words: &mut [u32]) -> Result<(), SamplingError> {
        let odd = (self.accepted.len() + drafts.len()) % 2;
        words.fill(0x5555_5555 << odd);
        Ok(())
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

/// Events of a chain: the draws of each row, and how the chain ended.
pub(crate) struct Shown {
    pub(crate) tokens: Vec<Vec<u32>>,
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
    let mut tokens = vec![Vec::new(); rows.len()];
    let mut sink = |row: usize, drawn: Result<Draw, SamplingError>| {
        tokens[row].push(drawn.unwrap().token);
        answer(row, tokens[row].len())
    };
    let mut step = Step { segments };
    let chain = Chain { rows: &mut rows, sampler: &mut Sampler::default(), sink: &mut sink };
    let finish = device.program.run_chain(&mut step, &mut *device.pool, chain)?;
    for (row, history) in histories.iter().enumerate() {
        assert_eq!(history[history.len() - tokens[row].len()..], tokens[row], "row {row}");
    }
    Ok(Shown { tokens, finish })
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
fn the_last_row_that_hears_of_it_still_has_its_token() {
    let mut device = Device::three(KvType::F16);
    let segments = prompts(&mut device, 20);
    let answer = |row, _| if row == 0 { Flow::StopAll } else { Flow::Continue };
    let shown = chain(segments, &mut device, &mut Ask::tokens(20), answer).unwrap();
    assert_eq!((lengths(&shown.tokens), shown.finish.lengths), (vec![1; 3], PROMPTS.to_vec()));
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
