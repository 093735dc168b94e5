//! Operations that only derivatives use, as operations of the device.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{Binary, Fold, Head, Unary, Unfold};
use brasa_graph::{Dim, NodeId, Op, Shape};

use super::Compiler;
use crate::ops::{
    AttentionGradientOp, AttentionTangentOp, BinaryOp, ExpertGradientOp, ExpertTransposedOp, FoldOp,
    LinearCrossEntropyGradientOp, LinearCrossEntropyOp, MOST_ROWS, NarrowOp, PickOp, PlaceOp, SpreadMeanOp,
    UnaryGradientOp,
};
use crate::run::Slot;

impl Compiler<'_> {
    /// Appends the operation of a node that only derivatives have.
    pub(super) fn lower_derivative(&mut self, id: NodeId) -> Result<(), DeviceError> {
        let node = self.graph.node(id);
        let name = node.op.name();
        match (&node.op, &node.inputs[..], &node.outputs[..]) {
            (Op::LinearGradient(_), &[dy, x], &[dw]) => {
                if let Some(operands) = self.thin_operand([dy, x]) {
                    return self.thin_gradient(operands, operands[0] == dy, dw);
                }
                self.matmul([dy, x], [true, false], dw, (name, true))?;
            }
            (&Op::UnaryGradient(op), &[x, t], &[y]) => {
                // A constant slope asks for no value, which may not be there.
                let x = if matches!(op.function, Unary::Scale(_)) { t } else { x };
                let (kernels, x, t) = (self.each_element(name)?, self.slot(x)?, self.slot(t)?);
                let out = self.make(y);
                self.push(UnaryGradientOp { kernels, function: op.function, x, t, out }, name);
            }
            (Op::ExpertLinearTransposed(_), &[y, experts, w], &[x]) => {
                let number = self.weight(w).ok_or_else(|| self.odd(w))?;
                let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?.weight;
                let count = self.shape(w).outer().constant().filter(|&count| count > 0);
                let count = count.ok_or_else(|| self.odd(w))?;
                let kernel = self.kernel(name)?;
                let (experts, y) = (self.numbers(experts)?, self.dense(y)?);
                let out = self.make(x);
                let label = self.label(name, number);
                self.push(ExpertTransposedOp { kernel, y, experts, w: stored, count, out }, label);
            }
            (Op::ExpertLinearGradient(_), &[dy, experts, x], &[dw]) => {
                let own_rows = self.shape(x).rank() == 3;
                let kernel = self.kernel(name)?;
                let (experts, dy, x) = (self.numbers(experts)?, self.dense(dy)?, self.dense(x)?);
                let out = self.make(dw);
                self.push(ExpertGradientOp { kernel, dy, experts, own_rows, x, out }, name);
            }
            (Op::AttentionTangent(op), operands, &[y]) => {
                let (&[q, k, v, ref sinks @ ..], &[tq, tk, tv, ref t_sinks @ ..]) =
                    operands.split_at(operands.len() / 2)
                else {
                    return Err(self.odd(y));
                };
                let kernel = self.kernel(name)?;
                let tangents = [self.dense(tq)?, self.dense(tk)?, self.dense(tv)?];
                let t_sinks = t_sinks.first().map(|&t_sinks| self.dense(t_sinks)).transpose()?;
                let of = self.step_attention(op.attention, [q, k, v], sinks.first().copied())?;
                let out = self.make(y);
                self.push(AttentionTangentOp { kernel, of, tangents, t_sinks, out }, name);
            }
            (Op::AttentionGradient(op), &[q, k, v, ref sinks @ .., dy], &[dq, dk, dv, ref d_sinks @ ..]) => {
                let kernels =
                    [self.kernel("attention_gradient_queries")?, self.kernel("attention_gradient_keys")?];
                let dy = self.dense(dy)?;
                let of = self.step_attention(op.attention, [q, k, v], sinks.first().copied())?;
                let rows_and_heads = &self.shape(q).resolve(&self.sizes)[..2];
                let sums =
                    self.buffer(rows_and_heads.iter().fold(3, |all, &count| all.saturating_mul(count)));
                let widths = [self.shape(q).width(), self.shape(v).width()];
                let of_queries = self.step_tiles("attention_gradient_query_tiles", widths, [4, 1])?;
                let of_keys = self.step_tiles("attention_gradient_key_tiles", widths, [4, 2])?;
                let tiles = of_queries.zip(of_keys).map(<[_; 2]>::from);
                let on_tensor_cores = match of.sinks {
                    None => self.attention_gradient_rows([q, k, v], &of)?,
                    Some(_) => None,
                };
                let out = [self.make(dq), self.make(dk), self.make(dv)];
                let d_sinks = match d_sinks.first() {
                    Some(&d_sinks) => Some((self.kernel("attention_gradient_sinks")?, self.make(d_sinks))),
                    None => None,
                };
                let op = AttentionGradientOp { kernels, tiles, on_tensor_cores, of, dy, sums, out, d_sinks };
                self.push(op, name);
            }
            (Op::LinearCrossEntropy(op), &[x, w, targets], &[y]) => {
                let scores = self.scores(x, w, targets, op.softcap)?;
                let gradients = self.gradients_beside(id)?;
                let (kernel, out) = (self.kernel("cross_entropy")?, self.make(y));
                let label = self.label(name, scores.product.number);
                self.push(LinearCrossEntropyOp { scores, kernel, gradients, out }, label);
            }
            (Op::LinearCrossEntropyGradient(_), &[.., d], &[dx]) if self.loss_gradients.contains_key(&dx) => {
                let (kernels, buffer) = (self.each_element("binary")?, self.loss_gradients[&dx]);
                let (d, shape) = (self.dense(d)?, self.shape(dx).clone());
                self.need(buffer);
                let a = Slot::whole(buffer, shape);
                let b = Slot { shape: Shape(vec![d.shape.outer(), Dim::from(1)]), ..d };
                let out = self.make(dx);
                self.push(BinaryOp { kernels, function: Binary::Mul, a, b, out }, name);
            }
            (Op::LinearCrossEntropyGradient(op), &[x, w, targets, d], outputs) => {
                let d = self.dense(d)?;
                let scores = self.scores(x, w, targets, op.softcap)?;
                let kernel = self.kernel("scores_gradient")?;
                let matmul = self.product(usize::MAX, true)?;
                let transposed = self.transposed_of_scratch(w, MOST_ROWS.min(self.rows(x)))?;
                let dx = self.make(outputs[0]);
                let dw = (op.head == Head::Varying).then(|| self.make(outputs[1]));
                let label = self.label(name, scores.product.number);
                self.push(
                    LinearCrossEntropyGradientOp { scores, kernel, transposed, matmul, d, dx, dw },
                    label,
                );
            }
            (Op::Pick(_), &[x, indices], &[y]) => {
                let (kernel, indices, x) = (self.kernel(name)?, self.numbers(indices)?, self.slot(x)?);
                let out = self.make(y);
                self.push(PickOp { kernel, x, indices, out }, name);
            }
            (Op::Place(_), &[x, indices], &[y]) => {
                let (kernel, indices, x) = (self.kernel(name)?, self.numbers(indices)?, self.dense(x)?);
                let out = self.make(y);
                self.push(PlaceOp { kernel, x, indices, out }, name);
            }
            (&Op::Narrow(op), &[x], &[y]) => {
                let axis = self.shape(x).rank() - 1 - op.axis;
                let (kernels, x) = (self.each_element("copy")?, self.slot(x)?);
                let out = self.make(y);
                self.push(NarrowOp { kernels, axis, start: op.start, x, out }, name);
            }
            (&Op::Fold(Fold { unfold: Unfold { taps, stride, padding } }), &[y], &[x]) => {
                let factor = self.rows_per_row(x)?;
                let (kernel, y) = (self.kernel(name)?, self.dense(y)?);
                let out = self.make(x);
                self.push(FoldOp { kernel, taps, stride, padding, factor, y, out }, name);
            }
            (Op::MeanPoolTransposed(_), &[y], &[x]) => {
                let factor = self.rows_per_row(x)?;
                let (kernel, y) = (self.kernel("spread_mean")?, self.dense(y)?);
                let out = self.make(x);
                self.push(SpreadMeanOp { kernel, factor, y, out }, name);
            }
            (op, inputs, outputs) => {
                let (operands, results) = (inputs.len(), outputs.len());
                let what = format!("{} with {operands} operands and {results} results", op.name());
                return Err(self.gpu.unsupported(what));
            }
        }
        Ok(())
    }
}
