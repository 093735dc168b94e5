//! Operations with recurrent states.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{ScanRule, StateScan, Unary};
use brasa_graph::{Node, NodeId, Op, Schedule, StateId, ValueId};

use super::Compiler;
use crate::ops::{SCANNED_KEYS, ShortConvOp, StateScanOp};

/// Most heads and segments of a scan, which are axes of its grid.
const MOST_BLOCKS: usize = 65_535;

impl Compiler<'_> {
    /// Notes the activations that are computed with the convolution in front of them, which nothing else reads.
    pub(super) fn find_convolutions(&mut self, schedule: &Schedule) {
        for item in schedule.items() {
            let &[id] = item.nodes() else { continue };
            let Node { op: Op::ShortConv(_), outputs, .. } = self.graph.node(id) else { continue };
            let y = outputs[0];
            let &[(reader, read)] = &self.readers.nodes(y)[..] else { continue };
            let is_alone = schedule.items().iter().any(|item| item.nodes() == [reader]);
            let in_chain = self.folded.contains(&reader) || self.chains.contains_key(&reader);
            let activates = matches!(self.graph.node(reader).op, Op::Unary(Unary::Silu));
            if read == y && activates && is_alone && !in_chain && !self.readers.is_output(y) {
                self.folded.push(reader);
                self.convolutions.insert(y, reader);
            }
        }
    }

    pub(super) fn short_conv(
        &mut self,
        state: StateId,
        x: ValueId,
        w: ValueId,
        y: ValueId,
    ) -> Result<(), DeviceError> {
        let taps = self.shape(w).width().ok_or_else(|| self.odd(w))?;
        let (kernel, x, w) = (self.kernel("short_conv")?, self.slot(x)?, self.dense(w)?);
        let behind: Option<NodeId> = self.convolutions.get(&y).copied();
        let (activation, y, label) = match behind {
            Some(id) => (Some(Unary::Silu), self.graph.node(id).outputs[0], "short_conv+silu"),
            None => (None, y, "short_conv"),
        };
        let offset_bytes = self.state_offset(state);
        let out = self.make(y);
        self.push(ShortConvOp { kernel, offset_bytes, taps, x, w, activation, out }, label);
        Ok(())
    }

    pub(super) fn state_scan(
        &mut self,
        scan: &StateScan,
        operands: &[ValueId],
        y: ValueId,
    ) -> Result<(), DeviceError> {
        let &[q, k, v, decay, ref beta @ ..] = operands else { return Err(self.odd(y)) };
        let &StateScan { state, rule, sharing } = scan;
        let sizes = scan
            .sizes(self.shape(q), self.shape(k), self.shape(v))
            .map_err(|what| self.gpu.unsupported(what))?;
        let Some(width) = SCANNED_KEYS.into_iter().find(|&width| sizes.key_dim <= width) else {
            return Err(self.gpu.unsupported(format!(
                "state_scan with keys of {} elements, at most {}",
                sizes.key_dim,
                SCANNED_KEYS[SCANNED_KEYS.len() - 1]
            )));
        };
        if sizes.heads.max(self.sizes.segments) > MOST_BLOCKS {
            return Err(self
                .gpu
                .unsupported(format!("state_scan of more than {MOST_BLOCKS} heads or segments")));
        }
        let name = match rule {
            ScanRule::Add => "add",
            ScanRule::Delta => "delta",
        };
        let kernel = self.kernel(&format!("state_scan_{name}_{width}"))?;
        let (q, k, v, decay) = (self.slot(q)?, self.slot(k)?, self.slot(v)?, self.slot(decay)?);
        let beta = beta.first().map(|&beta| self.slot(beta)).transpose()?;
        let offset_bytes = state.map(|state| self.state_offset(state));
        let out = self.make(y);
        let op = StateScanOp { kernel, offset_bytes, rule, sharing, sizes, q, k, v, decay, beta, out };
        self.push(op, "state_scan");
        Ok(())
    }

    /// Bytes of a state page in front of a state.
    fn state_offset(&self, state: StateId) -> usize {
        self.graph.state_layout().place(state).start * 4
    }
}
