//! A linear layer of each head.

use brasa_graph::Sizes;

use crate::context::Context;
use crate::kv::SharedKv;
use crate::linear::{PackedLinear, RowPair, WeightClasses};
use crate::prepared::PreparedSize;
use crate::slot::{Operands, Place, Slot};
use crate::step_state::StepState;
use crate::weights::CpuWeights;
use crate::{Isa, Team};

use super::experts::multiply_pairs;
use super::operation::{Cost, Operation};
use super::prepare::Activations;
use super::scratch::{Scratch, ScratchSize};

/// A linear layer of each head: `out[r,h,n] = Σ_k x[r,h,k] · w[h,n,k]`, computed by the linear kernels, head after
/// head. All heads' strips are shared out at once, so a thread without work in one head has work in another.
#[derive(Clone, Debug)]
pub(crate) struct HeadLinearOp {
    /// The operand `x`, with one vector for each head in a row.
    pub activations: Activations,
    /// Number of the weight, whose experts are the heads' matrices.
    pub weight: usize,
    pub out: Slot,
}

impl Operation for HeadLinearOp {
    fn operands(&self, list: &mut Operands) {
        self.activations.operands(list);
        list.reads("w", Place::Packed(self.weight)).writes("out", self.out);
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
        let Scratch { rows: private, pairs, .. } = scratch;
        let (input, cx) = self.activations.prepare(cx, &view, rows, private);
        let heads = cx.weights.experts(self.weight).experts();
        let all = heads.iter().map(PackedLinear::strips).sum();
        let mine = Team::split(all, 1, cx.threads, cx.thread);
        let mut first = 0;
        for (head, linear) in heads.iter().enumerate() {
            let own = |strip: usize| strip.clamp(first, first + linear.strips()) - first;
            let strips = own(mine.start)..own(mine.end);
            first += linear.strips();
            if strips.is_empty() {
                continue;
            }
            let vector = |row: usize| (row * heads.len() + head) as u32;
            pairs.clear();
            pairs.extend((0..rows).map(|row| RowPair { x: vector(row), y: vector(row) }));
            multiply_pairs(cx, &input, (linear, pairs), strips, &self.out);
        }
    }

    fn scratch(&self, _: &Sizes, size: &mut ScratchSize) {
        size.k = size.k.max(self.activations.k);
    }

    fn prepared(&self, isa: Isa, sizes: &Sizes) -> PreparedSize {
        self.activations.size(isa, self.out.outer.resolve(sizes))
    }

    fn cost(&self, step: &StepState, weights: &CpuWeights, _: SharedKv<'_>) -> Cost {
        let rows = self.out.outer.resolve(&step.sizes);
        weights.experts(self.weight).experts().iter().map(|head| Cost::of_linear(head, rows)).sum()
    }
}
