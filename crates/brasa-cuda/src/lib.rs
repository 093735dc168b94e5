//! The CUDA device: kernels for NVIDIA GPUs, embedded, needing only the driver.
//!
//! This crate knows operations and this machine's NVIDIA GPUs. It knows neither models nor files nor text. It links with
//! no NVIDIA library: [`Driver::load`] opens the driver when it is asked for, and says why where it cannot.
//!
//! ```
//! match brasa_cuda::Driver::load(None).and_then(|driver| driver.devices()) {
//!     Ok(devices) => devices.iter().for_each(|device| println!("cuda:{} is {}", device.ordinal, device.name)),
//!     Err(reason) => println!("no CUDA here: {reason}"),
//! }
//! ```

mod driver;

pub use driver::{Device, Driver, DriverError};
