//! Attention to the rows of the step itself: encoders, and whatever is differentiated.

use std::ops::Range;

use crate::Team;
use crate::context::{Context, Slot};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::step_state::SegmentState;

use super::{AttentionScratch, Scoring, Sight};

/// Attention of each row to rows of its own segment, resolved.
#[derive(Clone, Debug)]
pub(crate) struct StepAttention {
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub out: Slot,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub sight: Sight,
    pub causal: bool,
    pub scoring: Scoring,
}

impl StepAttention {
    /// This thread's rows.
    pub(crate) fn run(&self, cx: &Context<'_>, scratch: &mut AttentionScratch) {
        let rows = Team::split(cx.step.sizes.rows, 1, cx.threads, cx.thread);
        let q = cx.arena.read::<f32>(cx.region(&self.q).of_rows(rows.clone()));
        let k = cx.arena.read::<f32>(cx.region(&self.k));
        let v = cx.arena.read::<f32>(cx.region(&self.v));
        let mut out = cx.arena.write::<f32>(cx.region(&self.out).of_rows(rows.clone()));
        let width = self.head_dim;
        for row in rows.clone() {
            let (_, segment) = cx.step.segment_of(row);
            let visible = self.visible(row, segment);
            let sees = |j| !self.causal || self.sight.row_sees(segment, row, j);
            let q = q.row(row - rows.start).chunks_exact(width);
            let out = out.row(row - rows.start).chunks_exact_mut(width);
            for (head, (q, out)) in q.zip(out).enumerate() {
                let kv_head = head / (self.heads / self.kv_heads);
                let columns = kv_head * width..(kv_head + 1) * width;
                let scores = &mut scratch.row_scores[..visible.len()];
                for (score, j) in scores.iter_mut().zip(visible.clone()) {
                    *score = vectorize(cx.isa, Dot { a: q, b: &k.row(j)[columns.clone()] });
                }
                soften(self.scoring, scores, |n| sees(visible.start + n));
                out.fill(0.0);
                for (&weight, j) in scores.iter().zip(visible.clone()) {
                    for (out, v) in out.iter_mut().zip(&v.row(j)[columns.clone()]) {
                        *out += weight * v;
                    }
                }
            }
        }
    }

    /// From the first to the last row that `row` sees.
    fn visible(&self, row: usize, segment: &SegmentState) -> Range<usize> {
        let rows = &segment.rows;
        if segment.tree.is_some() && self.causal {
            return rows.start..row + 1;
        }
        let first = self.sight.window.map_or(0, |window| (row + 1).saturating_sub(window));
        first.max(rows.start)..if self.causal { row + 1 } else { rows.end }
    }
}

/// Products to weights; nothing of what is not seen.
fn soften(scoring: Scoring, scores: &mut [f32], sees: impl Fn(usize) -> bool) {
    let mut largest = f32::NEG_INFINITY;
    for (n, score) in scores.iter_mut().enumerate() {
        if !sees(n) {
            *score = f32::NEG_INFINITY;
            continue;
        }
        *score *= scoring.scale;
        if let Some(cap) = scoring.softcap {
            *score = cap * (*score / cap).tanh();
        }
        largest = largest.max(*score);
    }
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - largest).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}

/// Σ a·b.
pub(crate) struct Dot<'a> {
    pub a: &'a [f32],
    pub b: &'a [f32],
}

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (a, a_rest) = self.a.as_chunks::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        let mut sum = simd.splat(0.0);
        for (a, b) in a.iter().zip(b) {
            sum = simd.mul_add(simd.load(a), simd.load(b), sum);
        }
        let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
        simd.sum(sum) + rest
    }
}
