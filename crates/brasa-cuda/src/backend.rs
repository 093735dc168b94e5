//! An NVIDIA GPU as a device.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use brasa_graph::Graph;
use brasa_graph::device::{
    Backend, Capabilities, DeviceError, DeviceInfo, KvPool, KvPoolSpec, LostPart, Measure, MemoryUse,
    Precision, Program, ProgramSpec, WeightSet,
};

use crate::compile::CAPABILITIES;
use crate::driver::{Device, Driver};
use crate::gpu::Gpu;
use crate::kv::CudaKvPool;
use crate::program::CudaProgram;
use crate::weights::{self, CudaWeightSet};

/// Rows of a prompt's chunk: tensor cores of a large GPU are not filled by fewer (`docs/performance/cuda.md`).
const PROMPT_ROWS: usize = 2048;

/// Texts that decode together: 200 clients of an 8B model in F16 had 14,346 tokens/s of an H200 so, and 2,675 with 16.
const DECODE_ROWS: usize = 256;

/// One GPU of this machine.
#[derive(Clone, Debug)]
pub struct CudaBackend {
    gpu: Arc<Gpu>,
}

/// Choices about the device that a caller may make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// The device's number, counted from 0.
    pub ordinal: usize,
    /// The driver library; `None` for the system's. Tests name an emulated one.
    pub driver: Option<PathBuf>,
    /// True for results that do not depend on the other rows of a step, bit for bit. Many rows are then multiplied in f32, slowly,
    /// and not on tensor cores.
    pub deterministic: bool,
    /// True for separate launches of roundings, sums of parts and merges, which are joined to other launches otherwise, and for
    /// transposing weights at each product instead of keeping the transposes. An oracle for tests, and a yardstick.
    pub separate_launches: bool,
    /// Most bytes of [`CudaBackend::held_bytes`]: the backend is as on a GPU that has no more memory. `None` for all that the GPU has.
    pub memory_limit: Option<u64>,
}

impl CudaBackend {
    /// Prepares a GPU: opens the driver and loads the kernels.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unavailable`]: the driver is absent or too old, the GPU does not exist or is too old, or a call
    /// failed. [`DeviceError::Lost`] with [`LostPart::Device`]: this process lost the GPU before, and the driver makes
    /// no new context. [`DeviceError::OutOfMemory`].
    pub fn new(options: &CudaOptions) -> Result<Self, DeviceError> {
        let name = format!("cuda:{}", options.ordinal);
        let gpu = Driver::load(options.driver.as_deref())
            .and_then(|driver| Gpu::new(&driver, options))
            // A failed call while a device is prepared means that the device is unavailable, unless this process had
            // the device and lost it.
            .map_err(|error| match error.of_device(&name) {
                DeviceError::Lost { device, part: LostPart::Program | LostPart::Context, reason } => {
                    DeviceError::Unavailable { device, reason }
                }
                error => error,
            })?;
        Ok(Self { gpu })
    }

    /// Properties of the GPU, as the driver reports them, with its memory lowered to the limit.
    pub fn device(&self) -> &Device {
        self.gpu.context.device()
    }

    /// Bytes that weights, pages and programs of this backend hold, in the GPU's memory and in host memory that it reads directly.
    pub fn held_bytes(&self) -> u64 {
        self.gpu.context.held_bytes()
    }

    /// The most that [`held_bytes`](Self::held_bytes) has been since the backend was made.
    pub fn most_held_bytes(&self) -> u64 {
        self.gpu.context.most_held_bytes()
    }

    /// Reason why the GPU was lost for this backend and all others that share its context; `None` if it was not lost.
    ///
    /// All calls of such a backend fail. [`CudaBackend::new`] makes the GPU anew if the driver allows that; else its error says
    /// that only a new process can use the GPU again.
    pub fn lost(&self) -> Option<String> {
        self.gpu.context.lost().map(ToString::to_string)
    }

    /// Makes the GPU fail on purpose, as a kernel with an invalid address does. For tests of the recovery.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Lost`], always.
    #[doc(hidden)]
    pub fn lose(&self) -> Result<(), DeviceError> {
        self.gpu.lose()
    }
}

impl Backend for CudaBackend {
    fn info(&self) -> DeviceInfo {
        let device = self.device();
        let (major, minor) = device.capability;
        DeviceInfo {
            name: self.gpu.name.clone(),
            description: format!(
                "{}, compute capability {major}.{minor}, {} multiprocessors",
                device.name, device.multiprocessors
            ),
            threads: 1,
            memory_bytes: Some(device.memory_bytes),
            prompt_rows: PROMPT_ROWS,
            decode_rows: DECODE_ROWS,
        }
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    /// Bytes of the GPU's memory that no process has allocated, within the limit; `None` of a GPU that was lost.
    fn free_bytes(&self) -> Option<u64> {
        self.gpu.context.memory().ok().map(|(free, _)| free)
    }

    fn memory_use(&self) -> Option<MemoryUse> {
        Some(MemoryUse { held_bytes: self.held_bytes(), most_held_bytes: self.most_held_bytes() })
    }

    /// An empty set of weights. With [`Precision::Reference`] programs multiply in f32 alone.
    fn weight_set(&self, precision: Precision) -> Arc<dyn WeightSet> {
        Arc::new(CudaWeightSet::new(&self.gpu, precision))
    }

    fn weight_bytes(&self, graph: &Graph) -> u64 {
        weights::bytes_of(graph)
    }

    fn measure(
        &self,
        graph: &Arc<Graph>,
        precision: Precision,
        spec: ProgramSpec,
    ) -> Result<Measure, DeviceError> {
        let measuring = Self { gpu: self.gpu.measuring()? };
        let weights = measuring.upload(graph, precision, &mut |_| ControlFlow::Continue(()))?;
        let program = measuring.compile(Arc::clone(graph), Arc::clone(&weights), spec)?;
        Ok(Measure { weight_bytes: weights.size_bytes(), arena_bytes: program.arena_bytes() })
    }

    fn kv_pool(&self, spec: KvPoolSpec) -> Result<Box<dyn KvPool>, DeviceError> {
        Ok(Box::new(CudaKvPool::new(&self.gpu, spec)))
    }

    fn compile(
        &self,
        graph: Arc<Graph>,
        weights: Arc<dyn WeightSet>,
        spec: ProgramSpec,
    ) -> Result<Box<dyn Program>, DeviceError> {
        let weights: Arc<CudaWeightSet> = weights
            .into_any()
            .downcast()
            .map_err(|_| self.gpu.unsupported("weights that another device uploaded"))?;
        if !Arc::ptr_eq(&weights.gpu.context, &self.gpu.context) {
            return Err(self.gpu.unsupported("weights that another device uploaded"));
        }
        let weights = weights.weights_of(&graph)?;
        Ok(Box::new(CudaProgram::new(&self.gpu, &graph, weights, spec)?))
    }
}
