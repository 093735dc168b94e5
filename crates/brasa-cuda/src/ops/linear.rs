//! Matrix products.

use std::sync::Arc;

use brasa_graph::op::Unary;

use crate::driver::{DriverError, Kernel};
use crate::ops::elementwise::unary;
use crate::ops::gemm::{
    Ahead, Beside, Company, FEWEST_ROWS, Gemm, Panels, SIZES as GEMM_SIZES, Sums, joins, parts,
};
use crate::ops::matmul::{FEWEST_MATRIX_ROWS, Floats};
use crate::ops::tails::{LowRank, Tail};
use crate::ops::{FewRows, HeadNorm, Launch, MOST_ADDED_ROWS, row_threads};
use crate::params::{self, LinearParams, Norm, NormParams, Outputs, Ptr, Rows, StoredWeight, TilesParams};
use crate::run::{BufferId, Run, Slot, THREADS};
use crate::weights::{Stretch, Tiles};

/// Outputs of a block that multiplies rows as they are stored: a warp each.
const OUTPUTS_PER_BLOCK: u32 = 4;
/// Rows that the wide kernels take together.
const WIDE_ROWS: usize = 8;

/// `out[r,n] = Σ_k x[r,k] · w[n,k]`, with a norm of `x` in front, and a sum or a gate behind, if there are any.
#[derive(Debug)]
pub(crate) struct LinearOp {
    /// Stretches of the weight that are stored in tiles, with their kernels.
    pub tiles: Vec<TilesLaunch>,
    /// The kernels that multiply many rows on tensor cores; `None` if products are exact, or not all of the weight is in tiles.
    pub gemm: Option<Gemm>,
    /// A low-rank product that is added to the sums.
    pub further: Further,
    /// For each format of weight rows that are not in tiles: the kernels for one row of `x` and for several.
    pub rows: Vec<(Kernel, Kernel)>,
    pub x: Slot,
    /// The norm of `x` in front of the product.
    pub in_front: Option<InFront>,
    pub w: StoredWeight,
    /// The weight's number.
    pub number: usize,
    /// The weight as one f32 matrix, for products of many rows. `None` if it is stored otherwise, if sums must be exact, or if
    /// anything but a residual goes with the product.
    pub floats: Option<Floats>,
    /// The operation behind the product; empty if some rows of the weight are not in tiles.
    pub behind: Behind,
    /// The form in which products on tensor cores leave their result.
    pub form: ResultForm,
    pub out: Slot,
}

/// A low-rank product `u · Bᵀ` that is added to a product `x · Wᵀ`: `[x | u] · [W | B]ᵀ`.
#[derive(Debug)]
pub(crate) enum Further {
    Nothing,
    /// `B` is learned.
    Tail(Box<Tail>),
    /// `B` is of a bank of adapters. [`BankedLinearOp`](super::BankedLinearOp) runs this product only for the numbers of
    /// rows that its kernels take.
    Bank(Arc<FewRows>),
}

/// The form in which a product on tensor cores leaves its result. Products of few rows use other kernels and leave floats.
#[derive(Debug)]
pub(crate) enum ResultForm {
    /// Floats.
    Floats,
    /// Sums of parts of K, which the operation behind adds. Only for a weight that is one stretch without paired halves.
    Parts,
    /// Floats, and panels for the product behind.
    Rounded(Box<Ahead>),
    /// Panels of the gated result, for the product behind.
    Panels(Panels),
}

/// A norm in front of a product.
#[derive(Debug)]
pub(crate) struct InFront {
    pub norm: HeadNorm,
    /// The norm's own kernel, and the buffer that it writes to, for rows that are not multiplied on tensor cores.
    pub kernel: Kernel,
    pub normed: BufferId,
}

/// The operation behind a product: `residual + (product + bias)`, or `function(gate + bias) · (up + bias)` of its halves.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    pub bias: Option<Slot>,
    pub residual: Option<Slot>,
    pub gated_by: Option<Unary>,
}

/// A stretch in tiles and the kernels that multiply it.
#[derive(Debug)]
pub(crate) struct TilesLaunch {
    pub stretch: Stretch,
    pub tiles: Tiles,
    /// For one row, and for several.
    pub kernels: (Kernel, Kernel),
    /// For many rows, on tensor cores.
    pub many: Option<[Kernel; GEMM_SIZES]>,
}

