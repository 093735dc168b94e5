//! Rows and scalars looked up by number.

use crate::context::{Context, Slot, Source};

/// `out[r] = table[ids[r]]`, of a stored weight; or what the step gives instead.
#[derive(Clone, Debug)]
pub(crate) struct EmbedOp {
    pub ids: Slot,
    /// Number of the weight.
    pub table: usize,
    /// True for the token embedding, which the step may give.
    pub given: bool,
    pub out: Slot,
}

/// `out[r,j] = table[indices[r,j]]`.
#[derive(Clone, Debug)]
pub(crate) struct GatherOp {
    pub table: Source,
    pub indices: Slot,
    pub out: Slot,
}

/// `out[o] = x[rows[o]]`, of any element type.
#[derive(Clone, Debug)]
pub(crate) struct SelectRowsOp {
    pub x: Source,
    pub rows: Slot,
    pub out: Slot,
}

impl EmbedOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let ids = cx.numbers(&self.ids);
        let table = cx.weights.linear(self.table);
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            match cx.step.embedding(row).filter(|_| self.given) {
                Some(embedding) => out.row(i).copy_from_slice(embedding),
                None => table.decode_row(cx.fault.index(ids.row(row)[0], table.n()), out.row(i)),
            }
        }
    }
}

impl GatherOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let table = cx.view(&self.table);
        let indices = cx.numbers(&self.indices);
        let (rows, mut out) = cx.my_rows::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            for (out, &index) in out.row(i).iter_mut().zip(indices.row(row)) {
                *out = table.row(cx.fault.index(index, table.rows()))[0];
            }
        }
    }
}

impl SelectRowsOp {
    pub(crate) fn run(&self, cx: &Context<'_>) {
        let x = cx.view_of::<u32>(&self.x);
        let numbers = cx.numbers(&self.rows);
        let (rows, mut out) = cx.my_rows::<u32>(&self.out);
        for (i, row) in rows.enumerate() {
            out.row(i).copy_from_slice(x.row(cx.fault.index(numbers.row(row)[0], x.rows())));
        }
    }
}
