//! Work that an operation does at its end for the next operation, so that few rows need few launches.
//!
//! Rows are rounded for a product where they are made: sums of parts of K are added, normed and rounded by one launch, and attention's
//! merge and gates write halves. Sums of queries, keys and values are added where heads are turned. All of this is decided here, for any number of
//! rows; whether K is cut in parts is decided anew in each step.

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, GateUpActivation, GateUpLowRankRows, LinearLowRankRows, Norm};
use brasa_graph::op::Binary;
use brasa_graph::{Fused, Item, Node, NodeId, Op, Schedule, ValueId};

use super::Compiler;
use crate::ops::{
    Ahead, FEWEST_ROWS, GatesBehind, Gemm, HEAD_ELEMENTS, Panels, PartsInFront, Rounding, TilesLaunch,
    WIDEST_JOINED, partial_floats,
};
use crate::params::Ptr;
use crate::run::Slot;

/// A gated product that one later product reads: its weight, its result, and A, B and factors of the bank's product beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatedProduct {
    w: ValueId,
    y: ValueId,
    bank: Option<(ValueId, ValueId, ValueId)>,
}

impl Compiler<'_> {
    /// Notes the products whose only readers are the heads of one cache write.
    pub(super) fn find_heads(&mut self, schedule: &Schedule) {
        if self.gpu.separate_launches {
            return;
        }
        for item in schedule.items() {
            let Item::Fused(Fused { fusion: Fusion::QkNormRopeCacheWrite(heads), nodes, .. }) = item else {
                continue;
            };
            let [q, k, v] = [heads.q, heads.k, heads.v].map(|value| self.graph.view(value).root);
            let only_heads = self.readers.nodes(q).iter().all(|(reader, _)| nodes.contains(reader));
            if q == k && q == v && only_heads && !self.readers.is_output(q) && !self.banked.contains(&q) {
                self.meet_heads.push(q);
            }
        }
    }

    /// Notes the gated products that a product behind reads, and nothing else.
    pub(super) fn find_gates(&mut self, schedule: &Schedule) {
        for item in schedule.items() {
            let Item::Fused(fused) = item else { continue };
            let (x, product, no_bias) = match &fused.fusion {
                Fusion::GateUpActivation(GateUpActivation { x, gate, up, y, .. }) => {
                    let no_bias = gate.bias.is_none() && up.bias.is_none();
                    (*x, GatedProduct { w: gate.w, y: *y, bank: None }, no_bias)
                }
                Fusion::GateUpLowRankRows(GateUpLowRankRows { of, y, .. }) => {
                    let LinearLowRankRows { layer, low, .. } = of;
                    let bank = Some((low.a, low.b, low.factors));
                    (low.x, GatedProduct { w: layer.w, y: *y, bank }, layer.bias.is_none())
                }
                _ => continue,
            };
            let GatedProduct { w, y, bank } = product;
            let only_gates = self.readers.nodes(x).iter().all(|&(reader, _)| {
                let is_weight = |of| of == w || bank.is_some_and(|(a, ..)| of == a);
                matches!(self.graph.node(reader).inputs[..], [read, of] if read == x && is_weight(of))
            });
            let width = self.shape(y).width().unwrap_or(0);
            let fills_panels = self.subs_of_readers(y).is_some_and(|subs| subs * 64 == width);
            if only_gates && fills_panels && no_bias && self.rounds(x) && !self.readers.is_output(y) {
                self.gates.insert(x, product);
            }
        }
    }

    /// The panels that gated products go to, if what rounded their operand said by which powers of two.
    pub(super) fn gated_to(&mut self, y: ValueId) -> Option<Panels> {
        let (&row_scale, subs) = (self.gated_scales.get(&y)?, self.subs_of_readers(y)?);
        self.need(row_scale);
        let data = self.panel_room(self.rows(y), subs);
        let panels = Panels { data, row_scale, subs };
        self.add_panels(y, panels);
        Some(panels)
    }

    /// The gated products of `x`, which the next operation rounds.
    pub(super) fn gates_behind(&mut self, x: ValueId) -> Option<GatesBehind> {
        let &GatedProduct { w, y, bank } = self.gates.get(&x)?;
        let norm = |lowering: &Self, w| -> Option<Ptr<f32>> {
            let [only] = &lowering.stored(w)?.stretches[..] else { return None };
            only.tiles.as_ref()?.row_norm()
        };
        let row_norm = norm(self, w)?;
        let bank = match bank {
            // Factors are made where they are first needed, which may be behind the rounding of the first block.
            Some((a, b, factors)) => Some(([norm(self, a)?, norm(self, b)?], self.slot(factors).ok()?)),
            None => None,
        };
        let rows = self.rows(x);
        let row_scale = self.buffer(rows);
        self.gated_scales.insert(y, row_scale);
        Some(GatesBehind { row_norm, row_scale, bank })
    }

    /// The addition of a bias that is all that reads the product `y`: the node, the bias and the sum.
    pub(super) fn bias_behind(&self, y: ValueId, w: ValueId) -> Option<(NodeId, ValueId, ValueId)> {
        if self.gpu.separate_launches || self.readers.is_output(y) || !self.is_in_tiles(w) {
            return None;
        }
        let &[(id, read)] = &self.readers.nodes(y)[..] else { return None };
        let Node { op: Op::Binary(Binary::Add), inputs, outputs } = self.graph.node(id) else { return None };
        let bias = match inputs[..] {
            [a, b] if a == read => b,
            [a, b] if b == read => a,
            _ => return None,
        };
        let is_bias = self.weight(bias).is_some()
            && self.shape(bias).rank() == 1
            && self.shape(bias).width() == self.shape(y).width();
        (read == y && is_bias).then(|| (id, bias, outputs[0]))
    }

    /// Panels, rounding and buffers for products with many rows of `x`; `None` if they are not multiplied on tensor cores.
    pub(super) fn gemm(&mut self, x: ValueId, tiles: &[TilesLaunch]) -> Result<Option<Gemm>, DeviceError> {
        let Some(first) = tiles.first().filter(|first| first.many.is_some()) else { return Ok(None) };
        let (rows, subs) = (self.rows(x), first.tiles.subs);
        if rows < FEWEST_ROWS as usize {
            return Ok(None);
        }
        let outputs = tiles.iter().map(|launch| launch.tiles.count * 16).max().unwrap_or(0);
        let (panels, rounding) = self.panels_of(x, subs)?;
        let partial = self.buffer(partial_floats(rows, outputs));
        let sums = self.kernel("gemm_sums")?;
        Ok(Some(Gemm { panels, rounding, of_panels: false, sums, partial }))
    }

    /// How the product that makes `y` rounds it for the product behind the norm that reads it. `residual` is added to the product.
    pub(super) fn ahead(
        &mut self,
        y: ValueId,
        residual: Option<&Slot>,
        tiles: &[TilesLaunch],
    ) -> Result<Option<Ahead>, DeviceError> {
        let width = self.shape(y).width().unwrap_or(0);
        let aligned = residual.is_none_or(|slot| {
            slot.start.is_multiple_of(4) && slot.row_stride.is_none_or(|stride| stride.is_multiple_of(4))
        });
        let is_whole =
            matches!(tiles, [only] if only.tiles.upper.is_none() && only.stretch.rows == (0..width));
        if !is_whole || !aligned || !width.is_multiple_of(8) || width > WIDEST_JOINED || !self.rounds(y) {
            return Ok(None);
        }
        let normed = self.readers.nodes(y).into_iter().find_map(|(id, read)| {
            let node = self.graph.node(id);
            let (Op::RmsNorm(op), Some(&x), &[normed]) = (&node.op, node.inputs.first(), &node.outputs[..])
            else {
                return None;
            };
            let subs = self.subs_of_readers(normed)?;
            let norm = Norm { w: node.inputs.get(1).copied(), eps: op.eps };
            (read == y && x == y && self.defers_norm(normed)).then_some((normed, norm, subs))
        });
        let Some((normed, norm, subs)) = normed else { return Ok(None) };
        let norm = Some(self.head_norm(norm)?);
        let joined = self.kernel("gemm_sums_panels")?;
        Ok(Some(Ahead { rounding: self.rounding(normed, subs)?, norm, joined }))
    }

    /// How attention rounds its result `y` for the product behind, if that is all that reads it.
    pub(super) fn attention_ahead(&mut self, y: ValueId) -> Result<Option<Rounding>, DeviceError> {
        let readers = self.readers.nodes(y);
        let Some(&(_, x)) = readers.first() else { return Ok(None) };
        let (view, width) = (self.graph.view(x), self.shape(x).width().unwrap_or(0));
        let is_whole = self.shape(x).rank() == 2
            && self.shape(x).outer() == self.shape(y).outer()
            && view.elements == (0..width)
            && self.shape(y).row_elements() == Some(width);
        let reads_x = readers.iter().all(|&(_, read)| read == x);
        if self.gates.contains_key(&x)
            || !reads_x
            || !is_whole
            || !width.is_multiple_of(8)
            || self.readers.is_output(y)
            || !self.rounds(x)
        {
            return Ok(None);
        }
        let Some(subs) = self.subs_of_readers(x) else { return Ok(None) };
        self.rounding(x, subs).map(Some)
    }

    /// True if heads add the sums of parts of K of the product that makes `y`.
    pub(super) fn leaves_parts(&self, y: ValueId, tiles: &[TilesLaunch]) -> bool {
        let width = self.shape(y).width().unwrap_or(0);
        self.meet_heads.contains(&y)
            && matches!(tiles, [only] if only.tiles.upper.is_none() && only.stretch.rows == (0..width))
    }

    /// The sums of parts of K that the product in front of heads leaves.
    pub(super) fn parts_in_front(&mut self, heads: [ValueId; 3]) -> Option<PartsInFront> {
        let root = self.graph.view(heads[0]).root;
        let left = self.forms.parts(root)?.clone();
        self.need(left.partial);
        let starts = heads.map(|value| self.graph.view(value).elements.start);
        debug_assert!(starts.iter().all(|start| start.is_multiple_of(HEAD_ELEMENTS)));
        Some(PartsInFront { left, starts })
    }

    /// True if rows of `x` may be multiplied on tensor cores, and rounded ahead.
    fn rounds(&self, x: ValueId) -> bool {
        !self.exact
            && self.gpu.has_tensor_kernels()
            && !self.gpu.separate_launches
            && self.shape(x).rank() == 2
            && self.rows(x) >= FEWEST_ROWS as usize
    }

    /// Pieces of 64 inputs of the weights in tiles that multiply `x`; `None` if anything else reads it.
    fn subs_of_readers(&self, x: ValueId) -> Option<usize> {
        let mut found = None;
        for (id, _) in self.readers.nodes(x) {
            let node = self.graph.node(id);
            let (Op::Linear(_), &[read, w]) = (&node.op, &node.inputs[..]) else { return None };
            if read != x || !self.is_in_tiles(w) {
                return None;
            }
            for tiles in self.stored(w)?.stretches.iter().filter_map(|stretch| stretch.tiles.as_ref()) {
                if *found.get_or_insert(tiles.subs) != tiles.subs {
                    return None;
                }
            }
        }
        found
    }
}
