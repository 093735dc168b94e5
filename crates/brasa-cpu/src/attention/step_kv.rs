//! Attention to the rows of the step itself, for encoders and for graphs that are differentiated.

use std::ops::Range;

use brasa_graph::Sizes;

use crate::context::{Context, Mine};
use crate::ops::operation::Operation;
use crate::ops::scratch::{Scratch, ScratchSize};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Slot};
use crate::step_state::SegmentState;

use super::page::Scoring;
use super::visibility::Sight;

/// Attention of each row to rows of its own segment.
#[derive(Clone, Debug)]
pub(crate) struct StepAttention {
    /// Queries.
    pub q: Slot,
    /// Keys.
    pub k: Slot,
    /// Values.
    pub v: Slot,
    /// Results, one head beside the other.
    pub out: Out,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The positions that rows see.
    pub sight: Sight,
    /// True if rows see no later rows.
    pub causal: bool,
    /// How scores come from products.
    pub scoring: Scoring,
}

impl Operation for StepAttention {
    fn operands(&self, list: &mut Operands) {
        list.reads("q", self.q).reads("k", self.k).reads("v", self.v).writes("out", self.out);
    }

    fn scratch(&self, sizes: &Sizes, size: &mut ScratchSize) {
        size.add_heads(self.heads, self.kv_heads, self.head_dim);
        size.attention_rows = size.attention_rows.max(sizes.rows);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let (isa, step) = (cx.isa, cx.step);
        let [q, k, v] = [self.q, self.k, self.v].map(|slot| cx.rows::<f32>(&slot));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        let width = self.head_dim;
        for row in rows.clone() {
            let (_, segment) = step.segment_of(row);
            let visible = self.visible(row, segment);
            let sees = |j| !self.causal || self.sight.row_sees(segment, row, j);
            let q = q.row(row).chunks_exact(width);
            let out = out.row(row - rows.start).chunks_exact_mut(width);
            for (head, (q, out)) in q.zip(out).enumerate() {
                let kv_head = head / (self.heads / self.kv_heads);
                let columns = kv_head * width..(kv_head + 1) * width;
                let scores = &mut scratch.attention.row_scores[..visible.len()];
                for (score, j) in scores.iter_mut().zip(visible.clone()) {
                    *score = vectorize(isa, Dot { a: q, b: &k.row(j)[columns.clone()] });
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
}

impl StepAttention {
    /// The rows from the first to the last that `row` sees.
    fn visible(&self, row: usize, segment: &SegmentState) -> Range<usize> {
        let rows = &segment.rows;
        if segment.tree.is_some() && self.causal {
            return rows.start..row + 1;
        }
        let window = self.sight.window;
        let first = window.map_or(0, |window| (row + 1).saturating_sub(window));
        let end = window.map_or(rows.end, |window| row.saturating_add(window));
        first.max(rows.start)..if self.causal { row + 1 } else { end.min(rows.end) }
    }
}

/// Turns products into softmax weights; rows that are not seen get weight 0.
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

/// The product Σ a·b.
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
