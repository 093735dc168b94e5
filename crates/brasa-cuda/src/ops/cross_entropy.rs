//! A language model's head and its loss in one: scores of some rows at a time.

use crate::driver::{DriverError, Kernel};
use crate::ops::{FEWEST_ROWS, Launch, LinearOp, Matmul, Panels, Transposed, row_threads};
use crate::params::{
    self, CrossEntropyParams, MatmulParams, Ptr, Rows, ScoresGradientParams, ScoresLossParams, Strided,
    UnaryParams,
};
use crate::run::{Run, Slot, THREADS};

/// Most rows whose scores are there at a time.
pub(crate) const MOST_ROWS: usize = 1024;
/// Threads of a block that makes a row's loss and gradient.
const LOSS_THREADS: u32 = 1024;

/// Scores of rows, soft-capped where there is a cap.
#[derive(Debug)]
pub(crate) struct Scores {
    /// The product, for up to [`MOST_ROWS`] rows.
    pub product: LinearOp,
    pub softcap: Option<f32>,
    /// `unary`.
    pub unary: Kernel,
    pub targets: Slot,
}

/// Each row's negative log-likelihood of its target.
#[derive(Debug)]
pub(crate) struct LinearCrossEntropyOp {
    pub scores: Scores,
    /// `cross_entropy`.
    pub kernel: Kernel,
    /// The gradients of the rows' losses, of the same scores.
    pub gradients: Option<RowGradients>,
    pub out: Slot,
}

/// Gradients of the losses of rows by the rows, each as if its loss counted once: the gradient of a sum of losses is these times the losses' factors.
#[derive(Debug)]
pub(crate) struct RowGradients {
    /// `scores_loss`.
    pub kernel: Kernel,
    pub transposed: Transposed,
    /// The panels that the scores' gradients are rounded to.
    pub panels: Panels,
    pub out: Slot,
}

/// The gradients of rows, and of the head where it varies.
#[derive(Debug)]
pub(crate) struct LinearCrossEntropyGradientOp {
    pub scores: Scores,
    pub kernel: Kernel,
    pub transposed: Transposed,
    /// For the head's gradient.
    pub matmul: Matmul,
    /// Factors of the rows' losses; dense.
    pub d: Slot,
    pub dx: Slot,
    pub dw: Option<Slot>,
}

/// Rows whose scores are there.
struct Chunk {
    first: u32,
    rows: u32,
    /// The rows themselves, in front of the head.
    x: Rows,
    /// The scores, one row behind the other.
    scores: Rows,
    targets: Ptr<u32>,
}

impl Scores {
    /// Queues the scores of all rows, a chunk at a time, and `each` behind those of a chunk.
    fn each_chunk(
        &self,
        run: &Run<'_>,
        mut each: impl FnMut(Chunk) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.product.x).rows();
        let (scores, targets) = (run.tensor(&self.product.out), run.tensor(&self.targets).integers());
        let width = scores.dim_from_end(0);
        for first in (0..rows).step_by(MOST_ROWS) {
            let count = (rows - first).min(MOST_ROWS as u32);
            let x = Rows { data: after(x.data, first, x.stride), ..x };
            self.product.multiply(run, x, count)?;
            let data = scores.floats();
            if let Some(cap) = self.softcap {
                let elements = count * width;
                let (x, dims) = (Strided { data, strides: [0, 0, 0, 1] }, [1, 1, 1, elements]);
                let function = params::UNARY_SOFTCAP;
                let params = UnaryParams { x, y: data, dims, count: elements, function, a: cap, b: 0.0 };
                run.each(&self.unary, elements.into(), &params)?;
            }
            let scores = Rows { data, per: 1, stride: width, width };
            each(Chunk { first, rows: count, x, scores, targets: after(targets, first, 1) })?;
        }
        Ok(())
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        self.product.cost(run)
    }
}

/// The address of row `row` of rows `stride` numbers apart.
fn after<T>(data: Ptr<T>, row: u32, stride: u32) -> Ptr<T> {
    Ptr::new(data.0 + u64::from(row) * u64::from(stride) * 4)
}

impl RowGradients {
    /// Queues the losses of all rows, and their gradients.
    fn launch(&self, run: &Run<'_>, of: &Scores, y: Ptr<f32>) -> Result<(), DriverError> {
        let (dx, (_, all_rows)) = (run.tensor(&self.out).floats(), run.tensor(&self.out).rows());
        let Panels { data, row_scale, subs } = self.panels;
        let order = self.transposed.prepare(run, all_rows)?;
        of.each_chunk(run, |Chunk { first, rows, x, scores, targets }| {
            let panels = if all_rows < FEWEST_ROWS { Ptr::NONE } else { Ptr::new(run.buffer(data)) };
            let params = ScoresLossParams {
                scores: scores.data,
                targets,
                y: after(y, first, 1),
                panels,
                row_scale: Ptr::new(run.buffer(row_scale)),
                fault: run.fault,
                width: scores.width,
                subs: subs as u32,
                softcap: of.softcap.unwrap_or(0.0),
            };
            run.launch(&self.kernel, rows, 1, LOSS_THREADS, 0, &params)?;
            self.transposed.multiply(run, scores, (rows, all_rows), order, after(dx, first, x.width))
        })
    }
}

impl Launch for LinearCrossEntropyOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let y = run.tensor(&self.out).floats();
        if let Some(gradients) = &self.gradients {
            return gradients.launch(run, &self.scores, y);
        }
        self.scores.each_chunk(run, |Chunk { first, rows, scores, targets, .. }| {
            let params = CrossEntropyParams { x: scores, targets, y: after(y, first, 1), fault: run.fault };
            run.launch(&self.kernel, rows, 1, row_threads(scores.width), 0, &params)
        })
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (bytes, operations) = self.scores.cost(run);
        let products = if self.gradients.is_some() { 2 } else { 1 };
        (products * bytes, products * operations)
    }
}

impl Launch for LinearCrossEntropyGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (d, dx) = (run.tensor(&self.d).floats(), run.tensor(&self.dx));
        let dw = self.dw.as_ref().map(|dw| run.tensor(dw));
        let (_, all_rows) = run.tensor(&self.dx).rows();
        let order = self.transposed.prepare(run, all_rows)?;
        self.scores.each_chunk(run, |Chunk { first, rows, x, scores, targets }| {
            let (width, inputs) = (scores.width, x.width);
            let softcap = self.scores.softcap.unwrap_or(0.0);
            let (fault, d) = (run.fault, after(d, first, 1));
            let params = ScoresGradientParams { scores: scores.data, targets, d, fault, width, softcap };
            run.launch(&self.kernel, rows, 1, THREADS, 0, &params)?;
            let to = after(dx.floats(), first, inputs);
            self.transposed.multiply(run, scores, (rows, all_rows), order, to)?;
            let Some(dw) = dw else { return Ok(()) };
            let params = MatmulParams {
                a: scores.data,
                b: x.data,
                c: dw.floats(),
                base: if first > 0 { dw.floats() } else { Ptr::NONE },
                m: width,
                n: inputs,
                k: rows,
                a_row: 1,
                a_column: width,
                b_row: x.stride,
                b_column: 1,
                base_row: inputs,
                factor: 1.0,
            };
            self.matmul.launch(run, params)
        })
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (bytes, operations) = self.scores.cost(run);
        (2 * bytes, operations * if self.dw.is_some() { 3 } else { 2 })
    }
}
