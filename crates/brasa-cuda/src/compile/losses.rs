//! Losses of a language model's head, whose scores are computed for some rows at a time and never kept.

use brasa_graph::device::DeviceError;
use brasa_graph::{Dim, NodeId, Op, Shape, ValueId};

use super::Compiler;
use super::linear::Launches;
use crate::ops::{Behind, Further, LinearOp, MOST_ROWS, ResultForm, RowGradients, Scores};
use crate::run::Slot;

impl Compiler<'_> {
    /// The node that computes gradients together with the losses of node `id`, from the same scores. There is one if a later node
    /// needs these gradients and the head is frozen. The factors of the losses are not known yet: the gradients are multiplied by
    /// them later.
    pub(super) fn gradients_beside(&mut self, id: NodeId) -> Result<Option<RowGradients>, DeviceError> {
        let Op::LinearCrossEntropy(of) = self.graph.node(id).op else { return Ok(None) };
        let operands = &self.graph.node(id).inputs;
        let dx = self.graph.nodes().iter().find_map(|node| match (&node.op, &node.outputs[..]) {
            (Op::LinearCrossEntropyGradient(op), &[dx])
                if op.softcap == of.softcap && node.inputs.starts_with(operands) =>
            {
                Some(dx)
            }
            _ => None,
        });
        let (Some(dx), &[x, w, _]) = (dx, &operands[..]) else { return Ok(None) };
        let Some((transposed, panels)) = self.transposed_of_panels(w, MOST_ROWS.min(self.rows(x)))? else {
            return Ok(None);
        };
        let (kernel, shape) = (self.kernel("scores_loss")?, self.shape(dx).clone());
        let elements = self.elements(&shape);
        let buffer = self.buffer(elements);
        self.loss_gradients.insert(dx, buffer);
        let out = Slot::whole(buffer, shape);
        Ok(Some(RowGradients { kernel, transposed, panels, out }))
    }

    /// The scores of a language model's head, for the next operation, with room for those of [`MOST_ROWS`] rows at a time.
    pub(super) fn scores(
        &mut self,
        x: ValueId,
        w: ValueId,
        targets: ValueId,
        softcap: Option<f32>,
    ) -> Result<Scores, DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?.weight;
        let targets = self.numbers(targets)?;
        let Launches { tiles, rows } = self.launches(number)?;
        // Chunks of rows are rounded anew, whatever was rounded before; and panels of a chunk are not those of all rows.
        self.forms.forget_panels(x);
        let gemm = if rows.is_empty() { self.gemm(x, &tiles)? } else { None };
        self.forms.forget_panels(x);
        let x = self.slot(x)?;
        let outs = self.shape(w).outer();
        let most = MOST_ROWS.min(x.shape.outer().resolve(&self.sizes)).max(1);
        let shape = Shape(vec![Dim::from(most), outs]);
        let out = self.make_shape(shape);
        let product = LinearOp {
            tiles,
            gemm,
            further: Further::Nothing,
            rows,
            x,
            in_front: None,
            w: stored,
            number,
            floats: None,
            behind: Behind::default(),
            form: ResultForm::Floats,
            out,
        };
        Ok(Scores { product, softcap, unary: self.kernel("unary")?, targets })
    }
}
