//! Compares chains with the single steps that they replace: limits, stop ids, late answers, masks, and draws that fail.

use std::cell::RefCell;
use std::sync::Arc;

use brasa_formats::StorageFormat;

use crate::ValueWidth;
use crate::chain::{Chain, Finish, Flow, RowDraw};
use crate::device::{Backend, DeviceError, KvType, Precision};
use crate::sampling::{Draw, DrawRules, Dry, Row, Sampler, SamplingError, SamplingParams, TokenMask};
use crate::step::{Outs, PageId, Segment, Step};
use crate::{Graph, StatePages};

use super::{Decoder, Recurrent, Running, tokens};

const VOCAB: usize = 150;
/// Rows of the prompts. The second prompt continues on a new page.
const PROMPTS: [usize; 3] = [4, 250, 1];
/// Most tokens of a row in a check.
const MOST: usize = 20;

/// Checks the chains of a device over three texts: tokens, lengths, histories and caches are those of single steps, however rows
/// end and however late the device gets the answer. Masks and failed draws affect their own row only.
///
/// # Panics
///
/// If a chain differs from single steps.
pub fn check_chains(device: &dyn Backend) {
    let small = Decoder {
        hidden: 16,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        feed_forward: 16,
        windows: vec![None, Some(20)],
        ..Decoder::small(StorageFormat::F32)
    };
    let latent = Decoder {
        head_dim: 576,
        value: Some(ValueWidth::PrefixOfKey(512)),
        head_norms: false,
        ..small.clone()
    };
    for wide in [Decoder { sinks: true, ..small.clone() }, latent] {
        Checks::new(device, wide.graph(12)).rows_end_by_themselves();
    }
    check_chains_of(device, small.graph(12));
}

/// Checks the chains of a device like [`check_chains`], for a decoder with recurrent states: each step goes on from the state page
/// that the step before has written.
///
/// # Panics
///
/// If a chain differs from single steps.
pub fn check_chains_of_states(device: &dyn Backend) {
    check_chains_of(device, Recurrent::small().graph(12));
}

/// Checks the chains of a device like [`check_chains`], for a graph from token ids below 150 to logits.
///
/// # Panics
///
/// If a chain differs from single steps.
pub fn check_chains_of(device: &dyn Backend, graph: Graph) {
    let mut checks = Checks::new(device, graph);
    checks.rows_end_by_themselves();
    checks.rows_end_by_answers();
    checks.one_answer_ends_all();
    checks.masks_hold_for_their_row();
    checks.rows_without_tokens_end_alone();
    checks.largest_logits_are_taken();
}

/// A small decoder and the tokens that single steps give.
struct Checks {
    label: String,
    running: Running,
    texts: u64,
    /// Most tokens of a row in a chain.
    count: usize,
    plain: Vec<Vec<u32>>,
}

/// The options of a chain: how it draws and ends.
struct Ask<'a> {
    rules: Vec<DrawRules>,
    limits: Vec<usize>,
    stops: Vec<Vec<u32>>,
    /// A mask of the first row.
    mask: Option<&'a mut Evens>,
}

impl Ask<'_> {
    /// Draws `limit` tokens of every row, without stop ids and masks.
    fn tokens(limit: usize) -> Self {
        let rules = (0..PROMPTS.len() as u64).map(rules).collect();
        Self { rules, limits: vec![limit; PROMPTS.len()], stops: vec![Vec::new(); PROMPTS.len()], mask: None }
    }
}

/// The tokens that the sink of a chain received, and the chain's end.
struct Shown {
    /// The tokens of each row.
    tokens: Vec<Vec<u32>>,
    /// Failed draws of each row.
    failures: Vec<usize>,
    finish: Finish,
}

