//! Chains: several tokens of each row without going back to the scheduler.

use crate::device::{DeviceError, KvPool, Program};
use crate::sampling::{Draw, Sampler, SamplingError};
use crate::step::{Outs, PAGE_POSITIONS, Segment, Step};
use crate::{CacheKind, GroupId};

/// What the tokens of one segment are drawn with.
#[derive(Debug)]
pub struct ChainRow<'a> {
    /// How to draw.
    pub sampler: &'a mut Sampler,
    /// Position of the next token, which names its noise; counted on as tokens are drawn.
    pub position: u32,
    /// All tokens before the next one. Drawn tokens are appended.
    pub history: &'a mut Vec<u32>,
}

/// What a chain does after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Goes on with this row.
    Continue,
    /// Ends this row; the token is not computed. Others go on.
    StopRow,
    /// Ends the chain once the other rows of the step have had their tokens.
    StopAll,
}

/// Takes each token as it appears: the number of its segment, and the draw or why there is none. A row whose draw
/// failed ends, whatever is answered.
pub type ChainSink<'a> = dyn FnMut(usize, Result<Draw, SamplingError>) -> Flow + 'a;

/// How far a chain came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Of each segment: cached positions, all of them tokens given or accepted. The last token drawn is never among them.
    pub lengths: Vec<usize>,
}

/// A chain made of plain steps: right wherever a step costs far more than coming back from it.
pub(crate) fn stepwise<P: Program + ?Sized>(
    program: &mut P,
    step: &mut Step,
    pool: &mut dyn KvPool,
    tokens: usize,
    rows: &mut [ChainRow<'_>],
    sink: &mut ChainSink<'_>,
) -> Result<Finish, DeviceError> {
    check(step, pool, tokens, rows.len())?;
    let mut lengths: Vec<usize> =
        step.segments.iter().map(|segment| segment.first_index + segment.rows()).collect();
    let mut numbers: Vec<usize> = (0..lengths.len()).collect();
    for left in (0..tokens).rev() {
        let output = program.run(step, pool)?;
        let (mut place, mut out, mut last) = (0, 0, left == 0);
        while let Some(segment) = step.segments.get_mut(place) {
            let number = numbers[place];
            let next = match segment.outs {
                Outs::Last => {
                    let (next, flow) = rows[number].draw(output.row(out), number, sink);
                    out += 1;
                    last |= flow == Flow::StopAll;
                    next.filter(|_| flow != Flow::StopRow)
                }
                _ => None,
            };
            if let Some(token) = next {
                go_on(segment, token);
                place += 1;
            } else {
                step.segments.remove(place);
                numbers.remove(place);
            }
        }
        if last || step.segments.is_empty() {
            break;
        }
        // What the next step computes.
        for &number in &numbers {
            lengths[number] += 1;
        }
    }
    Ok(Finish { lengths })
}

impl ChainRow<'_> {
    /// The next token, where there is one, and what the sink made of it.
    fn draw(&mut self, logits: &[f32], number: usize, sink: &mut ChainSink<'_>) -> (Option<u32>, Flow) {
        let drawn = self.sampler.draw(logits, self.position, self.history);
        let token = drawn.as_ref().ok().map(|draw| draw.token);
        self.history.extend(token);
        self.position = self.position.saturating_add(1);
        (token, sink(number, drawn))
    }
}

/// Makes a segment the single row that follows it.
fn go_on(segment: &mut Segment, token: u32) {
    let rows = segment.rows();
    if let Some(positions) = &mut segment.positions {
        let last = positions.last().copied().unwrap_or(0);
        positions.clear();
        positions.push(last.saturating_add(1));
    }
    segment.first_index += rows;
    segment.tokens.clear();
    segment.tokens.push(token);
    segment.embeddings = None;
}

/// What a chain needs beyond what each of its steps needs.
fn check(step: &Step, pool: &dyn KvPool, tokens: usize, rows: usize) -> Result<(), DeviceError> {
    let bad = |what: String| Err(DeviceError::BadStep { what });
    if tokens == 0 {
        return bad("a chain of no tokens".into());
    }
    if rows != step.segments.len() {
        return bad(format!("a chain of {} segments with {rows} samplers", step.segments.len()));
    }
    for (number, segment) in step.segments.iter().enumerate() {
        if segment.outs == Outs::All || segment.tree.is_some() {
            return bad(format!(
                "segment {number} of a chain, expected plain text with logits of the last row"
            ));
        }
        if segment.outs == Outs::None {
            continue;
        }
        let begin = segment.first_index.saturating_add(segment.rows());
        let end = begin.saturating_add(tokens - 1);
        let kinds = pool.spec().groups.iter().map(|group| group.kind);
        for (group, (table, kind)) in segment.pages.iter().zip(kinds).enumerate() {
            if kind == CacheKind::Memory {
                // A memory does not grow with the text.
                continue;
            }
            let capacity = pool.capacity(GroupId(group as u32));
            let exists = |entry: usize| {
                table.get(entry).copied().flatten().is_some_and(|page| page.index() < capacity)
            };
            if let Some(entry) = (begin / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS)).find(|&e| !exists(e))
            {
                return bad(format!(
                    "segment {number}, cache group {group}: a chain of {tokens} tokens without a page for indices {}..{}",
                    entry.saturating_mul(PAGE_POSITIONS),
                    (entry + 1).saturating_mul(PAGE_POSITIONS)
                ));
            }
        }
    }
    Ok(())
}
