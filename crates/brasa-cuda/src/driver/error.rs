//! Errors between this process and the driver.

use brasa_graph::device::{DeviceError, LostPart};

/// Why the driver or a device cannot be used, or which call of it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The driver library is not on this machine.
    #[error("the NVIDIA driver is not installed ({reason})")]
    NotInstalled {
        /// The message of the system's loader.
        reason: String,
    },
    /// The driver library lacks a function that Brasa calls.
    #[error("the NVIDIA driver is too old: it has no function {name}")]
    MissingFunction {
        /// The function.
        name: &'static str,
    },
    /// The driver is older than the embedded kernels need.
    #[error(
        "the NVIDIA driver is too old: it supports CUDA {}, expected {} or later",
        version(*found),
        version(*needed)
    )]
    OldDriver {
        /// CUDA version of the driver, 1000 · major + 10 · minor.
        found: i32,
        /// The oldest version that will do.
        needed: i32,
    },
    /// The machine has a driver and no device.
    #[error("there is no NVIDIA GPU")]
    NoDevice,
    /// The device number is not below the number of devices.
    #[error("there is no NVIDIA GPU {ordinal}; this machine has {count}")]
    NoSuchDevice {
        /// The number asked for, counted from 0.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },
    /// The device is older than the embedded kernels need.
    #[error(
        "{name} has compute capability {}.{}, expected {}.{} or later",
        found.0,
        found.1,
        needed.0,
        needed.1
    )]
    OldDevice {
        /// The device's name.
        name: String,
        /// Compute capability of the GPU, major and minor.
        found: (i32, i32),
        /// The lowest compute capability that will do.
        needed: (i32, i32),
    },
    /// Device memory could not be had.
    #[error("out of device memory: {bytes} bytes for {what}")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// Purpose of the bytes.
        what: String,
    },
    /// The device was lost to this process, and the driver makes no new context for it.
    #[error("this process has lost the GPU ({reason}): only a new process can use it again")]
    Lost {
        /// The error by which it was lost.
        reason: String,
    },
    /// An embedded kernel is missing or damaged: a bug of this build.
    #[error("embedded kernels: {what}")]
    Kernels {
        /// The reason, as a sentence for people.
        what: String,
    },
    /// A call failed.
    #[error("{function} failed with {name} ({status}): {text}")]
    Call {
        /// The driver's function.
        function: &'static str,
        /// Status that the driver returned.
        status: i32,
        /// The status by name.
        name: String,
        /// The status in words.
        text: String,
    },
}

/// The driver's status for lack of memory.
const OUT_OF_MEMORY: i32 = 2;
/// The driver's status where it finds no device.
const NO_DEVICE: i32 = 100;
/// The driver's status of work that has not ended.
const NOT_READY: i32 = 600;
/// The driver's statuses behind which a context is of no more use: memory or a link that cannot be corrected, an illegal address, a launch that took too long, a
/// destroyed context, a failed assertion, errors of instructions, addresses and launches, one contained to this process, and an unknown one.
const LOSING: [i32; 14] = [214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999];

impl DriverError {
    /// True for a call that failed because memory could not be had.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { status: OUT_OF_MEMORY, .. })
    }

    /// True for a call that failed because there is no device.
    pub(super) fn is_no_device(&self) -> bool {
        matches!(self, Self::Call { status: NO_DEVICE, .. })
    }

    /// True for a question about work that has not ended.
    pub(super) fn is_not_ready(&self) -> bool {
        matches!(self, Self::Call { status: NOT_READY, .. })
    }

    /// True for a call behind which every other call in its context fails.
    pub(super) fn loses_context(&self) -> bool {
        matches!(self, Self::Call { status, .. } if LOSING.contains(status))
    }

    /// How much is lost with an error that [`of_device`](Self::of_device) reports as a loss. A failed call that leaves
    /// its context intact loses only the work of the call.
    fn lost_part(&self) -> LostPart {
        match self {
            Self::Lost { .. } => LostPart::Device,
            error if error.loses_context() => LostPart::Context,
            _ => LostPart::Program,
        }
    }

    /// The error of the device contract, for a device called `device`.
    pub(crate) fn of_device(self, device: &str) -> DeviceError {
        let (device, part, reason) = (device.to_owned(), self.lost_part(), self.to_string());
        match self {
            Self::OutOfMemory { bytes, what } => DeviceError::OutOfMemory { bytes, what },
            Self::Call { .. } | Self::Lost { .. } => DeviceError::Lost { device, part, reason },
            _ => DeviceError::Unavailable { device, reason },
        }
    }
}

/// `1000 · major + 10 · minor` as people write it.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
