//! Operations on single elements.

use brasa_graph::op::{Binary, ClampedUnit, GatedUnit, Unary};

use crate::Isa;
use crate::context::{Context, Mine};
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Out, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// `out = f(x)`.
#[derive(Clone, Debug)]
pub(crate) struct UnaryOp {
    pub function: Unary,
    pub x: Source,
    pub out: Out,
}

/// `out = f(a, b)`.
#[derive(Clone, Debug)]
pub(crate) struct BinaryOp {
    pub function: Binary,
    pub a: Source,
    pub b: Source,
    pub spread: Spread,
    pub out: Out,
}

/// The element of `b` that meets an element of `a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// True if `b` has a row for each row of `a`; otherwise all rows of `a` meet the first row of `b`.
    pub rows: bool,
    /// The element within a row.
    pub columns: Columns,
}

/// The element of a row of `b` that meets an element of a row of `a`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// The element of the same column.
    Same,
    /// The only element of the row.
    One,
    /// For each column of `a`, the listed column of `b`.
    Listed(Box<[u32]>),
}

/// `out = condition ≠ 0 ? a : b`.
#[derive(Clone, Debug)]
pub(crate) struct WhereOp {
    pub condition: Source,
    pub a: Source,
    pub b: Source,
    pub out: Out,
}

/// `out = unit(gate, up)`, all of one shape.
#[derive(Clone, Debug)]
pub(crate) struct GatedUnitOp {
    pub unit: GatedUnit,
    pub gate: Source,
    pub up: Source,
    pub out: Out,
}

impl Operation for GatedUnitOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("gate", self.gate).reads("up", self.up).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, gate, up) = (cx.isa, cx.view(&self.gate), cx.view(&self.up));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.copy_from_slice(&gate.row(row)[columns.clone()]);
            vectorize(isa, Gated { unit: self.unit, gate: out, up: &up.row(row)[columns.clone()] });
        }
    }
}

impl Operation for UnaryOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (isa, x) = (cx.isa, cx.view(&self.x));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.copy_from_slice(&x.row(row)[columns.clone()]);
            apply(isa, self.function, out);
        }
    }
}

impl Operation for BinaryOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("a", self.a).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (a, b) = (cx.view(&self.a), cx.view(&self.b));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let a = &a.row(row)[columns.clone()];
            let b = b.row(if self.spread.rows { row } else { 0 });
            let out = out.row(i);
            match &self.spread.columns {
                Columns::Same => combine(self.function, a, b[columns.clone()].iter().copied(), out),
                Columns::One => combine(self.function, a, std::iter::repeat_n(b[0], a.len()), out),
                Columns::Listed(list) => {
                    let b = list[columns.clone()].iter().map(|&column| b[column as usize]);
                    combine(self.function, a, b, out);
                }
            }
        }
    }
}

impl Operation for WhereOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("condition", self.condition).reads("a", self.a).reads("b", self.b).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let [condition, a, b] = [self.condition, self.a, self.b].map(|source| cx.view(&source));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let [condition, a, b] = [&condition, &a, &b].map(|view| &view.row(row)[columns.clone()]);
            for (((out, condition), a), b) in out.row(i).iter_mut().zip(condition).zip(a).zip(b) {
                *out = if *condition == 0.0 { *b } else { *a };
            }
        }
    }
}

fn combine(function: Binary, a: &[f32], b: impl Iterator<Item = f32>, out: &mut [f32]) {
    let pairs = out.iter_mut().zip(a).zip(b);
    match function {
        Binary::Add => pairs.for_each(|((out, a), b)| *out = a + b),
        Binary::Sub => pairs.for_each(|((out, a), b)| *out = a - b),
        Binary::Mul => pairs.for_each(|((out, a), b)| *out = a * b),
        Binary::Div => pairs.for_each(|((out, a), b)| *out = a / b),
        Binary::Maximum => pairs.for_each(|((out, a), b)| *out = a.max(b)),
    }
}

