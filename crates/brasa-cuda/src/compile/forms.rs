//! The forms in which values exist besides floats: halves in panels, which products on tensor cores read, and sums of parts of K.
//!
//! An operation that makes a value in another form adds the form here, and operations behind find it. A value that is wanted in
//! panels and has none is rounded by the operation that wants them.

use std::collections::HashMap;

use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;
use brasa_lower::BufferId;

use super::Compiler;
use crate::ops::{LeftParts, LowRank, PANEL_ROWS, Panels, Rounding};

/// The forms in which values have been made, besides floats.
#[derive(Debug, Default)]
pub(super) struct Forms {
    /// Panels of a value and of nothing else.
    panels: HashMap<ValueId, Panels>,
    /// Panels of a value, behind whose rows a low-rank product of the same rows may lie as their tail.
    with_tail: HashMap<ValueId, Panels>,
    /// Sums of parts of K that products leave to the heads behind, by their results.
    parts: HashMap<ValueId, LeftParts>,
}

impl Forms {
    /// Says that the next operation makes the panels of `x`.
    /// Lets operations behind round `x` anew.
    pub(super) fn forget_panels(&mut self, x: ValueId) {
        self.panels.remove(&x);
    }

    /// The sums of parts of `y`, if an operation has left them.
    pub(super) fn parts(&self, y: ValueId) -> Option<&LeftParts> {
        self.parts.get(&y)
    }
}

impl Compiler<'_> {
    /// Says that the next operation makes the panels of `x`.
    pub(super) fn add_panels(&mut self, x: ValueId, panels: Panels) {
        self.name(panels.data, format!("{x} in panels of {} pieces", panels.subs));
        self.forms.panels.insert(x, panels);
    }

    /// Says that the next operation makes the panels of `x`, with room for a tail.
    pub(super) fn add_panels_with_tail(&mut self, x: ValueId, panels: Panels) {
        self.name(panels.data, format!("{x} in panels of {} pieces, the last for a tail", panels.subs));
        self.forms.with_tail.insert(x, panels);
    }

    /// Says that the next operation leaves the sums of parts of `y`.
    pub(super) fn add_parts(&mut self, y: ValueId, parts: LeftParts) {
        self.name(parts.partial, format!("{y} in sums of parts"));
        self.forms.parts.insert(y, parts);
    }

    /// The panels of `x`, of `subs` pieces, which the next operation reads; `None` if no operation has made them.
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

    /// The panels of `x` that the next operation reads, and their rounding by it where no operation in front has rounded `x`.
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

    /// Reserves memory for `rows` rows, of `subs` pieces of 64 inputs each, that the next operation rounds.
    pub(super) fn new_panels(&mut self, rows: usize, subs: usize) -> Panels {
        let data = self.panel_room(rows, subs);
        Panels { data, row_scale: self.buffer(rows), subs }
    }

    /// A buffer for panels of `rows` rows, of `subs` pieces of 64 inputs each, which the next operation needs.
    pub(super) fn panel_room(&mut self, rows: usize, subs: usize) -> BufferId {
        // Two halves in a float.
        self.buffer(rows.next_multiple_of(PANEL_ROWS) * subs * 32)
    }

    /// The rounding of `x` by the next operation, and room for it, which products behind find.
    pub(super) fn rounding(&mut self, x: ValueId, subs: usize) -> Result<Rounding, DeviceError> {
        let rows = self.rows(x);
        let panels = self.new_panels(rows, subs);
        if !self.gpu.separate_launches {
            self.add_panels(x, panels);
        }
        let gates = self.gates_behind(x);
        Ok(Rounding { gates, ..self.own_rounding(panels, None)? })
    }

    /// The rounding of rows that no product behind finds, and of those of a low-rank product beside them.
    pub(super) fn own_rounding(
        &mut self,
        panels: Panels,
        beside: Option<&LowRank>,
    ) -> Result<Rounding, DeviceError> {
        let tail = beside.map(|beside| beside.x.clone());
        Ok(Rounding { kernel: self.kernel("gemm_panels")?, panels, gates: None, tail })
    }

    /// Most rows of a value.
    pub(super) fn rows(&self, x: ValueId) -> usize {
        self.shape(x).resolve(&self.sizes).iter().rev().skip(1).product()
    }
}
