//! Operations that only derivatives use.

use brasa_graph::op::{Attention, Mask, Unary};

use crate::driver::{DriverError, Kernel};
use crate::ops::attention::{StepTiles, parameters, read_step, step_tiles};
use crate::ops::elementwise::unary;
use crate::ops::flat::{self, EachElement};
use crate::ops::{AttentionGradientRows, Launch, Panels, row_threads};
use crate::params::{
    AttentionGradientParams, AttentionParams, AttentionTangentParams, ExpertGradientParams,
    ExpertTransposedParams, FoldParams, NormGradientParams, PickParams, PlaceParams, Ptr, Rows,
    SinkGradientParams, SpreadMeanParams, StoredWeight, UnaryGradientParams,
};
use crate::run::{BufferId, Run, Slot, THREADS};

/// The widest head whose gradients fit the shared memory that every block has.
pub(crate) const WIDEST_GRADIENT: usize = 2048;

/// `out = function'(x) · t`.
#[derive(Debug)]
pub(crate) struct UnaryGradientOp {
    pub kernels: EachElement,
    pub function: Unary,
    pub x: Slot,
    pub t: Slot,
    pub out: Slot,
}

/// A change `t` passed through a norm of `x`, of either kind, and through the norm's weight where it has one; added to `residual`.
#[derive(Debug)]
pub(crate) struct NormGradientOp {
    pub kernel: Kernel,
    pub eps: f32,
    pub is_layer: bool,
    pub x: Slot,
    pub t: Slot,
    pub weight: Option<Slot>,
    pub residual: Option<Slot>,
    /// Second copy of the result as halves, if another operation reads it in panels.
    pub panels: Option<Panels>,
    pub out: Slot,
}

/// `out[r,j,k] = Σ_n y[r,j,n] · w[experts[r,j],n,k]`; `y` is dense.
#[derive(Debug)]
pub(crate) struct ExpertTransposedOp {
    pub kernel: Kernel,
    pub y: Slot,
    pub experts: Slot,
    pub w: StoredWeight,
    /// Experts that there are.
    pub count: usize,
    pub out: Slot,
}

/// `out[e,n,k] = Σ dy[r,j,n] · x[r,(j),k]` over all chosen `e`; operands are dense.
#[derive(Debug)]
pub(crate) struct ExpertGradientOp {
    pub kernel: Kernel,
    pub dy: Slot,
    pub experts: Slot,
    /// True if each chosen expert has a row of `x` of its own.
    pub own_rows: bool,
    pub x: Slot,
    pub out: Slot,
}

/// Attention to the rows of the step, whose change is asked for.
#[derive(Debug)]
pub(crate) struct StepAttention {
    pub attention: Attention,
    pub mask: Mask,
    pub kv_heads: usize,
    pub q: Slot,
    pub k: Slot,
    pub v: Slot,
    /// Sinks, one number for each query head; `None` for attention without sinks.
    pub sinks: Option<Slot>,
}

impl StepAttention {
    /// The parameters of the attention, and the number of rows. `y` is the result, or the gradient of the queries.
    fn parameters(&self, run: &Run<'_>, y: &Slot) -> (AttentionParams, u32) {
        let Self { attention, mask, kv_heads, q, k, v, sinks } = self;
        let (mut params, rows) = parameters(run, attention, *kv_heads, q, y);
        read_step(&mut params, run, k, v, *mask);
        if let Some(sinks) = sinks {
            params.sinks = run.tensor(sinks).floats();
        }
        (params, rows)
    }
}

/// How attention changes along a direction; tangents are dense.
#[derive(Debug)]
pub(crate) struct AttentionTangentOp {
    pub kernel: Kernel,
    pub of: StepAttention,
    /// Tangents of queries, keys and values.
    pub tangents: [Slot; 3],
    /// Tangents of sinks; `None` for attention without sinks.
    pub t_sinks: Option<Slot>,
    pub out: Slot,
}

