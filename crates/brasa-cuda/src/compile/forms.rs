//! The forms in which values exist besides floats: halves in panels, which products on tensor cores read, and sums of parts of K.
//!
//! An operation that makes a value in another form notes the form here, and later operations find it. If no operation has made
//! the panels of a value, the operation that reads panels rounds the value itself.

use std::collections::HashMap;

use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;
use brasa_lower::BufferId;

use super::Compiler;
use crate::ops::{LeftParts, LowRank, PANEL_ROWS, Panels, Rounding};

/// The forms in which values have been made, besides floats.
#[derive(Debug, Default)]
pub(super) struct Forms {
    /// Panels without room for a tail, by the value that they hold.
    panels: HashMap<ValueId, Panels>,
    /// Panels with a last piece for a tail, a low-rank product of the same rows; by the value that they hold.
    with_tail: HashMap<ValueId, Panels>,
    /// Sums of parts of K, which later operations on heads add; by the result of the product that leaves them.
    parts: HashMap<ValueId, LeftParts>,
}

impl Forms {
    /// Forgets the panels of `x`, so that the next operation that reads them rounds `x` anew.
    pub(super) fn forget_panels(&mut self, x: ValueId) {
        self.panels.remove(&x);
    }

    /// The sums of parts of K of the product `y`; `None` if no operation has left them.
    pub(super) fn parts(&self, y: ValueId) -> Option<&LeftParts> {
        self.parts.get(&y)
    }
}

impl Compiler<'_> {
    /// Notes `panels` as the panels of `x`, which the next operation makes.
    pub(super) fn add_panels(&mut self, x: ValueId, panels: Panels) {
        self.name(panels.data, format!("{x} in panels of {} pieces", panels.subs));
        self.forms.panels.insert(x, panels);
    }

    /// Notes `panels` as the panels of `x` with room for a tail, which the next operation makes.
    pub(super) fn add_panels_with_tail(&mut self, x: ValueId, panels: Panels) {
        self.name(panels.data, format!("{x} in panels of {} pieces, the last for a tail", panels.subs));
        self.forms.with_tail.insert(x, panels);
    }

    /// Notes `parts` as the sums of parts of K of the product `y`, which the next operation leaves.
    pub(super) fn add_parts(&mut self, y: ValueId, parts: LeftParts) {
        self.name(parts.partial, format!("{y} in sums of parts"));
        self.forms.parts.insert(y, parts);
    }

    /// The panels of `x`, of `subs` pieces of 64 inputs, which the next operation reads; `None` if no operation has made them.
    fn made_panels(&mut self, x: ValueId, subs: usize) -> Option<Panels> {
        let panels = self.forms.panels.get(&x).copied().filter(|panels| panels.subs == subs)?;
        Some(self.need_panels(panels))
    }

    /// The panels of `x` with room for a tail, which the next operation reads; `None` if no operation has made them.
    pub(super) fn made_panels_with_tail(&mut self, x: ValueId) -> Option<Panels> {
        let panels = self.forms.with_tail.get(&x).copied()?;
        Some(self.need_panels(panels))
    }

    fn need_panels(&mut self, panels: Panels) -> Panels {
        self.need(panels.data);
        self.need(panels.row_scale);
        panels
    }

    /// The panels of `x`, of `subs` pieces of 64 inputs, which the next operation reads. With a rounding if the operation
    /// must make them itself.
    pub(super) fn panels_of(
        &mut self,
        x: ValueId,
        subs: usize,
    ) -> Result<(Panels, Option<Rounding>), DeviceError> {
        if let Some(panels) = self.made_panels(x, subs) {
            return Ok((panels, None));
        }
        let rounding = self.rounding(x, subs)?;
        Ok((rounding.panels, Some(rounding)))
    }

    /// New buffers for panels of `rows` rows, of `subs` pieces of 64 inputs each, which the next operation needs.
    pub(super) fn new_panels(&mut self, rows: usize, subs: usize) -> Panels {
        let data = self.panel_room(rows, subs);
        Panels { data, row_scale: self.buffer(rows), subs }
    }

    /// A new buffer for halves of `rows` rows in panels, of `subs` pieces of 64 inputs each, which the next operation needs.
    pub(super) fn panel_room(&mut self, rows: usize, subs: usize) -> BufferId {
        // Two halves in a float.
        self.buffer(rows.next_multiple_of(PANEL_ROWS) * subs * 32)
    }

    /// The rounding of `x` by the next operation to new panels of `subs` pieces of 64 inputs. Later products find the panels
    /// unless launches are separate.
    pub(super) fn rounding(&mut self, x: ValueId, subs: usize) -> Result<Rounding, DeviceError> {
        let rows = self.rows(x);
        let panels = self.new_panels(rows, subs);
        if !self.gpu.separate_launches {
            self.add_panels(x, panels);
        }
        let gates = self.gates_behind(x);
        Ok(Rounding { gates, ..self.own_rounding(panels, None)? })
    }

    /// The rounding of rows to `panels`, without a note for later products. The operand of `beside` is rounded to the last
    /// piece of the panels.
    pub(super) fn own_rounding(
        &mut self,
        panels: Panels,
        beside: Option<&LowRank>,
    ) -> Result<Rounding, DeviceError> {
        let tail = beside.map(|beside| beside.x.clone());
        Ok(Rounding { kernel: self.kernel("gemm_panels")?, panels, gates: None, tail })
    }

    /// Rows of `x` in the largest step: all axes but the innermost, multiplied.
    pub(super) fn rows(&self, x: ValueId) -> usize {
        self.shape(x).resolve(&self.sizes).iter().rev().skip(1).product()
    }
}
