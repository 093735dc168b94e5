//! Gradients of sinks: a term for each row and head, and the sums of the terms.
#![expect(unsafe_code, reason = "threads write disjoint terms of one result")]

use crate::context::Context;
use crate::slot::{Slot, Source};

/// The sinks of heads, and memory for their gradients.
#[derive(Clone, Debug)]
pub(crate) struct SinkChanges {
    /// The sinks, `[H]`.
    pub sinks: Source,
    /// Memory for each row's term of a gradient, `[R, H]`.
    pub terms: Slot,
    /// The gradients: the sums of the terms over all rows, `[H]`.
    pub out: Slot,
}

impl SinkChanges {
    /// Writes the term of head `head` of row `row`.
    ///
    /// # Safety
    ///
    /// No other thread writes this term, and none reads it before a barrier.
    pub(super) unsafe fn put(&self, cx: &Context<'_>, row: usize, head: usize, term: f32) {
        let region = cx.region(&self.terms).of_rows(row..row + 1).of_columns(head..head + 1);
        // SAFETY: the caller's promise.
        unsafe { cx.write::<f32>(&self.terms, region).row(0)[0] = term };
    }

    /// Sums the terms of all rows, in order. Waits at the barrier once; one thread adds.
    pub(super) fn sum(&self, cx: &mut Context<'_>) {
        cx.wait();
        if cx.thread != 0 {
            return;
        }
        let terms = cx.rows::<f32>(&self.terms);
        // SAFETY: no other thread views the result.
        let mut out = unsafe { cx.write::<f32>(&self.out, cx.region(&self.out)) };
        for head in 0..self.out.outer.constant().unwrap_or(0) {
            out.row(head)[0] = (0..cx.step.sizes.rows).map(|row| terms.row(row)[head]).sum();
        }
    }
}
