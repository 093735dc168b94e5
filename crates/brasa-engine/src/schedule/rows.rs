//! The rows of a step.

use super::{Active, Limits};

/// A step, and the chain that begins with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StepPlan {
    /// Rows of each active request, in order; 0 for none.
    pub(crate) rows: Vec<usize>,
    /// Rows that another prompt could still have.
    pub(crate) rows_left: usize,
    pub(crate) chain: ChainPlan,
}

/// How a chain goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainPlan {
    /// Most tokens of a request; 1 for a single step.
    pub(crate) limit: usize,
    /// True if a row that ends lets a waiting request in.
    pub(crate) ends_with_row: bool,
    /// True if a request that arrives could be admitted at once.
    pub(crate) ends_on_arrival: bool,
}

/// A row for each request that decodes, and as many rows of the others' prompts as fit, senior first.
pub(super) fn compose(active: &[Active], limits: &Limits) -> StepPlan {
    let decoding = active.iter().filter(|active| active.pending == 1).count();
    let mut rows_left = limits.max_rows.saturating_sub(decoding);
    if decoding > 0 {
        rows_left = rows_left.min(limits.mixed_rows.max(1));
    }
    let rows = active.iter().map(|active| {
        if active.pending == 1 {
            return 1;
        }
        let rows = active.pending.min(rows_left);
        rows_left -= rows;
        rows
    });
    let rows = rows.collect();
    // A prompt ends in a step of its own: later texts can begin with the pages that its windows hold then.
    let limit = if decoding == active.len() { limits.max_chain } else { 1 };
    let chain = ChainPlan {
        limit,
        ends_with_row: limits.waiting > 0,
        ends_on_arrival: active.len() < limits.max_active,
    };
    StepPlan { rows, rows_left, chain }
}
