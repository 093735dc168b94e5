//! Operations that only derivatives use, as operations of the device.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{Attention, Binary, Fold, Head, KvSource, Unary, Unfold};
use brasa_graph::{Dim, NodeId, Op, Shape, ValueId};

use super::linear::Launches;
use super::{Attended, Lowering};
use crate::ops::{
    AttentionGradientOp, AttentionGradientRows, AttentionRows, AttentionTangentOp, Behind, BinaryOp,
    ExpertGradientOp, ExpertTransposedOp, Flash, FoldOp, LinearCrossEntropyGradientOp, LinearCrossEntropyOp,
    LinearOp, MOST_ROWS, Named, NarrowOp, PickOp, PlaceOp, Room, RowGradients, Scores, SpreadMeanOp,
    StepAttention, UnaryGradientOp, WIDEST_GRADIENT, rows_kernels,
};
use crate::run::{Base, Slot};

impl Lowering<'_> {
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
            (Op::AttentionTangent(op), &[q, k, v, tq, tk, tv], &[y]) => {
                let kernel = self.kernel(name)?;
                let tangents = [self.dense(tq)?, self.dense(tk)?, self.dense(tv)?];
                let of = self.step_attention(op.attention, [q, k, v])?;
                let out = self.make(y);
                self.push(AttentionTangentOp { kernel, of, tangents, out }, name);
            }
            (Op::AttentionGradient(op), &[q, k, v, dy], &[dq, dk, dv]) => {
                let kernels =
                    [self.kernel("attention_gradient_queries")?, self.kernel("attention_gradient_keys")?];
                let dy = self.dense(dy)?;
                let of = self.step_attention(op.attention, [q, k, v])?;
                let rows_and_heads = &self.shape(q).resolve(&self.sizes)[..2];
                let sums =
                    self.scratch(rows_and_heads.iter().fold(3, |all, &count| all.saturating_mul(count)));
                let width = self.shape(q).width().ok_or_else(|| self.odd(q))?;
                let of_queries = self.step_tiles("attention_gradient_query_tiles", width, [4, 1])?;
                let of_keys = self.step_tiles("attention_gradient_key_tiles", width, [4, 2])?;
                let tiles = of_queries.zip(of_keys).map(<[_; 2]>::from);
                let on_tensor_cores = self.attention_gradient_rows([q, k, v], &of)?;
                let out = [self.make(dq), self.make(dk), self.make(dv)];
                let op = AttentionGradientOp { kernels, tiles, on_tensor_cores, of, dy, sums, out };
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
                let a = Slot { base: Base::Buffer(buffer), start: 0, row_stride: None, shape };
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

    /// The node that computes gradients together with the losses of node `id`, from the same scores. There is one if a later node
    /// needs these gradients and the head is frozen. The factors of the losses are not known yet: the gradients are multiplied by
    /// them later.
    fn gradients_beside(&mut self, id: NodeId) -> Result<Option<RowGradients>, DeviceError> {
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
        let buffer = self.buffer(&shape);
        self.loss_gradients.insert(dx, buffer);
        let out = Slot { base: Base::Buffer(buffer), start: 0, row_stride: None, shape };
        Ok(Some(RowGradients { kernel, transposed, panels, out }))
    }

    /// The kernels of attention to the rows of the step on tensor cores, whose result is `y`; `None` if there are none or sums must be exact.
    pub(super) fn attention_rows(
        &mut self,
        operands: [ValueId; 3],
        y: ValueId,
        attention: &Attention,
        kv_heads: usize,
    ) -> Result<Option<AttentionRows>, DeviceError> {
        let of_kernels = self.rows_kernels(operands[0], attention, kv_heads, false)?;
        let Some(([kernel, ..], room)) = of_kernels else { return Ok(None) };
        let halves = self.gpu.flash("rows_halves", 0)?;
        let reads_alike = |node: &brasa_graph::Node| {
            matches!(&node.op, Op::AttentionGradient(op) if op.attention == *attention)
                && node.inputs.starts_with(&operands)
        };
        let kept = self.graph.nodes().iter().any(reads_alike).then(|| {
            let rows_and_heads = &self.shape(operands[0]).resolve(&self.sizes)[..2];
            let kept = self.scratch(rows_and_heads.iter().product());
            self.attended.push(Attended { operands, attention: *attention, kept, result: y });
            kept
        });
        Ok(Some(AttentionRows { halves, attention: kernel, room, kept }))
    }

    /// The kernels of the gradient of attention on tensor cores; `None` if there are none or sums must be exact.
    fn attention_gradient_rows(
        &mut self,
        operands: [ValueId; 3],
        of: &StepAttention,
    ) -> Result<Option<AttentionGradientRows>, DeviceError> {
        let of_kernels = self.rows_kernels(operands[0], &of.attention, of.kv_heads, true)?;
        let Some(([_, queries, keys], room)) = of_kernels else { return Ok(None) };
        let (largest, halves) = (self.gpu.flash("rows_largest", 0)?, self.gpu.flash("rows_halves", 0)?);
        let is_forward = |made: &&Attended| made.operands == operands && made.attention == of.attention;
        let forward = self.attended.iter().find(is_forward).map(|made| (made.kept, made.result));
        let forward = match forward {
            Some((kept, y)) => {
                self.need(kept);
                Some((kept, self.slot(y)?))
            }
            None => None,
        };
        let sums = self.gpu.flash("rows_sums", 0)?;
        Ok(Some(AttentionGradientRows { largest, halves, queries, keys, sums, room, forward }))
    }

    /// Kernels of attention, of its gradient by queries and by keys, and the buffer of their room.
    fn rows_kernels(
        &mut self,
        q: ValueId,
        attention: &Attention,
        kv_heads: usize,
        of_gradient: bool,
    ) -> Result<Option<([Flash; 3], usize)>, DeviceError> {
        let &[rows, heads, width] = &self.shape(q).resolve(&self.sizes)[..] else { return Ok(None) };
        let Some(named) = rows_kernels(width, attention.softcap.is_some()) else { return Ok(None) };
        if self.exact || !self.gpu.has_tensor_kernels() {
            return Ok(None);
        }
        let flash = |(name, shared_bytes): Named| -> Result<Flash, DeviceError> {
            Ok(Flash { kernel: self.gpu.flash(&name, shared_bytes)?, shared_bytes })
        };
        let [attention, queries, keys] = named;
        let kernels = [flash(attention)?, flash(queries)?, flash(keys)?];
        let room = Room::new(rows, heads, kv_heads, width, of_gradient);
        Ok(Some((kernels, self.scratch(room.bytes.div_ceil(4)))))
    }

    /// Attention to the rows of the step whose change the next operation computes.
    fn step_attention(
        &mut self,
        attention: Attention,
        [q, k, v]: [ValueId; 3],
    ) -> Result<StepAttention, DeviceError> {
        let KvSource::Step(mask) = attention.source else { return Err(self.odd(q)) };
        let width = self.shape(q).width().ok_or_else(|| self.odd(q))?;
        if width > WIDEST_GRADIENT {
            let what = format!("gradients of heads of {width}, at most {WIDEST_GRADIENT}");
            return Err(self.gpu.unsupported(what));
        }
        let kv_heads = self.shape(k).0[1].constant().ok_or_else(|| self.odd(k))?;
        Ok(StepAttention { attention, mask, kv_heads, q: self.slot(q)?, k: self.slot(k)?, v: self.slot(v)? })
    }

    /// The scores of a language model's head, for the next operation, with room for those of [`MOST_ROWS`] rows at a time.
    fn scores(
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
        self.rounded.remove(&x);
        let gemm = if rows.is_empty() { self.gemm(x, &tiles)? } else { None };
        self.rounded.remove(&x);
        let x = self.slot(x)?;
        let outs = self.shape(w).outer();
        let most = MOST_ROWS.min(x.shape.outer().resolve(&self.sizes)).max(1);
        let shape = Shape(vec![Dim::from(most), outs]);
        let out = Slot { base: Base::Buffer(self.buffer(&shape)), start: 0, row_stride: None, shape };
        let product = LinearOp {
            tiles,
            gemm,
            tail: None,
            bank: None,
            rows,
            x,
            in_front: None,
            w: stored,
            number,
            floats: None,
            behind: Behind::default(),
            leaves_parts: false,
            ahead: None,
            gated_to: None,
            out,
        };
        Ok(Scores { product, softcap, unary: self.kernel("unary")?, targets })
    }
}
