//! The devices that this build can use.

#[cfg(feature = "cpu")]
use brasa_cpu::{CpuBackend, CpuOptions, Isa};
use brasa_graph::device::{Backend, DeviceError, DeviceInfo};

use crate::{LoadOptions, Precision};

/// Every device of this build, best first: its description, or why it is unavailable.
pub fn devices() -> Vec<Result<DeviceInfo, DeviceError>> {
    let options = LoadOptions::default();
    NAMES.iter().map(|name| open(Some(name), &options).map(|backend| backend.info())).collect()
}

const NAMES: &[&str] = &[
    #[cfg(feature = "cpu")]
    "cpu",
];

/// Opens a device by name, or the first that is available.
pub(crate) fn open(name: Option<&str>, options: &LoadOptions) -> Result<Box<dyn Backend>, DeviceError> {
    match name {
        None | Some("auto") => {
            let mut last = unavailable("auto", "this build has no devices");
            for name in NAMES {
                match open(Some(name), options) {
                    Ok(backend) => return Ok(backend),
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
        Some(other) => Err(unavailable(other, &format!("this build has {}", NAMES.join(", ")))),
    }
}

fn unavailable(device: &str, reason: &str) -> DeviceError {
    DeviceError::Unavailable { device: device.into(), reason: reason.into() }
}
