//! The CUDA device: kernels for NVIDIA GPUs, embedded, needing only the driver.
//!
//! [`CudaBackend`] implements the device contract of `brasa-graph`. A graph is compiled once into a table of operations over
//! one arena of device memory; a step copies its numbers to the device and queues the table's kernels, one or a few for each
//! operation. Weights keep their stored numbers, nearly all in the order in which tensor cores read them, and are decoded where they are
//! multiplied; sums are f32, in an order that depends on the shapes of a row alone. On a Hopper GPU many decoders run steps of one row
//! in one launch of a persistent interpreter, unless [`CudaOptions::deterministic`] forbids it.
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

mod backend;
mod compile;
mod draw;
mod driver;
mod embedded;
mod gpu;
mod interpreter;
mod kv;
mod ops;
mod params;
mod program;
mod run;
mod step_state;
mod weights;

pub use backend::{CudaBackend, CudaOptions};
pub use driver::{Device, Driver, DriverError};
pub use kv::CudaKvPool;
