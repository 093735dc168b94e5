//! Reductions, softmax, argmax, cross-entropy.

use brasa_graph::op::ReduceFn;

use crate::context::{Context, Mine};
use crate::slot::{Operands, Out, Slot, Source};

use super::arrange::Dims;
use super::operation::Operation;
use super::scratch::Scratch;

/// Softmax of vectors of `width` elements.
#[derive(Clone, Debug)]
pub(crate) struct SoftmaxOp {
    pub width: usize,
    pub x: Source,
    pub out: Out,
}

/// `out` is `x` with axis `axis` reduced to one element.
#[derive(Clone, Debug)]
pub(crate) struct ReduceOp {
    pub function: ReduceFn,
    pub axis: usize,
    pub dims: Dims,
    pub x: Source,
    pub out: Out,
}

/// `out[r]` is the column of the largest element of row `r`; of equal elements, the first.
#[derive(Clone, Debug)]
pub(crate) struct ArgmaxOp {
    pub x: Source,
    pub out: Out,
}

/// `logsumexp(x[r]) − x[r, targets[r]]`.
#[derive(Clone, Debug)]
pub(crate) struct CrossEntropyOp {
    pub x: Source,
    pub targets: Slot,
    pub out: Out,
}

impl Operation for SoftmaxOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let x = cx.view(&self.x);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.copy_from_slice(x.row(row));
            out.chunks_exact_mut(self.width).for_each(softmax);
        }
    }
}

impl Operation for ReduceOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let x = cx.view(&self.x);
        let dims = self.dims.resolve(&cx.step.sizes);
        let (count, inner) = (dims[self.axis], dims[self.axis + 1..].iter().product::<usize>());
        let row_elements: usize = dims[1..].iter().product();
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            let width = out.len();
            for (column, out) in out.iter_mut().enumerate() {
                let place = row * width + column;
                let element = |j: usize| {
                    let place = (place / inner * count + j) * inner + place % inner;
                    x.row(place / row_elements)[place % row_elements]
                };
                let elements = || (0..count).map(element);
                *out = match self.function {
                    ReduceFn::Sum => elements().sum(),
                    ReduceFn::Mean => elements().sum::<f32>() / count as f32,
                    ReduceFn::Max => elements().fold(f32::NEG_INFINITY, f32::max),
                    ReduceFn::LogSumExp => log_sum_exp(elements),
                };
            }
        }
    }
}

impl Operation for ArgmaxOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let x = cx.view(&self.x);
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        for (i, row) in rows.enumerate() {
            let x = x.row(row);
            let larger = |best: usize, j: usize| if x[j] > x[best] { j } else { best };
            out.row(i)[0] = (0..x.len()).fold(0, larger) as u32;
        }
    }
}

impl Operation for CrossEntropyOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("targets", self.targets).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (fault, x) = (cx.fault, cx.view(&self.x));
        let targets = cx.rows::<u32>(&self.targets);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let x = x.row(row);
            let target = fault.index(targets.row(row)[0], x.len());
            out.row(i)[0] = log_sum_exp(|| x.iter().copied()) - x[target];
        }
    }
}

/// `x = exp(x − max) / Σ exp(x − max)`.
pub(crate) fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in &mut *x {
        *x = (*x - largest).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

fn log_sum_exp<I: Iterator<Item = f32>>(x: impl Fn() -> I) -> f32 {
    let largest = x().fold(f32::NEG_INFINITY, f32::max);
    if largest.is_infinite() {
        return largest;
    }
    largest + x().map(|x| (x - largest).exp()).sum::<f32>().ln()
}
