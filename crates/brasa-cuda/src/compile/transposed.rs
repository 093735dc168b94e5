//! Products with the other side of a weight.

use std::sync::atomic::AtomicU64;

use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;

use super::{ALIGNMENT_BYTES, Compiler};
use crate::ops::{
    FEWEST_ROWS, Gemm, LinearTransposedOp, Panels, Rounding, TailTiles, Transposed, TransposedTail,
    TransposedTiles, partial_floats,
};
use crate::params::Ptr;
use crate::weights::{Layout, SUB_INPUTS, TILE_OUTPUTS, Tiles};

impl Compiler<'_> {
    /// Appends the product of `y` with the other side of `w`.
    pub(super) fn linear_transposed(
        &mut self,
        y: ValueId,
        w: ValueId,
        x: ValueId,
    ) -> Result<(), DeviceError> {
        let Some(number) = self.weight(w) else {
            return self.matmul([y, w], [false, false], x, ("linear_transposed", false));
        };
        let subs = self.shape(w).outer().constant().ok_or_else(|| self.odd(w))?.div_ceil(SUB_INPUTS);
        let rows = self.rows(y);
        let panels = self.multiplies_tiles(w, rows).then(|| self.panels_of(y, subs)).transpose()?;
        let transposed = self.transposed(w, rows, panels, None)?;
        let (y, out) = (self.slot(y)?, self.make(x));
        let label = self.label("linear_transposed", number);
        self.push(LinearTransposedOp { transposed, y, number, beside: None, out }, label);
        Ok(())
    }

    /// Appends `y · w + u · a`, products with the other sides of a weight and of a low-rank one.
    pub(super) fn linear_transposed_beside(
        &mut self,
        [y, w]: [ValueId; 2],
        [u, a]: [ValueId; 2],
        x: ValueId,
    ) -> Result<(), DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let subs = self.shape(w).outer().constant().ok_or_else(|| self.odd(w))?.div_ceil(SUB_INPUTS);
        let (rows, width) = (self.rows(y), self.shape(x).width().unwrap_or(0));
        let beside = self.low_rank(u, a, rows.saturating_mul(width))?;
        let (panels, rounding, down) = self.panels_with_tail(y, subs, &beside)?;
        let of = TransposedTail {
            tiles: TailTiles { kernel: self.kernel("tail_tiles")?, down },
            matrix: beside.floats.data,
            columns: beside.floats.size.0,
            buffers: self.tail_buffers(width.div_ceil(TILE_OUTPUTS)),
        };
        let transposed = self.transposed(w, rows, Some((panels, rounding)), Some(of))?;
        let (y, out) = (self.slot(y)?, self.make(x));
        let low = &self.graph.weights()[beside.number].name;
        let label = format!("{} + {low}", self.label("linear_transposed", number));
        self.push(LinearTransposedOp { transposed, y, number, beside: Some(beside), out }, label);
        Ok(())
    }

    /// The transpose of `w` for the next operation, which rounds its up to `rows` rows by itself.
    pub(super) fn transposed_of_scratch(
        &mut self,
        w: ValueId,
        rows: usize,
    ) -> Result<Transposed, DeviceError> {
        let subs = self.shape(w).outer().constant().ok_or_else(|| self.odd(w))?.div_ceil(SUB_INPUTS);
        let panels = if self.multiplies_tiles(w, rows) {
            let panels = self.new_panels(rows, subs);
            Some((panels, Some(self.own_rounding(panels, None)?)))
        } else {
            None
        };
        self.transposed(w, rows, panels, None)
    }

    /// The transpose of `w`, and panels for up to `rows` rows, which the caller rounds. `None` if products of that many rows do not
    /// read panels.
    pub(super) fn transposed_of_panels(
        &mut self,
        w: ValueId,
        rows: usize,
    ) -> Result<Option<(Transposed, Panels)>, DeviceError> {
        if !self.multiplies_tiles(w, rows) {
            return Ok(None);
        }
        let subs = self.shape(w).outer().constant().ok_or_else(|| self.odd(w))?.div_ceil(SUB_INPUTS);
        let panels = self.new_panels(rows, subs);
        Ok(Some((self.transposed(w, rows, Some((panels, None)), None)?, panels)))
    }

    /// True if products of that many rows with `w`, or with its other side, are made on tensor cores, of tiles.
    pub(super) fn multiplies_tiles(&self, w: ValueId, rows: usize) -> bool {
        !self.exact && self.gpu.has_tensor_kernels() && rows >= FEWEST_ROWS as usize && self.is_in_tiles(w)
    }

    /// Keeps turned weights from step to step, in order, as long as a quarter of the device's memory stays free beside the arena; none
    /// where launches are separate.
    pub(super) fn keep_turned(&mut self) -> Result<(), DeviceError> {
        if self.turned.is_empty() || self.gpu.separate_launches {
            return Ok(());
        }
        let (free, all) = self.gpu.context.memory().map_err(|error| self.gpu.error(error))?;
        let arena_bytes = self.arena_bytes(ALIGNMENT_BYTES) as u64;
        let mut left = free.saturating_sub(all / 4).saturating_sub(arena_bytes);
        for buffer in std::mem::take(&mut self.turned) {
            let Some(rest) = left.checked_sub(self.taken_bytes(buffer, ALIGNMENT_BYTES) as u64) else {
                break;
            };
            self.keep(buffer);
            left = rest;
        }
        Ok(())
    }

    fn transposed(
        &mut self,
        w: ValueId,
        rows: usize,
        panels: Option<(Panels, Option<Rounding>)>,
        tail: Option<TransposedTail>,
    ) -> Result<Transposed, DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let stored = self.stored(w).ok_or_else(|| self.odd(w))?;
        let (kernel, weight, stretches) =
            (self.kernel("linear_transposed")?, stored.weight, stored.stretches.clone());
        let Some((panels, rounding)) = panels else {
            let floats = self.floats(number, rows.saturating_mul(weight.row_len as usize), true)?;
            return Ok(Transposed { kernel, w: weight, floats, many: None });
        };
        let (outputs, inputs) = (weight.rows as usize, weight.row_len as usize);
        let (count, subs) = (inputs.div_ceil(TILE_OUTPUTS), outputs.div_ceil(SUB_INPUTS));
        // Every element fits an f16, whatever stretch it is of.
        let raises = stretches.iter().filter_map(|stretch| stretch.tiles.as_ref());
        let raise = raises.map(|tiles| tiles.raise() / tiles.factor).fold(f32::INFINITY, f32::min);
        let kernels = stretches
            .iter()
            .map(|stretch| self.kernel(&format!("transpose_{}", stretch.form().kernel_suffix())))
            .collect::<Result<Vec<_>, _>>()?;
        let (sums, partial) = (self.kernel("gemm_sums")?, self.buffer(partial_floats(rows, inputs)));
        let of_halves = self.kernels_of_many("f16")?.ok_or_else(|| self.odd(w))?;
        let tiles = Tiles {
            layout: Layout::F16,
            factor: raise.recip(),
            data: Ptr::NONE,
            count,
            subs,
            upper: None,
            largest: 0.0,
            row_norm: None,
        };
        // Four bytes are two halves.
        let data = self.buffer(count * subs * TILE_OUTPUTS * SUB_INPUTS / 2);
        if !self.graph.weights()[number].trainable {
            self.turned.push(data);
        }
        let tail_of_panels = tail.is_some() && rounding.is_none();
        let many = TransposedTiles {
            number,
            stretches: kernels.into_iter().zip(stretches).collect(),
            has_gaps: !outputs.is_multiple_of(SUB_INPUTS),
            tiles,
            raise,
            tail,
            data,
            made: AtomicU64::new(0),
            gemm: Gemm { panels, of_panels: tail_of_panels, rounding, sums, partial },
            kernels: of_halves,
        };
        Ok(Transposed { kernel, w: weight, floats: None, many: Some(many) })
    }
}
