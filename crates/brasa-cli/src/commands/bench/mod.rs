//! `brasa bench`: prompt and generation speed in llama-bench's table, with the machine's measured limits.

mod cell;
mod profile;
mod startup;
mod svg;
mod table;

use brasa::{Arithmetic, Ceilings, KvType, LoadOptions, Model, RunFacts};

use crate::args::{BenchArguments, CacheType};
use crate::failure::Failure;
use crate::{load, output};
use cell::{Cell, Measurement};
pub use table::aligned;

/// A model loaded with one set of options, and its measurements.
struct Run {
    model: RunFacts,
    isa: Option<&'static str>,
    ceilings: Option<Ceilings>,
    /// Seconds for all threads to wait for each other at a barrier.
    seconds_per_barrier: Option<f64>,
    measurements: Vec<Measurement>,
}

/// Measures and prints the results.
pub fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    if arguments.startup {
        return startup::startup(arguments);
    }
    let force = output::Force { given: arguments.force, how: "--force" };
    if let Some(chart) = &arguments.svg {
        output::refuse_existing(chart, force)?;
    }
    let cells = Cell::all(arguments);
    let mut load = arguments.load.clone();
    load.setup.context.get_or_insert(cells.iter().map(Cell::positions).max().unwrap_or(1));
    let mut runs = Vec::new();
    let mut charts = Vec::new();
    for isa in choices(&arguments.isa) {
        for kv_type in choices(&kv_types(arguments)?) {
            let options = LoadOptions {
                isa: isa.clone(),
                kv_type: kv_type.map(KvType::from),
                max_sequences: Some(arguments.parallel.iter().copied().max().unwrap_or(1).max(1)),
                ..load::options_without_kv_type(&load.setup)?
            };
            let model = load::model_with(&load, &options)?;
            let mut run = Run::new(arguments, &model, &options)?;
            for cell in &cells {
                run.measurements.push(cell::measure(&model, *cell, arguments.repetitions, &run)?);
            }
            if arguments.profile || arguments.svg.is_some() {
                charts.extend(profile::profile(&model, arguments, &run)?);
            }
            runs.push(run);
        }
    }
    table::print(arguments.output, &runs)?;
    let chart = arguments.svg.as_deref().map(|path| (path, force));
    profile::print(&charts, arguments.output, chart, &runs)
}

/// The named choices; only the default (`None`) if none is named.
fn choices<T: Clone>(named: &[T]) -> Vec<Option<T>> {
    if named.is_empty() { vec![None] } else { named.iter().cloned().map(Some).collect() }
}

fn kv_types(arguments: &BenchArguments) -> Result<Vec<CacheType>, Failure> {
    let load = &arguments.load;
    if load.setup.cache_type_k != load.setup.cache_type_v {
        return Err(Failure::Usage("-ctk and -ctv must name the same types".into()));
    }
    Ok(load.setup.cache_type_k.clone())
}

impl Run {
    fn new(arguments: &BenchArguments, model: &Model, options: &LoadOptions) -> Result<Self, Failure> {
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
    fn read_ceiling(&self) -> Option<f64> {
        self.probes().map(|probe| probe.read_bytes_per_second).max_by(f64::total_cmp)
    }

    /// The highest rate of all probes of `arithmetic` in this run, in operations a second.
    fn matrix_ceiling(&self, arithmetic: Arithmetic) -> Option<f64> {
        let alike = self.probes().filter(|probe| probe.arithmetic == arithmetic);
        alike.filter_map(|probe| probe.operations_per_second).max_by(f64::total_cmp)
    }

    fn probes(&self) -> impl Iterator<Item = &cell::Probe> {
        self.measurements.iter().flat_map(|measurement| &measurement.probes)
    }
}
