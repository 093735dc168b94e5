//! Operations along the rows of a sequence.

use brasa_graph::op::Unfold;

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

/// The rows that each step of a convolution sees, side by side.
#[derive(Clone, Debug)]
pub(crate) struct UnfoldOp {
    /// Rows that are seen together.
    pub taps: usize,
    pub stride: usize,
    pub padding: usize,
    /// Rows of the operand per row of the step.
    pub factor: usize,
    pub x: Source,
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

/// Adds up what [`UnfoldOp`] has laid side by side.
#[derive(Clone, Debug)]
pub(crate) struct FoldOp {
    pub unfold: Unfold,
    /// Rows of the result per row of the step.
    pub factor: usize,
    pub y: Source,
    pub out: Out,
}

/// Each row's share of its segment's mean.
#[derive(Clone, Debug)]
pub(crate) struct MeanPoolTransposedOp {
    /// Rows of the result per row of the step.
    pub factor: usize,
    pub y: Source,
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

impl Operation for UnfoldOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, fault, x) = (cx.step, cx.fault, cx.view(&self.x));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for segment in &step.segments {
            let from = segment.rows.start * self.factor..segment.rows.end * self.factor;
            if !from.len().is_multiple_of(self.stride) || !from.start.is_multiple_of(self.stride) {
                fault.report(|| {
                    format!(
                        "unfold of {} rows, expected a multiple of its stride {}",
                        from.len(),
                        self.stride
                    )
                });
                return;
            }
            let to = from.start / self.stride..from.end / self.stride;
            for row in rows.start.max(to.start)..rows.end.min(to.end) {
                let begin = (row - to.start) * self.stride;
                let out = out.row(row - rows.start);
                for tap in 0..self.taps {
                    let seen = (begin + tap).checked_sub(self.padding).filter(|&seen| seen < from.len());
                    let places = out.iter_mut().skip(tap).step_by(self.taps);
                    match seen {
                        Some(seen) => places.zip(x.row(from.start + seen)).for_each(|(out, &x)| *out = x),
                        None => places.for_each(|out| *out = 0.0),
                    }
                }
            }
        }
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

impl Operation for FoldOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("y", self.y).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, y) = (cx.step, cx.view(&self.y));
        let Unfold { taps, stride, padding } = self.unfold;
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for segment in &step.segments {
            let to = segment.rows.start * self.factor..segment.rows.end * self.factor;
            for row in rows.start.max(to.start)..rows.end.min(to.end) {
                let out = out.row(row - rows.start);
                out.fill(0.0);
                // The places of `y` that saw this row: stride · s + tap − padding is its number.
                let number = row - to.start + padding;
                let first = (number + 1).saturating_sub(taps).div_ceil(stride);
                for place in first..(number / stride + 1).min(to.len() / stride) {
                    let tap = number - place * stride;
                    let y = y.row(to.start / stride + place);
                    for (out, y) in out.iter_mut().zip(y[tap..].iter().step_by(taps)) {
                        *out += y;
                    }
                }
            }
        }
    }
}

impl Operation for MeanPoolTransposedOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("y", self.y).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, y) = (cx.step, cx.view(&self.y));
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let (number, segment) = step.segment_of(row / self.factor);
            let count = (segment.rows.len() * self.factor) as f32;
            for (out, y) in out.row(i).iter_mut().zip(y.row(number)) {
                *out = y / count;
            }
        }
    }
}
