//! Mixtures of experts as one operation, if the weights of all experts are in tiles.

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, RouterExperts};
use brasa_graph::op::Binary;
use brasa_graph::{Fused, Item, NodeId, Op, Schedule, Shape, ValueId};

use super::Compiler;
use super::nodes::MOST_EXPERTS;
use crate::driver::Kernel;
use crate::ops::{
    EXPERT_SIZES, ExpertTiles, FewSlots, MOST_UNSORTED, MixtureOp, Panels, PlanBuffers, RouterTopKOp, Sorted,
    expert_kernels, most_blocks, most_positions, router_kernel,
};
use crate::run::Slot;
use crate::weights::Form;

/// Outputs of a tile.
const TILE_OUTPUTS: usize = 16;

/// The addition behind a mixture: the node, the other operand and the sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addition {
    node: NodeId,
    residual: ValueId,
    sum: ValueId,
}

impl Compiler<'_> {
    /// True for a mixture all of whose experts are in tiles of their own; products may be rounded.
    pub(super) fn fuses_mixture(&self, mixture: &RouterExperts) -> bool {
        let weights = [mixture.gate, mixture.up, mixture.down];
        let [Some(gate), Some(up), Some(_)] = weights.map(|w| self.expert_tiles(w)) else { return false };
        let logits = self.shape(mixture.logits);
        let experts = logits.width().unwrap_or(0);
        !self.exact
            && gate.tiles.layout == up.tiles.layout
            && logits.rank() == 2
            && (1..=MOST_EXPERTS).contains(&experts)
            && weights.iter().all(|&w| self.shape(w).outer().constant() == Some(experts))
            && mixture.expert_scales.is_none_or(|scales| self.weight(scales).is_some())
    }

    /// Notes the additions behind mixtures that nothing else computes or needs.
    pub(super) fn find_mixtures(&mut self, schedule: &Schedule) {
        for item in schedule.items() {
            let Item::Fused(Fused { fusion: Fusion::RouterExperts(mixture), .. }) = item else { continue };
            let y = mixture.y;
            let &[(node, read)] = &self.readers.nodes(y)[..] else { continue };
            let alone =
                schedule.items().iter().any(|item| matches!(item, Item::Single(single) if *single == node));
            let add = self.graph.node(node);
            let (Op::Binary(Binary::Add), &[a, b], &[sum]) = (&add.op, &add.inputs[..], &add.outputs[..])
            else {
                continue;
            };
            let residual = if a == read { b } else { a };
            let same_shape = self.shape(residual) == self.shape(y) && self.shape(sum) == self.shape(y);
            if alone && a != b && read == y && same_shape && !self.readers.is_output(y) {
                self.mixtures.insert(y, Addition { node, residual, sum });
            }
        }
    }

    pub(super) fn mixture(&mut self, mixture: &RouterExperts) -> Result<(), DeviceError> {
        let &RouterExperts { logits, router, selection_bias, expert_scales, scale, x, unit, y, .. } = mixture;
        let tiles = |w| self.expert_tiles(w).ok_or_else(|| self.odd(w));
        let (gate, up, down) = (tiles(mixture.gate)?, tiles(mixture.up)?, tiles(mixture.down)?);
        let count = self.shape(logits).width().ok_or_else(|| self.odd(logits))?;
        let rows = self.rows(x);
        let slots = rows * router.k;
        let addition = self.mixtures.get(&y).copied().filter(|addition| self.is_made(addition.residual));

        let top_k = RouterTopKOp {
            kernel: self.kernel(router_kernel(&router, selection_bias.is_some()))?,
            logits: self.slot(logits)?,
            router,
            bias: selection_bias.map(|bias| self.dense(bias)).transpose()?,
            experts: self.of_slots(x, router.k),
            weights: self.of_slots(x, router.k),
        };
        let scales = expert_scales.map(|scales| self.slot(scales)).transpose()?;
        let residual = addition.map(|Addition { residual, .. }| self.slot(residual)).transpose()?;
        let x = self.slot(x)?;
        let suffix = |weight: &ExpertTiles| Form::Tiles(weight.tiles.layout).kernel_suffix();
        let [a, b, c] = mixture.biases.map(|bias| bias.map(|bias| self.dense(bias)).transpose());
        let biases = [a?, b?, c?];
        let is_plain = unit.activation().is_some() && mixture.biases == [None; 3];
        let sorted = if is_plain && self.gpu.has_tensor_kernels() {
            Some(self.sorted([&gate, &up, &down], slots, count)?)
        } else {
            None
        };
        let most_few = if sorted.is_some() { slots.min(MOST_UNSORTED * router.k) } else { slots };
        let infix = if is_plain { "" } else { "biased_" };
        let few = FewSlots {
            gates: self.kernel(&format!("expert_gates_{infix}{}", suffix(&gate)))?,
            down: self.kernel(&format!("expert_down_{infix}{}", suffix(&down)))?,
            gated: self.buffer(most_few.saturating_mul(down.inputs)),
        };
        if let Some(Addition { node, .. }) = addition {
            self.folded.push(node);
        }
        let out = self.make(addition.map_or(y, |addition| addition.sum));
        let label = self.label("experts", gate.number);
        let factor = scale.unwrap_or(1.0);
        let op = MixtureOp {
            router: top_k,
            scales,
            factor,
            x,
            gate,
            up,
            down,
            count,
            unit,
            biases,
            residual,
            few,
            sorted,
            out,
        };
        self.push(op, label);
        Ok(())
    }

    /// Kernels and memory for rows that are sorted by expert.
    fn sorted(
        &mut self,
        [gate, up, down]: [&ExpertTiles; 3],
        slots: usize,
        count: usize,
    ) -> Result<Sorted, DeviceError> {
        let positions = most_positions(slots, count);
        // Two halves in a float.
        let mut panels = |subs: usize| Panels {
            data: self.buffer(positions.saturating_mul(subs * 32)),
            row_scale: self.buffer(positions),
            subs,
        };
        let (x, gated) = (panels(gate.tiles.subs), panels(down.tiles.subs));
        let largest = |weight: &ExpertTiles| {
            let norm = weight.tiles.row_norm();
            norm.ok_or_else(|| self.gpu.unsupported("experts without norms of their rows"))
        };
        let largest = [largest(gate)?, largest(up)?];
        let suffix = |weight: &ExpertTiles| Form::Tiles(weight.tiles.layout).kernel_suffix();
        Ok(Sorted {
            plan: self.kernel("expert_plan")?,
            panels: self.kernel("expert_panels")?,
            sum: self.kernel("expert_sum")?,
            gates: self.expert_kernels(&format!("experts_gated_{}", suffix(gate)))?,
            down: self.expert_kernels(&format!("experts_{}", suffix(down)))?,
            plan_buffers: PlanBuffers {
                counts: self.buffer(1),
                places: Some(self.buffer(slots)),
                slots: self.buffer(positions),
                blocks: self.buffer(3 * most_blocks(slots, count)),
            },
            x,
            gated,
            largest,
            products: self.buffer(slots.saturating_mul(down.tiles.count / count * TILE_OUTPUTS)),
        })
    }

    pub(super) fn expert_kernels(&self, prefix: &str) -> Result<[Kernel; EXPERT_SIZES], DeviceError> {
        let [a, b, c] = expert_kernels(prefix).map(|(name, shared_bytes)| {
            self.ask(&name);
            self.gpu.experts(&name, shared_bytes)
        });
        Ok([a?, b?, c?])
    }

    /// The tiles of the weight `w` of all experts, or heads; `None` if they do not have tiles of their own.
    pub(super) fn expert_tiles(&self, w: ValueId) -> Option<ExpertTiles> {
        let (number, shape) = (self.weight(w)?, self.shape(w));
        let [experts, outputs, inputs] = shape.0[..] else { return None };
        let (experts, outputs, inputs) = (experts.constant()?, outputs.constant()?, inputs.constant()?);
        let [stretch] = &self.weights.stored(number)?.stretches[..] else { return None };
        let tiles = stretch.tiles.clone()?;
        let whole =
            tiles.upper.is_none() && tiles.row_norm.is_some() && stretch.rows == (0..experts * outputs);
        (whole && outputs.is_multiple_of(TILE_OUTPUTS)).then_some(ExpertTiles { tiles, inputs, number })
    }

    /// Room for a number of each slot of the rows of `x`.
    fn of_slots(&mut self, x: ValueId, chosen: usize) -> Slot {
        let shape = Shape::rows(self.shape(x).outer(), &[chosen]);
        self.make_shape(shape)
    }
}