impl Launch for LinearOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, rows) = run.tensor(&self.x).rows();
        self.multiply(run, x, rows)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let (_, rows) = run.tensor(&self.x).rows();
        (run.weights.stored_bytes(self.number), 2 * run.weights.elements(self.number) * u64::from(rows))
    }
}

impl InFront {
    /// Queues the norm of `x`; returns the normed rows.
    fn launch(&self, run: &Run<'_>, x: Rows, rows: u32) -> Result<Rows, DriverError> {
        let Norm { weight, eps, .. } = HeadNorm::params(Some(&self.norm), run);
        let y = Ptr::new(run.buffer(self.normed));
        let params = NormParams { x, w: weight, b: Ptr::NONE, y, eps };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)?;
        Ok(Rows { data: y, per: 1, stride: x.width, width: x.width })
    }
}

impl LinearOp {
    /// Queues the rounding of rows for products on tensor cores, where no operation in front has rounded them.
    pub(super) fn round(&self, run: &Run<'_>, x: Rows, rows: u32) -> Result<(), DriverError> {
        let Some(rounding) = self.gemm.as_ref().and_then(|gemm| gemm.rounding.as_ref()) else {
            return Ok(());
        };
        let norm = self.in_front.as_ref().map(|in_front| &in_front.norm);
        rounding.launch(run, x, HeadNorm::params(norm, run), rows, self.w.row_len)
    }

    /// Queues the product of `rows` rows, and what follows; the result's rows go to where those of the operation's own operand do.
    pub(super) fn multiply(&self, run: &Run<'_>, mut x: Rows, rows: u32) -> Result<(), DriverError> {
        // Other kernels for floats know no residual.
        let adds = self.behind.residual.is_some();
        let as_matrix = |_: &&Floats| adds || (rows >= FEWEST_MATRIX_ROWS && x.per == 1);
        if let Some(floats) = self.floats.as_ref().filter(as_matrix) {
            let base = self.behind.residual.as_ref().map_or(Rows::NONE, |base| run.tensor(base).rows().0);
            return floats.multiply(run, x, rows, base, run.tensor(&self.out).floats());
        }
        let gemm = self.gemm.as_ref().filter(|gemm| rows >= FEWEST_ROWS || gemm.of_panels);
        if gemm.is_some() {
            self.round(run, x, rows)?;
        } else if let Some(in_front) = &self.in_front {
            x = in_front.launch(run, x, rows)?;
        }
        if let (Some(_), Further::Tail(tail)) = (gemm, &self.further) {
            tail.prepare(run, &self.tiles)?;
        }
        for (number, launch) in self.tiles.iter().enumerate() {
            let mut out = self.outputs(run, launch);
            if let (Some(_), &ResultForm::Panels(Panels { data, row_scale, subs })) = (gemm, &self.form) {
                (out.panels, out.row_scale) = (Ptr::new(run.buffer(data)), Ptr::new(run.buffer(row_scale)));
                out.subs = subs as u32;
            }
            match (gemm, &launch.many) {
                (Some(gemm), Some(kernels)) => {
                    let beside = self.beside(run, rows, number);
                    gemm.multiply(run, kernels, &launch.tiles, rows, out, self.sums(rows), beside)?;
                }
                _ => self.multiply_tiles(run, launch, x, rows, out)?,
            }
        }
        let outputs = self.w.rows;
        let params = LinearParams { x, w: self.w, y: run.tensor(&self.out).floats(), rows, outputs };
        let blocks = outputs.div_ceil(OUTPUTS_PER_BLOCK);
        for kernels in &self.rows {
            let (kernel, groups) = narrow_or_wide(kernels, rows);
            run.launch(kernel, blocks, groups, OUTPUTS_PER_BLOCK * 32, 0, &params)?;
        }
        if let (None, Further::Tail(tail)) = (gemm, &self.further) {
            let LowRank { floats, x, .. } = &tail.beside;
            let (x, y) = (run.tensor(x).rows().0, run.tensor(&self.out));
            floats.multiply(run, x, rows, y.rows().0, y.floats())?;
        }
        if gemm.is_some() && !self.has_joined(run, rows) { self.round_result(run, rows) } else { Ok(()) }
    }

    /// Queues the rounding of the result for the product behind, if that is its form.
    pub(super) fn round_result(&self, run: &Run<'_>, rows: u32) -> Result<(), DriverError> {
        match &self.form {
            ResultForm::Rounded(ahead) => ahead.round(run, run.tensor(&self.out).rows().0, rows),
            ResultForm::Floats | ResultForm::Parts | ResultForm::Panels(_) => Ok(()),
        }
    }

