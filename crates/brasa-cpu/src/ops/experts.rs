//! Mixtures of experts.
#![expect(unsafe_code, reason = "threads write disjoint columns of one result")]

use std::ops::Range;

use brasa_graph::Sizes;
use brasa_graph::op::{GatedUnit, Gating, RouterTopK};

use crate::Isa;
use crate::arena::Region;
use crate::context::{Context, Mine};
use crate::kv::SharedKv;
use crate::linear::{ExpertGroups, ExpertInput, Input, Output, PackedLinear, RowMap, RowPair, WeightClasses};
use crate::prepared::PreparedSize;
use crate::simd::vectorize;
use crate::slot::{Operands, Out, Place, Slot, Source};
use crate::step_state::StepState;
use crate::weights::CpuWeights;

use super::elementwise::Gated;
use super::finish::add;
use super::gating;
use super::linear::outputs;
use super::operation::{Cost, Operation};
use super::prepare::Activations;
use super::reduce::softmax;
use super::scratch::{ExpertScratch, Scratch};

/// Chooses experts for each row.
#[derive(Clone, Debug)]
pub(crate) struct RouterOp {
    pub router: RouterTopK,
    /// A score for each expert.
    pub logits: Source,
    /// The selection bias, one row.
    pub bias: Option<Source>,
    /// Numbers of the chosen experts, `[R, k]`.
    pub experts: Out,
    /// Shares of the chosen experts, `[R, k]`.
    pub weights: Out,
}

/// A linear layer of each row's chosen experts.
#[derive(Clone, Debug)]
pub(crate) struct ExpertLinearOp {
    pub activations: Activations,
    /// Numbers of the chosen experts.
    pub experts: Slot,
    /// Number of the weight.
    pub weight: usize,
    /// Biases, one row for each expert; `None` for experts without biases.
    pub bias: Option<Source>,
    /// Experts per row.
    pub chosen: usize,
    /// Whether the experts of a row share one input.
    pub input: ExpertInput,
    pub out: Slot,
}

/// A whole mixture, from the router's logits to the weighted sum.
#[derive(Clone, Debug)]
pub(crate) struct MixtureOp {
    pub router: RouterOp,
    /// A factor of the sum.
    pub scale: Option<f32>,
    /// A factor of each expert.
    pub expert_scales: Option<Source>,
    pub activations: Activations,
    /// Numbers of the weights.
    pub gate: usize,
    pub up: usize,
    pub down: usize,
    /// Biases of gate, up and down, each with one row for each expert; `None` for layers without biases.
    pub biases: [Option<Source>; 3],
    pub unit: GatedUnit,
    /// Memory for the gates, then for their products with the ups, `[R, k, F]`.
    pub gates: Slot,
    /// Memory for the ups, `[R, k, F]`.
    pub ups: Slot,
    /// Memory for the results of the experts, `[R, k, D]`.
    pub downs: Slot,
    /// How the products of gates and ups are prepared for `down`.
    pub hidden: Activations,
    pub out: Out,
}

impl Operation for RouterOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("logits", self.logits).may_read("bias", self.bias);
        list.writes("experts", self.experts).writes("weights", self.weights);
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        self.choose(cx, &mut scratch.experts.logits);
    }
}

impl RouterOp {
    /// Chooses the experts of this thread's rows.
    fn choose(&self, cx: &mut Context<'_>, scratch: &mut Vec<f32>) {
        let (isa, logits) = (cx.isa, cx.view(&self.logits));
        let bias = self.bias.map(|bias| cx.view(&bias));
        let is_plain = bias.is_none() && self.router.gating.is_plain_softmax();
        let (mut weights, mut experts) = cx.mine_of_both::<f32, u32>(&self.weights, &self.experts);
        for (i, row) in weights.rows.enumerate() {
            let (logits, experts, weights) = (logits.row(row), experts.out.row(i), weights.out.row(i));
            if is_plain {
                choose(&self.router, logits, scratch, experts, weights);
            } else {
                let bias = bias.as_ref().map(|bias| bias.row(0));
                let row = gating::Row { isa, router: &self.router, logits, bias };
                gating::choose(&row, scratch, experts, weights);
            }
        }
    }
}

