//! Low-rank products that are computed with the product of the weight beside them, as its *tail*: more inputs of the same rows.
//!
//! Only of weights that are learned, in f32: adapters that are stored otherwise are multiplied as they are stored.

use std::collections::HashSet;

use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, LinearResidual};
use brasa_graph::{Fused, Item, NodeId, Op, Schedule, ValueId};

use brasa_lower::BufferId;

use super::Compiler;
use super::linear::Follow;
use crate::ops::{
    Further, Gemm, LowRank, MOST_TAIL, Panels, Rounding, TAIL_DOWN, Tail, TailTiles, TilesLaunch,
    partial_floats,
};

/// A product with a low-rank one beside it: `x · wᵀ [+ bias] [+ residual] + u · bᵀ`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beside {
    pub x: ValueId,
    pub w: ValueId,
    bias: Option<ValueId>,
    residual: Option<ValueId>,
    pub u: ValueId,
    pub b: ValueId,
}

impl Compiler<'_> {
    /// Notes the low-rank products that become tails of others, by the sums; products that are computed behind are folded.
    pub(super) fn find_tails(&mut self, schedule: &Schedule) {
        let fused = schedule.items().iter().filter_map(|item| match item {
            Item::Fused(Fused { fusion: Fusion::LinearResidual(of), .. }) => Some(of),
            _ => None,
        });
        let fused: Vec<&LinearResidual> = fused.collect();
        let alone: HashSet<NodeId> = schedule
            .items()
            .iter()
            .filter_map(|item| match item {
                Item::Single(node) => Some(*node),
                Item::Fused(_) => None,
            })
            .collect();
        for low in &fused {
            if low.layer.bias.is_some() || !self.is_low_rank(low.layer.w, 1) {
                continue;
            }
            let (u, b) = (low.x, low.layer.w);
            // The sum goes on to a product with a residual, or the product stands in front.
            let behind = fused.iter().find(|of| of.residual == low.y);
            if let Some(of) = behind
                && self.readers.nodes(low.y).len() == 1
                && !self.readers.is_output(low.y)
                && self.takes_tail(of.x, of.layer.w)
            {
                let (x, w, bias) = (of.x, of.layer.w, of.layer.bias);
                self.absorbed.insert(low.y);
                self.tails.insert(of.y, Beside { x, w, bias, residual: Some(low.residual), u, b });
            } else if let Some((beside, nodes)) = self.product_in_front(low.residual, [u, b], &alone) {
                self.folded.extend(nodes);
                self.tails.insert(low.y, beside);
            }
        }
    }

    /// The product, with its bias, that makes `sum` for nothing but the addition of a low-rank one, and its nodes.
    fn product_in_front(
        &self,
        sum: ValueId,
        [u, b]: [ValueId; 2],
        alone: &HashSet<NodeId>,
    ) -> Option<(Beside, Vec<NodeId>)> {
        let read_once =
            |value: ValueId| self.readers.nodes(value).len() == 1 && !self.readers.is_output(value);
        let maker = self.graph.producer(sum).filter(|maker| alone.contains(maker) && read_once(sum))?;
        let product_of = |id: NodeId| match (&self.graph.node(id).op, &self.graph.node(id).inputs[..]) {
            (Op::Linear(_), &[x, w]) if self.takes_tail(x, w) => Some((x, w)),
            _ => None,
        };
        if let Some((x, w)) = product_of(maker) {
            return Some((Beside { x, w, bias: None, residual: None, u, b }, vec![maker]));
        }
        let product = self.graph.producer(*self.graph.node(maker).inputs.first()?)?;
        let (x, w) = product_of(product).filter(|_| alone.contains(&product))?;
        let (addition, bias, of) = self.bias_behind(self.graph.node(product).outputs[0], w)?;
        (addition == maker && of == sum)
            .then_some((Beside { x, w, bias: Some(bias), residual: None, u, b }, vec![product, maker]))
    }

    /// True for a learned matrix of f32 that has few columns (`axis` 1) or rows (0).
    pub(super) fn is_low_rank(&self, w: ValueId, axis: usize) -> bool {
        let Some(number) = self.weight(w) else { return false };
        let weight = &self.graph.weights()[number];
        let is_floats = self.stored(w).is_some_and(|stored| stored.floats().is_some());
        is_floats && weight.trainable && weight.shape.len() == 2 && weight.shape[axis] <= MOST_TAIL
    }

    /// True if `x` is multiplied with `w` on tensor cores, and rounded for that product alone.
    fn takes_tail(&self, x: ValueId, w: ValueId) -> bool {
        self.shape(x).rank() == 2 && self.multiplies_tiles(w, self.rows(x)) && !self.defers_norm(x)
    }

    /// Appends a product with its tail, which makes `y`.
    pub(super) fn beside(&mut self, of: Beside, y: ValueId) -> Result<(), DeviceError> {
        let Beside { x, w, bias, residual, .. } = of;
        self.linear(x, w, y, &Follow { bias, residual, tail: Some(of), ..Follow::default() })
    }

    /// The launches and the memory of a product of many rows with a tail, and those of the tail.
    pub(super) fn gemm_and_tail(
        &mut self,
        of: &Beside,
        tiles: &[TilesLaunch],
    ) -> Result<(Option<Gemm>, Further), DeviceError> {
        let (rows, subs) = (self.rows(of.x), tiles.first().map_or(0, |first| first.tiles.subs));
        let outputs = tiles.iter().map(|launch| launch.tiles.count * 16).max().unwrap_or(0);
        let beside = self.low_rank(of.u, of.b, rows.saturating_mul(outputs))?;
        let (panels, rounding, down) = self.panels_with_tail(of.x, subs, &beside)?;
        let (partial, sums) = (self.buffer(partial_floats(rows, outputs)), self.kernel("gemm_sums")?);
        let of_stretches = tiles.iter().map(|launch| self.tail_buffers(launch.tiles.count)).collect();
        let tiles = TailTiles { kernel: self.kernel("tail_tiles")?, down };
        let gemm = Gemm { panels, of_panels: rounding.is_none(), rounding, sums, partial };
        Ok((Some(gemm), Further::Tail(Box::new(Tail { beside, tiles, of_stretches }))))
    }

    /// Room for the tiles of a tail, and for their factors.
    pub(super) fn tail_buffers(&mut self, count: usize) -> [BufferId; 2] {
        [self.buffer(count * TAIL_FLOATS), self.buffer(count)]
    }

    /// The panels of `x`, of `subs` pieces, with the low-rank product beside as their last piece; their rounding by the next operation, where none in front has
    /// rounded `x`; and what the tail is multiplied by there, beside the row's power of two.
    pub(super) fn panels_with_tail(
        &mut self,
        x: ValueId,
        subs: usize,
        beside: &LowRank,
    ) -> Result<(Panels, Option<Rounding>, f32), DeviceError> {
        if self.paneled.get(&x).is_some_and(|paneled| paneled.tail.is_some()) {
            return Ok((self.panels(x)?, None, TAIL_DOWN));
        }
        let panels = self.new_panels(self.rows(x), subs + 1);
        let rounding = self.own_rounding(panels, Some(beside))?;
        Ok((panels, Some(rounding), 1.0))
    }

    /// The low-rank weight `w` and what it multiplies, for products of at most that many elements.
    pub(super) fn low_rank(
        &mut self,
        x: ValueId,
        w: ValueId,
        elements: usize,
    ) -> Result<LowRank, DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let floats = self.floats(number, elements, true)?.ok_or_else(|| self.odd(w))?;
        Ok(LowRank { number, floats, x: self.slot(x)? })
    }
}

/// Floats of the bytes of a tile of a tail.
const TAIL_FLOATS: usize = 512;
