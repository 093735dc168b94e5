//! Operations with recurrent states: short convolutions and scans.

use brasa_graph::op::{HeadSharing, ScanRule, ScanSizes, Unary};

use crate::driver::{DriverError, Kernel};
use crate::ops::Launch;
use crate::ops::elementwise::unary;
use crate::params::{Ptr, ShortConvParams, StateScanParams};
use crate::run::{Run, Slot};

/// Columns of a state that one block computes, and its threads.
const BLOCK_COLUMNS: usize = 32;
const BLOCK_THREADS: u32 = 128;
/// Elements of keys that kernels are compiled for.
pub(crate) const SCANNED_KEYS: [usize; 4] = [32, 64, 128, 256];

/// `y[r, c] = f(Σ_j w[c, j] · x[r − K + 1 + j, c])`.
#[derive(Debug)]
pub(crate) struct ShortConvOp {
    pub kernel: Kernel,
    /// Bytes of a state page in front of the state.
    pub offset_bytes: usize,
    pub taps: usize,
    pub x: Slot,
    pub w: Slot,
    /// A function of each result.
    pub activation: Option<Unary>,
    pub out: Slot,
}

/// `y = Sᵀ q` after each row's change of the state `S`.
#[derive(Debug)]
pub(crate) struct StateScanOp {
    /// The kernel for the rule and the elements of a key.
    pub kernel: Kernel,
    /// Bytes of a state page in front of the state; `None` if every segment begins with zeros.
    pub offset_bytes: Option<usize>,
    pub rule: ScanRule,
    pub sharing: HeadSharing,
    pub sizes: ScanSizes,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    pub decay: Slot,
    /// Present with [`ScanRule::Delta`].
    pub beta: Option<Slot>,
    pub out: Slot,
}

impl Launch for ShortConvOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, _) = run.tensor(&self.x).outer_rows();
        let out = run.tensor(&self.out);
        let params = ShortConvParams {
            step: run.step.rows(),
            places: run.step.states(Some(self.offset_bytes)),
            x: x.data,
            w: run.tensor(&self.w).floats(),
            y: out.floats(),
            x_stride: x.stride,
            channels: out.dim_from_end(0),
            taps: self.taps as u32,
            activates: u32::from(self.activation.is_some()),
            function: self.activation.map_or(0, |function| unary(function).0),
            reserved: 0,
        };
        run.each(&self.kernel, out.count(), &params)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let out = run.tensor(&self.out);
        let channels = u64::from(out.dim_from_end(0));
        let (pages, taps) = (run.step.state_pages_touched() as u64, self.taps as u64);
        (4 * channels * (pages * (taps - 1) + taps), 2 * out.count() * taps)
    }
}

impl Launch for StateScanOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let ScanSizes { key_heads, key_dim, heads, value_dim } = self.sizes;
        let rows = |slot: &Slot| run.tensor(slot).outer_rows().0;
        let [q, k, v, decay] = [&self.q, &self.k, &self.v, &self.decay].map(rows);
        let beta = self.beta.as_ref().map(rows);
        let params = StateScanParams {
            step: run.step.rows(),
            places: run.step.states(self.offset_bytes),
            q: q.data,
            k: k.data,
            v: v.data,
            decay: decay.data,
            beta: beta.map_or(Ptr::NONE, |beta| beta.data),
            y: run.tensor(&self.out).floats(),
            q_stride: q.stride,
            k_stride: k.stride,
            v_stride: v.stride,
            decay_stride: decay.stride,
            beta_stride: beta.map_or(0, |beta| beta.stride),
            key_heads: key_heads as u32,
            key_dim: key_dim as u32,
            heads: heads as u32,
            value_dim: value_dim as u32,
            is_tiled: u32::from(self.sharing == HeadSharing::Tiled),
        };
        let blocks = value_dim.div_ceil(BLOCK_COLUMNS);
        let grid = [blocks, heads, run.step.segments.len()].map(|count| count as u32);
        run.launch_blocks(&self.kernel, grid, BLOCK_THREADS, 0, &params)
    }

    fn cost(&self, run: &Run<'_>) -> (u64, u64) {
        let elements = self.sizes.state_elements() as u64;
        let pages = if self.offset_bytes.is_some() { run.step.state_pages_touched() as u64 } else { 0 };
        let per_element = match self.rule {
            ScanRule::Add => 5,
            ScanRule::Delta => 7,
        };
        (4 * elements * pages, elements * per_element * run.step.sizes.rows as u64)
    }
}
