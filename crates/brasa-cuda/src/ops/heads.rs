//! Everything between the projections of queries, keys and values and attention.

use brasa_graph::op::{Rope, RopeLayout};

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::ops::gemm::{Company, FEWEST_ROWS, TILE_OUTPUTS, parts};
use crate::params::{HeadsParams, Norm, Ptr, RotationsParams};
use crate::run::{BufferId, Run, Slot, THREADS};

/// Cosine and sine of each row and pair, for all layers that turn alike.
#[derive(Debug)]
pub(crate) struct RotationsOp {
    pub kernel: Kernel,
    pub rope: Rope,
    pub positions: Slot,
    pub frequencies: Slot,
    /// The buffer of the table.
    pub table: BufferId,
}

/// Norms of heads, rotations of queries and keys, and the write of keys and values.
#[derive(Debug)]
pub(crate) struct HeadsOp {
    /// For the program's type of keys and values.
    pub kernel: Kernel,
    pub rope: Rope,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    /// Norms of the heads of queries, keys and values.
    pub norms: [Option<HeadNorm>; 3],
    /// Sums of parts of K that the preceding product may leave in place of queries, keys and values.
    pub parts: Option<PartsInFront>,
    /// The buffer of the rotations.
    pub table: BufferId,
    pub group: usize,
    pub place: usize,
    pub out: Slot,
}

/// Sums of parts of K that a product of several rows leaves where it cuts K.
#[derive(Clone, Debug)]
pub(crate) struct LeftParts {
    /// Tiles of the weight, and pieces of 64 inputs.
    pub tiles: usize,
    pub subs: usize,
    /// The buffer of the sums.
    pub partial: BufferId,
    /// The bias of the outputs.
    pub bias: Option<Slot>,
    /// Most rows of which it leaves sums.
    pub most_rows: u32,
    pub company: Company,
}

/// The sums that queries, keys and values are made of.
#[derive(Debug)]
pub(crate) struct PartsInFront {
    pub left: LeftParts,
    /// First column of queries, of keys and of values in a row.
    pub starts: [usize; 3],
}

/// The norm of each head.
#[derive(Debug)]
pub(crate) struct HeadNorm {
    pub weight: Option<Slot>,
    pub eps: f32,
}

/// Elements of a head that a thread takes, and the widest head.
pub(crate) const HEAD_ELEMENTS: usize = 8;
pub(crate) const WIDEST_HEAD: usize = 256;

impl Launch for RotationsOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (rows, pairs) = (run.step.sizes.rows as u32, (self.rope.rotary_dim / 2) as u32);
        let params = RotationsParams {
            positions: run.tensor(&self.positions).integers(),
            frequencies: run.tensor(&self.frequencies).floats(),
            table: Ptr::new(run.buffer(self.table)),
            rows,
            pairs,
            magnitude: self.rope.magnitude,
        };
        run.each(&self.kernel, u64::from(rows) * u64::from(pairs), &params)
    }
}

impl HeadNorm {
    /// The norm as kernels read it; one that is absent is marked so.
    pub(crate) fn params(norm: Option<&Self>, run: &Run<'_>) -> Norm {
        norm.map_or(Norm::NONE, |Self { weight, eps }| Norm {
            weight: weight.as_ref().map_or(Ptr::NONE, |weight| run.tensor(weight).floats()),
            eps: *eps,
            is_there: 1,
        })
    }
}

impl PartsInFront {
    /// Has the kernel read sums of parts, where the product in front left them.
    fn put(&self, run: &Run<'_>, rows: u32, params: &mut HeadsParams) {
        let LeftParts { tiles, subs, partial, bias, most_rows, company } = &self.left;
        if !(FEWEST_ROWS..=*most_rows).contains(&rows) {
            return;
        }
        let parts = parts(run, *tiles, *subs, rows, *company);
        if parts == 1 {
            return;
        }
        let width = *tiles as u32 * TILE_OUTPUTS;
        (params.parts, params.part_stride) = (parts, rows * width);
        (params.q_stride, params.k_stride, params.v_stride) = (width, width, width);
        let at = |address: u64| self.starts.map(|start| Ptr::new(address + start as u64 * 4));
        [params.q, params.k, params.v] = at(run.buffer(*partial));
        if let Some(bias) = bias {
            [params.q_bias, params.k_bias, params.v_bias] = at(run.tensor(bias).address);
        }
    }
}

impl Launch for HeadsOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let of_q = run.tensor(&self.q);
        let (heads, width) = (of_q.dim_from_end(1), of_q.dim_from_end(0) as usize);
        let ((q, rows), (k, _), (v, _)) =
            (of_q.outer_rows(), run.tensor(&self.k).outer_rows(), run.tensor(&self.v).outer_rows());
        let cache = run.step.cache(run.pool, self.group, self.place);
        let threads = (width / HEAD_ELEMENTS).next_power_of_two() as u32;
        let [q_norm, k_norm, v_norm] = self.norms.each_ref().map(|norm| HeadNorm::params(norm.as_ref(), run));
        let mut params = HeadsParams {
            q: q.data,
            k: k.data,
            v: v.data,
            y: run.tensor(&self.out).floats(),
            rotations: Ptr::new(run.buffer(self.table)),
            q_norm,
            k_norm,
            v_norm,
            step: run.step.rows(),
            cache,
            q_stride: q.stride,
            k_stride: k.stride,
            v_stride: v.stride,
            heads,
            rotary_dim: self.rope.rotary_dim as u32,
            interleaved: u32::from(self.rope.layout == RopeLayout::Interleaved),
            threads,
            parts: 0,
            part_stride: 0,
            q_bias: Ptr::NONE,
            k_bias: Ptr::NONE,
            v_bias: Ptr::NONE,
        };
        if let Some(parts) = &self.parts {
            parts.put(run, rows, &mut params);
        }
        let all_heads = u64::from(heads + 2 * cache.kv_heads);
        let blocks = (u64::from(rows) * all_heads * u64::from(threads)).div_ceil(u64::from(THREADS));
        run.launch(&self.kernel, blocks as u32, 1, THREADS, 0, &params)
    }
}