/// `x = f(x)`.
pub(crate) fn apply(isa: Isa, function: Unary, x: &mut [f32]) {
    match function {
        Unary::Scale(factor) => x.iter_mut().for_each(|x| *x *= factor),
        Unary::Clamp { low, high } => x.iter_mut().for_each(|x| *x = x.max(low).min(high)),
        Unary::Log => x.iter_mut().for_each(|x| *x = x.ln()),
        Unary::Rsqrt => x.iter_mut().for_each(|x| *x = 1.0 / x.sqrt()),
        Unary::Softplus => x.iter_mut().for_each(|x| *x = function.apply(*x)),
        _ => vectorize(isa, Apply { function, x }),
    }
}

/// `gate = unit(gate, up)`.
pub(crate) struct Gated<'a> {
    pub unit: GatedUnit,
    pub gate: &'a mut [f32],
    pub up: &'a [f32],
}

struct Apply<'a> {
    function: Unary,
    x: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        // Not a closure for both places, which would be compiled without the instructions of `simd`.
        let (vectors, rest) = self.x.as_chunks_mut::<LANES>();
        for x in vectors {
            simd.store(evaluate(simd, self.function, simd.load(x)), x);
        }
        if !rest.is_empty() {
            let mut last = [0.0; LANES];
            last[..rest.len()].copy_from_slice(rest);
            simd.store(evaluate(simd, self.function, simd.load(&last)), &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gates, gates_rest) = self.gate.as_chunks_mut::<LANES>();
        let (ups, ups_rest) = self.up.as_chunks::<LANES>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            simd.store(gated(simd, self.unit, simd.load(gate), simd.load(up)), gate);
        }
        if !gates_rest.is_empty() {
            let (mut gate, mut up) = ([0.0; LANES], [0.0; LANES]);
            gate[..gates_rest.len()].copy_from_slice(gates_rest);
            up[..ups_rest.len()].copy_from_slice(ups_rest);
            simd.store(gated(simd, self.unit, simd.load(&gate), simd.load(&up)), &mut gate);
            gates_rest.copy_from_slice(&gate[..gates_rest.len()]);
        }
    }
}

/// `unit(gate, up)`.
#[inline(always)]
fn gated<S: Simd>(simd: S, unit: GatedUnit, gate: S::V, up: S::V) -> S::V {
    let opened = match unit {
        GatedUnit::Silu => simd.silu(gate),
        GatedUnit::GeluTanh => simd.gelu_tanh(gate),
        GatedUnit::GeluErf => simd.gelu_erf(gate),
        GatedUnit::Clamped(ClampedUnit { alpha, limit }) => {
            let (high, low) = (simd.splat(limit), simd.splat(-limit));
            // A NaN is not less than anything and stays.
            let gate = simd.less(high, gate, high, gate);
            let up = simd.less(high, up, high, up);
            let up = simd.less(up, low, low, up);
            let opened = simd.mul(gate, simd.sigmoid(simd.mul(gate, simd.splat(alpha))));
            return simd.mul(opened, simd.add(up, simd.splat(1.0)));
        }
    };
    simd.mul(opened, up)
}

/// `f(x)` for functions that are made of vectors.
#[inline(always)]
pub(super) fn evaluate<S: Simd>(simd: S, function: Unary, x: S::V) -> S::V {
    match function {
        Unary::Softcap(cap) => {
            let cap = simd.splat(cap);
            simd.mul(cap, simd.tanh(simd.div(x, cap)))
        }
        Unary::Exp => simd.exp(x),
        Unary::Tanh => simd.tanh(x),
        Unary::Sigmoid => simd.sigmoid(x),
        Unary::Silu => simd.silu(x),
        Unary::GeluTanh => simd.gelu_tanh(x),
        Unary::GeluErf => simd.gelu_erf(x),
        Unary::SquaredRelu => simd.less(x, simd.splat(0.0), simd.splat(0.0), simd.mul(x, x)),
        Unary::Scale(_) | Unary::Clamp { .. } | Unary::Log | Unary::Rsqrt | Unary::Softplus => {
            unreachable!("{function:?} needs no vectors of its own")
        }
    }
}
