//! Compiler of operations that only derivatives use.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{Attention, Binary, Head, KvSource, LinearCrossEntropyGradient};
use brasa_graph::{Dim, Node, Op, ValueId};

use super::{Compiler, unsupported};
use crate::attention::{Over, Rounding, Scoring, Sight};
use crate::linear::{ExpertInput, PackedLinear, WeightClass};
use crate::ops::CompiledOp;
use crate::ops::arrange::NarrowOp;
use crate::ops::attention_gradient::{
    AttentionGradientOp, AttentionGradientTangentOp, AttentionTangentOp, Geometry, SinkChanges,
};
use crate::ops::cross_entropy::{CHUNK, LinearCrossEntropyOp, LossGradient, LossHead};
use crate::ops::elementwise::{BinaryOp, Columns, Spread};
use crate::ops::finish::Follow;
use crate::ops::linear::Layer;
use crate::ops::linear_gradient::{ExpertLinearGradientOp, ExpertLinearTransposedOp, LinearGradientOp};
use crate::ops::lookup::{PickOp, PlaceOp};
use crate::ops::matmul::{LinearTransposedOp, MatmulOp};
use crate::ops::sequence::{FoldOp, MeanPoolTransposedOp};
use crate::ops::slopes::{NormGradientOp, UnaryGradientOp};
use crate::slot::{Out, Slot, Source};

/// Fewer columns than this are not shared out among threads.
const FEW_COLUMNS: usize = 512;

