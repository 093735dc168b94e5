//! The time of a step, by kind of operation and by operation.

use std::path::Path;
use std::time::Duration;

use brasa::engine::{EngineError, Executor, Outs, SequenceRows};
use brasa::statistics::median;
use brasa::{Model, OpTime};

use super::cell::{token, with};
use super::cost::{Cost, Profile};
use super::run::Run;
use super::svg;
use super::table::aligned;
use crate::args::{BenchArguments, TableFormat};
use crate::failure::Failure;
use crate::output;

/// Prompt length if none is named. A step of this many rows runs near the machine's full speed.
const PROMPT: usize = 512;
/// Number of repetitions of a step; the median time of every operation is used. The minimum would be wrong: if a thread is
/// delayed, one operation's time is attributed to its neighbour.
const REPEATS: usize = 5;

/// Profiles a prompt and a decode step at the first requested depth.
pub fn profile(model: &Model, arguments: &BenchArguments, run: &Run) -> Result<Vec<Profile>, Failure> {
    let depth = arguments.depth.first().copied().unwrap_or(0);
    let prompt = arguments.prompt.iter().copied().find(|&prompt| prompt > 0).unwrap_or(PROMPT);
    let about = format!("{}, {}", run.model.description, run.model.device);
    with(model, move |executor| {
        let rows = prompt.min(executor.max_rows()).min(executor.context().saturating_sub(depth)).max(1);
        // A decode step is short: more repeats cost little.
        [(rows, REPEATS), (1, 4 * REPEATS)]
            .into_iter()
            .map(|(rows, repeats)| {
                let what = if rows > 1 { format!("prefill of {rows} tokens") } else { "decode".into() };
                let title = format!("{what} at depth {depth}, {about}");
                Ok(Profile { title, operations: medians(executor, rows, depth, repeats)? })
            })
            .collect()
    })
}

fn medians(
    executor: &mut Executor,
    rows: usize,
    depth: usize,
    repeats: usize,
) -> Result<Vec<Cost>, EngineError> {
    let tokens: Vec<u32> = (0..depth + rows).map(|index| token(executor, 0, index)).collect();
    let mut sequence = executor.sequence();
    let mut times: Vec<Vec<OpTime>> = Vec::new();
    let mut repeat = || -> Result<(), EngineError> {
        let kept = executor.truncate(&mut sequence, depth);
        executor.prefill(&mut sequence, &tokens[kept..depth])?;
        let rows = SequenceRows { sequence: &mut sequence, tokens: &tokens[depth..], outs: Outs::Last };
        times.push(executor.profile(&mut [rows])?);
        Ok(())
    };
    let result = (0..=repeats).try_for_each(|_| repeat());
    executor.release(sequence);
    result?;
    // The first run pays for cold caches.
    let warm = &times[1..];
    let cost = |(place, time): (usize, &OpTime)| {
        let samples: Vec<f64> = warm.iter().map(|times| times[place].time.as_secs_f64()).collect();
        Cost {
            label: time.label.clone(),
            count: 1,
            time: Duration::from_secs_f64(median(&samples)),
            bytes: time.bytes,
            operations: time.flops,
        }
    };
    Ok(warm[0].iter().enumerate().map(cost).collect())
}

/// Prints the profiles as tables, to standard error if standard output is machine-readable, and as a chart to the file `chart`.
pub fn print(
    profiles: &[Profile],
    format: TableFormat,
    chart: Option<(&Path, output::Force)>,
    runs: &[Run],
) -> Result<(), Failure> {
    for profile in profiles {
        let total = profile.total();
        let kinds = table("kind of operation", &profile.kinds(), total);
        let operations = table("operation", &profile.operations, total);
        let text =
            format!("\n{}: {:.3} ms\n\n{kinds}\n{operations}", profile.title, total.as_secs_f64() * 1e3);
        match format {
            TableFormat::Md => output::write(&text)?,
            TableFormat::Json | TableFormat::Csv => output::note(text.trim_end_matches('\n')),
        }
    }
    let Some((chart, force)) = chart else { return Ok(()) };
    let read_ceiling = runs.iter().filter_map(Run::read_ceiling).max_by(f64::total_cmp);
    let text = svg::chart(profiles, read_ceiling);
    output::file(chart, force, |out| out.write_all(text.as_bytes()))
}

fn table(head: &str, costs: &[Cost], total: Duration) -> String {
    let mut rows = vec![[head, "count", "time µs", "share", "GB/s", "GFLOP/s"].map(String::from)];
    for cost in costs {
        let seconds = cost.time.as_secs_f64();
        let rate = |amount: u64| match amount {
            0 => "–".into(),
            amount => format!("{:.1}", amount as f64 / seconds.max(1e-9) / 1e9),
        };
        rows.push([
            cost.label.clone(),
            cost.count.to_string(),
            format!("{:.1}", seconds * 1e6),
            format!("{:.1} %", seconds / total.as_secs_f64().max(1e-12) * 100.0),
            rate(cost.bytes),
            rate(cost.operations),
        ]);
    }
    aligned(&rows)
}
