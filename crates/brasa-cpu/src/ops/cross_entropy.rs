//! The loss of language models from hidden states, and its gradient: logits of [`CHUNK`] rows at a time.
//!
//! Where a graph has both, they are computed together: losses, and gradients of a cotangent of one, which are multiplied by the
//! true ones when these are known. That saves a third of the products.
//!
//! Threads share the head's outputs out for the logits of a chunk, then its rows for the softmax, and then the columns of the
//! gradient, with a barrier between.
#![expect(unsafe_code, reason = "threads write disjoint rows and columns of one result")]

use std::ops::Range;

use brasa_graph::Sizes;

use crate::arena::Rows;
use crate::context::Context;
use crate::kv::SharedKv;
use crate::linear::{TURNED_COLUMNS, WeightClasses};
use crate::matrix::{Factor, Found, Store};
use crate::prepared::PreparedSize;
use crate::rounded::tile_rows;
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Place, Slot};
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::linear::Layer;
use super::linear_gradient::multiply_transposed;
use super::matmul::{multiply_turned, round_rows};
use super::operation::{Cost, Operation};
use super::prepare::Activations;
use super::scratch::{Scratch, ScratchSize};

/// Rows whose logits exist at the same time.
pub(crate) const CHUNK: usize = 256;

/// `loss[r] = logsumexp(z[r]) − z[r, targets[r]]`, `z[r,v] = cap(Σ_k x[r,k] · w[v,k])`, and what changes it: either, or both from the
/// same logits.
#[derive(Clone, Debug)]
pub(crate) struct LinearCrossEntropyOp {
    pub head: LossHead,
    pub loss: Option<Slot>,
    pub gradient: Option<LossGradient>,
}

/// The gradient of a loss.
#[derive(Clone, Debug)]
pub(crate) struct LossGradient {
    /// Cotangents of the losses; `None` stands for all 1.
    pub d: Option<Slot>,
    /// The gradient of `x`.
    pub dx: Slot,
    /// The gradient of the head, if it varies.
    pub dw: Option<Slot>,
    /// True if many rows may be multiplied with the head's other side in bf16.
    pub turns: bool,
}

/// A head, and its logits of a chunk of rows.
#[derive(Clone, Debug)]
pub(crate) struct LossHead {
    pub activations: Activations,
    /// The linear layer, whose result is the memory for logits `[CHUNK, V]`.
    pub layer: Layer,
    pub targets: Slot,
    pub softcap: Option<f32>,
}

impl LossHead {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        list.reads("w", Place::Packed(self.layer.weight)).reads("targets", self.targets);
        list.writes("logits", self.layer.out);
    }

    /// Rows of the step.
    fn rows(&self, sizes: &Sizes) -> usize {
        self.targets.outer.resolve(sizes)
    }

    /// Computes the logits of `rows`, and waits until all threads have.
    fn multiply(&self, cx: &mut Context<'_>, rows: &Range<usize>, scratch: &mut Scratch) {
        let view = cx.view_rows(&self.activations.x, rows.clone());
        let (input, ready) = self.activations.prepare(cx, &view, rows.len(), &mut scratch.rows);
        self.layer.run(ready, &input, rows.len(), 1);
        drop(view);
        cx.wait();
    }

    /// Calls `visit` with the number, the logits behind the soft-cap, and the target of each of this thread's rows.
    fn each_row(
        &self,
        cx: &Context<'_>,
        rows: &Range<usize>,
        mut visit: impl FnMut(usize, &mut [f32], usize),
    ) {
        let targets = cx.rows::<u32>(&self.targets);
        let mine = cx.share(rows.len());
        let region = cx.region(&self.layer.out).of_rows(mine.clone());
        // SAFETY: rows of logits are shared out; the view is gone before the next phase.
        let mut logits = unsafe { cx.write::<f32>(&self.layer.out, region) };
        for (at, row) in mine.enumerate() {
            let (row, logits) = (rows.start + row, logits.row(at));
            if let Some(cap) = self.softcap {
                vectorize(cx.isa, Cap { cap, logits });
            }
            let target = cx.fault.index(targets.row(row)[0], logits.len());
            visit(row, logits, target);
        }
    }

    /// The logits of a chunk, or the changes computed from them.
    fn changes<'a>(&self, cx: &Context<'a>, rows: &Range<usize>) -> Rows<'a, f32> {
        cx.rows_in(&self.layer.out, cx.region(&self.layer.out).of_rows(0..rows.len()))
    }
}