/// The gradients of attention's operands; `dy` is dense.
#[derive(Debug)]
pub(crate) struct AttentionGradientOp {
    /// `attention_gradient_queries`, `attention_gradient_keys`.
    pub kernels: [Kernel; 2],
    /// `attention_gradient_query_tiles`, `attention_gradient_key_tiles`, where heads fit.
    pub tiles: Option<[StepTiles; 2]>,
    /// The kernels for tensor cores, for head widths that have them, if sums need not be exact.
    pub on_tensor_cores: Option<AttentionGradientRows>,
    pub of: StepAttention,
    pub dy: Slot,
    /// The buffer of three numbers for each row and head.
    pub sums: BufferId,
    /// Gradients of queries, keys and values.
    pub out: [Slot; 3],
    /// The kernel `attention_gradient_sinks` and the gradients of sinks; `None` for attention without sinks.
    pub d_sinks: Option<(Kernel, Slot)>,
}

/// `out[r,j] = x[r, indices[r,j]]`.
#[derive(Debug)]
pub(crate) struct PickOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub indices: Slot,
    pub out: Slot,
}

/// `out[r,i] = Σ_j [indices[r,j] = i] · x[r,j]`; `x` is dense.
#[derive(Debug)]
pub(crate) struct PlaceOp {
    pub kernel: Kernel,
    pub x: Slot,
    pub indices: Slot,
    pub out: Slot,
}

/// The transpose of a convolution's unfolding: each row of `out` is the sum of its copies in `y`, which is dense.
#[derive(Debug)]
pub(crate) struct FoldOp {
    pub kernel: Kernel,
    pub taps: usize,
    pub stride: usize,
    pub padding: usize,
    /// Rows of `out` for each row of the step.
    pub factor: usize,
    pub y: Slot,
    pub out: Slot,
}

/// Each segment's row divided among its rows; the operand is dense.
#[derive(Debug)]
pub(crate) struct SpreadMeanOp {
    pub kernel: Kernel,
    /// Rows of `out` for each row of the step.
    pub factor: usize,
    pub y: Slot,
    pub out: Slot,
}

impl Launch for UnaryGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, t, out) = (run.tensor(&self.x), run.tensor(&self.t), run.tensor(&self.out));
        let (function, a, b) = unary(self.function);
        let values = [x.strided(), t.strided(), out.strided()];
        if flat::launch(run, &self.kernels.flat, &out.dims, values, (function, a, b))? {
            return Ok(());
        }
        let (x, t, y, count) = (x.strided(), t.strided(), out.floats(), out.count() as u32);
        let params = UnaryGradientParams { x, t, y, dims: out.dims, count, function, a, b };
        run.each(&self.kernels.any, out.count(), &params)
    }
}

impl Launch for NormGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let ((x, rows), (t, _)) = (run.tensor(&self.x).rows(), run.tensor(&self.t).rows());
        let (y, eps, is_layer) = (run.tensor(&self.out).floats(), self.eps, u32::from(self.is_layer));
        let w = self.weight.as_ref().map_or(Ptr::NONE, |weight| run.tensor(weight).floats());
        let residual = self.residual.as_ref().map_or(Rows::NONE, |residual| run.tensor(residual).rows().0);
        let (panels, row_scale, subs) =
            self.panels.map_or((Ptr::NONE, Ptr::NONE, 0), |Panels { data, row_scale, subs }| {
                (Ptr::new(run.buffer(data)), Ptr::new(run.buffer(row_scale)), subs as u32)
            });
        let params = NormGradientParams { x, t, residual, w, y, panels, row_scale, eps, is_layer, subs };
        run.launch(&self.kernel, rows, 1, row_threads(x.width), 0, &params)
    }
}

impl Launch for ExpertTransposedOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (experts, out) = (run.tensor(&self.experts), run.tensor(&self.out));
        let params = ExpertTransposedParams {
            y: run.tensor(&self.y).floats(),
            w: self.w,
            experts: experts.integers(),
            x: out.floats(),
            fault: run.fault,
            slots: experts.count() as u32,
            experts_count: self.count as u32,
            outputs: self.w.rows / self.count as u32,
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for ExpertGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (experts, out) = (run.tensor(&self.experts), run.tensor(&self.out));
        let params = ExpertGradientParams {
            dy: run.tensor(&self.dy).floats(),
            experts: experts.integers(),
            x: run.tensor(&self.x).floats(),
            dw: out.floats(),
            fault: run.fault,
            slots: experts.count() as u32,
            chosen: experts.dim_from_end(0),
            own_rows: u32::from(self.own_rows),
            experts_count: out.dim_from_end(2),
            outputs: out.dim_from_end(1),
            inputs: out.dim_from_end(0),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for AttentionTangentOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (params, rows) = self.of.parameters(run, &self.out);
        let [tq, tk, tv] = [0, 1, 2].map(|place| run.tensor(&self.tangents[place]).floats());
        let t_sinks = self.t_sinks.as_ref().map_or(Ptr::NONE, |t_sinks| run.tensor(t_sinks).floats());
        let shared_bytes = (2 * params.head_dim + params.value_dim + 544) * 4;
        let heads = params.heads as usize;
        let params = AttentionTangentParams { attention: params, tq, tk, tv, t_sinks };
        run.launch(&self.kernel, rows, heads, THREADS, shared_bytes, &params)
    }
}

