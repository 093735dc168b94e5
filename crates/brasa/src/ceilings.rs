//! What this machine can do at most, as measured figures to judge speeds by.

use brasa_cpu::probe::{MatrixProbe, ReadProbe};
use brasa_cpu::{Isa, Team};
use brasa_graph::device::DeviceError;

pub use brasa_cpu::probe::Arithmetic;

use crate::{Error, LoadOptions};

/// The CPU's ceilings for the threads and the instruction set of some [`LoadOptions`].
///
/// Each figure is measured anew when it is asked for, in some hundredths of a second, so that it can be taken between two
/// samples of what it is the ceiling of.
#[derive(Debug)]
pub struct Ceilings {
    isa: Isa,
    read: ReadProbe,
    matrix: MatrixProbe,
}

impl Ceilings {
    /// Starts threads of its own and fills `buffer_bytes` of memory, which should be 1 GiB or more: a smaller buffer
    /// measures caches.
    ///
    /// # Errors
    ///
    /// [`Error::Device`]: no such instruction set, no memory, no threads.
    pub fn new(options: &LoadOptions, buffer_bytes: usize) -> Result<Self, Error> {
        let isa = match &options.isa {
            Some(name) => Isa::named(name),
            None => Isa::detect(),
        };
        let isa = isa.map_err(|error| unavailable(&error))?;
        let threads = options.threads.unwrap_or_else(Team::default_threads);
        let read = ReadProbe::new(isa, threads, buffer_bytes).map_err(|error| unavailable(&error))?;
        let matrix = MatrixProbe::new(isa, threads).map_err(|error| unavailable(&error))?;
        Ok(Self { isa, read, matrix })
    }

    /// Name of the instruction set.
    pub fn isa(&self) -> &'static str {
        self.isa.name()
    }

    /// Bytes of the buffer that is read.
    pub fn buffer_bytes(&self) -> usize {
        self.read.len_bytes()
    }

    /// Bytes a second that all threads together read from memory, in the best of several patterns.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where a thread failed.
    pub fn read_bytes_per_second(&self) -> Result<f64, Error> {
        self.read.bytes_per_second().map_err(|error| unavailable(&error))
    }

    /// Multiplications and additions a second of all threads together, on operands that stay in registers; `None` where the
    /// instruction set has tiles or products of bf16, which no probe measures yet.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where a thread failed.
    pub fn operations_per_second(&self, arithmetic: Arithmetic) -> Result<Option<f64>, Error> {
        self.matrix.operations_per_second(arithmetic).map_err(|error| unavailable(&error))
    }
}

fn unavailable(error: &brasa_cpu::Error) -> Error {
    DeviceError::Unavailable { device: "cpu".into(), reason: error.to_string() }.into()
}