/// Parts of `rows` rows.
fn chunks(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(CHUNK).map(move |first| first..rows.min(first + CHUNK))
}

impl Operation for LinearCrossEntropyOp {
    fn operands(&self, list: &mut Operands) {
        self.head.operands(list);
        if let Some(loss) = self.loss {
            list.writes("loss", loss);
        }
        if let Some(LossGradient { d, dx, dw, .. }) = &self.gradient {
            list.may_read("d", *d).writes("dx", *dx);
            if let Some(dw) = dw {
                list.writes("dw", *dw);
            }
        }
    }

    fn products(&self) -> WeightClasses {
        self.head.activations.classes
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let count = self.head.rows(&cx.step.sizes);
        if let Some(LossGradient { dw: Some(dw), .. }) = &self.gradient
            && count == 0
        {
            let region = cx.region(dw);
            let mine = region.of_rows(cx.share(region.rows));
            // SAFETY: rows of the result are shared out.
            let mut dw = unsafe { cx.write::<f32>(dw, mine) };
            (0..mine.rows).for_each(|row| dw.row(row).fill(0.0));
        }
        for rows in chunks(count) {
            self.head.multiply(cx, &rows, scratch);
            self.pass_softmax(cx, &rows);
            cx.wait();
            if let Some(gradient) = &self.gradient {
                gradient.pass_back(&self.head, cx, &rows, scratch);
                cx.wait();
            }
        }
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        if self.gradient.is_some() {
            size.decoded = size.decoded.max(self.head.activations.k);
        }
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        let rows = self.head.rows(sizes).min(CHUNK);
        let turns = self.gradient.as_ref().is_some_and(|gradient| gradient.turns) && isa.has_bf16();
        let rounded = if turns { tile_rows(rows, self.head.layer.out.width.factor) } else { 0 };
        self.head.activations.size(isa, rows).max(PreparedSize { rounded, ..PreparedSize::default() })
    }

    fn waits(&self, step: &StepState) -> usize {
        self.head.rows(&step.sizes).div_ceil(CHUNK) * 5
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let linear = weights.linear(self.head.layer.weight);
        let Cost { bytes, flops } = Cost::of_linear(linear, self.head.rows(&step.sizes));
        let back = self.gradient.as_ref().map_or(0, |gradient| 1 + u64::from(gradient.dw.is_some()));
        Cost { bytes, flops: flops * (1 + back) }
    }
}

impl LinearCrossEntropyOp {
    /// Makes losses of the logits of this thread's rows of a chunk, and of the logits their changes.
    fn pass_softmax(&self, cx: &Context<'_>, rows: &Range<usize>) {
        let (isa, softcap) = (cx.isa, self.head.softcap);
        let d = self.gradient.as_ref().and_then(|gradient| gradient.d).map(|d| cx.rows::<f32>(&d));
        self.head.each_row(cx, rows, |row, logits, target| {
            let (whole, logit) = (vectorize(isa, LogSumExp { logits }), logits[target]);
            if let Some(loss) = &self.loss {
                // SAFETY: this row is this thread's.
                let mut loss = unsafe { cx.write(loss, cx.region(loss).of_rows(row..row + 1)) };
                loss.row(0)[0] = whole - logit;
            }
            if self.gradient.is_some() {
                let d = d.as_ref().map_or(1.0, |d| d.row(row)[0]);
                let slope = softcap.map_or(1.0, |cap| 1.0 - (logit / cap).powi(2));
                vectorize(isa, Shares { d, whole, softcap, logits });
                logits[target] -= d * slope;
            }
        });
    }
}

