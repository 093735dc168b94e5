//! Operations that rearrange elements. They copy bits, whatever the bits mean.

use brasa_graph::{DType, Dim, Shape, Sizes};
use half::{bf16, f16};

use crate::context::{Context, Mine, View};
use crate::slot::{Operands, Out, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// Most axes that a value may have.
pub(crate) const MAX_RANK: usize = 6;

/// The dimensions of a value, in a form that is resolved without allocating.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dims {
    rank: usize,
    dims: [Dim; MAX_RANK],
}

/// The dimensions of a value in one step.
pub(crate) struct Resolved {
    rank: usize,
    dims: [usize; MAX_RANK],
}

impl Dims {
    /// The dimensions of `shape`; `None` if it has more than [`MAX_RANK`] axes.
    pub(crate) fn of(shape: &Shape) -> Option<Self> {
        let mut dims = [Dim::from(1); MAX_RANK];
        dims.get_mut(..shape.rank())?.copy_from_slice(&shape.0);
        Some(Self { rank: shape.rank(), dims })
    }

    /// The dimensions in a step of these sizes.
    pub(crate) fn resolve(&self, sizes: &Sizes) -> Resolved {
        Resolved { rank: self.rank, dims: self.dims.map(|dim| dim.resolve(sizes)) }
    }
}

impl std::ops::Deref for Resolved {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

/// A dense copy of a view whose rows lie apart.
#[derive(Clone, Debug)]
pub(crate) struct CopyOp {
    pub x: Source,
    pub out: Out,
}

/// `out` is `x` with its axes in another order.
#[derive(Clone, Debug)]
pub(crate) struct TransposeOp {
    /// For each axis of the result, the axis of the operand.
    pub axes: [usize; MAX_RANK],
    pub dims: Dims,
    pub x: Source,
    pub out_dims: Dims,
    pub out: Out,
}

/// `out` repeats `x` along axes of length 1.
#[derive(Clone, Debug)]
pub(crate) struct BroadcastOp {
    pub dims: Dims,
    pub x: Source,
    pub out_dims: Dims,
    pub out: Out,
}

/// Two values joined along an axis.
#[derive(Clone, Debug)]
pub(crate) struct ConcatOp {
    pub axis: usize,
    pub a: Source,
    pub a_dims: Dims,
    pub b: Source,
    pub b_dims: Dims,
    pub out: Out,
}

/// Some elements of `x` along an axis.
#[derive(Clone, Debug)]
pub(crate) struct NarrowOp {
    pub axis: usize,
    /// The first element.
    pub start: Dim,
    pub dims: Dims,
    pub x: Source,
    pub out_dims: Dims,
    pub out: Out,
}

/// `out` is `x` in another element type. The arena keeps 16-bit floats as the f32 of equal value.
#[derive(Clone, Debug)]
pub(crate) struct CastOp {
    pub from: DType,
    pub to: DType,
    pub x: Source,
    pub out: Out,
}

impl Operation for CopyOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let x = cx.view_of::<u32>(&self.x);
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        for (i, row) in rows.enumerate() {
            out.row(i).copy_from_slice(x.row(row));
        }
    }
}

impl Operation for TransposeOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let sizes = &cx.step.sizes;
        let (from, to) = (self.dims.resolve(sizes), self.out_dims.resolve(sizes));
        let x = cx.view_of::<u32>(&self.x);
        fill(cx, &self.out, &to, |index| {
            let mut source = [0; MAX_RANK];
            for (axis, &i) in index.iter().enumerate() {
                source[self.axes[axis]] = i;
            }
            element(&x, &from, &source)
        });
    }
}

impl Operation for BroadcastOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let sizes = &cx.step.sizes;
        let (from, to) = (self.dims.resolve(sizes), self.out_dims.resolve(sizes));
        let x = cx.view_of::<u32>(&self.x);
        let missing = to.len() - from.len();
        fill(cx, &self.out, &to, |index| {
            let mut source = [0; MAX_RANK];
            for (axis, &len) in from.iter().enumerate() {
                source[axis] = if len == 1 { 0 } else { index[axis + missing] };
            }
            element(&x, &from, &source)
        });
    }
}

