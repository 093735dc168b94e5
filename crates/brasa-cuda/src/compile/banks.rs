//! Low-rank products of banks of adapters. Every row uses some ranks.

use std::ops::Range;
use std::sync::Arc;

use brasa_formats::Payload;
use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, GateUpLowRankRows, LinearLowRankRows, LowRankRows};
use brasa_graph::{Fused, Item, Schedule, ValueId, Weight};

use super::Compiler;
use super::linear::Follow;
use crate::ops::{
    BankedLinearOp, FEWEST_ROWS, FewRows, GatedOp, GatedPlace, LARGEST_ROWS, LowRankRowsOp, MOST_FEW_ROWS,
    Matrix, RanksTail, ResultForm, Span, parts_of_ranks,
};
use crate::params::{LOW_RANK_BF16, LOW_RANK_F16, LOW_RANK_F32};
use crate::weights::{Halves, SUB_INPUTS, Stored, Stretch, TILE_OUTPUTS, Tiles, raise_of};

impl Compiler<'_> {
    /// Notes the sums of products of banks that are not added within the product of a layer.
    pub(super) fn find_banks(&mut self, schedule: &Schedule) {
        for item in schedule.items() {
            if let Item::Fused(Fused { fusion: Fusion::LowRankRows(product), .. }) = item {
                self.banked.insert(product.y);
            }
        }
    }

    /// True if kernels read both matrices as they are stored, and the order of sums may depend on how many rows there are. Kernels read them ahead of the
    /// launches in front, so these must not write them: learned matrices are left alone.
    pub(super) fn fuses_bank(&self, product: &LowRankRows) -> bool {
        let &LowRankRows { x, a, b, residual, .. } = product;
        let is_plain = |value| self.shape(value).rank() == 2;
        let is_fixed = |w| self.weight(w).is_some_and(|number| !self.graph.weights()[number].trainable);
        let in_fours = |(_, a): (_, Matrix)| a.inputs.is_multiple_of(4) && a.rows.is_multiple_of(4);
        !self.exact
            && is_fixed(a)
            && is_fixed(b)
            && is_plain(x)
            && is_plain(residual)
            && self.matrix(a).is_some_and(in_fours)
            && self.matrix(b).is_some()
    }

    /// True if the layer is multiplied on tensor cores, by rows that are rounded for both products, and its halves of outputs begin with tiles of B.
    pub(super) fn adds_bank(&self, LinearLowRankRows { layer, low, .. }: &LinearLowRankRows) -> bool {
        let Some(stored) = self.stored(layer.w) else { return false };
        let tiles = |stored: &Stored| -> Vec<Tiles> {
            stored.stretches.iter().filter_map(|stretch| stretch.tiles.clone()).collect()
        };
        let of_layer = tiles(stored);
        let is_whole = |stretch: &Stretch| {
            let upper = stretch.tiles.as_ref().and_then(|tiles| tiles.upper.as_ref());
            let begins = |rows: &Range<usize>| rows.start.is_multiple_of(TILE_OUTPUTS);
            begins(&stretch.rows) && upper.is_none_or(begins)
        };
        let subs = of_layer.first().map(|tiles| tiles.subs);
        let of_a = self.stored(low.a).map(tiles).unwrap_or_default();
        self.fuses_bank(low)
            && self.gpu.has_tensor_kernels()
            && !self.gpu.separate_launches
            && self.rows(low.x) >= FEWEST_ROWS as usize
            && of_layer.len() == stored.stretches.len()
            && stored.stretches.iter().all(is_whole)
            && of_layer.iter().chain(&of_a).all(|tiles| Some(tiles.subs) == subs)
    }

    /// True if besides the halves are paired as they are gated.
    pub(super) fn gates_bank(&self, gated: &GateUpLowRankRows) -> bool {
        let stretches = self.stored(gated.of.layer.w).map_or(&[][..], |stored| &stored.stretches);
        let is_paired = matches!(stretches, [only] if only.pairs(&Halves::of(self.graph, gated)));
        is_paired && self.adds_bank(&gated.of)
    }

    /// A weight in tiles of 16-bit floats, or dense rows of f32, and the ending of the names of its kernels.
    fn matrix(&self, w: ValueId) -> Option<(&'static str, Matrix)> {
        let stored = self.stored(w)?;
        let [stretch] = &stored.stretches[..] else { return None };
        let (rows, inputs) = (stored.weight.rows as usize, stored.weight.row_len as usize);
        let (suffix, data, factor) = match (&stretch.tiles, stored.floats()) {
            (Some(tiles), _) if tiles.upper.is_none() => {
                (stretch.form().kernel_suffix(), tiles.data.0, tiles.factor)
            }
            (None, Some(address)) => ("f32", address, 1.0),
            _ => return None,
        };
        ["f32", "f16", "bf16"].contains(&suffix).then_some((suffix, Matrix { data, rows, inputs, factor }))
    }

    /// Appends a product of a bank, added to another value.
    pub(super) fn bank(&mut self, product: &LowRankRows) -> Result<(), DeviceError> {
        let op = self.bank_op(product, false)?;
        let number = self.weight(product.a).ok_or_else(|| self.odd(product.a))?;
        let label = self.label("low_rank_rows", number);
        self.push(op, label);
        Ok(())
    }

    /// Appends a layer with the product of a bank beside it, and gates of its halves.
    pub(super) fn banked_linear(
        &mut self,
        of: &LinearLowRankRows,
        gated: Option<&GateUpLowRankRows>,
    ) -> Result<(), DeviceError> {
        let LinearLowRankRows { layer, low, residual, y } = of;
        let number = self.weight(layer.w).ok_or_else(|| self.odd(layer.w))?;
        let bias = layer.bias;
        let bare = Follow { bias, is_bare: true, ..Follow::default() };
        let (alone, low_op) = if residual.is_some() {
            let low_op = self.bank_op(low, true)?;
            let bare = Follow { residual: Some(low.y), ..bare };
            (self.linear_op(low.x, layer.w, number, *y, &bare)?, low_op)
        } else {
            (self.linear_op(low.x, layer.w, number, low.residual, &bare)?, self.bank_op(low, true)?)
        };
        let (sum, gated_by) = gated.map_or((*y, None), |gated| (gated.y, Some(gated.activation)));
        let bank = Some(Arc::clone(&low_op.few));
        let follow = Follow { bias, residual: *residual, gated_by, bank, ..Follow::default() };
        let together = self.linear_op(low.x, layer.w, number, sum, &follow)?;
        let gated = match gated {
            Some(&GateUpLowRankRows { gate, up, activation: function, y, .. }) => {
                let (gate, up, kernel) = (self.slot(gate)?, self.slot(up)?, self.kernel("gated")?);
                let op = GatedOp { kernel, function, gate, up, to: GatedPlace::Floats(self.make(y)) };
                let rounding = match together.form {
                    ResultForm::Panels(panels) => Some(self.own_rounding(panels, None)?),
                    ResultForm::Floats | ResultForm::Parts | ResultForm::Rounded(_) => None,
                };
                Some((op, rounding))
            }
            None => None,
        };
        let of_a = self.weight(low.a).ok_or_else(|| self.odd(low.a))?;
        let label = format!("{} + {}", self.label("linear", number), self.graph.weights()[of_a].name);
        let low_first = residual.is_some();
        self.push(BankedLinearOp { together, alone, low: low_op, low_first, gated }, label);
        Ok(())
    }

    /// A product of a bank, for the next operation. One that `is_bare` leaves nothing to operations behind.
    fn bank_op(&mut self, product: &LowRankRows, is_bare: bool) -> Result<LowRankRowsOp, DeviceError> {
        let &LowRankRows { x, a, narrow, factors, chosen, b, residual, y } = product;
        let part = |w| {
            let found = self.weight(w).zip(self.matrix(w));
            found.ok_or_else(|| self.odd(w))
        };
        let (of_a, (first_suffix, first_matrix)) = part(a)?;
        let (of_b, (second_suffix, second_matrix)) = part(b)?;
        let kernels = [self.kernel(&format!("ranks_of_rows_{first_suffix}"))?, self.kernel("add_ranks")?];
        let form = match second_suffix {
            "f16" => LOW_RANK_F16,
            "bf16" => LOW_RANK_BF16,
            _ => LOW_RANK_F32,
        };
        let first = self.linear_op(x, a, of_a, narrow, &Follow::default())?;
        let choice = self.kernel("chosen_ranks")?;
        let (narrow, chosen_slot) = (self.slot(narrow)?, self.make(chosen));
        let follow = Follow { residual: Some(residual), is_bare, ..Follow::default() };
        let second = self.linear_op(chosen, b, of_b, y, &follow)?;
        let most_rows = self.rows(x).min(MOST_FEW_ROWS as usize);
        let parts =
            most_rows.saturating_mul(first_matrix.rows).saturating_mul(parts_of_ranks(first_matrix.inputs));
        let (partial, users) = (self.buffer(parts), self.buffer(first_matrix.rows.div_ceil(TILE_OUTPUTS)));
        let spans = self.spans(of_b, second_matrix);
        let x_ready = self.gpu.allocate_zeros(2 * size_of::<u32>(), "words between two launches")?;
        let tail = self.ranks_tail(of_b, second_matrix, self.rows(x))?;
        let (a, b) = (first_matrix, second_matrix);
        let few = Arc::new(FewRows { kernels, a, b, form, spans, partial, users, x_ready, tail });
        let (factors, residual) = (self.slot(factors)?, self.slot(residual)?);
        Ok(LowRankRowsOp { few, first, choice, second, factors, residual, narrow, chosen: chosen_slot })
    }

    /// How the ranks of up to `rows` rows become the tail of the product beside that with weight `number`, a `B`.
    fn ranks_tail(&mut self, number: usize, b: Matrix, rows: usize) -> Result<RanksTail, DeviceError> {
        let subs = b.inputs.div_ceil(SUB_INPUTS);
        let panels = self.panel_room(rows, subs);
        let ratios = self.buffer(rows.next_multiple_of(LARGEST_ROWS));
        let stored = self.weights.stored(number);
        let tiles = stored.and_then(|stored| stored.stretches.first()?.tiles.as_ref());
        let raise =
            tiles.map_or_else(|| raise_of(largest_float(&self.graph.weights()[number])), Tiles::raise);
        Ok(RanksTail { kernel: self.kernel("rank_panels")?, panels, ratios, subs, raise })
    }

    /// The runs of tiles of weight `number`, a matrix `B`, that hold elements other than zero.
    fn spans(&self, number: usize, Matrix { rows, inputs, .. }: Matrix) -> Vec<Span> {
        let weight = &self.graph.weights()[number];
        let (tiles, subs) = (rows.div_ceil(TILE_OUTPUTS) as u32, inputs.div_ceil(SUB_INPUTS) as u32);
        let known = match &weight.parts[..] {
            [part] => match &part.tensor.payload {
                Payload::Blocks(bytes) => {
                    let row_bytes = part.format().row_bytes(inputs);
                    row_bytes.filter(|row| bytes.len() == rows * row).map(|row| (bytes, row))
                }
                Payload::Mlx { .. } => None,
            },
            _ => None,
        };
        let Some((bytes, row_bytes)) = known else {
            return vec![Span { tiles_end: tiles, first: 0, end: subs }];
        };
        let sub_bytes = SUB_INPUTS * (row_bytes / inputs);
        Span::merge(bytes.chunks(TILE_OUTPUTS * row_bytes).map(|tile| used_subs(tile, row_bytes, sub_bytes)))
    }
}

