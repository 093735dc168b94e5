//! A device that is ready to compute: its context, a queue of work, the kernels.
#![expect(unsafe_code, reason = "copies to and from device memory")]

use std::sync::Arc;

use brasa_graph::device::{DeviceError, LostPart};

use crate::backend::CudaOptions;
use crate::driver::{Context, DeviceMemory, Driver, DriverError, Grid, Kernel, Module, Stream};
use crate::params::{Ptr, StrayParams};
use crate::{embedded, interpreter};

/// A device, shared by its weights, pools and programs. All of their work goes through one queue, in order.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub context: Arc<Context>,
    pub stream: Stream,
    /// The device's name in errors, e.g. `cuda:0`.
    pub name: String,
    /// True if only plain kernels compute.
    pub deterministic: bool,
    /// True if the operations between products take launches of their own.
    pub separate_launches: bool,
    /// True if memory is [imaginary](DeviceMemory::imaginary) and nothing is ever queued, to learn what would be allocated.
    pub measures: bool,
    plain: Arc<Module>,
    /// The interpreter, where the device can run it.
    interpreter: Option<interpreter::Kernels>,
    /// Matrix products of many rows on tensor cores, if the device has the kind that the kernels were written for.
    gemm: Option<Arc<Module>>,
    /// Products of rows sorted by expert, where the device has the tensor cores that the kernels were written for.
    experts: Option<Arc<Module>>,
    /// Attention of many rows on tensor cores, if the device has the kind that the kernels were written for.
    flash: Option<Arc<Module>>,
}

impl Gpu {
    /// Prepares the device that `options` name.
    pub(crate) fn new(driver: &Driver, options: &CudaOptions) -> Result<Arc<Self>, DriverError> {
        let &CudaOptions { ordinal, driver: _, deterministic, separate_launches, memory_limit } = options;
        let context = Context::new(driver, ordinal, memory_limit)?;
        let capability = context.device().capability;
        let load = |image: Result<Vec<u8>, DriverError>| Module::load(&context, &image?);
        let plain = load(embedded::plain(capability))?;
        let gemm = embedded::gemm(capability).map(load).transpose()?;
        let experts = embedded::experts(capability).map(load).transpose()?;
        let flash = embedded::flash(capability).map(load).transpose()?;
        let stream = Stream::new(&context)?;
        // A device that was lost may be there and compute nothing.
        let memory = DeviceMemory::new(&context, size_of::<u64>(), "a first touch")?;
        // SAFETY: all of a live allocation, which outlives the wait.
        unsafe { stream.clear(memory.address(), memory.size_bytes()) }?;
        stream.synchronize()?;
        let interpreter = interpreter::load(&context)?;
        let name = format!("cuda:{ordinal}");
        Ok(Arc::new(Self {
            context,
            stream,
            name,
            deterministic,
            separate_launches,
            measures: false,
            plain,
            interpreter,
            gemm,
            experts,
            flash,
        }))
    }

    /// A handle to this device for `Backend::measure`. Allocations are [imaginary](DeviceMemory::imaginary); no work is queued.
    pub(crate) fn measuring(&self) -> Result<Arc<Self>, DeviceError> {
        Ok(Arc::new(Self {
            context: Arc::clone(&self.context),
            stream: Stream::new(&self.context).map_err(|error| self.error(error))?,
            name: self.name.clone(),
            measures: true,
            plain: Arc::clone(&self.plain),
            interpreter: self.interpreter.clone(),
            gemm: self.gemm.clone(),
            experts: self.experts.clone(),
            flash: self.flash.clone(),
            ..*self
        }))
    }

    /// The interpreter, where the device can run it.
    pub(crate) fn interpreter(&self) -> Option<&interpreter::Kernels> {
        self.interpreter.as_ref()
    }