    /// The launch that adds the sums of parts of K, for `rows` rows.
    fn sums(&self, rows: u32) -> Sums<'_> {
        match (&self.form, &self.further) {
            (ResultForm::Parts, Further::Bank(_)) if rows > MOST_ADDED_ROWS => Sums::Added,
            (ResultForm::Parts, _) => Sums::Left,
            (ResultForm::Rounded(ahead), _) if joins(rows, self.w.rows) => Sums::Joined(ahead),
            (ResultForm::Floats | ResultForm::Rounded(_) | ResultForm::Panels(_), _) => Sums::Added,
        }
    }

    /// True if the launch that added sums has rounded the result.
    fn has_joined(&self, run: &Run<'_>, rows: u32) -> bool {
        let Sums::Joined(..) = self.sums(rows) else { return false };
        let parts = |launch: &TilesLaunch| {
            parts(run, launch.tiles.count, launch.tiles.subs, rows, self.company(rows))
        };
        matches!(&self.tiles[..], [launch] if parts(launch) > 1)
    }

    fn company(&self, rows: u32) -> Company {
        match &self.further {
            Further::Tail(_) => Company::Tail,
            Further::Bank(_) if rows > MOST_ADDED_ROWS => Company::Tail,
            Further::Bank(bank) => Company::Addend(bank.blocks_of_ranks()),
            Further::Nothing => Company::Alone,
        }
    }

    /// The tail or the addend of the products with stretch `number` of the weight.
    fn beside(&self, run: &Run<'_>, rows: u32, number: usize) -> Beside {
        match &self.further {
            Further::Tail(tail) => Beside::Tail(tail.of_stretches[number]),
            Further::Bank(bank) if rows > MOST_ADDED_ROWS => bank.beside_many(run, rows),
            Further::Bank(bank) if number == 0 => Beside::Addend(bank.addend_of_next(run, rows)),
            Further::Bank(bank) => Beside::Addend(bank.addend(run, rows)),
            Further::Nothing => Beside::Nothing,
        }
    }

    /// Addresses of the products with a stretch.
    fn outputs(&self, run: &Run<'_>, TilesLaunch { stretch, tiles, .. }: &TilesLaunch) -> Outputs {
        let out = run.tensor(&self.out);
        let Behind { bias, residual, gated_by } = &self.behind;
        let (function, ..) = gated_by.map_or((0, 0.0, 0.0), unary);
        Outputs {
            residual: residual.as_ref().map_or(Rows::NONE, |residual| run.tensor(residual).rows().0),
            bias: bias.as_ref().map_or(Ptr::NONE, |bias| run.tensor(bias).floats()),
            y: out.floats(),
            y_width: out.dim_from_end(0),
            count: stretch.rows.len() as u32,
            lower: stretch.rows.start as u32,
            upper: tiles.upper.as_ref().map_or(stretch.rows.start + 8, |upper| upper.start) as u32,
            form: match (&tiles.upper, gated_by) {
                (None, _) => params::TILES_DENSE,
                (Some(_), None) => params::TILES_SPLIT,
                (Some(_), Some(_)) => params::TILES_GATED,
            },
            function,
            panels: Ptr::NONE,
            row_scale: Ptr::NONE,
            subs: 0,
        }
    }

    fn multiply_tiles(
        &self,
        run: &Run<'_>,
        TilesLaunch { tiles, kernels, .. }: &TilesLaunch,
        x: Rows,
        rows: u32,
        out: Outputs,
    ) -> Result<(), DriverError> {
        let (inputs, subs) = (self.w.row_len, tiles.subs as u32);
        let params = TilesParams { x, weights: tiles.data, rows, inputs, subs, factor: tiles.factor, out };
        let (kernel, groups) = narrow_or_wide(kernels, rows);
        run.launch(kernel, tiles.count as u32, groups, THREADS, 0, &params)
    }
}

/// The kernel for this number of rows, and the number of groups of rows.
fn narrow_or_wide((narrow, wide): &(Kernel, Kernel), rows: u32) -> (&Kernel, usize) {
    if rows == 1 { (narrow, 1) } else { (wide, (rows as usize).div_ceil(WIDE_ROWS)) }
}
