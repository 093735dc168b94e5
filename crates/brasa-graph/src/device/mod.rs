//! The contract that devices implement: weights, KV pages, programs.
//!
//! Errors are values, never panics; a device that is not there is *unavailable with a reason*.

mod backend;
mod capabilities;
mod error;
mod pool;
mod program;
mod weights;

pub use backend::{Backend, DeviceInfo, Measure, MemoryUse, Precision};
pub use capabilities::Capabilities;
pub use error::{DeviceError, LostPart};
pub use pool::{KvPool, KvPoolSpec, KvType};
pub use program::{DrawInputs, Drawn, FillMask, OpTime, Program, ProgramLimits, ProgramSpec};
pub use weights::{UploadProgress, WeightSet};
