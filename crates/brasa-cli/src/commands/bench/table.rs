//! Prints measurements as a table, as JSON with every sample, or as CSV.

use brasa::Arithmetic;
use brasa::statistics::{self, deviation, mean, median, spread};
use serde_json::{Value, json};

use super::cell::{Measurement, Probe};
use super::run::Run;
use crate::args::TableFormat;
use crate::failure::Failure;
use crate::output::{self, plural};

/// Prints the measurements of all runs.
pub fn print(format: TableFormat, runs: &[Run]) -> Result<(), Failure> {
    if runs.iter().all(|run| run.measurements.is_empty()) {
        return Ok(());
    }
    match format {
        TableFormat::Md => markdown(runs),
        TableFormat::Json => {
            let rows: Vec<Value> = rows(runs).map(|(run, cell)| row(run, cell)).collect();
            output::line(
                &serde_json::to_string_pretty(&rows).map_err(|error| Failure::Failed(error.to_string()))?,
            )
        }
        TableFormat::Csv => csv(runs),
    }
}

fn rows(runs: &[Run]) -> impl Iterator<Item = (&Run, &Measurement)> {
    runs.iter().flat_map(|run| run.measurements.iter().map(move |measurement| (run, measurement)))
}

/// Rates of a cell at its median time, and their shares of the run's ceilings.
struct Rates {
    median: f64,
    bytes_per_second: f64,
    operations_per_second: f64,
    read_share: Option<f64>,
    matrix_ceiling: Option<f64>,
    matrix_share: Option<f64>,
}

impl Rates {
    fn of(run: &Run, cell: &Measurement) -> Self {
        let median = median(&cell.tokens_per_second());
        let repetitions_per_second = median / cell.cell.tokens() as f64;
        let bytes_per_second = cell.read_bytes as f64 * repetitions_per_second;
        let operations_per_second = cell.operations as f64 * repetitions_per_second;
        let matrix_ceiling = cell.arithmetic().and_then(|arithmetic| run.matrix_ceiling(arithmetic));
        Self {
            median,
            bytes_per_second,
            operations_per_second,
            read_share: run.read_ceiling().map(|ceiling| bytes_per_second / ceiling),
            matrix_ceiling,
            matrix_share: matrix_ceiling.map(|ceiling| operations_per_second / ceiling),
        }
    }
}

/// The JSON object of a cell, with llama-bench's fields first.
fn row(run: &Run, cell: &Measurement) -> Value {
    let rates = Rates::of(run, cell);
    let samples = cell.tokens_per_second();
    let times: Vec<u64> = cell.samples.iter().map(|sample| sample.as_nanos() as u64).collect();
    let probes =
        |of: &dyn Fn(&Probe) -> Option<f64>| -> Vec<_> { cell.probes.iter().filter_map(of).collect() };
    let mut row = run.model.to_json();
    let work = json!({
        "n_prompt": cell.cell.prompt,
        "n_gen": cell.cell.generate,
        "n_depth": cell.cell.depth,
        "n_pl": cell.cell.parallel,
    });
    let shares = json!({
        "isa": run.isa,
        "arithmetic": cell.arithmetic().map(Arithmetic::name),
        "read_bytes": cell.read_bytes,
        "operations": cell.operations,
        "bytes_per_second": rates.bytes_per_second,
        "read_share": rates.read_share,
        "operations_per_second": rates.operations_per_second,
        "matrix_share": rates.matrix_share,
        "read_ceiling": run.read_ceiling(),
        "matrix_ceiling": rates.matrix_ceiling,
        "barrier_ns": run.seconds_per_barrier.map(|seconds| seconds * 1e9),
        "probe_buffer_bytes": run.ceilings.as_ref().map(brasa::Ceilings::buffer_bytes),
        "samples_ts": samples,
        "samples_ns": times,
        "probes_read": probes(&|probe| Some(probe.read_bytes_per_second)),
        "probes_matrix": probes(&|probe| probe.operations_per_second),
    });
    for part in [work, statistics::rates(&samples).into(), shares] {
        let Value::Object(part) = part else { unreachable!("an object") };
        row.extend(part);
    }
    row.into()
}