/// Chooses experts by a plain softmax: no bias, groups, normalisation or factor.
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
        let first =
            |best: usize, x: usize| if RouterTopK::is_before(&logits[x], &logits[best]) { x } else { best };
        rest[0] = (0..logits.len()).filter(free).reduce(first).unwrap_or(0) as u32;
    }
    if logits.iter().any(|logit| logit.is_nan()) {
        weights.fill(f32::NAN);
    } else if router.gating == Gating::SOFTMAX_CHOSEN {
        for (weight, &expert) in weights.iter_mut().zip(&*experts) {
            *weight = logits[expert as usize];
        }
        softmax(weights);
    } else {
        scratch.clear();
        scratch.extend_from_slice(logits);
        softmax(scratch);
        for (weight, &expert) in weights.iter_mut().zip(&*experts) {
            *weight = scratch[expert as usize];
        }
    }
}

impl ExpertScratch {
    /// Groups the rows of the step by expert. Every thread does so for itself.
    fn group(&mut self, cx: &Context<'_>, experts: &Slot, chosen: usize, weight: usize, input: ExpertInput) {
        let count = cx.weights.experts(weight).experts().len();
        let numbers = cx.rows::<u32>(experts);
        self.chosen.clear();
        for row in 0..numbers.region().rows {
            self.chosen.extend(numbers.row(row).iter().map(|&x| cx.fault.index(x, count) as u32));
        }
        self.groups.gather(&self.chosen, chosen, count, input);
    }
}

/// Multiplies rows with the matrices of their experts, and adds the biases. This thread computes its own columns of the
/// result.
fn multiply(
    cx: &Context<'_>,
    input: &Input<'_>,
    (weight, bias): (usize, Option<Source>),
    groups: &ExpertGroups,
    out: &Slot,
) {
    let bias = bias.map(|bias| cx.view(&bias));
    for (expert, linear) in cx.weights.experts(weight).experts().iter().enumerate() {
        let (pairs, strips) = (groups.pairs(expert), linear.share(cx.threads, cx.thread));
        multiply_pairs(cx, input, (linear, pairs), strips.clone(), out);
        let Some(bias) = bias.as_ref().filter(|_| !strips.is_empty()) else { continue };
        let columns = outputs(linear, &strips);
        let mine = products_of(cx, linear, out).of_columns(columns.clone());
        for pair in pairs {
            let row = pair.y as usize;
            // SAFETY: a row belongs to one expert, whose outputs are split among threads; its products have been written.
            let mut view = unsafe { cx.write::<f32>(out, mine.of_rows(row..row + 1)) };
            add(cx.isa, view.row(0), &bias.row(expert)[columns.clone()]);
        }
    }
}

/// The elements of `out` as a matrix: each row is one vector of the outputs of `linear`.
fn products_of(cx: &Context<'_>, linear: &PackedLinear, out: &Slot) -> Region {
    let region = cx.region(out);
    let rows = region.rows * region.width / linear.n();
    Region { width: linear.n(), stride: linear.n(), rows, ..region }
}

/// Multiplies vectors with the strips `strips` of one matrix. `pairs` names input and result vectors; the vectors of
/// the matrix's outputs lie in `out`, one behind another. No other thread computes these strips, and no other matrix
/// makes these vectors.
pub(super) fn multiply_pairs(
    cx: &Context<'_>,
    input: &Input<'_>,
    (linear, pairs): (&PackedLinear, &[RowPair]),
    strips: Range<usize>,
    out: &Slot,
) {
    if strips.is_empty() {
        return;
    }
    let products = products_of(cx, linear, out);
    let mine = products.of_columns(outputs(linear, &strips));
    let mut values = None;
    for pair in pairs {
        let row = pair.y as usize;
        // SAFETY: a vector belongs to one matrix, whose outputs are split among threads.
        let view = unsafe { cx.write::<f32>(out, mine.of_rows(row..row + 1)) };
        values = Some(view.elements());
    }
    let Some(values) = values else { return };
    let output = Output { values, stride: products.stride, column: products.offset.cast_signed() };
    // SAFETY: the elements of these vectors and columns, which no other thread views before a barrier.
    unsafe { linear.multiply(cx.isa, input, RowMap::Pairs(pairs), &output, strips) };
}

