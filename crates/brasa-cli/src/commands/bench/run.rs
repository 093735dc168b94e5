//! A model loaded with one set of options, and what was measured of it.

use brasa::{Arithmetic, Ceilings, LoadOptions, Model, RunFacts};

use super::cell::{Measurement, Probe};
use crate::args::BenchArguments;
use crate::failure::Failure;
use crate::load;

/// A model loaded with one set of options, and its measurements.
pub struct Run {
    pub model: RunFacts,
    pub isa: Option<&'static str>,
    pub ceilings: Option<Ceilings>,
    /// Seconds for all threads to wait for each other at a barrier.
    pub seconds_per_barrier: Option<f64>,
    pub measurements: Vec<Measurement>,
}

impl Run {
    /// A run of `model`, which was loaded with these options, without measurements.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if the probes of the machine cannot be prepared.
    pub fn new(arguments: &BenchArguments, model: &Model, options: &LoadOptions) -> Result<Self, Failure> {
        let buffer_bytes = arguments.probe_mib << 20;
        // The probes are of the processor: they say nothing of another device.
        let probed = buffer_bytes > 0 && model.device().name == "cpu";
        let ceilings = probed.then(|| Ceilings::new(options, buffer_bytes)).transpose()?;
        Ok(Self {
            model: load::facts(&arguments.load.source, model),
            isa: ceilings.as_ref().map(Ceilings::isa),
            seconds_per_barrier: ceilings.as_ref().map(Ceilings::seconds_per_barrier).transpose()?,
            ceilings,
            measurements: Vec::new(),
        })
    }

    /// The highest rate of all read probes of this run, in bytes a second.
    pub fn read_ceiling(&self) -> Option<f64> {
        self.probes().map(|probe| probe.read_bytes_per_second).max_by(f64::total_cmp)
    }

    /// The highest rate of all probes of `arithmetic` in this run, in operations a second.
    pub fn matrix_ceiling(&self, arithmetic: Arithmetic) -> Option<f64> {
        let alike = self.probes().filter(|probe| probe.arithmetic == arithmetic);
        alike.filter_map(|probe| probe.operations_per_second).max_by(f64::total_cmp)
    }

    /// The probes of all measurements.
    pub fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.measurements.iter().flat_map(|measurement| &measurement.probes)
    }
}
