//! Operations along the rows of a sequence.

use std::ops::Range;

use crate::context::{Context, Mine};
use crate::slot::{Operands, Out, Slot, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// `out = base; out[indices[r]] += x[r]`.
#[derive(Clone, Debug)]
pub(crate) struct IndexAddOp {
    pub base: Source,
    pub indices: Slot,
    pub x: Source,
    pub out: Out,
}

/// Convolution along the rows of each segment.
#[derive(Clone, Debug)]
pub(crate) struct Conv1dOp {
    pub stride: usize,
    pub padding: usize,
    /// Taps of the filter.
    pub taps: usize,
    /// Rows of the operand per row of the step.
    pub factor: usize,
    pub x: Source,
    /// `[N]` rows of `[C, taps]`.
    pub w: Source,
    pub b: Source,
    pub out: Out,
}

/// Mean of the rows of each segment.
#[derive(Clone, Debug)]
pub(crate) struct MeanPoolOp {
    /// Rows of the operand per row of the step.
    pub factor: usize,
    pub x: Source,
    pub out: Out,
}

impl Operation for IndexAddOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("base", self.base).reads("indices", self.indices).reads("x", self.x);
        list.writes("out", self.out);
    }

    /// One thread computes everything, since any row may be added to any other.
    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        if cx.thread != 0 {
            return;
        }
        let (fault, base, x) = (cx.fault, cx.view(&self.base), cx.view(&self.x));
        let indices = cx.rows::<u32>(&self.indices);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for row in rows.clone() {
            out.row(row).copy_from_slice(base.row(row));
        }
        for row in 0..x.rows() {
            let to = fault.index(indices.row(row)[0], rows.len());
            for (out, x) in out.row(to).iter_mut().zip(x.row(row)) {
                *out += x;
            }
        }
    }
}

impl Operation for Conv1dOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("w", self.w).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, fault) = (cx.step, cx.fault);
        let (x, w, b) = (cx.view(&self.x), cx.view(&self.w), cx.view(&self.b));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for segment in &step.segments {
            let from = segment.rows.start * self.factor..segment.rows.end * self.factor;
            if !from.len().is_multiple_of(self.stride) || !from.start.is_multiple_of(self.stride) {
                fault.report(|| {
                    format!(
                        "conv1d of {} rows, expected a multiple of its stride {}",
                        from.len(),
                        self.stride
                    )
                });
                return;
            }
            let to = from.start / self.stride..from.end / self.stride;
            for row in rows.start.max(to.start)..rows.end.min(to.end) {
                let begin = (row - to.start) * self.stride;
                for (n, out) in out.row(row - rows.start).iter_mut().enumerate() {
                    *out = b.row(0)[n] + self.filter(begin, &from, w.row(n), |row| x.row(row));
                }
            }
        }
    }
}

impl Conv1dOp {
    fn filter<'x>(
        &self,
        begin: usize,
        segment: &Range<usize>,
        w: &[f32],
        x: impl Fn(usize) -> &'x [f32],
    ) -> f32 {
        let mut sum = 0.0;
        for tap in 0..self.taps {
            let Some(t) = (begin + tap).checked_sub(self.padding).filter(|&t| t < segment.len()) else {
                continue;
            };
            let weights = w.iter().skip(tap).step_by(self.taps);
            sum += x(segment.start + t).iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
        }
        sum
    }
}

impl Operation for MeanPoolOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, x) = (cx.step, cx.view(&self.x));
        let Mine { rows: segments, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, number) in segments.enumerate() {
            let segment = &step.segments[number].rows;
            let rows = segment.start * self.factor..segment.end * self.factor;
            let (out, count) = (out.row(i), rows.len() as f32);
            out.fill(0.0);
            for row in rows {
                for (out, x) in out.iter_mut().zip(x.row(row)) {
                    *out += x;
                }
            }
            for out in out {
                *out /= count;
            }
        }
    }
}
