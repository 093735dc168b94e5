//! Linear layers of heads.

use brasa_graph::ValueId;
use brasa_graph::device::DeviceError;

use super::Compiler;
use crate::ops::{
    HeadFactors, HeadLinearOp, MOST_HEAD_ROWS_IN_F32, ManyRows, Panels, PlanBuffers, most_blocks,
    most_positions,
};
use crate::weights::Form;

impl Compiler<'_> {
    /// Appends `y[r,h] = x[r,h] · w[h]ᵀ`, the product of each head's vectors with the head's matrix.
    pub(super) fn head_linear(&mut self, x: ValueId, w: ValueId, y: ValueId) -> Result<(), DeviceError> {
        let number = self.weight(w).ok_or_else(|| self.odd(w))?;
        let stored = self.weights.stored(number).ok_or_else(|| self.odd(w))?;
        let heads = self.shape(w).outer().constant().filter(|&heads| heads > 0).ok_or_else(|| self.odd(w))?;
        let pair =
            |name: String| Ok::<_, DeviceError>((self.kernel(&name)?, self.kernel(&format!("{name}_wide"))?));
        let factors = if let Some(tiles) = self.expert_tiles(w).filter(|_| !self.exact) {
            let suffix = Form::Tiles(tiles.tiles.layout).kernel_suffix();
            let kernels = pair(format!("head_tiles_{suffix}"))?;
            let rows = self.shape(x).outer().resolve(&self.sizes);
            let many = if self.gpu.has_tensor_kernels() && rows > MOST_HEAD_ROWS_IN_F32 as usize {
                Some(self.many_rows(suffix, rows.saturating_mul(heads), heads, tiles.tiles.subs)?)
            } else {
                None
            };
            HeadFactors::Tiles { tiles, kernels, many }
        } else {
            let forms = stored.forms.iter();
            let kernels = forms.map(|form| pair(format!("head_linear_{}", form.kernel_suffix())));
            HeadFactors::Stored { w: stored.weight, kernels: kernels.collect::<Result<_, _>>()? }
        };
        let x = self.slot(x)?;
        let out = self.make(y);
        let label = self.label("head_linear", number);
        self.push(HeadLinearOp { x, heads, number, factors, out }, label);
        Ok(())
    }

    /// Kernels and memory for products on tensor cores of `vectors` vectors of all `heads` heads. `suffix` names the
    /// tiles' layout; `subs` is the number of pieces of 64 inputs.
    fn many_rows(
        &mut self,
        suffix: &str,
        vectors: usize,
        heads: usize,
        subs: usize,
    ) -> Result<ManyRows, DeviceError> {
        let positions = most_positions(vectors, heads);
        // Two halves in a float.
        let panels = Panels {
            data: self.buffer(positions.saturating_mul(subs * 32)),
            row_scale: self.buffer(positions),
            subs,
        };
        let plan = PlanBuffers {
            counts: self.buffer(1),
            places: None,
            slots: self.buffer(positions),
            blocks: self.buffer(3 * most_blocks(vectors, heads)),
        };
        let (round, multiply) =
            (self.kernel("head_panels")?, self.expert_kernels(&format!("experts_{suffix}"))?);
        Ok(ManyRows { round, multiply, panels, plan })
    }
}