impl LossGradient {
    /// Passes the changes of the logits of `rows` back to this thread's columns of `dx` and rows of `dw`.
    fn pass_back(&self, head: &LossHead, cx: &mut Context<'_>, rows: &Range<usize>, scratch: &mut Scratch) {
        let (isa, linear) = (cx.isa, cx.weights.linear(head.layer.weight));
        let region = cx.region(&self.dx).of_rows(rows.clone());
        if linear.turns(isa, rows.len()) {
            let changes = head.changes(cx, rows);
            let y = round_rows(cx, rows.len(), linear.n(), |row| changes.row(row));
            multiply_turned(cx, (y, rows.len()), linear, &self.dx, region);
        } else {
            let changes = head.changes(cx, rows);
            let changes = Found::new(|row| changes.row(row));
            let columns = Team::split(linear.k(), TURNED_COLUMNS, cx.threads, cx.thread);
            // SAFETY: columns of the result are shared out.
            let mut dx = unsafe { cx.write::<f32>(&self.dx, region.of_columns(columns.clone())) };
            let memory = (&mut scratch.products, &mut scratch.decoded[..]);
            multiply_transposed(isa, (&changes, rows.len()), (linear, columns), memory, &mut dx);
        }
        let Some(dw) = self.dw else { return };
        let mine = cx.share(linear.n());
        // SAFETY: rows of the result are shared out.
        let mut out = unsafe { cx.write::<f32>(&dw, cx.region(&dw).of_rows(mine.clone())) };
        let x = cx.view_rows(&head.activations.x, rows.clone());
        let changes = head.changes(cx, rows);
        let changes = Found::new(|row| changes.row(row));
        let store = if rows.start == 0 { Store::Replace } else { Store::Add };
        let (a, b) = ((Factor::Across(&changes), mine), (Factor::Across(&x), 0..linear.k()));
        scratch.products.multiply(isa, a, b, rows.len(), store, &mut out);
    }
}

/// `z = cap · tanh(z / cap)`.
struct Cap<'a> {
    cap: f32,
    logits: &'a mut [f32],
}

impl Kernel for Cap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let cap = simd.splat(self.cap);
        each_vector(simd, self.logits, 0.0, |z| simd.mul(simd.tanh(simd.div(z, cap)), cap));
    }
}

/// `ln Σ exp(z)`, in an order that depends on the length alone.
struct LogSumExp<'a> {
    logits: &'a [f32],
}

impl Kernel for LogSumExp<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (vectors, rest) = self.logits.as_chunks::<LANES>();
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let mut largest = simd.load(&last);
        for logits in vectors {
            largest = simd.max(simd.load(logits), largest);
        }
        let largest = simd.largest(largest);
        let offset = simd.splat(largest);
        let mut sums = [simd.exp_to_one(simd.sub(simd.load(&last), offset)), simd.splat(0.0)];
        for (at, logits) in vectors.iter().enumerate() {
            let sum = &mut sums[at % 2];
            *sum = simd.add(*sum, simd.exp_to_one(simd.sub(simd.load(logits), offset)));
        }
        largest + simd.sum(simd.add(sums[0], sums[1])).ln()
    }
}

/// Logits become `d · exp(z − whole) · slope`, the slope being that of the soft-cap.
struct Shares<'a> {
    d: f32,
    whole: f32,
    softcap: Option<f32>,
    logits: &'a mut [f32],
}

impl Kernel for Shares<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { d, whole, softcap, logits } = self;
        let (d, whole) = (simd.splat(d), simd.splat(whole));
        match softcap {
            None => each_vector(simd, logits, f32::NEG_INFINITY, |z| share(simd, z, whole, d)),
            Some(cap) => {
                let (one, cap) = (simd.splat(1.0), simd.splat(cap));
                each_vector(simd, logits, 0.0, |z| {
                    let y = simd.div(z, cap);
                    simd.mul(share(simd, z, whole, d), simd.sub(one, simd.mul(y, y)))
                });
            }
        }
    }
}

/// `d · exp(z − whole)`.
#[inline(always)]
fn share<S: Simd>(simd: S, z: S::V, whole: S::V, d: S::V) -> S::V {
    simd.mul(simd.exp_to_one(simd.sub(z, whole)), d)
}

/// Replaces every vector by `f` of it; the last is filled up with `padding`.
#[inline(always)]
fn each_vector<S: Simd>(simd: S, values: &mut [f32], padding: f32, f: impl Fn(S::V) -> S::V) {
    let (vectors, rest) = values.as_chunks_mut::<LANES>();
    let mut last = [padding; LANES];
    last[..rest.len()].copy_from_slice(rest);
    // One loop: a closure that is called in two places is not inlined, and its instructions are calls then.
    for vector in vectors.iter_mut().chain([&mut last]) {
        simd.store(f(simd.load(vector)), vector);
    }
    rest.copy_from_slice(&last[..rest.len()]);
}
