//! Mixture of experts.
#![expect(unsafe_code, reason = "threads write disjoint columns of one result")]

use brasa_graph::op::{Gating, RouterTopK, Unary};

use crate::arena::Region;
use crate::context::{Context, Slot, Source};
use crate::linear::{ExpertGroups, ExpertInput, Input, Output};
use crate::simd::vectorize;

use super::elementwise::Gated;
use super::prepare::{Activations, PrivateRows};
use super::reduce::softmax;

/// Chooses experts for each row.
#[derive(Clone, Debug)]
pub(crate) struct RouterOp {
    pub router: RouterTopK,
    pub logits: Source,
    pub experts: Slot,
    pub weights: Slot,
}

/// A linear layer of each row's chosen experts.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinearOp {
    pub activations: Activations,
    pub experts: Slot,
    /// Number of the weight.
    pub weight: usize,
    /// Experts per row.
    pub chosen: usize,
    pub input: ExpertInput,
    pub out: Slot,
}

/// A whole mixture, from the router's logits to the weighted sum.
#[derive(Clone, Debug)]
pub(crate) struct MixtureOp {
    pub router: RouterOp,
    pub scale: Option<f32>,
    /// A factor of each expert.
    pub expert_scales: Option<Source>,
    pub activations: Activations,
    /// Numbers of the weights.
    pub gate: usize,
    pub up: usize,
    pub down: usize,
    pub activation: Unary,
    /// `[R, k, F]`, twice, and `[R, k, D]`.
    pub gates: Slot,
    pub ups: Slot,
    pub downs: Slot,
    /// How the product of gates and ups is read.
    pub hidden: Activations,
    pub out: Slot,
}

/// A thread's memory for experts.
#[derive(Debug, Default)]
pub(crate) struct ExpertScratch {
    groups: ExpertGroups,
    chosen: Vec<u32>,
    logits: Vec<f32>,
}

impl RouterOp {
    /// This thread's rows.
    pub(crate) fn run(&self, cx: &Context<'_>, scratch: &mut ExpertScratch) {
        let logits = cx.view(&self.logits);
        let (rows, mut weights) = cx.my_rows::<f32>(&self.weights);
        let (_, mut experts) = cx.my_rows::<u32>(&self.experts);
        for (i, row) in rows.enumerate() {
            choose(&self.router, logits.row(row), &mut scratch.logits, experts.row(i), weights.row(i));
        }
    }
}

fn choose(
    router: &RouterTopK,
    logits: &[f32],
    scratch: &mut Vec<f32>,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    for taken in 0..router.k {
        let (before, rest) = experts.split_at_mut(taken);
        let free = |x: &usize| !before.contains(&(*x as u32));
        let larger = |best: usize, x: usize| if logits[x] > logits[best] { x } else { best };
        rest[0] = (0..logits.len()).filter(free).reduce(larger).unwrap_or(0) as u32;
    }
    match router.gating {
        Gating::SoftmaxAll => {
            scratch.clear();
            scratch.extend_from_slice(logits);
            softmax(scratch);
            for (weight, &expert) in weights.iter_mut().zip(&*experts) {
                *weight = scratch[expert as usize];
            }
        }
        Gating::SoftmaxChosen => {
            for (weight, &expert) in weights.iter_mut().zip(&*experts) {
                *weight = logits[expert as usize];
            }
            softmax(weights);
        }
    }
}

impl ExpertScratch {
    /// Groups the rows of the step by expert. Every thread does so for itself.
    fn group(&mut self, cx: &Context<'_>, experts: &Slot, chosen: usize, weight: usize, input: ExpertInput) {
        let count = cx.weights.experts(weight).experts().len();
        let numbers = cx.numbers(experts);
        self.chosen.clear();
        for row in 0..numbers.region().rows {
            self.chosen.extend(numbers.row(row).iter().map(|&x| cx.fault.index(x, count) as u32));
        }
        self.groups.gather(&self.chosen, chosen, count, input);
    }
}

