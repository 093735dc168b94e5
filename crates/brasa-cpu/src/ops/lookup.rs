//! Operations that look rows and scalars up by number.

use crate::context::{Context, Mine};
use crate::slot::{Operands, Out, Place, Slot, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// `out[r] = table[ids[r]]`, where `table` is a stored weight; or the embedding that the step brings for the row.
#[derive(Clone, Debug)]
pub(crate) struct EmbedOp {
    pub ids: Slot,
    /// Number of the weight.
    pub table: usize,
    /// True for the token embedding, which a step may bring itself.
    pub given: bool,
    pub out: Out,
}

/// `out[r,j] = table[indices[r,j]]`.
#[derive(Clone, Debug)]
pub(crate) struct GatherOp {
    pub table: Source,
    pub indices: Slot,
    pub out: Out,
}

/// `out[o] = x[rows[o]]`, for any element type.
#[derive(Clone, Debug)]
pub(crate) struct SelectRowsOp {
    pub x: Source,
    pub rows: Slot,
    pub out: Out,
}

impl Operation for EmbedOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("ids", self.ids).reads("table", Place::Packed(self.table)).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (step, fault) = (cx.step, cx.fault);
        let ids = cx.rows::<u32>(&self.ids);
        let table = cx.weights.linear(self.table);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            match step.embedding(row).filter(|_| self.given) {
                Some(embedding) => out.row(i).copy_from_slice(embedding),
                None => table.decode_row(fault.index(ids.row(row)[0], table.n()), out.row(i)),
            }
        }
    }
}

impl Operation for GatherOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("table", self.table).reads("indices", self.indices).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (fault, table) = (cx.fault, cx.view(&self.table));
        let indices = cx.rows::<u32>(&self.indices);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            for (out, &index) in out.row(i).iter_mut().zip(indices.row(row)) {
                *out = table.row(fault.index(index, table.rows()))[0];
            }
        }
    }
}

impl Operation for SelectRowsOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("rows", self.rows).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (fault, x) = (cx.fault, cx.view_of::<u32>(&self.x));
        let numbers = cx.rows::<u32>(&self.rows);
        let Mine { rows, mut out, .. } = cx.mine::<u32>(&self.out);
        for (i, row) in rows.enumerate() {
            out.row(i).copy_from_slice(x.row(fault.index(numbers.row(row)[0], x.rows())));
        }
    }
}

/// `out[r,j] = x[r, indices[r,j]]`.
#[derive(Clone, Debug)]
pub(crate) struct PickOp {
    pub x: Source,
    pub indices: Slot,
    pub out: Out,
}

/// `out[r,i] = Σ_j [indices[r,j] = i] · x[r,j]`.
#[derive(Clone, Debug)]
pub(crate) struct PlaceOp {
    pub x: Source,
    pub indices: Slot,
    pub out: Out,
}

impl Operation for PickOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("indices", self.indices).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (fault, x) = (cx.fault, cx.view(&self.x));
        let indices = cx.rows::<u32>(&self.indices);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let x = x.row(row);
            for (out, &index) in out.row(i).iter_mut().zip(indices.row(row)) {
                *out = x[fault.index(index, x.len())];
            }
        }
    }
}

impl Operation for PlaceOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("indices", self.indices).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (fault, x) = (cx.fault, cx.view(&self.x));
        let indices = cx.rows::<u32>(&self.indices);
        let Mine { rows, mut out, .. } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let out = out.row(i);
            out.fill(0.0);
            for (&x, &index) in x.row(row).iter().zip(indices.row(row)) {
                out[fault.index(index, out.len())] += x;
            }
        }
    }
}