impl Checks {
    fn new(device: &dyn Backend, graph: Graph) -> Self {
        let running = Running::new(device, &Arc::new(graph), Precision::Reference, KvType::F16);
        let count = running.program.max_chain(false).min(MOST);
        assert!(count >= 8, "a chain of {count} tokens is too short to be checked");
        let mut checks =
            Self { label: device.info().description, running, texts: 0, count, plain: Vec::new() };
        checks.plain = (0..PROMPTS.len()).map(|row| checks.stepwise(row, &rules(row as u64))).collect();
        checks
    }

    /// Each row ends at its own limit or stop id, and needs no pages for more.
    fn rows_end_by_themselves(&mut self) {
        let mut segments = self.segments();
        segments[1].pages.iter_mut().for_each(|table| table.truncate(1));
        let stop = self.plain[2][self.count / 2];
        let before_stop = self.plain[2].iter().position(|&id| id == stop).expect("it is there") + 1;
        let mut ask = Ask::tokens(self.count);
        ask.limits[1] = 4;
        ask.stops[2] = vec![VOCAB as u32 + 5, stop];
        let shown = self.chain(&segments, &mut ask, |_, _| Flow::Continue).expect("a chain");
        self.assert_shown(&shown, [self.count, 4, before_stop]);
    }

    /// Each row ends with the token that the sink's answer names, however many more the device has drawn.
    fn rows_end_by_answers(&mut self) {
        let segments = self.segments();
        let answer = |row, count| match (row, count) {
            (0, 1) | (2, 3) => Flow::StopRow,
            (1, 7) => Flow::StopAll,
            _ => Flow::Continue,
        };
        let shown = self.chain(&segments, &mut Ask::tokens(self.count), answer).expect("a chain");
        self.assert_shown(&shown, [1, 7, 3]);
        self.assert_goes_on(&segments[1], 1, &shown);
    }

    /// An answer that ends the chain leaves every other row its token of the same step, and possibly further ones.
    fn one_answer_ends_all(&mut self) {
        let segments = self.segments();
        let answer = |row, count| if (row, count) == (0, 4) { Flow::StopAll } else { Flow::Continue };
        let shown = self.chain(&segments, &mut Ask::tokens(self.count), answer).expect("a chain");
        let others = [shown.tokens[1].len(), shown.tokens[2].len()];
        assert!(others.iter().all(|count| (4..=self.count).contains(count)), "{}: {others:?}", self.label);
        self.assert_shown(&shown, [4, others[0], others[1]]);
        self.assert_goes_on(&segments[1], 1, &shown);
    }

    /// Chains with a mask, as long as the device allows: the mask receives every token of its row, and other rows draw as without
    /// a mask.
    fn masks_hold_for_their_row(&mut self) {
        let most = self.running.program.max_chain(true);
        assert!(most > 0, "{}: chains of no tokens", self.label);
        let mut segments = self.segments();
        let mut mask = Evens::default();
        let mut all = vec![Vec::new(); PROMPTS.len()];
        while all[0].len() < self.count {
            let mut ask = Ask::tokens(most.min(self.count - all[0].len()));
            ask.mask = Some(&mut mask);
            let shown = self.chain_behind(&segments, &mut ask, &all, |_, _| Flow::Continue).expect("a chain");
            for (row, segment) in segments.iter_mut().enumerate() {
                all[row].extend(&shown.tokens[row]);
                let states = self.states_behind(segment, shown.finish.lengths[row]);
                segment.states = states;
                segment.first_index = shown.finish.lengths[row];
                segment.set_tokens(&all[row][all[row].len() - 1..]);
            }
        }
        assert_eq!(mask.accepted, all[0], "{}", self.label);
        assert_eq!(all[1..], self.plain[1..], "{}: rows without a mask", self.label);
    }

    /// A row that cannot draw, or asks for no logits, runs once; the other row goes on.
    fn rows_without_tokens_end_alone(&mut self) {
        let nothing = SamplingParams { suppressed: (0..VOCAB as u32).collect(), ..SamplingParams::default() };
        let mut ask = Ask::tokens(4);
        ask.rules[1] = DrawRules::new(nothing).expect("parameters within their range");
        let mut segments = self.segments();
        segments[2].outs = Outs::None;
        let shown = self.chain(&segments, &mut ask, |_, _| Flow::Continue).expect("a chain");
        assert_eq!(shown.failures, [0, 1, 0], "{}", self.label);
        assert_eq!(shown.tokens, [&self.plain[0][..4], &[], &[]], "{}", self.label);
        assert_eq!(shown.finish.lengths, [PROMPTS[0] + 3, PROMPTS[1], PROMPTS[2]], "{}", self.label);
    }

