//! Chains: several tokens of each row are drawn and computed without returning to the scheduler.
//!
//! A chain begins with a step. The device draws the next token of every segment that asks for the logits of its last row, runs
//! the step of the drawn tokens, and so on, until every row has ended. A row ends by itself at its limit and at its stop ids. The
//! caller may end it by the answer to a token. That answer may arrive late: a device that draws by itself may have drawn further
//! tokens of the row by then. Such tokens are dropped; histories, masks and lengths are as if they had not been drawn.

use crate::device::{DeviceError, DrawInputs, Drawn, KvPool, Program};
use crate::sampling::{Draw, DrawRules, Row, Sampler, SamplingError, TokenMask};
use crate::step::{Outs, PAGE_POSITIONS, PageId, Segment, Step};
use crate::{CacheKind, GroupId, StatePages};

/// The inputs for drawing the tokens of one segment.
pub struct RowDraw<'a> {
    /// The rules of the draws: penalties, filters and temperature.
    pub rules: &'a DrawRules,
    /// Position of the next token, which selects the noise of its draw. Counted up as tokens are drawn.
    pub position: u32,
    /// All tokens before the next one. Drawn tokens are appended.
    pub history: &'a mut Vec<u32>,
    /// Most tokens to draw, at least 1. Pages for all of them must exist before the chain begins.
    pub limit: usize,
    /// Ids that end the row. A stop id is drawn, appended to the history and passed to the sink, but not computed.
    pub stops: &'a [u32],
    /// The ids that a grammar allows; `None` for all.
    pub mask: Option<&'a mut dyn TokenMask>,
}

/// The rows of a chain, and memory for drawing their tokens.
pub struct Chain<'a, 'b> {
    /// One row for each segment of the step, in order. Rows of segments that ask for no logits are not read.
    pub rows: &'a mut [RowDraw<'b>],
    /// Scratch memory for devices that draw on the host.
    pub sampler: &'a mut Sampler,
    /// Receives every drawn token.
    pub sink: &'a mut ChainSink<'a>,
}

/// The caller's answer to a drawn token: whether its row or the chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Goes on with this row.
    Continue,
    /// Ends this row; the token is not computed, and the sink sees no further token of the row. Other rows go on.
    StopRow,
    /// Ends the chain as soon as the device can. Each other row gets its token of the same step, and possibly further ones.
    StopAll,
}

/// Receives each token as it is drawn: the number of its segment, and the draw or the reason why there is none. A row with a
/// failed draw ends, whatever the answer is.
pub type ChainSink<'a> = dyn FnMut(usize, Result<Draw, SamplingError>) -> Flow + 'a;

/// The lengths of cached texts after a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Cached positions of each segment after the chain. They hold tokens that were given or accepted. The last token drawn is
    /// not cached.
    pub lengths: Vec<usize>,
}

/// Most tokens of a chain that the host computes step by step: few enough that reserving their pages costs little.
pub const STEPWISE_TOKENS: usize = 32;

