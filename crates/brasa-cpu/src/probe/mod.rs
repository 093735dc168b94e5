//! The ceilings of this machine, measured, to compare kernels with.
//!
//! A decode step cannot be faster than its weights can be read, a prefill not faster than the processor multiplies.
//! Both limits change with the clock, the neighbours and the day, so a figure of last week, or of a data sheet, is no
//! ceiling: probes are short enough to run between two samples of what they judge.

mod barrier;
mod matrix;
mod read;

pub use crate::linear::{Arithmetic, WeightClass};
pub use barrier::BarrierProbe;
pub use matrix::MatrixProbe;
pub use read::ReadProbe;
