//! Rows scaled by their positions.

use brasa_graph::op::PositionScale;

use crate::context::{Context, Mine};
use crate::slot::{Operands, Out, Slot, Source};

use super::operation::Operation;
use super::scratch::Scratch;

/// Scales rows by their positions: `out[r] = x[r] · factor(positions[r])` ([`PositionScale::factor`]).
#[derive(Clone, Debug)]
pub(crate) struct PositionScaleOp {
    pub scale: PositionScale,
    pub x: Source,
    pub positions: Slot,
    pub out: Out,
}

impl Operation for PositionScaleOp {
    fn operands(&self, list: &mut Operands) {
        list.reads("x", self.x).reads("positions", self.positions).writes("out", self.out);
    }

    fn run(&self, cx: &mut Context<'_>, _: &mut Scratch) {
        let (x, positions) = (cx.view(&self.x), cx.rows::<u32>(&self.positions));
        let Mine { rows, columns, mut out } = cx.mine::<f32>(&self.out);
        for (i, row) in rows.enumerate() {
            let factor: f32 = self.scale.factor(positions.row(row)[0]);
            for (out, x) in out.row(i).iter_mut().zip(&x.row(row)[columns.clone()]) {
                *out = x * factor;
            }
        }
    }
}