/// Runs a chain as plain steps. Meant for devices on which a step costs far more than returning to the host.
///
/// # Errors
///
/// Errors of [`Program::run_chain`].
pub fn stepwise<P: Program + ?Sized>(
    program: &mut P,
    step: &mut Step,
    pool: &mut dyn KvPool,
    chain: Chain<'_, '_>,
) -> Result<Finish, DeviceError> {
    let Chain { rows, sampler, sink } = chain;
    check(step, pool, rows)?;
    if rows.is_empty() {
        return Ok(Finish { lengths: Vec::new() });
    }
    let mut lengths: Vec<usize> =
        step.segments.iter().map(|segment| segment.first_index + segment.rows).collect();
    let mut numbers: Vec<usize> = (0..lengths.len()).collect();
    loop {
        let drawn = match draws(step, &numbers, rows) {
            Some((draws, mut masks)) => program.run_drawn(step, pool, &draws, &mut |draw, words| {
                masks[draw].as_deref_mut().map_or(Ok(()), |mask| mask.fill(&[], words))
            })?,
            None => None,
        };
        // Of a row without a token the sampler draws it or says why; the step writes again what it wrote.
        let drawn = drawn.filter(|rows| !rows.contains(&Drawn::Nothing));
        let logits = if drawn.is_none() { Some(program.run(step, pool)?.only()) } else { None };
        let (mut place, mut out, mut last) = (0, 0, false);
        while let Some(segment) = step.segments.get_mut(place) {
            let number = numbers[place];
            let next = match segment.outs {
                Outs::Last => {
                    let row = &mut rows[number];
                    let drawn = match (&logits, &drawn) {
                        (Some(logits), _) => row.draw(logits.row(out), sampler),
                        (None, rows) => row.take_drawn(rows.as_ref().map(|rows| &rows[out]), sampler),
                    };
                    out += 1;
                    let next = drawn.as_ref().ok().map(|draw| draw.token).filter(|&id| row.goes_on(id));
                    let flow = sink(number, drawn);
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
            return Ok(Finish { lengths });
        }
        // The next step computes one token of each remaining row.
        for &number in &numbers {
            lengths[number] += 1;
        }
    }
}

/// The mask of each draw; `None` allows all tokens.
type Masks<'a> = Vec<Option<&'a mut dyn TokenMask>>;

/// The inputs by which a device draws the token of each row, and the rows' masks; `None` if all rows report on their logits, so
/// that the host must draw.
fn draws<'a>(
    step: &Step,
    numbers: &[usize],
    rows: &'a mut [RowDraw<'_>],
) -> Option<(Vec<DrawInputs<'a>>, Masks<'a>)> {
    let (mut draws, mut masks) = (Vec::new(), Vec::new());
    let mut rows = rows.iter_mut().enumerate();
    for (segment, number) in step.segments.iter().zip(numbers) {
        let (_, row) = rows.find(|(at, _)| at == number)?;
        if segment.outs != Outs::Last {
            continue;
        }
        let masked = row.mask.is_some() && !row.rules.params().reports_logits();
        draws.push(DrawInputs { rules: row.rules, position: row.position, history: row.history, masked });
        masks.push(row.mask.as_mut().map(|mask| &mut **mask as &mut dyn TokenMask));
    }
    let any = draws.iter().any(|draw: &DrawInputs<'_>| !draw.rules.params().reports_logits());
    any.then_some((draws, masks))
}

impl RowDraw<'_> {
    /// True if every token of the row is the one with the largest logit, so that a device needs no noise to find it.
    pub fn takes_largest(&self) -> bool {
        self.mask.is_none() && self.rules.takes_largest(self.position)
    }

    /// Records the token that a device drew and passes it to the mask, or draws a token from the logits that the device returned.
    /// If the device returned neither, the result is an error.
    ///
    /// # Errors
    ///
    /// [`SamplingError`]: no token could be drawn. The row is unchanged.
    pub fn take_drawn(
        &mut self,
        drawn: Option<&Drawn>,
        sampler: &mut Sampler,
    ) -> Result<Draw, SamplingError> {
        match drawn {
            Some(&Drawn::Token(token)) => {
                if let Some(mask) = &mut self.mask {
                    mask.accept(token);
                }
                Ok(self.take(token))
            }
            Some(Drawn::Logits(logits)) => self.draw(logits, sampler),
            Some(Drawn::Nothing) | None => self.draw(&[], sampler),
        }
    }

    /// Records `token` as drawn: appends it to the history and advances the position. The mask, if there is one, must already
    /// have accepted it.
    pub fn take(&mut self, token: u32) -> Draw {
        self.history.push(token);
        self.position = self.position.saturating_add(1);
        self.limit -= 1;
        Draw { token, ..Draw::default() }
    }

    /// Draws the next token and records it.
    ///
    /// # Errors
    ///
    /// [`SamplingError`]: no token could be drawn. The row is unchanged.
    pub fn draw(&mut self, logits: &[f32], sampler: &mut Sampler) -> Result<Draw, SamplingError> {
        let row = Row::new(logits, self.position, self.history);
        let draw = match &mut self.mask {
            Some(mask) => sampler.draw_masked(self.rules, &row, &mut **mask),
            None => sampler.draw(self.rules, &row),
        }?;
        self.take(draw.token);
        Ok(draw)
    }

    /// True unless `token`, which was just drawn, ends the row.
    pub fn goes_on(&self, token: u32) -> bool {
        self.limit > 0 && !self.stops.contains(&token)
    }
}