impl Operation for ConcatOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("a", self.a).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let sizes = &cx.step.sizes;
        let [a_dims, b_dims] = [&self.a_dims, &self.b_dims].map(|dims| dims.resolve(sizes));
        let (a, b) = (cx.view_of::<u32>(&self.a), cx.view_of::<u32>(&self.b));
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        if self.axis == 0 {
            for (i, row) in rows.enumerate() {
                let first = a_dims[0];
                out.row(i).copy_from_slice(if row < first { a.row(row) } else { b.row(row - first) });
            }
            return;
        }
        // A row is made of runs of both, in turn.
        let [a_run, b_run] = [&a_dims, &b_dims].map(|dims| dims[self.axis..].iter().product::<usize>());
        for (i, row) in rows.enumerate() {
            let (a, b) = (a.row(row), b.row(row));
            for (at, out) in out.row(i).chunks_exact_mut((a_run + b_run).max(1)).enumerate() {
                out[..a_run].copy_from_slice(&a[at * a_run..][..a_run]);
                out[a_run..].copy_from_slice(&b[at * b_run..][..b_run]);
            }
        }
    }
}

impl Operation for NarrowOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let sizes = &cx.step.sizes;
        let (from, to) = (self.dims.resolve(sizes), self.out_dims.resolve(sizes));
        let (x, start) = (cx.view_of::<u32>(&self.x), self.start.resolve(sizes));
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        if self.axis == 0 {
            for (i, row) in rows.enumerate() {
                out.row(i).copy_from_slice(x.row(start + row));
            }
            return;
        }
        let [x_run, run] = [&from, &to].map(|dims| dims[self.axis..].iter().product::<usize>());
        let start = start * to[self.axis + 1..].iter().product::<usize>();
        for (i, row) in rows.enumerate() {
            let runs = x.row(row).chunks_exact(x_run.max(1));
            for (out, x) in out.row(i).chunks_exact_mut(run.max(1)).zip(runs) {
                out.copy_from_slice(&x[start..start + run]);
            }
        }
    }
}

impl Operation for CastOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let x = cx.view_of::<u32>(&self.x);
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        for (i, row) in rows.enumerate() {
            for (out, &bits) in out.row(i).iter_mut().zip(x.row(row)) {
                *out = self.cast(bits);
            }
        }
    }
}

impl CastOp {
    fn cast(&self, bits: u32) -> u32 {
        let float = match (self.from, self.to) {
            (DType::U32, DType::U32) => return bits,
            (DType::U32, _) => bits as f32,
            (_, DType::U32) => return f32::from_bits(bits).round_ties_even() as u32,
            _ => f32::from_bits(bits),
        };
        match self.to {
            DType::F16 => f16::from_f32(float).to_f32(),
            DType::BF16 => bf16::from_f32(float).to_f32(),
            DType::F32 | DType::U32 => float,
        }
        .to_bits()
    }
}

/// Computes each element of this thread's rows from its index.
fn fill(cx: &mut Context<'_>, out: &Out, dims: &[usize], source: impl Fn(&[usize]) -> u32) {
    let Mine { rows, mut out, .. } = cx.mine::<u32>(out);
    let mut index = [0; MAX_RANK];
    for (i, row) in rows.enumerate() {
        for (mut place, out) in out.row(i).iter_mut().enumerate() {
            for axis in (1..dims.len()).rev() {
                index[axis] = place % dims[axis];
                place /= dims[axis];
            }
            index[0] = row;
            *out = source(&index[..dims.len()]);
        }
    }
}

fn element(x: &View<'_, u32>, dims: &[usize], index: &[usize; MAX_RANK]) -> u32 {
    let place = (1..dims.len()).fold(0, |place, axis| place * dims[axis] + index[axis]);
    x.row(index[0])[place]
}
