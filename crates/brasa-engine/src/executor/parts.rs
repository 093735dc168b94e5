//! The parts of a step or a chain: rows of sequences, and what is drawn or read of them.

use brasa_graph::chain::RowDraw;
use brasa_graph::sampling::{Draw, DrawRules, SamplingError, TokenMask};
use brasa_graph::step::Outs;

use crate::ReadValue;
use crate::sequence::Sequence;

/// The next rows of one sequence in a step. On the device they are a [`Segment`](brasa_graph::step::Segment).
pub struct SequenceRows<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens that follow the cached ones.
    pub tokens: &'a [u32],
    /// The rows that need outputs: logits or hidden states.
    pub outs: Outs,
}

/// A sequence that takes part in a chain. On the device it is a [`Segment`](brasa_graph::step::Segment) and a [`RowDraw`].
pub struct SequenceChain<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The cached tokens and the tokens that follow them. The chain begins with a step of the next `rows` tokens. If no tokens
    /// are left then, tokens are drawn and appended here.
    pub tokens: &'a mut Vec<u32>,
    /// Rows of the first step.
    pub rows: usize,
    /// Values to report of the first step's rows, in place of drawing; `None` for a text that is generated.
    pub reads: Option<Reads>,
    /// How tokens are drawn.
    pub rules: &'a DrawRules,
    /// Position of the next token; selects the noise of its draw.
    pub position: u32,
    /// Most tokens to draw, at least 1. The executor lowers it if there are not enough positions or pages.
    pub limit: usize,
    /// Ids that end the chain of this sequence.
    pub stops: &'a [u32],
    /// The ids that a grammar allows; `None` for all.
    pub mask: Option<&'a mut dyn TokenMask>,
    /// Guesses of the tokens that follow `tokens`, read by [`Executor::run_drafts`](super::Executor::run_drafts) alone.
    pub drafts: &'a [u32],
}

/// Which rows of a step report values, and which kind of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The first row that reports a value, counted from the first row of the part; all later rows report one too.
    pub from: usize,
    /// The kind of value for each row.
    pub value: ReadValue,
}

/// Result of one row of a step.
#[derive(Debug)]
pub enum StepOut<'a> {
    /// The token drawn from the row's logits, or the reason why there is none.
    Drawn(Result<Draw, SamplingError>),
    /// The values of the token at `index` of its sequence.
    Read {
        /// Index of the token in its sequence, counted from 0.
        index: usize,
        /// The logits, `[vocab_size]`, or the hidden state, `[hidden_size]`.
        values: &'a [f32],
    },
}

impl SequenceChain<'_> {
    /// The row of the chain on the device.
    pub(super) fn row_draw(&mut self) -> RowDraw<'_> {
        RowDraw {
            rules: self.rules,
            position: self.position,
            history: &mut *self.tokens,
            limit: self.limit,
            stops: self.stops,
            mask: self.mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask),
        }
    }

    /// The kind of value that the chain's first step reports; `None` if it reports none.
    pub(crate) fn read_value(&self) -> Option<ReadValue> {
        self.reads.filter(|reads| reads.from < self.rows).map(|reads| reads.value)
    }

    /// The rows of the chain's first step.
    pub(super) fn first_rows(&mut self) -> SequenceRows<'_> {
        let start = self.sequence.tokens.len();
        let tokens = &self.tokens[start..start + self.rows];
        let outs = match self.reads.map(|reads| reads.from) {
            Some(0) => Outs::All,
            Some(first) if first >= self.rows => Outs::None,
            Some(first) if first + 1 == self.rows => Outs::Last,
            Some(first) => Outs::Rows((first as u32..self.rows as u32).collect()),
            None if start + self.rows == self.tokens.len() => Outs::Last,
            None => Outs::None,
        };
        SequenceRows { sequence: self.sequence, tokens, outs }
    }
}
