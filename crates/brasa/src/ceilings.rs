//! The machine's measured limits, to judge speeds by.

use brasa_cpu::probe::{BarrierProbe, MatrixProbe, ReadProbe};
use brasa_cpu::{Isa, Team};
use brasa_graph::device::DeviceError;

pub use brasa_cpu::probe::Arithmetic;

use brasa_cpu::probe::WeightClass;
use brasa_models::ModelInfo;

use crate::{Error, LoadOptions, Precision};

/// The CPU's ceilings for the threads and the instruction set of some [`LoadOptions`].
///
/// Each call measures anew, in some hundredths of a second, so a limit can be measured between two samples of a speed.
#[derive(Debug)]
pub struct Ceilings {
    isa: Isa,
    precision: Precision,
    read: ReadProbe,
    matrix: MatrixProbe,
    barrier: BarrierProbe,
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
        let isa = if options.deterministic { isa.without_bf16() } else { isa };
        let threads = options.threads.unwrap_or_else(Team::default_threads);
        let read = ReadProbe::new(isa, threads, buffer_bytes).map_err(|error| unavailable(&error))?;
        let matrix = MatrixProbe::new(isa, threads).map_err(|error| unavailable(&error))?;
        let barrier = BarrierProbe::new(threads).map_err(|error| unavailable(&error))?;
        Ok(Self { isa, precision: options.precision, read, matrix, barrier })
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
    /// [`Error::Device`] if a thread failed.
    pub fn read_bytes_per_second(&self) -> Result<f64, Error> {
        self.read.bytes_per_second().map_err(|error| unavailable(&error))
    }

    /// Seconds that all threads take to wait for each other once. Every operation of a model costs one such wait.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if a thread failed.
    pub fn seconds_per_barrier(&self) -> Result<f64, Error> {
        self.barrier.seconds_per_barrier().map_err(|error| unavailable(&error))
    }

    /// The arithmetic that multiplies `rows` rows with most of a model's weights.
    pub fn arithmetic(&self, info: &ModelInfo, rows: usize) -> Arithmetic {
        let class = match (self.precision, info.main_format()) {
            (Precision::Reference, _) | (_, Some("F32")) => WeightClass::Full,
            (_, Some("F16" | "BF16")) => WeightClass::Float16,
            _ => WeightClass::Quantised,
        };
        Arithmetic::of(self.isa, class, rows)
    }

    /// Multiplications and additions a second of all threads together, on operands that stay in registers; `None` if
    /// the instruction set has no such unit, or an emulated one.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if a thread failed.
    pub fn operations_per_second(&self, arithmetic: Arithmetic) -> Result<Option<f64>, Error> {
        self.matrix.operations_per_second(arithmetic).map_err(|error| unavailable(&error))
    }
}

fn unavailable(error: &brasa_cpu::Error) -> Error {
    DeviceError::Unavailable { device: "cpu".into(), reason: error.to_string() }.into()
}