impl Launch for AttentionGradientOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let [dq, dk, dv] = &self.out;
        let (params, rows) = self.of.parameters(run, dq);
        let AttentionParams { heads, head_dim, value_dim, .. } = params;
        let (heads, kv_heads) = (heads as usize, self.of.kv_heads);
        let [dy, dk, dv] = [&self.dy, dk, dv].map(|slot| run.tensor(slot).floats());
        if let Some(halves) = &self.on_tensor_cores
            && halves.launch(run, &params, dy, [dk, dv])?
        {
            return Ok(());
        }
        let params =
            AttentionGradientParams { attention: params, dy, dk, dv, sums: Ptr::new(run.buffer(self.sums)) };
        if let (Some([of_queries, of_keys]), Some(tiles)) = (&self.tiles, step_tiles(run, &params.attention))
        {
            let StepTiles { kernel, shared_bytes } = of_queries;
            run.launch(kernel, tiles, heads, THREADS, *shared_bytes, &params)?;
            let StepTiles { kernel, shared_bytes } = of_keys;
            run.launch(kernel, tiles, kv_heads, THREADS, *shared_bytes, &params)?;
        } else {
            let [of_queries, of_keys] = &self.kernels;
            let shared_bytes = |rest: u32| (2 * head_dim + value_dim + rest) * 4;
            run.launch(of_queries, rows, heads, THREADS, shared_bytes(288), &params)?;
            run.launch(of_keys, rows, kv_heads, THREADS, shared_bytes(value_dim + 512), &params)?;
        }
        let Some((kernel, d_sinks)) = &self.d_sinks else { return Ok(()) };
        let AttentionGradientParams { attention: AttentionParams { sinks, .. }, sums, .. } = params;
        let d_sinks = run.tensor(d_sinks).floats();
        let params = SinkGradientParams { sinks, d_sinks, sums, rows, heads: heads as u32 };
        run.launch(kernel, heads as u32, 1, THREADS, 0, &params)
    }
}

impl Launch for PickOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let ((x, rows), indices) = (run.tensor(&self.x).rows(), run.tensor(&self.indices));
        let params = PickParams {
            x,
            indices: indices.integers(),
            y: run.tensor(&self.out).floats(),
            fault: run.fault,
            count: indices.count() as u32,
            each: indices.count() as u32 / rows.max(1),
        };
        run.each(&self.kernel, indices.count(), &params)
    }
}

impl Launch for PlaceOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let (x, out) = (run.tensor(&self.x), run.tensor(&self.out));
        let width = out.dim_from_end(0);
        let rows = (out.count() / u64::from(width).max(1)) as u32;
        let params = PlaceParams {
            x: x.floats(),
            indices: run.tensor(&self.indices).integers(),
            y: out.floats(),
            fault: run.fault,
            count: out.count() as u32,
            each: x.count() as u32 / rows.max(1),
            width,
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for FoldOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let out = run.tensor(&self.out);
        let params = FoldParams {
            y: run.tensor(&self.y).floats(),
            x: out.floats(),
            step: run.step.rows(),
            factor: self.factor as u32,
            channels: out.dim_from_end(0),
            taps: self.taps as u32,
            stride: self.stride as u32,
            padding: self.padding as u32,
            rows: out.dim_from_end(1),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}

impl Launch for SpreadMeanOp {
    fn launch(&self, run: &Run<'_>) -> Result<(), DriverError> {
        let out = run.tensor(&self.out);
        let params = SpreadMeanParams {
            y: run.tensor(&self.y).floats(),
            x: out.floats(),
            step: run.step.rows(),
            factor: self.factor as u32,
            width: out.dim_from_end(0),
            rows: out.dim_from_end(1),
        };
        run.each(&self.kernel, out.count(), &params)
    }
}