impl Compiler<'_> {
    /// The operation of a node that only derivatives use, and its label.
    pub(super) fn derivative(&mut self, node: &Node) -> Result<(CompiledOp, String), DeviceError> {
        let name = node.op.name();
        let mut label = name.to_owned();
        let op = match (&node.op, &node.inputs[..], &node.outputs[..]) {
            (Op::LinearTransposed(_), &[y, w], &[x]) => {
                let Some(weight) = self.weight(w) else {
                    // A matrix that was computed.
                    if self.shape(y).rank() != 2 {
                        return Err(self.odd(y));
                    }
                    return Ok((self.matmul([false, false], [y, w], x)?, label));
                };
                label = self.label(name, weight);
                let (n, k) = (self.width(y)?, self.width(x)?);
                let per_row = self.row_elements(y)? / n;
                let (y, x) = (self.source(y)?, self.make(x)?);
                let turns = per_row == 1 && turns_many(self.weights.linear(weight));
                let few = per_row > 1 || k < FEW_COLUMNS;
                let out = if few { Out::by_rows(x) } else { Out::by_columns(x) };
                let op = LinearTransposedOp { y, w: weight, n, k, per_row, turns, out };
                CompiledOp::LinearTransposed(op)
            }
            (Op::LinearGradient(_), &[dy, x], &[dw]) => {
                let (n, k) = (self.width(dy)?, self.width(x)?);
                let per_row = self.row_elements(dy)? / n;
                let rows = self.shape(dy).outer();
                let [dy, x] = [self.packed_rows(dy, per_row)?, self.packed_rows(x, per_row)?];
                let dw = self.make(dw)?;
                let out = if n < k { Out::by_columns(dw) } else { Out::by_rows(dw) };
                CompiledOp::LinearGradient(LinearGradientOp { dy, x, rows, per_row, n, k, out })
            }
            (Op::ExpertLinearTransposed(_), &[y, experts, w], &[x]) => {
                let weight = self.weight(w).ok_or_else(|| self.odd(w))?;
                label = self.label(name, weight);
                let (n, k, chosen) = (self.width(y)?, self.width(x)?, self.width(experts)?);
                let (y, experts, out) = (self.packed_rows(y, chosen)?, self.slot(experts)?, self.by_rows(x)?);
                let op = ExpertLinearTransposedOp { y, experts, weight, chosen, n, k, out };
                CompiledOp::ExpertLinearTransposed(op)
            }
            (Op::ExpertLinearGradient(op), &[dy, experts, x], &[dw]) => {
                let (n, k, chosen) = (self.width(dy)?, self.width(x)?, self.width(experts)?);
                let own = self.shape(x).rank() == 3;
                let input = if own { ExpertInput::Own } else { ExpertInput::Shared };
                let x = self.packed_rows(x, if own { chosen } else { 1 })?;
                let (dy, experts, out) =
                    (self.packed_rows(dy, chosen)?, self.slot(experts)?, self.by_rows(dw)?);
                let count = op.experts;
                let op = ExpertLinearGradientOp { dy, experts, x, count, chosen, input, n, k, out };
                CompiledOp::ExpertLinearGradient(op)
            }
            (Op::UnaryGradient(op), &[x, t], &[y]) => {
                let [x, t] = self.sources([x, t])?;
                let (function, out) = (op.function, self.by_elements(y)?);
                CompiledOp::UnaryGradient(UnaryGradientOp { function, x, t, out })
            }
            (Op::NormGradient(op), &[x, t], &[y]) => {
                let width = self.width(x)?;
                let [x, t] = self.sources([x, t])?;
                let (kind, eps, out) = (op.kind, op.eps, self.by_rows(y)?);
                CompiledOp::NormGradient(NormGradientOp { kind, eps, width, x, t, out })
            }
            (Op::AttentionTangent(op), operands, &[y]) => {
                let (&[q, k, v], sinks, &[tq, tk, tv], t_sinks) = halves(operands) else {
                    return Err(unsupported(name));
                };
                let geometry = self.geometry(&op.attention, [q, k, v])?;
                let [q, k, v, tq, tk, tv] = self.slots([q, k, v, tq, tk, tv])?;
                let sinks = match sinks.zip(t_sinks) {
                    Some((sinks, t_sinks)) => Some([self.vector(sinks)?, self.vector(t_sinks)?]),
                    None => None,
                };
                let out = self.by_rows(y)?;
                CompiledOp::AttentionTangent(AttentionTangentOp { geometry, q, k, v, tq, tk, tv, sinks, out })
            }
            (Op::AttentionGradient(op), &[q, k, v, ref rest @ .., dy], &[dq, dk, dv, ref d_sinks @ ..]) => {
                let geometry = self.geometry(&op.attention, [q, k, v])?;
                let [q, k, v, dy] = self.slots([q, k, v, dy])?;
                let (dq, dk, dv) = (self.make(dq)?, self.make(dk)?, self.make(dv)?);
                let sinks = self.sink_changes(rest, d_sinks, geometry.heads)?;
                let rounds = self.rounding(geometry.sight.over) == Rounding::Everywhere;
                CompiledOp::AttentionGradient(AttentionGradientOp {
                    geometry,
                    q,
                    k,
                    v,
                    dy,
                    dq,
                    dk,
                    dv,
                    sinks,
                    rounds,
                })
            }
            (Op::AttentionGradientTangent(op), operands, &[of_q, of_k, of_v, ref of_sinks @ ..]) => {
                let dy = operands[operands.len() / 2];
                let mut around = operands.to_vec();
                around.remove(operands.len() / 2);
                let (&[q, k, v], sinks, &[tq, tk, tv], t_sinks) = halves(&around) else {
                    return Err(unsupported(name));
                };
                let geometry = self.geometry(&op.attention, [q, k, v])?;
                let t_sinks = t_sinks.map(|t_sinks| self.vector(t_sinks)).transpose()?;
                let sinks = self.sink_changes(sinks.as_slice(), of_sinks, geometry.heads)?;
                let [q, k, v, dy, tq, tk, tv] = self.slots([q, k, v, dy, tq, tk, tv])?;
                let (of_q, of_k, of_v) = (self.make(of_q)?, self.make(of_k)?, self.make(of_v)?);
                CompiledOp::AttentionGradientTangent(AttentionGradientTangentOp {
                    geometry,
                    q,
                    k,
                    v,
                    dy,
                    tq,
                    tk,
                    tv,
                    of_q,
                    of_k,
                    of_v,
                    sinks,
                    t_sinks,
                })
            }
            (Op::LinearCrossEntropy(op), &[x, w, targets], &[y]) => {
                let head = self.loss_head([x, w, targets], op.softcap)?;
                label = self.label(name, head.layer.weight);
                let gradient = self.gradient_beside(node, op.softcap, &head)?;
                let loss = Some(self.make(y)?);
                CompiledOp::LinearCrossEntropy(LinearCrossEntropyOp { head, loss, gradient })
            }
            (Op::LinearCrossEntropyGradient(_), &[.., d], &[dx])
                if let Some(slot) = self.loss_gradients.get(&dx).copied() =>
            {
                let (a, b) = (Source::Arena(self.need_slot(slot)), self.source(d)?);
                let (spread, out) = (Spread { rows: true, columns: Columns::One }, self.by_elements(dx)?);
                CompiledOp::Binary(BinaryOp { function: Binary::Mul, a, b, spread, out })
            }
            (Op::LinearCrossEntropyGradient(op), &[x, w, targets, d], outputs) => {
                let head = self.loss_head([x, w, targets], op.softcap)?;
                label = self.label(name, head.layer.weight);
                let turns = turns_many(self.weights.linear(head.layer.weight));
                let (d, dx) = (Some(self.slot(d)?), self.make(outputs[0])?);
                let dw = match op.head {
                    Head::Varying => Some(self.make(outputs[1])?),
                    Head::Frozen => None,
                };
                let gradient = Some(LossGradient { d, dx, dw, turns });
                CompiledOp::LinearCrossEntropy(LinearCrossEntropyOp { head, loss: None, gradient })
            }
            (Op::Pick(_), &[x, indices], &[y]) => {
                let (x, indices) = (self.source(x)?, self.slot(indices)?);
                CompiledOp::Pick(PickOp { x, indices, out: self.by_rows(y)? })
            }
            (Op::Place(_), &[x, indices], &[y]) => {
                let (x, indices) = (self.source(x)?, self.slot(indices)?);
                CompiledOp::Place(PlaceOp { x, indices, out: self.by_rows(y)? })
            }
            (Op::Narrow(op), &[x], &[y]) => {
                let (dims, out_dims) = (self.dims(x)?, self.dims(y)?);
                let (axis, start, x) = (op.axis, op.start, self.source(x)?);
                CompiledOp::Narrow(NarrowOp { axis, start, dims, x, out_dims, out: self.by_rows(y)? })
            }
            (Op::Fold(op), &[y], &[x]) => {
                let (factor, y) = (self.rows_per_row(x)?, self.source(y)?);
                CompiledOp::Fold(FoldOp { unfold: op.unfold, factor, y, out: self.by_rows(x)? })
            }
            (Op::MeanPoolTransposed(op), &[y], &[x]) => {
                let (factor, y) = (op.rows.factor, self.source(y)?);
                CompiledOp::MeanPoolTransposed(MeanPoolTransposedOp { factor, y, out: self.by_rows(x)? })
            }
            (op, inputs, outputs) => {
                return Err(unsupported(format!(
                    "{} with {} operands and {} results",
                    op.name(),
                    inputs.len(),
                    outputs.len()
                )));
            }
        };
        Ok((op, label))
    }

    /// A product of two temporaries, either of which may be transposed.
    pub(super) fn matmul(
        &mut self,
        [transpose_a, transpose_b]: [bool; 2],
        [a, b]: [ValueId; 2],
        c: ValueId,
    ) -> Result<CompiledOp, DeviceError> {
        let inner = self.shape(a).0[usize::from(!transpose_a)];
        let [a, b] = self.sources([a, b])?;
        let out = self.make(c)?;
        let few =
            out.outer.symbol.is_none() && out.width.symbol.is_none() && out.outer.factor < out.width.factor;
        let out = if few { Out::by_columns(out) } else { Out::by_rows(out) };
        Ok(CompiledOp::Matmul(MatmulOp { transpose_a, transpose_b, a, b, inner, out }))
    }

    /// The place of a value of `per_row` vectors in a row, which follow each other without gaps.
    fn packed_rows(&mut self, value: ValueId, per_row: usize) -> Result<Source, DeviceError> {
        if per_row == 1 { self.source(value) } else { self.dense(value) }
    }

    fn slots<const N: usize>(&mut self, values: [ValueId; N]) -> Result<[Slot; N], DeviceError> {
        let mut slots = Vec::with_capacity(N);
        for value in values {
            slots.push(self.slot(value)?);
        }
        Ok(std::array::from_fn(|i| slots[i]))
    }

    /// The heads of attention to the rows of a step.
    fn geometry(&self, attention: &Attention, [q, k, v]: [ValueId; 3]) -> Result<Geometry, DeviceError> {
        let &Attention { source, scale, window, softcap } = attention;
        let KvSource::Step(mask) = source else { return Err(unsupported("derivatives of kept keys")) };
        let (key_dim, value_dim) = (self.width(q)?, self.width(v)?);
        let over = Over::Rows(mask);
        Ok(Geometry {
            heads: self.row_elements(q)? / key_dim,
            kv_heads: self.row_elements(k)? / key_dim,
            key_dim,
            value_dim,
            sight: Sight { over, window },
            scoring: Scoring { scale, softcap },
        })
    }

    /// Memory for the sinks of `heads` heads and their gradients; `None` for attention without sinks.
    fn sink_changes(
        &mut self,
        sinks: &[ValueId],
        out: &[ValueId],
        heads: usize,
    ) -> Result<Option<SinkChanges>, DeviceError> {
        let (&[sinks], &[out]) = (sinks, out) else { return Ok(None) };
        let sinks = self.vector(sinks)?;
        let out = self.make(out)?;
        let terms = self.temporary(Dim::ROWS, heads);
        Ok(Some(SinkChanges { sinks, terms, out }))
    }

    /// A head and its loss, and the memory for logits of a chunk of rows.
    fn loss_head(
        &mut self,
        [x, w, targets]: [ValueId; 3],
        softcap: Option<f32>,
    ) -> Result<LossHead, DeviceError> {
        let weight = self.weight(w).ok_or_else(|| self.odd(w))?;
        if self.row_elements(x)? != self.width(x)? {
            return Err(self.odd(x));
        }
        let activations = self.activations(x, &[weight])?;
        let targets = self.slot(targets)?;
        let rows = self.shape(x).outer().resolve(&self.sizes).clamp(1, CHUNK);
        let vocabulary = self.weights.linear(weight).n();
        let logits = self.temporary(Dim::from(rows), vocabulary);
        let layer = Layer { weight, follow: Follow::default(), out: logits };
        Ok(LossHead { activations, layer, targets, softcap })
    }

    /// The gradient that is computed beside the loss of `node`, of cotangents of one, if the graph has one with a frozen head.
    fn gradient_beside(
        &mut self,
        node: &Node,
        softcap: Option<f32>,
        head: &LossHead,
    ) -> Result<Option<LossGradient>, DeviceError> {
        let wanted = LinearCrossEntropyGradient { softcap, head: Head::Frozen };
        let is_it = |other: &&Node| other.op == Op::from(wanted) && other.inputs[..3] == node.inputs[..];
        let Some(other) = self.graph.nodes().iter().find(is_it) else { return Ok(None) };
        let turns = turns_many(self.weights.linear(head.layer.weight));
        let x = node.inputs[0];
        let dx = self.temporary(self.shape(x).outer(), self.width(x)?);
        self.loss_gradients.insert(other.outputs[0], dx);
        Ok(Some(LossGradient { d: None, dx, dw: None, turns }))
    }
}

/// True if many rows may be multiplied with the other side of a weight in bf16.
fn turns_many(linear: &PackedLinear) -> bool {
    let classes = linear.weight_classes();
    classes.has(WeightClass::Float16) || classes.has(WeightClass::Quantised)
}

/// Splits `operands` into `[q, k, v]`, the sinks, the tangents of `[q, k, v]`, and the tangent of the sinks.
fn halves(operands: &[ValueId]) -> (&[ValueId], Option<ValueId>, &[ValueId], Option<ValueId>) {
    let (values, tangents) = operands.split_at(operands.len() / 2);
    let (first, second) = (values.split_at(values.len().min(3)), tangents.split_at(tangents.len().min(3)));
    (first.0, first.1.first().copied(), second.0, second.1.first().copied())
}
