//! `brasa bench`: prompt and generation speed in llama-bench's table, with the machine's measured limits.

mod cell;
mod cost;
mod profile;
mod run;
mod startup;
mod svg;
mod table;

use brasa::{KvType, LoadOptions};

use crate::args::{BenchArguments, CacheType};
use crate::failure::Failure;
use crate::{load, output};
use cell::Cell;
use run::Run;
pub use table::aligned;

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
                run.measurements.push(cell::measure(
                    &model,
                    *cell,
                    arguments.repetitions,
                    run.ceilings.as_ref(),
                )?);
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
