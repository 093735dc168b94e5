//! Products of matrices of f32.

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::params::{MatmulParams, MatmulTilesParams, Ptr, Rows};
use crate::run::{BufferId, Run, Slot, THREADS};

/// Rows and columns of a tile of each kernel.
pub(crate) const MATMUL_TILES: [(u32, u32); 3] = [(64, 64), (64, 16), (16, 64)];
/// Blocks that K is cut into parts for, for each multiprocessor: products on tensor cores are bound by memory, of which more blocks ask for more.
const BLOCKS: u32 = 2;
const TENSOR_BLOCKS: u32 = 4;
/// Most parts of K, and the fewest columns of one.
pub(crate) const MOST_PARTS: usize = 16;
const FEWEST_COLUMNS: u32 = 256;
const FEWEST_TENSOR_COLUMNS: u32 = 128;
const PART_MULTIPLE: u32 = 32;
/// Fewest rows that are multiplied with a weight of f32 as matrices are.
pub(super) const FEWEST_MATRIX_ROWS: u32 = 16;

/// How matrices are multiplied.
#[derive(Debug)]
pub(crate) struct Matmul {
    /// `matmul_<M>_<N>` or `matmul_tensor_<M>_<N>` for each of [`MATMUL_TILES`].
    pub kernels: [Kernel; 3],
    /// True for products on tensor cores.
    pub on_tensor_cores: bool,
    /// `matmul_sums`, and the buffer of the sums of parts of K with its length in floats; `None` if sums are made in one piece.
    pub parts: Option<(Kernel, BufferId, usize)>,
}

/// A weight that is one matrix of f32.
#[derive(Debug)]
pub(crate) struct Floats {
    pub matmul: Matmul,
    pub data: Ptr<f32>,
    /// Outputs and inputs.
    pub size: (u32, u32),
    /// Factor of the products.
    pub factor: f32,
}

/// `out = op(a) · op(b)` of dense temporaries; all axes but the last are rows.
#[derive(Debug)]
pub(crate) struct MatmulOp {
    pub matmul: Matmul,
    pub a: Slot,
    pub b: Slot,
    pub transpose_a: bool,
    pub transpose_b: bool,
    pub out: Slot,
}

impl Matmul {
    /// Queues a product.
    pub(super) fn launch(&self, run: &Run<'_>, product: MatmulParams) -> Result<(), DriverError> {
        let MatmulParams { m, n, k, .. } = product;
        let number = if m <= 16 { 2 } else { usize::from(n <= 16) };
        let (rows, columns) = MATMUL_TILES[number];
        let tiles = [m.div_ceil(rows), n.div_ceil(columns)];
        let multiprocessors = run.gpu.context.device().multiprocessors as u32;
        let elements = u64::from(m) * u64::from(n);
        let parts = match &self.parts {
            Some((_, _, floats)) if elements > 0 => {
                let (each, fewest) = if self.on_tensor_cores {
                    (TENSOR_BLOCKS, FEWEST_TENSOR_COLUMNS)
                } else {
                    (BLOCKS, FEWEST_COLUMNS)
                };
                let wanted = each * multiprocessors / (tiles[0] * tiles[1]);
                let most = (*floats as u64 / elements).min(MOST_PARTS as u64) as u32;
                wanted.min(most).min(k / fewest).max(1)
            }
            _ => 1,
        };
        // Parts begin where pieces of K do that are loaded together.
        let part = k.div_ceil(parts).next_multiple_of(PART_MULTIPLE).max(PART_MULTIPLE);
        let parts = k.div_ceil(part).max(1);
        let partial = self.parts.as_ref().map_or(Ptr::NONE, |&(_, buffer, _)| Ptr::new(run.buffer(buffer)));
        let params = MatmulTilesParams { product, partial, part, parts };
        if tiles.contains(&0) {
            return Ok(());
        }
        run.launch_blocks(&self.kernels[number], [tiles[0], tiles[1], parts], THREADS, 0, &params)?;
        match &self.parts {
            Some((sums, ..)) if parts > 1 => run.each(sums, elements, &params),
            _ => Ok(()),
        }
    }
}

impl Floats {
    /// Queues `base` plus the products of rows with the weight.
    pub(super) fn multiply(
        &self,
        run: &Run<'_>,
        x: Rows,
        rows: u32,
        base: Rows,
        y: Ptr<f32>,
    ) -> Result<(), DriverError> {
        let (n, k) = self.size;
        self.matmul.launch(
            run,
            MatmulParams {
                a: x.data,
                b: self.data,
                c: y,
                base: base.data,
                m: rows,
                n,
                k,
                a_row: x.stride,
                a_column: 1,
                b_row: 1,
                b_column: k,
                base_row: base.stride,
                factor: self.factor,
            },
        )
    }

    /// Queues `base` plus the products of rows with the weight's other side.
    pub(super) fn multiply_transposed(
        &self,
        run: &Run<'_>,
        y: Rows,
        rows: u32,
        base: Rows,
        x: Ptr<f32>,
    ) -> Result<(), DriverError> {
        let (k, n) = self.size;
        self.matmul.launch(
            run,
            MatmulParams {
                a: y.data,
                b: self.data,
                c: x,
                base: base.data,
                m: rows,
                n,
                k,
                a_row: y.stride,
                a_column: 1,
                b_row: n,
                b_column: 1,
                base_row: base.stride,
                factor: self.factor,
            },
        )
    }
}

impl Launch for MatmulOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (a, b, c) = (run.tensor(&self.a), run.tensor(&self.b), run.tensor(&self.out));
        // Dense matrices: rows are as far apart as a row is wide.
        let (a_width, b_width) = (a.dim_from_end(0), b.dim_from_end(0));
        let (a_row, a_column) = if self.transpose_a { (1, a_width) } else { (a_width, 1) };
        let (b_row, b_column) = if self.transpose_b { (1, b_width) } else { (b_width, 1) };
        let params = MatmulParams {
            a: a.floats(),
            b: b.floats(),
            c: c.floats(),
            base: Ptr::NONE,
            m: (c.count() / u64::from(c.dim_from_end(0)).max(1)) as u32,
            n: c.dim_from_end(0),
            k: if self.transpose_a { (a.count() / u64::from(a_width).max(1)) as u32 } else { a_width },
            a_row,
            a_column,
            b_row,
            b_column,
            base_row: 0,
            factor: 1.0,
        };
        self.matmul.launch(run, params)
    }
}
