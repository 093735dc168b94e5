//! Compiler of operations with recurrent states.

use brasa_graph::device::DeviceError;
use brasa_graph::op::{StateScan, Unary};
use brasa_graph::{Item, Op, StateId, ValueId};

use super::{Compiler, unsupported};
use crate::ops::CompiledOp;
use crate::ops::short_conv::{MOST_TAPS, ShortConvOp};
use crate::ops::state_scan::StateScanOp;
use crate::slot::Out;

impl Compiler<'_> {
    /// Appends a short convolution, with the SiLU behind it if nothing else reads its result.
    pub(super) fn short_conv(
        &mut self,
        state: StateId,
        x: ValueId,
        w: ValueId,
        y: ValueId,
    ) -> Result<(), DeviceError> {
        let (channels, taps) = (self.width(x)?, self.width(w)?);
        if taps > MOST_TAPS {
            return Err(unsupported(format!("short_conv of {taps} taps, at most {MOST_TAPS}")));
        }
        let (activation, y, label) = match self.silu_behind(y) {
            Some(activated) => (Some(Unary::Silu), activated, "short_conv+silu"),
            None => (None, y, "short_conv"),
        };
        let [x, w] = self.sources([x, w])?;
        let out = Out::by_columns(self.make(y)?);
        self.push(CompiledOp::ShortConv(ShortConvOp { state, channels, taps, x, w, activation, out }), label);
        Ok(())
    }

    /// The SiLU of `y`, if it is all that reads `y`; it is not lowered again.
    fn silu_behind(&mut self, y: ValueId) -> Option<ValueId> {
        let [reader] = self.readers.items(self.schedule, y)[..] else { return None };
        let Item::Single(id) = self.schedule.items()[reader] else { return None };
        let node = self.node(id);
        let is_silu = matches!(node.op, Op::Unary(Unary::Silu));
        if !is_silu || self.graph.outputs().contains(&y) {
            return None;
        }
        self.followed.insert(id);
        Some(node.outputs[0])
    }

    pub(super) fn state_scan(
        &mut self,
        &StateScan { state, rule, sharing }: &StateScan,
        operands: &[ValueId],
        y: ValueId,
    ) -> Result<StateScanOp, DeviceError> {
        let &[q, k, v, decay, ref beta @ ..] = operands else {
            return Err(unsupported("state_scan of fewer than four operands"));
        };
        let scan = StateScan { state, rule, sharing };
        let sizes = scan.sizes(self.shape(q), self.shape(k), self.shape(v)).map_err(unsupported)?;
        let [q, k, v, decay] = self.sources([q, k, v, decay])?;
        let beta = beta.first().map(|&beta| self.source(beta)).transpose()?;
        // Shared out by blocks of columns of the state.
        let out = Out::by_columns(self.make(y)?);
        Ok(StateScanOp { state, rule, sharing, sizes, q, k, v, decay, beta, out })
    }
}