/// This thread's columns of the products of one weight.
fn multiply(cx: &Context<'_>, input: &Input<'_>, weight: usize, groups: &ExpertGroups, out: &Slot) {
    let region = cx.region(out);
    let experts = cx.weights.experts(weight);
    let vectors = Region {
        width: experts.experts()[0].n(),
        stride: experts.experts()[0].n(),
        rows: region.rows * region.width / experts.experts()[0].n(),
        ..region
    };
    let elements = cx.arena.elements();
    let output = Output { values: elements, stride: vectors.stride, column: vectors.offset.cast_signed() };
    // SAFETY: shares of outputs are disjoint, and nobody reads them before a barrier.
    unsafe { experts.multiply_share(cx.isa, input, groups, &output, cx.threads, cx.thread) };
}

impl ExpertLinearOp {
    pub(crate) fn run(&self, cx: &mut Context<'_>, private: &mut PrivateRows, scratch: &mut ExpertScratch) {
        let view = cx.view(&self.activations.x);
        let rows = cx.region(&self.out).rows;
        if rows == 0 {
            return;
        }
        scratch.group(cx, &self.experts, self.chosen, self.weight, self.input);
        let input = self.activations.prepare(cx, &view, rows, private);
        multiply(cx, &input, self.weight, &scratch.groups, &self.out);
    }
}

impl MixtureOp {
    pub(crate) fn run(&self, cx: &mut Context<'_>, private: &mut PrivateRows, scratch: &mut ExpertScratch) {
        let rows = cx.region(&self.out).rows;
        if rows == 0 {
            return;
        }
        self.router.run(cx, scratch);
        cx.wait();
        let chosen = self.router.router.k;
        let experts = &self.router.experts;
        {
            let view = cx.view(&self.activations.x);
            scratch.group(cx, experts, chosen, self.gate, ExpertInput::Shared);
            let input = self.activations.prepare(cx, &view, rows, private);
            multiply(cx, &input, self.gate, &scratch.groups, &self.gates);
            multiply(cx, &input, self.up, &scratch.groups, &self.ups);
        }
        cx.wait();
        {
            let ups = cx.arena.read::<f32>(cx.region(&self.ups));
            let (rows, columns, mut gates) = cx.my_part(&self.gates);
            for (i, row) in rows.enumerate() {
                let up = &ups.row(row)[columns.clone()];
                vectorize(cx.isa, Gated { function: self.activation, gate: gates.row(i), up });
            }
        }
        cx.wait();
        {
            let view = cx.view(&self.hidden.x);
            scratch.group(cx, experts, chosen, self.down, ExpertInput::Own);
            let input = self.hidden.prepare(cx, &view, rows, private);
            multiply(cx, &input, self.down, &scratch.groups, &self.downs);
        }
        cx.wait();
        self.sum(cx);
    }

    /// `out[r] = Σ_j weights[r,j] · downs[r,j]`.
    fn sum(&self, cx: &Context<'_>) {
        let downs = cx.arena.read::<f32>(cx.region(&self.downs));
        let weights = cx.arena.read::<f32>(cx.region(&self.router.weights));
        let numbers = cx.numbers(&self.router.experts);
        let scales = self.expert_scales.map(|scales| cx.view(&scales));
        let width = cx.region(&self.out).width;
        let (rows, columns, mut out) = cx.my_part(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.fill(0.0);
            for (j, (&weight, &expert)) in weights.row(row).iter().zip(numbers.row(row)).enumerate() {
                let mut weight = weight;
                if let Some(scales) = &scales {
                    weight *= scales.row(cx.fault.index(expert, scales.rows()))[0];
                }
                if let Some(scale) = self.scale {
                    weight *= scale;
                }
                let down = &downs.row(row)[j * width..(j + 1) * width][columns.clone()];
                for (out, down) in out.iter_mut().zip(down) {
                    *out += weight * down;
                }
            }
        }
    }
}