    /// Rows that take the largest logits alone, and beside one that draws.
    fn largest_logits_are_taken(&mut self) {
        let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let greedy = DrawRules::new(params).expect("parameters within their range");
        let tokens: Vec<_> = (0..PROMPTS.len()).map(|row| self.stepwise(row, &greedy)).collect();
        let mut ask = Ask::tokens(self.count);
        for row in [2, 1, 0] {
            ask.rules[row] = greedy.clone();
            if row == 2 {
                continue;
            }
            let segments = self.segments();
            let shown = self.chain(&segments, &mut ask, |_, _| Flow::Continue).expect("a chain");
            assert_eq!(shown.tokens[row..], tokens[row..], "{}", self.label);
        }
    }

    /// The tokens of a row that single steps and draws give.
    fn stepwise(&mut self, row: usize, rules: &DrawRules) -> Vec<u32> {
        let mut sampler = Sampler::default();
        let mut segment = self.segments().swap_remove(row);
        let mut text = segment.tokens.clone();
        for _ in 0..self.count {
            let logits = self.running.run(vec![segment.clone()]);
            let draw = sampler.draw(rules, &Row::new(&logits, text.len() as u32, &text));
            segment.first_index = text.len();
            text.push(draw.expect("a token").token);
            segment.set_tokens(&text[text.len() - 1..]);
            segment.states.go_on();
        }
        text.split_off(PROMPTS[row])
    }

    /// Three new texts, with pages for their tokens.
    fn segments(&mut self) -> Vec<Segment> {
        let segment = |(row, &length): (usize, &usize)| {
            self.texts += 1;
            let prompt = tokens(length, row as u64);
            let mut segment = self.running.segment(self.texts, &[&prompt[..], &[0; MOST]].concat());
            segment.set_tokens(&prompt);
            segment.outs = Outs::Last;
            if let Some(kept) = segment.states.to.last_mut() {
                kept.0 = length as u32 - 1;
                segment.states.spares = self.spares();
            }
            segment
        };
        PROMPTS.iter().enumerate().map(segment).collect()
    }

    /// Unused state pages for the later steps of a chain, whose number the device tells.
    fn spares(&mut self) -> Vec<PageId> {
        (0..self.running.program.spare_state_pages()).map(|_| self.running.state_page()).collect()
    }

    /// The state pages of a step of one row behind a chain that began with `segment` and ended with `length` cached positions.
    fn states_behind(&mut self, segment: &Segment, length: usize) -> StatePages {
        let from = segment.states.page_after_steps(length - segment.first_index - segment.rows);
        if from.is_none() {
            return StatePages::default();
        }
        StatePages { from, to: vec![(0, self.running.state_page())], spares: self.spares() }
    }

    fn chain(
        &mut self,
        segments: &[Segment],
        ask: &mut Ask<'_>,
        answer: impl Fn(usize, usize) -> Flow,
    ) -> Result<Shown, DeviceError> {
        self.chain_behind(segments, ask, &[const { Vec::new() }; PROMPTS.len()], answer)
    }

