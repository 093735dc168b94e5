//! Low-rank products of banks of adapters, of which every row uses some ranks.

use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;
use brasa_graph::fuse::{Fusion, LowRankRows};
use brasa_graph::{Fused, Item, Schedule};

use super::Lowering;
use super::linear::Follow;
use crate::ops::{FewRows, LowRankRowsOp, MOST_FEW_ROWS, Matrix, WIDEST_BANK, parts_of_ranks};

impl Lowering<'_> {
    /// Notes what products of banks make.
    pub(super) fn find_banks(&mut self, schedule: &Schedule) {
        for item in schedule.items() {
            if let Item::Fused(Fused { fusion: Fusion::LowRankRows(product), .. }) = item {
                self.banked.insert(product.y);
            }
        }
    }

    /// True where kernels read both matrices as they are stored, and the order of sums may depend on how many rows there are.
    pub(super) fn fuses_bank(&self, product: &LowRankRows) -> bool {
        let &LowRankRows { x, a, b, residual, .. } = product;
        let is_plain = |value| self.shape(value).rank() == 2;
        let (Some((_, a)), Some((_, b))) = (self.matrix(a), self.matrix(b)) else { return false };
        !self.exact
            && is_plain(x)
            && is_plain(residual)
            && a.inputs.is_multiple_of(4)
            && a.rows.is_multiple_of(4)
            && b.inputs <= WIDEST_BANK
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
        let &LowRankRows { x, a, narrow, factors, chosen, b, residual, y } = product;
        let part = |w| {
            let found = self.weight(w).zip(self.matrix(w));
            found.ok_or_else(|| self.odd(w))
        };
        let (of_a, (first_suffix, first_matrix)) = part(a)?;
        let (of_b, (second_suffix, second_matrix)) = part(b)?;
        let kernels = [
            self.kernel(&format!("ranks_of_rows_{first_suffix}"))?,
            self.kernel(&format!("add_ranks_{second_suffix}"))?,
        ];
        let first = self.linear_op(x, a, of_a, narrow, &Follow::default())?;
        let choice = self.kernel("chosen_ranks")?;
        let (narrow, chosen_slot) = (self.slot(narrow)?, self.make(chosen));
        let follow = Follow { residual: Some(residual), ..Follow::default() };
        let second = self.linear_op(chosen, b, of_b, y, &follow)?;
        let most_rows = self.rows(x).min(MOST_FEW_ROWS as usize);
        let parts =
            most_rows.saturating_mul(first_matrix.rows).saturating_mul(parts_of_ranks(first_matrix.inputs));
        let few = FewRows { kernels, a: first_matrix, b: second_matrix, partial: self.scratch(parts) };
        let (factors, residual) = (self.slot(factors)?, self.slot(residual)?);
        let label = self.label("low_rank_rows", of_a);
        let op = LowRankRowsOp { few, first, choice, second, factors, residual, narrow, chosen: chosen_slot };
        self.push(op, label);
        Ok(())
    }
}