fn markdown(runs: &[Run]) -> Result<(), Failure> {
    let [first, others @ ..] = runs else { return Ok(()) };
    // The same in all rows, these would take half the width of a terminal.
    let isa = others.iter().any(|run| run.isa != first.isa);
    let kv = others.iter().any(|run| run.model.kv_type != first.model.kv_type);
    let mut heading = first.model.heading();
    if let (false, Some(isa)) = (isa, first.isa) {
        heading.extend([", ", isa]);
    }
    if !kv {
        heading.extend([", ", first.model.kv_name(), " keys and values"]);
    }
    output::line(&format!("{heading}\n"))?;
    let mut names = vec!["test", "t/s", "median", "spread"];
    names.extend(isa.then_some("isa"));
    names.extend(kv.then_some("kv"));
    names.extend(["GB/s", "of read", "GFLOP/s", "of peak"]);
    let mut table = vec![names.into_iter().map(String::from).collect::<Vec<_>>()];
    let percent = |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.1} %", share * 100.0));
    for (run, cell) in rows(runs) {
        let rates = Rates::of(run, cell);
        let samples = cell.tokens_per_second();
        // Faster than memory: a part of the weights stays in the caches.
        let is_cached = rates.read_share.is_some_and(|share| share > 1.0);
        let mut row = vec![
            cell.cell.test(),
            format!("{:.2} ± {:.2}", mean(&samples), deviation(&samples)),
            format!("{:.2}", rates.median),
            percent(Some(spread(&samples))),
        ];
        row.extend(isa.then(|| run.isa.unwrap_or("–").to_owned()));
        row.extend(kv.then(|| run.model.kv_name().to_owned()));
        row.extend([
            format!("{:.2}", rates.bytes_per_second / 1e9),
            if is_cached { "cached".into() } else { percent(rates.read_share) },
            format!("{:.1}", rates.operations_per_second / 1e9),
            percent(rates.matrix_share),
        ]);
        table.push(row);
    }
    output::write(&aligned(&table))?;
    for run in runs {
        ceilings(run)?;
    }
    Ok(())
}

/// Prints the line under the table: the limits to which the shares are relative.
fn ceilings(run: &Run) -> Result<(), Failure> {
    let (Some(read), Some(ceilings)) = (run.read_ceiling(), &run.ceilings) else { return Ok(()) };
    let multiplies: String = Arithmetic::ALL
        .into_iter()
        .filter(|&arithmetic| run.probes().any(|probe| probe.arithmetic == arithmetic))
        .map(|arithmetic| match run.matrix_ceiling(arithmetic) {
            Some(ceiling) => format!(", multiplies {} at {:.0} GFLOP/s", arithmetic.name(), ceiling / 1e9),
            None => format!(", no probe of its {} products", arithmetic.name()),
        })
        .collect();
    let meets = run.seconds_per_barrier.map_or_else(String::new, |seconds| {
        format!(", waits {:.2} µs for all threads after each operation", seconds * 1e6)
    });
    let reads: Vec<f64> = run.probes().map(|probe| probe.read_bytes_per_second).collect();
    output::line(&format!(
        "\n{} with {}: reads {:.2} GB/s (best of {} probes of {} MiB, spread {:.1} %){multiplies}{meets}",
        ceilings.isa(),
        plural(run.model.threads, "thread"),
        read / 1e9,
        reads.len(),
        ceilings.buffer_bytes() >> 20,
        spread(&reads) * 100.0,
    ))
}

/// Formats rows of equally many cells as a markdown table. The first column is aligned left, the others right.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width =
        |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = (0..columns).map(cell).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        text += &line(&|column| match (column, widths[column]) {
            (0, width) => format!("{:<width$}", row.as_ref()[0]),
            (_, width) => format!("{:>width$}", row.as_ref()[column]),
        });
        if index == 0 {
            text += &line(&|column| match (column, widths[column]) {
                (0, width) => "-".repeat(width),
                (_, width) => format!("{}:", "-".repeat(width - 1)),
            });
        }
    }
    text
}

fn csv(runs: &[Run]) -> Result<(), Failure> {
    for (index, (run, cell)) in rows(runs).enumerate() {
        let Value::Object(row) = row(run, cell) else { continue };
        if index == 0 {
            output::line(&row.keys().cloned().collect::<Vec<_>>().join(","))?;
        }
        let field = |value: &Value| match value {
            Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::Array(samples) => samples.iter().map(ToString::to_string).collect::<Vec<_>>().join(";"),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        output::line(&row.values().map(field).collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}