    /// The plain kernel called `name`.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        self.plain.kernel(name).map_err(|error| self.error(error))
    }

    /// The plain kernel called `name`, which takes `shared_bytes` of dynamic shared memory; `None` if no block has as much.
    pub(crate) fn kernel_with_shared(
        &self,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Option<Kernel>, DeviceError> {
        let kernel = self.kernel(name)?;
        Ok(kernel.allow_shared(shared_bytes).is_ok().then_some(kernel))
    }

    /// True if there are kernels for tensor cores.
    pub(crate) fn has_tensor_kernels(&self) -> bool {
        self.gemm.is_some()
    }

    /// The matrix product called `name`, which takes `shared_bytes` of dynamic shared memory.
    pub(crate) fn gemm(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError> {
        with_shared(self.gemm.as_ref(), name, shared_bytes).map_err(|error| self.error(error))
    }

    /// The product of sorted rows called `name`, which takes `shared_bytes` of dynamic shared memory.
    pub(crate) fn experts(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError> {
        with_shared(self.experts.as_ref(), name, shared_bytes).map_err(|error| self.error(error))
    }

    /// The attention called `name`, which takes `shared_bytes` of dynamic shared memory.
    pub(crate) fn flash(&self, name: &str, shared_bytes: u32) -> Result<Kernel, DeviceError> {
        with_shared(self.flash.as_ref(), name, shared_bytes).map_err(|error| self.error(error))
    }

    /// Device memory for `what`.
    pub(crate) fn allocate(&self, size_bytes: usize, what: &str) -> Result<DeviceMemory, DeviceError> {
        if self.measures {
            return Ok(DeviceMemory::imaginary(&self.context, size_bytes));
        }
        DeviceMemory::new(&self.context, size_bytes, what).map_err(|error| self.error(error))
    }

    /// Device memory of zeros for `what`.
    pub(crate) fn allocate_zeros(&self, size_bytes: usize, what: &str) -> Result<DeviceMemory, DeviceError> {
        let memory = self.allocate(size_bytes, what)?;
        self.clear(&memory)?;
        Ok(memory)
    }

    /// Queues zeros for all of `memory`.
    pub(crate) fn clear(&self, memory: &DeviceMemory) -> Result<(), DeviceError> {
        if self.measures {
            return Ok(());
        }
        // SAFETY: all of a live allocation; the driver frees no memory that queued work uses.
        unsafe { self.stream.clear(memory.address(), memory.size_bytes()) }.map_err(|error| self.error(error))
    }

    /// Copies `bytes` into `memory`, `offset` bytes after its start, and waits.
    ///
    /// # Panics
    ///
    /// If the bytes do not fit: a bug of this crate.
    pub(crate) fn write(
        &self,
        memory: &DeviceMemory,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let size_bytes = memory.size_bytes();
        assert!(offset + bytes.len() <= size_bytes, "{} bytes at {offset} of {size_bytes}", bytes.len());
        if self.measures {
            return Ok(());
        }
        // SAFETY: within the allocation, as asserted; `bytes` outlives the wait.
        let copied = unsafe { self.stream.upload(memory.address() + offset as u64, bytes) };
        copied.and_then(|()| self.stream.synchronize()).map_err(|error| self.error(error))
    }

    /// Copies the first bytes of `memory` into `bytes`, and waits.
    ///
    /// # Panics
    ///
    /// If the memory is smaller: a bug of this crate.
    pub(crate) fn read(&self, memory: &DeviceMemory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let size_bytes = memory.size_bytes();
        assert!(bytes.len() <= size_bytes, "{} bytes of {size_bytes}", bytes.len());
        if self.measures {
            return Ok(());
        }
        // SAFETY: within the allocation, as asserted.
        unsafe { self.stream.download(bytes, memory.address()) }.map_err(|error| self.error(error))
    }

    /// Waits until everything queued has ended.
    pub(crate) fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(|error| self.error(error))
    }

    /// True while something queued has not ended.
    pub(crate) fn is_busy(&self) -> Result<bool, DeviceError> {
        self.stream.is_busy().map_err(|error| self.error(error))
    }

    /// Writes to an address that belongs to nothing, which loses the device, and returns the error.
    pub(crate) fn lose(&self) -> Result<(), DeviceError> {
        let kernel = self.kernel("stray_write")?;
        let grid = Grid { blocks: [1; 3], threads: 32, shared_bytes: 0 };
        // SAFETY: none: the address is of no allocation. The device notices, and the context is lost.
        let queued = unsafe { self.stream.launch(&kernel, grid, &StrayParams { at: Ptr::new(8) }) };
        queued.and_then(|()| self.stream.synchronize()).map_err(|error| self.error(error))
    }

    /// The error of a program that has ended for `reason`. Weights and pools stay usable.
    pub(crate) fn lost(&self, reason: &str) -> DeviceError {
        DeviceError::Lost { device: self.name.clone(), part: LostPart::Program, reason: reason.into() }
    }

    /// The device error for a driver error. It is remembered if the device cannot go on behind it.
    pub(crate) fn error(&self, error: DriverError) -> DeviceError {
        self.context.note(&error);
        error.of_device(&self.name)
    }

    /// The refusal of `what`.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> DeviceError {
        DeviceError::Unsupported { device: self.name.clone(), what: what.into() }
    }
}

/// A kernel of a module that may not be there, allowed to take `shared_bytes`.
fn with_shared(module: Option<&Arc<Module>>, name: &str, shared_bytes: u32) -> Result<Kernel, DriverError> {
    let missing =
        || DriverError::Kernels { what: format!("{name} needs tensor cores of compute capability 9.0") };
    let kernel = module.ok_or_else(missing)?.kernel(name)?;
    kernel.allow_shared(shared_bytes)?;
    Ok(kernel)
}
