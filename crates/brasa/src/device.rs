//! The devices that this build can use.

use std::sync::Arc;

#[cfg(feature = "cpu")]
use brasa_cpu::{CpuBackend, CpuOptions, Isa};
#[cfg(feature = "cuda")]
use brasa_cuda::{CudaBackend, CudaOptions, Driver};
use brasa_graph::device::{Backend, DeviceError, DeviceInfo};

use crate::{LoadOptions, OwnDevice, Precision};

/// Every device of this build, best first: its description, or why it is unavailable.
pub fn devices() -> Vec<Result<DeviceInfo, DeviceError>> {
    let options = LoadOptions::default();
    let each = NAMES.iter().flat_map(|name| numbered(name));
    each.map(|name| open(Some(&name), &options).map(|backend| backend.info())).collect()
}

/// A runner of [arrays](crate::array) on the device with this name, or on the CPU if none is named.
///
/// # Errors
///
/// [`DeviceError::Unavailable`] for a device that is not there, as an [`ArrayError`](crate::array::ArrayError).
pub fn array_runner(device: Option<&str>) -> crate::array::Result<crate::array::Runner> {
    let device = open(Some(device.unwrap_or("cpu")), &LoadOptions::default())?;
    crate::array::Runner::new(device.into())
}

/// Kinds of devices, best first.
const NAMES: &[&str] = &[
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "cpu")]
    "cpu",
];

/// The names of all devices of a kind, such as `cuda:0` and `cuda:1`; the kind's own name if there is one device or none.
fn numbered(name: &str) -> Vec<String> {
    #[cfg(feature = "cuda")]
    if name == "cuda"
        && let Ok(devices) = Driver::load(None).and_then(|driver| driver.devices())
    {
        return devices.iter().map(|device| format!("cuda:{}", device.ordinal)).collect();
    }
    vec![name.to_owned()]
}

/// The device that `options` choose.
pub(crate) fn of(options: &LoadOptions) -> Result<Arc<dyn Backend>, DeviceError> {
    match &options.own_device {
        Some(OwnDevice(backend)) => Ok(Arc::clone(backend)),
        None => Ok(open(options.device.as_deref(), options)?.into()),
    }
}

/// Opens the device of this name; the first available one if `name` is `None`.
pub(crate) fn open(name: Option<&str>, options: &LoadOptions) -> Result<Box<dyn Backend>, DeviceError> {
    match name {
        None | Some("auto") => {
            let mut last = unavailable("auto", "this build has no devices");
            for name in NAMES {
                match open(Some(name), options) {
                    Ok(backend) => return Ok(backend),
                    // A device that this process has lost is not silently replaced by a slower one.
                    Err(error @ DeviceError::Lost { .. }) => return Err(error),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
        #[cfg(feature = "cpu")]
        Some("cpu") => {
            let isa = options.isa.as_deref().map(Isa::named).transpose();
            let isa = isa.map_err(|error| unavailable("cpu", &error.to_string()))?;
            let options = CpuOptions {
                threads: options.threads,
                isa,
                deterministic: options.deterministic || options.precision == Precision::Reference,
                ..CpuOptions::default()
            };
            Ok(Box::new(CpuBackend::new(options)?))
        }
        #[cfg(feature = "cuda")]
        Some(name) if name == "cuda" || name.starts_with("cuda:") => {
            let number = name.strip_prefix("cuda:").unwrap_or("0");
            let ordinal = number.parse().map_err(|_| {
                unavailable(name, &format!("expected cuda:N, N the number of a GPU, found `{number}`"))
            })?;
            let deterministic = options.deterministic || options.precision == Precision::Reference;
            let memory_limit = options.gpu_memory;
            let options = CudaOptions { ordinal, deterministic, memory_limit, ..CudaOptions::default() };
            Ok(Box::new(CudaBackend::new(&options)?))
        }
        Some(other) => Err(unavailable(other, &format!("this build has {}", NAMES.join(", ")))),
    }
}

fn unavailable(device: &str, reason: &str) -> DeviceError {
    DeviceError::Unavailable { device: device.into(), reason: reason.into() }
}