/// The largest magnitude of a weight that is stored in F32.
fn largest_float(weight: &Weight) -> f32 {
    let payloads = weight.parts.iter().filter_map(|part| match &part.tensor.payload {
        Payload::Blocks(bytes) => Some(bytes),
        Payload::Mlx { .. } => None,
    });
    let floats =
        payloads.flat_map(|bytes| bytes.as_chunks::<4>().0.iter().map(|&bits| f32::from_le_bytes(bits)));
    floats.fold(0.0, |largest, x| largest.max(x.abs()))
}

/// The pieces of `sub_bytes` of rows from the first to the last that is not zero in some row.
fn used_subs(rows: &[u8], row_bytes: usize, sub_bytes: usize) -> Range<u32> {
    let (mut first, mut end) = (u32::MAX, 0);
    for row in rows.chunks(row_bytes) {
        for (number, sub) in (0..).zip(row.chunks(sub_bytes)) {
            let is_known = (first..end).contains(&number);
            if !is_known && sub.iter().any(|&byte| byte != 0) {
                (first, end) = (first.min(number), end.max(number + 1));
            }
        }
    }
    first.min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_uses_what_its_rows_do() {
        let mut rows = vec![0; 3 * 40];
        assert_eq!(used_subs(&rows, 40, 8), 0..0);
        rows[40 + 17] = 1;
        assert_eq!(used_subs(&rows, 40, 8), 2..3);
        rows[80 + 39] = 128;
        assert_eq!(used_subs(&rows, 40, 8), 2..5);
    }
}
