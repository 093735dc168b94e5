//! Adds the bias to a linear layer's results, applies the activation and adds the residual while they are still in a cache.

use std::ops::Range;

use brasa_graph::op::Unary;

use crate::Isa;
use crate::arena::RowsMut;
use crate::context::Context;
use crate::simd::{Kernel, LANES, Simd, vectorize};
use crate::slot::{Operands, Source};

use super::elementwise::evaluate;

/// `out = act(out + bias) + residual`; each part may be missing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Follow {
    /// One row.
    pub bias: Option<Source>,
    /// SiLU, GELU or the squared ReLU.
    pub activation: Option<Unary>,
    /// A value with as many rows as the result, added last.
    pub residual: Option<Source>,
}

impl Follow {
    /// Lists what is read.
    pub(super) fn operands(&self, list: &mut Operands) {
        list.may_read("bias", self.bias).may_read("residual", self.residual);
    }

    /// Finishes `columns` of the first `rows` rows.
    pub(super) fn finish(
        &self,
        cx: &Context<'_>,
        out: &mut RowsMut<'_, f32>,
        rows: usize,
        columns: Range<usize>,
    ) {
        if self.bias.is_none() && self.activation.is_none() && self.residual.is_none() {
            return;
        }
        let bias = self.bias.map(|bias| cx.view(&bias));
        let residual = self.residual.map(|residual| cx.view(&residual));
        for row in 0..rows {
            let bias = bias.as_ref().map(|bias| &bias.row(0)[columns.clone()]);
            let residual = residual.as_ref().map(|residual| &residual.row(row)[columns.clone()]);
            vectorize(cx.isa, Finish { x: out.row(row), bias, activation: self.activation, residual });
        }
    }
}

/// `to += from`.
pub(super) fn add(isa: Isa, to: &mut [f32], from: &[f32]) {
    vectorize(isa, Finish { x: to, bias: Some(from), activation: None, residual: None });
}

/// `x = act(x + bias) + residual`.
struct Finish<'a> {
    x: &'a mut [f32],
    bias: Option<&'a [f32]>,
    activation: Option<Unary>,
    residual: Option<&'a [f32]>,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, bias, activation, residual } = self;
        let (vectors, rest) = x.as_chunks_mut::<LANES>();
        let whole = vectors.len() * LANES;
        let (bias, last_bias) = split(bias, whole);
        let (residual, last_residual) = split(residual, whole);
        for (i, x) in vectors.iter_mut().enumerate() {
            let (bias, residual) = (bias.map(|bias| &bias[i]), residual.map(|residual| &residual[i]));
            simd.store(finished(simd, x, bias, activation, residual), x);
        }
        if !rest.is_empty() {
            let mut last = padded(rest);
            let (bias, residual) = (last_bias.as_ref(), last_residual.as_ref());
            simd.store(finished(simd, &last, bias, activation, residual), &mut last);
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }
}

/// Whole vectors, and those behind the first `whole` elements as one.
#[inline(always)]
fn split(from: Option<&[f32]>, whole: usize) -> (Option<&[[f32; LANES]]>, Option<[f32; LANES]>) {
    from.map(|from| (from.as_chunks().0, padded(&from[whole..]))).unzip()
}

/// Fewer than 16 elements as a vector.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// One vector of the result.
#[inline(always)]
fn finished<S: Simd>(
    simd: S,
    x: &[f32; LANES],
    bias: Option<&[f32; LANES]>,
    activation: Option<Unary>,
    residual: Option<&[f32; LANES]>,
) -> S::V {
    let mut x = simd.load(x);
    if let Some(bias) = bias {
        x = simd.add(x, simd.load(bias));
    }
    if let Some(function) = activation {
        x = evaluate(simd, function, x);
    }
    match residual {
        Some(residual) => simd.add(x, simd.load(residual)),
        None => x,
    }
}
