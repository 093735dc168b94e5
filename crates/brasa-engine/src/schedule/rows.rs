//! The rows of a step.

use super::{Active, Limits};

/// A step, and the chain that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// Rows of each active request, in order; 0 for none.
    pub(crate) rows: Vec<usize>,
    /// Rows of the step that are still free for another prompt.
    pub(crate) rows_left: usize,
    pub(crate) chain: ChainPlan,
}

/// The steps that follow the first one of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainPlan {
    /// Most tokens of a request; 1 for a single step.
    pub(crate) limit: usize,
    /// True if the chain ends when a row ends, because a waiting request can then be admitted.
    pub(crate) ends_with_row: bool,
    /// True if the chain ends when a request arrives, because it could be admitted at once.
    pub(crate) ends_on_arrival: bool,
}

/// Most prompts that are computed at once. A request that arrives after so many waits until one of them ends.
const MOST_PROMPTS: usize = 4;

/// The next step: a row for each request that decodes, and as many prompt rows of the others as fit.
///
/// The shortest prompts go first, but the most senior one gets half of the rows if it has that many: a short prompt does not wait
/// behind a long one's chunks, and the long one takes at most twice as long.
pub(super) fn compose(active: &[Active], limits: &Limits) -> StepPlan {
    let decoding = active.iter().filter(|active| active.decodes()).count();
    let drawing = active.iter().filter(|active| active.reads == 0).count();
    let mut outs_left = limits.max_outs.saturating_sub(drawing);
    let mut rows_left = limits.max_rows.saturating_sub(decoding);
    if decoding > 0 {
        rows_left = rows_left.min(limits.mixed_rows.max(1));
    }
    let mut rows: Vec<usize> = active.iter().map(|active| usize::from(active.decodes())).collect();
    let mut prompts: Vec<usize> = (0..active.len()).filter(|&place| !active[place].decodes()).collect();
    let another = prompts.len() < MOST_PROMPTS && rows_left > 1;
    let senior = prompts.first().copied();
    // Rows that the senior prompt has for certain, until it has had its turn.
    let mut kept = senior.map_or(0, |place| active[place].pending.min(rows_left.div_ceil(2)));
    prompts.sort_by_key(|&place| active[place].pending);
    for place in prompts {
        if Some(place) == senior {
            kept = 0;
        }
        rows[place] = prompt_rows(&active[place], outs_left).min(rows_left - kept);
        rows_left -= rows[place];
        if active[place].reads > 0 {
            // Rows behind the lead have logits.
            outs_left -= rows[place].saturating_sub(active[place].pending - active[place].reads);
        }
    }
    // A prompt ends in a step of its own: later texts can begin with the pages that its windows hold then.
    let limit = if decoding == active.len() { limits.max_chain } else { 1 };
    let chain = ChainPlan {
        limit,
        ends_with_row: limits.waiting > 0,
        ends_on_arrival: active.len() < limits.max_active,
    };
    StepPlan { rows, rows_left: rows_left.max(usize::from(another)), chain }
}

/// Most rows of a prompt in a step, if `outs_left` more rows may have logits.
fn prompt_rows(active: &Active, outs_left: usize) -> usize {
    let lead = active.pending - active.reads;
    match active.reads {
        0 => active.pending,
        1 if outs_left > 0 => active.pending,
        _ if lead > 0 => lead,
        _ => active.pending.min(outs_left),
    }
}