/// Replaces a segment by the single row of `token`, which follows it. Declared inputs keep the values of the segment's last row.
pub fn go_on(segment: &mut Segment, token: u32) {
    let rows = segment.rows;
    if let Some(positions) = &mut segment.positions {
        let last = positions.last().copied().unwrap_or(0);
        positions.clear();
        positions.push(last.saturating_add(1));
    }
    segment.first_index += rows;
    for given in &mut segment.given {
        given.keep_last_row(rows);
    }
    segment.set_tokens(&[token]);
    segment.embeddings = None;
    segment.states.go_on();
}

/// Checks that a chain's rows fit its step, and that the pages for their tokens exist.
///
/// # Errors
///
/// [`DeviceError::BadStep`].
pub fn check(step: &Step, pool: &dyn KvPool, rows: &[RowDraw<'_>]) -> Result<(), DeviceError> {
    let bad = |what: String| Err(DeviceError::BadStep { what });
    if rows.len() != step.segments.len() {
        return bad(format!("a chain of {} segments with {} rows", step.segments.len(), rows.len()));
    }
    for (number, (segment, row)) in step.segments.iter().zip(rows).enumerate() {
        if segment.outs == Outs::None {
            continue;
        }
        let is_by_row =
            segment.given.iter().all(|given| given.elements().is_multiple_of(segment.rows.max(1)));
        if segment.outs != Outs::Last || segment.tree.is_some() || !is_by_row {
            return bad(format!(
                "segment {number} of a chain, expected plain text with logits of the last row"
            ));
        }
        if row.limit == 0 {
            return bad(format!("segment {number} of a chain draws no tokens"));
        }
        let begin = segment.first_index.saturating_add(segment.rows);
        let end = begin.saturating_add(row.limit - 1);
        if row.limit > 1 && !pool.spec().states.is_empty() {
            check_spares(number, segment, pool)?;
        }
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
                    "segment {number}, cache group {group}: a chain of {} tokens without a page for indices {}..{}",
                    row.limit,
                    entry.saturating_mul(PAGE_POSITIONS),
                    (entry + 1).saturating_mul(PAGE_POSITIONS)
                ));
            }
        }
    }
    Ok(())
}

/// Checks that segment number `number` of a chain keeps the states after its last row, and brings at least one spare
/// state page. Spare pages must exist, and none may be used twice.
fn check_spares(number: usize, segment: &Segment, pool: &dyn KvPool) -> Result<(), DeviceError> {
    let StatePages { from, to, spares } = &segment.states;
    let keeps_last = to.last().is_some_and(|&(row, _)| row as usize + 1 == segment.rows);
    let used = |page: &PageId| *from == Some(*page) || to.iter().any(|(_, written)| written == page);
    let is_free = |(place, page): (usize, &PageId)| {
        page.index() < pool.state_pages() && !used(page) && !spares[..place].contains(page)
    };
    if keeps_last && !spares.is_empty() && spares.iter().enumerate().all(is_free) {
        return Ok(());
    }
    let what = format!("segment {number} of a chain has no state pages for the tokens that it draws");
    Err(DeviceError::BadStep { what })
}
