//! Attention to the rows of the step, and its gradient, on tensor cores.

use brasa_graph::Op;
use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;
use brasa_graph::op::{Attention, KvSource};
use brasa_lower::BufferId;

use super::{Attended, Compiler};
use crate::ops::{
    AttentionGradientRows, AttentionRows, Flash, Named, Room, StepAttention, WIDEST_GRADIENT, rows_kernels,
};

impl Compiler<'_> {
    /// The kernels of attention to the rows of the step on tensor cores, whose result is `y`; `None` if there are none or sums must be exact.
    pub(super) fn attention_rows(
        &mut self,
        operands: [ValueId; 3],
        y: ValueId,
        attention: &Attention,
        kv_heads: usize,
    ) -> Result<Option<AttentionRows>, DeviceError> {
        let of_kernels = self.rows_kernels(operands, attention, kv_heads, false)?;
        let Some(([kernel, ..], room)) = of_kernels else { return Ok(None) };
        let halves = self.flash("rows_halves", 0)?;
        let reads_alike = |node: &brasa_graph::Node| {
            matches!(&node.op, Op::AttentionGradient(op) if op.attention == *attention)
                && node.inputs.starts_with(&operands)
        };
        let kept = self.graph.nodes().iter().any(reads_alike).then(|| {
            let rows_and_heads = &self.shape(operands[0]).resolve(&self.sizes)[..2];
            let kept = self.buffer(rows_and_heads.iter().product());
            self.attended.push(Attended { operands, attention: *attention, kept, result: y });
            kept
        });
        Ok(Some(AttentionRows { halves, attention: kernel, room, kept }))
    }

    /// The kernels of the gradient of attention on tensor cores; `None` if there are none or sums must be exact.
    pub(super) fn attention_gradient_rows(
        &mut self,
        operands: [ValueId; 3],
        of: &StepAttention,
    ) -> Result<Option<AttentionGradientRows>, DeviceError> {
        let of_kernels = self.rows_kernels(operands, &of.attention, of.kv_heads, true)?;
        let Some(([_, queries, keys], room)) = of_kernels else { return Ok(None) };
        let (largest, halves) = (self.flash("rows_largest", 0)?, self.flash("rows_halves", 0)?);
        let is_forward = |made: &&Attended| made.operands == operands && made.attention == of.attention;
        let forward = self.attended.iter().find(is_forward).map(|made| (made.kept, made.result));
        let forward = match forward {
            Some((kept, y)) => {
                self.need(kept);
                Some((kept, self.slot(y)?))
            }
            None => None,
        };
        let sums = self.flash("rows_sums", 0)?;
        Ok(Some(AttentionGradientRows { largest, halves, queries, keys, sums, room, forward }))
    }

    /// Kernels of attention, of its gradient by queries and by keys, and the buffer of their room.
    fn rows_kernels(
        &mut self,
        [q, _, v]: [ValueId; 3],
        attention: &Attention,
        kv_heads: usize,
        of_gradient: bool,
    ) -> Result<Option<([Flash; 3], BufferId)>, DeviceError> {
        let &[rows, heads, width] = &self.shape(q).resolve(&self.sizes)[..] else { return Ok(None) };
        let Some(named) = rows_kernels(width, attention.softcap.is_some()) else { return Ok(None) };
        if self.shape(v).width() != Some(width) {
            return Ok(None);
        }
        if self.exact || !self.gpu.has_tensor_kernels() {
            return Ok(None);
        }
        let flash = |(name, shared_bytes): Named| -> Result<Flash, DeviceError> {
            Ok(Flash { kernel: self.flash(&name, shared_bytes)?, shared_bytes })
        };
        let [attention, queries, keys] = named;
        let kernels = [flash(attention)?, flash(queries)?, flash(keys)?];
        let room = Room::new(rows, heads, kv_heads, width, of_gradient);
        Ok(Some((kernels, self.buffer(room.bytes.div_ceil(4)))))
    }

    /// Attention to the rows of the step whose change the next operation computes.
    pub(super) fn step_attention(
        &mut self,
        attention: Attention,
        [q, k, v]: [ValueId; 3],
        sinks: Option<ValueId>,
    ) -> Result<StepAttention, DeviceError> {
        let KvSource::Step(mask) = attention.source else { return Err(self.odd(q)) };
        let width = self.shape(q).width().max(self.shape(v).width()).ok_or_else(|| self.odd(q))?;
        if width > WIDEST_GRADIENT {
            let what = format!("gradients of heads of {width}, at most {WIDEST_GRADIENT}");
            return Err(self.gpu.unsupported(what));
        }
        let kv_heads = self.shape(k).0[1].constant().ok_or_else(|| self.odd(k))?;
        let sinks = sinks.map(|sinks| self.dense(sinks)).transpose()?;
        let [q, k, v] = [self.slot(q)?, self.slot(k)?, self.slot(v)?];
        Ok(StepAttention { attention, mask, kv_heads, q, k, v, sinks })
    }
}