impl Operation for ExpertLinearOp {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        list.reads("experts", self.experts).reads("w", Place::Packed(self.weight));
        list.may_read("bias", self.bias).writes("out", self.out);
    }

    fn products(&self) -> WeightClasses {
        self.activations.classes
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let view = cx.view(&self.activations.x);
        let rows = cx.region(&self.out).rows;
        if rows == 0 {
            return;
        }
        scratch.experts.group(cx, &self.experts, self.chosen, self.weight, self.input);
        let (input, cx) = self.activations.prepare(cx, &view, rows, &mut scratch.rows);
        multiply(cx, &input, (self.weight, self.bias), &scratch.experts.groups, &self.out);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        self.activations.size(isa, self.out.outer.resolve(sizes))
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let pairs = self.out.outer.resolve(&step.sizes) * self.chosen;
        Cost::of_experts(weights.experts(self.weight).experts(), pairs)
    }
}

impl Operation for MixtureOp {
    fn operands(&self, list: &mut Operands) {
        self.router.operands(list);
        self.activations.operands(list);
        list.may_read("scales", self.expert_scales).reads("gate", Place::Packed(self.gate));
        list.reads("up", Place::Packed(self.up)).reads("down", Place::Packed(self.down));
        let [gate, up, down] = self.biases;
        list.may_read("gate bias", gate).may_read("up bias", up).may_read("down bias", down);
        list.writes("gates", self.gates).writes("ups", self.ups).writes("downs", self.downs);
        list.writes("out", self.out);
    }

    fn products(&self) -> WeightClasses {
        WeightClasses::of_all([self.activations.classes, self.hidden.classes].into_iter())
    }

    fn run(&self, cx: &mut Context<'_>, scratch: &mut Scratch) {
        let rows = cx.region(&self.out.slot).rows;
        if rows == 0 {
            return;
        }
        let Scratch { rows: private, experts: scratch, .. } = scratch;
        self.router.choose(cx, &mut scratch.logits);
        cx.wait();
        let chosen = self.router.router.k;
        let experts = &self.router.experts.slot;
        let [gate_bias, up_bias, down_bias] = self.biases;
        {
            let view = cx.view(&self.activations.x);
            scratch.group(cx, experts, chosen, self.gate, ExpertInput::Shared);
            let (input, cx) = self.activations.prepare(cx, &view, rows, private);
            multiply(cx, &input, (self.gate, gate_bias), &scratch.groups, &self.gates);
            multiply(cx, &input, (self.up, up_bias), &scratch.groups, &self.ups);
        }
        cx.wait();
        {
            let (isa, ups) = (cx.isa, cx.rows::<f32>(&self.ups));
            let Mine { rows, columns, out: mut gates } = cx.mine::<f32>(&Out::by_elements(self.gates));
            for (i, row) in rows.enumerate() {
                let up = &ups.row(row)[columns.clone()];
                vectorize(isa, Gated { unit: self.unit, gate: gates.row(i), up });
            }
        }
        cx.wait();
        {
            let view = cx.view(&self.hidden.x);
            scratch.group(cx, experts, chosen, self.down, ExpertInput::Own);
            let (input, cx) = self.hidden.prepare(cx, &view, rows, private);
            multiply(cx, &input, (self.down, down_bias), &scratch.groups, &self.downs);
        }
        cx.wait();
        self.sum(cx);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        let rows = self.out.slot.outer.resolve(sizes);
        self.activations.size(isa, rows).max(self.hidden.size(isa, rows))
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let pairs = self.out.slot.outer.resolve(&step.sizes) * self.router.router.k;
        let experts = [self.gate, self.up, self.down].map(|weight| weights.experts(weight).experts());
        experts.into_iter().map(|experts| Cost::of_experts(experts, pairs)).sum()
    }
}

impl MixtureOp {
    /// `out[r] = Σ_j weights[r,j] · downs[r,j]`.
    fn sum(&self, cx: &mut Context<'_>) {
        let (fault, downs) = (cx.fault, cx.rows::<f32>(&self.downs));
        let weights = cx.rows::<f32>(&self.router.weights.slot);
        let numbers = cx.rows::<u32>(&self.router.experts.slot);
        let scales = self.expert_scales.map(|scales| cx.view(&scales));
        let width = cx.region(&self.out.slot).width;
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.fill(0.0);
            for (j, (&weight, &expert)) in weights.row(row).iter().zip(numbers.row(row)).enumerate() {
                let mut weight = weight;
                if let Some(scales) = &scales {
                    weight *= scales.row(fault.index(expert, scales.rows()))[0];
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
