//! Nodes that become one operation.

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, GateUpActivation, LinearResidual, Pattern, QkNormRopeCacheWrite};
use brasa_graph::{Fused, GroupId, ValueId};
use brasa_lower::BufferId;

use super::Compiler;
use super::linear::Follow;
use crate::ops::{HEAD_ELEMENTS, HeadsOp, RotationsOp, WIDEST_HEAD};
use crate::weights::Halves;

/// Patterns of nodes that one operation of this device computes.
pub(super) const PATTERNS: &[Pattern] = &[
    Pattern::RouterExperts,
    Pattern::GateUpLowRankRows,
    Pattern::LinearLowRankRows,
    Pattern::LowRankRows,
    Pattern::GateUpActivation,
    Pattern::QkNormRopeCacheWrite,
    Pattern::LinearResidual,
];

impl Compiler<'_> {
    /// True for fused nodes that [`Self::lower_fused`] handles: all of the weight is in tiles, and halves are paired as they are
    /// gated.
    pub(super) fn fuses(&self, fused: &Fused) -> bool {
        match &fused.fusion {
            Fusion::GateUpActivation(GateUpActivation { gate, up, unit, .. }) => {
                let halves = Halves { gate: gate.rows.clone(), up: up.rows.clone() };
                let stretches = self.stored(gate.w).map_or(&[][..], |stored| &stored.stretches);
                unit.activation().is_some()
                    && gate.w == up.w
                    && gate.bias == up.bias
                    && stretches.len() == 1
                    && stretches[0].pairs(&halves)
            }
            // Low-rank products are added to those that they stand beside.
            Fusion::LinearResidual(LinearResidual { layer, .. }) => {
                let is_floats = || self.stored(layer.w).is_some_and(|stored| stored.floats().is_some());
                self.is_in_tiles(layer.w) || (!self.exact && layer.bias.is_none() && is_floats())
            }
            Fusion::QkNormRopeCacheWrite(heads) => self.fuses_heads(heads),
            Fusion::RouterExperts(mixture) => self.fuses_mixture(mixture),
            Fusion::GateUpLowRankRows(gated) => self.gates_bank(gated),
            Fusion::LinearLowRankRows(of) => self.adds_bank(of),
            Fusion::LowRankRows(product) => self.fuses_bank(product),
            Fusion::NormLinear(_) | Fusion::LinearActivation(_) => false,
        }
    }

    /// True if threads can take eight elements of a head each.
    fn fuses_heads(&self, heads: &QkNormRopeCacheWrite) -> bool {
        let width = self.shape(heads.q).width().unwrap_or(0);
        let in_pieces = |value: ValueId| {
            let view = self.graph.view(value);
            self.shape(value).rank() == 3
                && self.shape(value).width() == Some(width)
                && view.elements.start.is_multiple_of(HEAD_ELEMENTS)
                && view.row_stride.is_multiple_of(HEAD_ELEMENTS)
        };
        (HEAD_ELEMENTS..=WIDEST_HEAD).contains(&width)
            && width.is_multiple_of(HEAD_ELEMENTS)
            && [heads.q, heads.k, heads.v].into_iter().all(in_pieces)
    }

    /// Appends the operation of fused nodes.
    pub(super) fn lower_fused(&mut self, fused: &Fused) -> Result<(), DeviceError> {
        match &fused.fusion {
            Fusion::GateUpActivation(GateUpActivation { x, gate, unit, y, .. }) => {
                let follow = Follow { bias: gate.bias, gated_by: unit.activation(), ..Follow::default() };
                self.linear(*x, gate.w, *y, &follow)
            }
            Fusion::LinearResidual(LinearResidual { y, .. }) if self.absorbed.contains(y) => Ok(()),
            Fusion::LinearResidual(LinearResidual { x, layer, residual, y }) => {
                if let Some(beside) = self.tails.remove(y) {
                    return self.beside(beside, *y);
                }
                let follow = Follow { bias: layer.bias, residual: Some(*residual), ..Follow::default() };
                self.linear(*x, layer.w, *y, &follow)
            }
            Fusion::QkNormRopeCacheWrite(heads) => self.heads(heads),
            Fusion::RouterExperts(mixture) => self.mixture(mixture),
            Fusion::GateUpLowRankRows(gated) => self.banked_linear(&gated.of, Some(gated)),
            Fusion::LinearLowRankRows(of) => self.banked_linear(of, None),
            Fusion::LowRankRows(product) => self.bank(product),
            Fusion::NormLinear(_) | Fusion::LinearActivation(_) => {
                unreachable!("{} is left alone", fused.fusion.pattern().name())
            }
        }
    }

    fn heads(&mut self, fused: &QkNormRopeCacheWrite) -> Result<(), DeviceError> {
        let &QkNormRopeCacheWrite { q, k, v, q_norm, k_norm, v_norm, rope, cache, y, .. } = fused;
        let table = self.rotations(fused)?;
        let kernel = self.kernel_of_cache("heads")?;
        let (GroupId(group), place) = self.graph.cache_place(cache);
        let [a, b, c] =
            [q_norm, k_norm, v_norm].map(|norm| norm.map(|norm| self.head_norm(norm)).transpose());
        let (q, k, v, norms) = (self.slot(q)?, self.slot(k)?, self.slot(v)?, [a?, b?, c?]);
        self.need(table);
        let parts = self.parts_in_front([fused.q, fused.k, fused.v]);
        let (group, out) = (group as usize, self.make(y));
        self.push(HeadsOp { kernel, rope, q, k, v, norms, parts, table, group, place, out }, "heads");
        Ok(())
    }

    /// The buffer of cosines and sines of a rotation, which layers that turn alike share.
    fn rotations(&mut self, fused: &QkNormRopeCacheWrite) -> Result<BufferId, DeviceError> {
        let &QkNormRopeCacheWrite { rope, positions, frequencies, .. } = fused;
        if let Some(table) = self.rotation(&rope, positions, frequencies) {
            return Ok(table);
        }
        let kernel = self.kernel("rotations")?;
        let rows = self.elements(self.shape(positions));
        let (of_positions, of_frequencies) = (self.dense(positions)?, self.dense(frequencies)?);
        let table = self.buffer(rows.saturating_mul(rope.rotary_dim));
        self.push(
            RotationsOp { kernel, rope, positions: of_positions, frequencies: of_frequencies, table },
            "rotations",
        );
        self.keep_rotation(&rope, [positions, frequencies], table);
        Ok(table)
    }
}
