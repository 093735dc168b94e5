//! A device that is ready to compute: its context, a queue of work, the kernels.
#![expect(unsafe_code, reason = "copies to and from device memory")]

use std::sync::Arc;

use brasa_graph::device::DeviceError;

use crate::driver::{Context, DeviceMemory, Driver, DriverError, Kernel, Module, Stream};
use crate::embedded;

/// A device, shared by its weights, pools and programs. All of their work goes through one queue, in order.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub context: Arc<Context>,
    pub stream: Stream,
    /// The device's name in errors, e.g. `cuda:0`.
    pub name: String,
    plain: Arc<Module>,
}

impl Gpu {
    /// Prepares device `ordinal`.
    pub(crate) fn new(driver: &Driver, ordinal: usize) -> Result<Arc<Self>, DriverError> {
        let context = Context::new(driver, ordinal)?;
        let image = embedded::plain(context.device().capability)?;
        let plain = Module::load(&context, &image)?;
        let stream = Stream::new(&context)?;
        Ok(Arc::new(Self { context, stream, name: format!("cuda:{ordinal}"), plain }))
    }

    /// The plain kernel called `name`.
    pub(crate) fn kernel(&self, name: &str) -> Result<Kernel, DeviceError> {
        self.plain.kernel(name).map_err(|error| self.error(error))
    }

    /// Device memory for `what`.
    pub(crate) fn allocate(&self, size_bytes: usize, what: &str) -> Result<DeviceMemory, DeviceError> {
        DeviceMemory::new(&self.context, size_bytes, what).map_err(|error| self.error(error))
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
        // SAFETY: within the allocation, as asserted.
        unsafe { self.stream.download(bytes, memory.address()) }.map_err(|error| self.error(error))
    }

    /// A driver's error as one of the device contract.
    pub(crate) fn error(&self, error: DriverError) -> DeviceError {
        error.of_device(&self.name)
    }

    /// The refusal of `what`.
    pub(crate) fn unsupported(&self, what: impl Into<String>) -> DeviceError {
        DeviceError::Unsupported { device: self.name.clone(), what: what.into() }
    }
}