    /// Runs a chain after tokens that were drawn before. `answer` returns the sink's answer for a row and the number of its
    /// token.
    fn chain_behind(
        &mut self,
        segments: &[Segment],
        ask: &mut Ask<'_>,
        drawn: &[Vec<u32>],
        answer: impl Fn(usize, usize) -> Flow,
    ) -> Result<Shown, DeviceError> {
        let prompt = |row: usize| tokens(PROMPTS[row], row as u64);
        let mut histories: Vec<Vec<u32>> =
            drawn.iter().enumerate().map(|(row, drawn)| [&prompt(row)[..], drawn].concat()).collect();
        let before: Vec<usize> = histories.iter().map(Vec::len).collect();
        let mut mask = ask.mask.as_mut();
        let mut rows: Vec<RowDraw<'_>> = Vec::new();
        for (row, history) in histories.iter_mut().enumerate() {
            rows.push(RowDraw {
                rules: &ask.rules[row],
                position: history.len() as u32,
                history,
                limit: ask.limits[row],
                stops: &ask.stops[row],
                mask: mask.take().map(|mask| &mut **mask as &mut dyn TokenMask),
            });
        }
        let seen = RefCell::new((vec![Vec::new(); rows.len()], vec![0; rows.len()], vec![false; rows.len()]));
        let mut sink = |row: usize, drawn: Result<Draw, SamplingError>| {
            let (tokens, failures, ended) = &mut *seen.borrow_mut();
            assert!(!ended[row], "{}: a token of row {row}, which has ended", self.label);
            match drawn {
                Ok(draw) => tokens[row].push(draw.token),
                Err(_) => failures[row] += 1,
            }
            let flow = answer(row, tokens[row].len());
            ended[row] = flow != Flow::Continue || failures[row] > 0;
            flow
        };
        let mut step = Step { segments: segments.to_vec() };
        let chain = Chain { rows: &mut rows, sampler: &mut Sampler::default(), sink: &mut sink };
        let finish = self.running.program.run_chain(&mut step, &mut *self.running.pool, chain)?;
        let (tokens, failures, _) = seen.into_inner();
        for (row, history) in histories.iter().enumerate() {
            assert_eq!(history[before[row]..], tokens[row], "{}: the history of row {row}", self.label);
        }
        Ok(Shown { tokens, failures, finish })
    }

    /// Asserts that the rows drew the first `counts` tokens of single steps, of which the last is still to be computed.
    fn assert_shown(&self, shown: &Shown, counts: [usize; 3]) {
        for (row, (tokens, count)) in shown.tokens.iter().zip(counts).enumerate() {
            assert_eq!(tokens, &self.plain[row][..count], "{}: row {row}", self.label);
            let length = PROMPTS[row] + count - 1;
            assert_eq!(shown.finish.lengths[row], length, "{}: the length of row {row}", self.label);
        }
    }

    /// Asserts that the cache is as after single steps: the next token of the text is the same.
    fn assert_goes_on(&mut self, segment: &Segment, row: usize, shown: &Shown) {
        let drawn = &shown.tokens[row];
        if drawn.len() == self.count {
            return;
        }
        let mut next = segment.clone();
        next.states = self.states_behind(segment, shown.finish.lengths[row]);
        next.first_index = shown.finish.lengths[row];
        next.set_tokens(&drawn[drawn.len() - 1..]);
        let logits = self.running.run(vec![next]);
        let text = [&tokens(PROMPTS[row], row as u64)[..], drawn].concat();
        let draw = Sampler::default().draw(&rules(row as u64), &Row::new(&logits, text.len() as u32, &text));
        assert_eq!(draw.expect("a token").token, self.plain[row][drawn.len()], "{}: goes on", self.label);
    }
}

fn rules(seed: u64) -> DrawRules {
    let mut params =
        SamplingParams { temperature: 0.9, seed, repeat_penalty: 1.3, ..SamplingParams::default() };
    match seed {
        0 => {}
        1 => {
            (params.typical_p, params.top_n_sigma, params.dynatemp_range) = (0.8, 2.0, 0.5);
            (params.xtc_probability, params.xtc_threshold) = (0.5, 0.02);
        }
        _ => params.dry = Dry { multiplier: 2.0, allowed_length: 1, ..Dry::default() },
    }
    DrawRules::new(params).expect("parameters within their range")
}

/// Allows even ids and odd ids in turn.
#[derive(Default)]
struct Evens {
    accepted: Vec<u32>,
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
