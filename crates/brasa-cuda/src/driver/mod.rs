//! A safe face of the CUDA driver: devices, memory, streams, kernels.
//!
//! The driver library is opened when it is asked for, so a program that is linked with this crate starts on a machine
//! without NVIDIA software. About thirty functions of the library are enough; they are declared here rather than taken
//! from a binding of all of them, whose safe layer panics where there is no driver and adds synchronisation of its own.
#![expect(unsafe_code, reason = "calls the driver library")]

mod context;
mod error;
mod functions;
mod memory;
mod module;
mod stream;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::Arc;

pub use error::DriverError;

pub(crate) use context::Context;
pub(crate) use memory::{DeviceMemory, MappedWords, PinnedMemory};
pub(crate) use module::{Kernel, Module};
pub(crate) use stream::{Event, Grid, Stream};

use functions::{CuDevice, Functions};

/// The oldest driver that loads the embedded kernels, 1000 · major + 10 · minor.
const NEEDED_VERSION: i32 = 13_000;
/// The lowest compute capability of the embedded kernels.
pub(crate) const NEEDED_CAPABILITY: (i32, i32) = (8, 0);

/// The CUDA driver of this machine.
#[derive(Clone, Debug)]
pub struct Driver {
    functions: Arc<Functions>,
    version: i32,
}

/// Properties of a device, as the driver reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Number of the GPU, counted from 0.
    pub ordinal: usize,
    /// Name of the GPU, e.g. `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of its second-level cache.
    pub l2_bytes: u64,
    /// Most bytes of shared memory in one block.
    pub shared_bytes: usize,
    /// True if all blocks of a kernel can be made to run at the same time.
    pub runs_blocks_together: bool,
}

impl Driver {
    /// Opens the driver library at `path`, or the system's.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotInstalled`], [`DriverError::MissingFunction`], [`DriverError::OldDriver`],
    /// [`DriverError::NoDevice`], or the call that failed.
    pub fn load(path: Option<&Path>) -> Result<Self, DriverError> {
        let functions = Functions::load(path)?;
        let mut version = 0;
        // SAFETY: `version` is a place for an int; the driver may be initialised more than once.
        let started = unsafe {
            functions.driver_version(&raw mut version)?;
            if version < NEEDED_VERSION {
                return Err(DriverError::OldDriver { found: version, needed: NEEDED_VERSION });
            }
            functions.init(0)
        };
        started.map_err(|error| if error.is_no_device() { DriverError::NoDevice } else { error })?;
        Ok(Self { functions: Arc::new(functions), version })
    }

    /// The CUDA version that the driver supports, 1000 · major + 10 · minor.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Every device, in order of its number.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoDevice`], or the call that failed.
    pub fn devices(&self) -> Result<Vec<Device>, DriverError> {
        let count = self.count()?;
        (0..count).map(|ordinal| self.describe(ordinal, self.handle(ordinal, count)?)).collect()
    }

    /// The device numbered `ordinal`.
    ///
    /// # Errors
    ///
    /// [`DriverError::NoDevice`], [`DriverError::NoSuchDevice`], or the call that failed.
    pub fn device(&self, ordinal: usize) -> Result<Device, DriverError> {
        let count = self.count()?;
        self.describe(ordinal, self.handle(ordinal, count)?)
    }

    fn count(&self) -> Result<usize, DriverError> {
        let mut count = 0;
        // SAFETY: `count` is a place for an int.
        unsafe { self.functions.device_count(&raw mut count) }?;
        if count > 0 { Ok(count as usize) } else { Err(DriverError::NoDevice) }
    }

    fn handle(&self, ordinal: usize, count: usize) -> Result<CuDevice, DriverError> {
        if ordinal >= count {
            return Err(DriverError::NoSuchDevice { ordinal, count });
        }
        let mut device = 0;
        // SAFETY: `device` is a place for an int.
        unsafe { self.functions.device(&raw mut device, ordinal as c_int) }?;
        Ok(device)
    }

    fn describe(&self, ordinal: usize, device: CuDevice) -> Result<Device, DriverError> {
        let mut name: [c_char; 256] = [0; 256];
        let mut memory_bytes = 0;
        // SAFETY: `name` has the length that is given, less a byte for the end; `memory_bytes` is a place for a size.
        unsafe {
            self.functions.device_name(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
            self.functions.device_memory(&raw mut memory_bytes, device)?;
        }
        // SAFETY: the last byte of `name` is zero whatever the driver wrote.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let attribute = |attribute: Attribute| -> Result<i32, DriverError> {
            let mut value = 0;
            // SAFETY: `value` is a place for an int.
            unsafe { self.functions.device_attribute(&raw mut value, attribute as c_int, device) }?;
            Ok(value)
        };
        Ok(Device {
            ordinal,
            name,
            capability: (attribute(Attribute::CapabilityMajor)?, attribute(Attribute::CapabilityMinor)?),
            multiprocessors: attribute(Attribute::Multiprocessors)? as usize,
            memory_bytes: memory_bytes as u64,
            l2_bytes: attribute(Attribute::L2Bytes)? as u64,
            shared_bytes: attribute(Attribute::SharedBytes)? as usize,
            runs_blocks_together: attribute(Attribute::CooperativeLaunch)? != 0,
        })
    }
}

/// Numbers of device attributes in `cuda.h`.
#[derive(Clone, Copy)]
enum Attribute {
    Multiprocessors = 16,
    L2Bytes = 38,
    CapabilityMajor = 75,
    CapabilityMinor = 76,
    CooperativeLaunch = 95,
    SharedBytes = 97,
}
