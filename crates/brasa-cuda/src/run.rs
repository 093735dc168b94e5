//! One run of a program: where every value of the step is, and how kernels are launched on them.
#![expect(unsafe_code, reason = "launches kernels")]

use std::collections::HashSet;

pub(crate) use brasa_lower::{Base, BufferId, Place as Slot};

use crate::driver::{DriverError, Grid, Kernel};
use crate::gpu::Gpu;
use crate::kv::CudaKvPool;
use crate::params::{Fault, Ptr, Rows, Strided};
use crate::step_state::StepState;
use crate::weights::CudaWeights;

/// Threads of a block where each thread makes one element.
pub(crate) const THREADS: u32 = 256;
/// Most axes of a value.
pub(crate) const AXES: usize = 4;
/// Most blocks along the second axis of a grid.
const MOST_BLOCKS_Y: usize = 65_535;

/// Facts about the running step that launches need.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub gpu: &'a Gpu,
    pub step: &'a StepState,
    pub pool: &'a CudaKvPool,
    pub weights: &'a CudaWeights,
    /// The address of the arena.
    pub arena: u64,
    /// Offset of each buffer in the arena, in bytes.
    pub offsets: &'a [usize],
    /// Buffers that keep from step to step what was written to them.
    pub kept: &'a HashSet<BufferId>,
    /// Memory in which kernels note mistakes of the step.
    pub fault: Ptr<Fault>,
}

/// When a launch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// May begin once all blocks of the previous launch have begun. The kernel waits before it touches anything but weights.
    Overlapping,
    /// Begins after everything queued before.
    Behind,
}

/// The address and shape of a value in one step. Axes are aligned at the innermost; missing outer axes have length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub address: u64,
    pub dims: [u32; AXES],
    pub strides: [u32; AXES],
    /// Axes that the value has.
    rank: usize,
}

impl Run<'_> {
    /// The address of a buffer.
    pub(crate) fn buffer(&self, buffer: BufferId) -> u64 {
        self.arena + self.offsets[buffer.index()] as u64
    }

    /// The address and shape of the value in `slot`, for this step.
    pub(crate) fn tensor(&self, slot: &Slot) -> Tensor {
        let base = match slot.base {
            Base::Buffer(buffer) => self.buffer(buffer),
            Base::Input(input) => self.step.input(input),
            // Decoded to f32.
            Base::Weight(weight) => self.weights.decoded(weight.0 as usize).unwrap_or(0),
        };
        let resolved = slot.shape.resolve(&self.step.sizes);
        let rank = resolved.len();
        let (mut dims, mut strides) = ([1; AXES], [0; AXES]);
        let mut stride = 1;
        for (axis, &dim) in resolved.iter().enumerate().rev() {
            let place = AXES - rank + axis;
            dims[place] = dim as u32;
            strides[place] = if axis == 0 { slot.row_stride.unwrap_or(stride) as u32 } else { stride as u32 };
            stride *= dim;
        }
        Tensor { address: base + slot.start as u64 * 4, dims, strides, rank }
    }

    /// Queues a kernel with a thread for each of `count` elements.
    pub(crate) fn each<P: Copy>(&self, kernel: &Kernel, count: u64, params: &P) -> Result<(), DriverError> {
        self.launch(kernel, count.div_ceil(u64::from(THREADS)) as u32, 1, THREADS, 0, params)
    }

    /// Queues a kernel of `blocks` × `blocks_y` blocks; nothing if there are none.
    pub(crate) fn launch<P: Copy>(
        &self,
        kernel: &Kernel,
        blocks: u32,
        blocks_y: usize,
        threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), DriverError> {
        if blocks == 0 || blocks_y == 0 {
            return Ok(());
        }
        self.launch_blocks(
            kernel,
            [blocks, blocks_y.min(MOST_BLOCKS_Y) as u32, 1],
            threads,
            shared_bytes,
            params,
        )
    }

    /// Queues a kernel of as many blocks along each axis, none of which is 0.
    pub(crate) fn launch_blocks<P: Copy>(
        &self,
        kernel: &Kernel,
        blocks: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        params: &P,
    ) -> Result<(), DriverError> {
        self.launch_in_order(kernel, Grid { blocks, threads, shared_bytes }, Order::Overlapping, params)
    }

    /// Queues a kernel, none of whose blocks' axes is 0.
    pub(crate) fn launch_in_order<P: Copy>(
        &self,
        kernel: &Kernel,
        grid: Grid,
        order: Order,
        params: &P,
    ) -> Result<(), DriverError> {
        let stream = &self.gpu.stream;
        // SAFETY: operations pair a kernel with its own structure and fill it with addresses of this program's arena, step and
        // weights and of the pool's pages, in the sizes for which the graph's shapes were checked and the memory laid out.
        unsafe {
            match order {
                Order::Overlapping => stream.launch(kernel, grid, params),
                Order::Behind => stream.launch_behind(kernel, grid, params),
            }
        }
    }
}

impl Tensor {
    /// Number of elements.
    pub(crate) fn count(&self) -> u64 {
        self.dims.iter().map(|&dim| u64::from(dim)).product()
    }

    /// The outermost axis that the value has.
    fn outer(&self) -> usize {
        AXES - self.rank.max(1)
    }

    /// Rows along the innermost axis, and how many there are.
    pub(crate) fn rows(&self) -> (Rows, u32) {
        let (data, width) = (Ptr::new(self.address), self.dims[AXES - 1]);
        if self.rank <= 1 {
            return (Rows { data, per: 1, stride: 0, width }, 1);
        }
        let outer = self.outer();
        let per: u32 = self.dims[outer + 1..AXES - 1].iter().product();
        (Rows { data, per, stride: self.strides[outer], width }, self.dims[outer] * per)
    }

    /// Rows along all inner axes together, and how many there are.
    pub(crate) fn outer_rows(&self) -> (Rows, u32) {
        let outer = self.outer();
        let width = self.dims[outer + 1..].iter().product();
        let data = Ptr::new(self.address);
        (Rows { data, per: 1, stride: self.strides[outer], width }, self.dims[outer])
    }

    /// All its axes.
    pub(crate) fn strided(&self) -> Strided {
        Strided { data: Ptr::new(self.address), strides: self.strides }
    }

    /// All its axes, repeated along those of length 1.
    pub(crate) fn repeated(&self) -> Strided {
        let mut strided = self.strided();
        for (stride, &dim) in strided.strides.iter_mut().zip(&self.dims) {
            *stride *= u32::from(dim != 1);
        }
        strided
    }

    /// Address of the elements, as floats.
    pub(crate) fn floats(&self) -> Ptr<f32> {
        Ptr::new(self.address)
    }

    /// Address of the elements, as integers.
    pub(crate) fn integers(&self) -> Ptr<u32> {
        Ptr::new(self.address)
    }

    /// Length of axis `axis`, counted from the innermost.
    pub(crate) fn dim_from_end(&self, axis: usize) -> u32 {
        self.dims[AXES - 1 - axis]
    }
}
