//! Rows and scalars looked up by number.
#![expect(unsafe_code, reason = "copies embeddings to device memory")]

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{EmbedParams, GatherParams, SelectRowsParams, StoredWeight};
use crate::run::{Run, Slot};

/// `out[r] = table[ids[r]]`, of a stored weight; or what the step gives instead.
#[derive(Debug)]
pub(crate) struct EmbedOp {
    pub kernel: Kernel,
    pub ids: Slot,
    pub table: StoredWeight,
    /// True for the token embedding, which the step may give.
    pub given: bool,
    pub out: Slot,
}

/// `out[r,j] = table[indices[r,j]]`.
#[derive(Debug)]
pub(crate) struct GatherOp {
    pub kernel: Kernel,
    pub table: Slot,
    pub indices: Slot,
    pub out: Slot,
}

/// `out[o] = x[rows[o]]`, of any element type.
#[derive(Debug)]
pub(crate) struct SelectRowsOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub rows: Slot,
    pub out: Slot,
}

impl Launch for EmbedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (ids, out) = (run.tensor(&self.ids), run.tensor(&self.out));
        let params = EmbedParams {
            ids: ids.integers(),
            table: self.table,
            y: out.floats(),
            fault: run.fault,
            rows: ids.count() as u32,
        };
        run.each(&self.kernel, out.count(), &params)?;
        if self.given {
            for (first_row, rows) in &run.step.embeddings {
                let to = out.address + (first_row * self.table.row_len as usize) as u64 * 4;
                // SAFETY: the step's embeddings are as wide as the table, which was checked, and within the step's rows; the
                // step keeps them until the run has ended.
                unsafe { run.gpu.stream.upload(to, bytemuck::cast_slice(rows)) }?;
            }
        }
        Ok(())
    }
}

impl Launch for GatherOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (table, indices) = (run.tensor(&self.table), run.tensor(&self.indices));
        let params = GatherParams {
            table: table.floats(),
            indices: indices.integers(),
            y: run.tensor(&self.out).floats(),
            fault: run.fault,
            count: indices.count() as u32,
            table_len: table.count() as u32,
        };
        run.each(&self.kernel, indices.count(), &params)
    }
}

impl Launch for SelectRowsOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, x_rows) = run.tensor(&self.x).outer_rows();
        let rows = run.tensor(&self.rows);
        let params = SelectRowsParams {
            x,
            rows: rows.integers(),
            y: run.tensor(&self.out).floats(),
            fault: run.fault,
            count: rows.count() as u32,
            x_rows,
        };
        run.each(&self.kernel, rows.count() * u64::from(x.width), &params)
    }
}
