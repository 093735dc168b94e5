//! `brasa bench`: prompt and generation speed, in llama-bench's table.

use std::time::Instant;

use brasa::Model;
use brasa::engine::{Outs, Part};
use serde_json::{Value, json};

use crate::args::{BenchArguments, TableFormat};
use crate::failure::Failure;
use crate::{interrupt, load, output};

/// One measured cell of the table.
struct Measurement {
    prompt: usize,
    generate: usize,
    depth: usize,
    /// Tokens per second of each repetition.
    samples: Vec<f64>,
}

impl Measurement {
    fn test(&self) -> String {
        let what =
            if self.prompt > 0 { format!("pp{}", self.prompt) } else { format!("tg{}", self.generate) };
        if self.depth > 0 { format!("{what} @ d{}", self.depth) } else { what }
    }

    fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / (self.samples.len() as f64 - 1.0).max(1.0)).sqrt()
    }
}

/// Measures and prints.
pub fn bench(arguments: &BenchArguments) -> Result<(), Failure> {
    let deepest = arguments.depth.iter().max().copied().unwrap_or(0);
    let longest = arguments.prompt.iter().chain(&arguments.n).max().copied().unwrap_or(0);
    let mut load = arguments.load.clone();
    load.context.get_or_insert((deepest + longest).max(1));
    let model = load::model(&load)?;
    let mut measurements = Vec::new();
    for &depth in &arguments.depth {
        let prompts = arguments.prompt.iter().map(|&prompt| (prompt, 0));
        let generations = arguments.n.iter().map(|&generate| (0, generate));
        for (prompt, generate) in
            prompts.chain(generations).filter(|&(prompt, generate)| prompt + generate > 0)
        {
            let mut measurement = Measurement { prompt, generate, depth, samples: Vec::new() };
            measure(&model, &mut measurement, arguments.repetitions)?;
            measurements.push(measurement);
        }
    }
    match arguments.output {
        TableFormat::Md => markdown(arguments, &model, &measurements)?,
        TableFormat::Json => {
            let rows: Vec<Value> = measurements.iter().map(|cell| row(arguments, &model, cell)).collect();
            output::line(
                &serde_json::to_string_pretty(&rows).map_err(|error| Failure::Failed(error.to_string()))?,
            )?;
        }
        TableFormat::Csv => csv(arguments, &model, &measurements)?,
    }
    if arguments.profile { profile(&model) } else { Ok(()) }
}

/// Runs one cell: a warm-up, then the repetitions, each on a text of its own.
fn measure(model: &Model, measurement: &mut Measurement, repetitions: usize) -> Result<(), Failure> {
    let vocab_size = model.vocab_size();
    let (prompt, generate, depth) = (measurement.prompt, measurement.generate, measurement.depth);
    for repetition in 0..=repetitions {
        interrupt::check()?;
        let seconds = model.engine().with(move |executor| {
            let token = |index: usize| ((index * 7919 + 13) % vocab_size) as u32;
            let mut text = executor.text();
            let result = (|| {
                let filler: Vec<u32> = (0..depth).map(token).collect();
                executor.prefill(&mut text, &filler)?;
                let started = Instant::now();
                if prompt > 0 {
                    let tokens: Vec<u32> = (0..prompt).map(token).collect();
                    executor.prefill(&mut text, &tokens)?;
                }
                for index in 0..generate {
                    executor.prefill(&mut text, &[token(index)])?;
                }
                Ok(started.elapsed().as_secs_f64())
            })();
            executor.release(text);
            result
        });
        let seconds = seconds
            .map_err(brasa::Error::from)?
            .map_err(|error: brasa::engine::EngineError| Failure::from(brasa::Error::from(error)))?;
        // The first run pays for page faults and cold caches.
        if repetition > 0 {
            measurement.samples.push((prompt + generate) as f64 / seconds);
        }
    }
    Ok(())
}

fn row(arguments: &BenchArguments, model: &Model, cell: &Measurement) -> Value {
    json!({
        "build": env!("CARGO_PKG_VERSION"),
        "model": arguments.load.name(),
        "model_type": description(model),
        "model_size": model.info().size_bytes,
        "model_n_params": model.info().parameters,
        "backend": model.device().name,
        "device": model.device().description,
        "n_threads": model.device().threads,
        "n_prompt": cell.prompt,
        "n_gen": cell.generate,
        "n_depth": cell.depth,
        "avg_ts": cell.mean(),
        "stddev_ts": cell.deviation(),
        "samples_ts": cell.samples,
    })
}

/// Architecture and main storage format, e.g. `qwen3 Q6_K`.
fn description(model: &Model) -> String {
    let main = model.info().formats.iter().max_by_key(|&(_, bytes)| bytes);
    format!("{} {}", model.info().architecture, main.map_or("", |(format, _)| format))
}

fn markdown(arguments: &BenchArguments, model: &Model, measurements: &[Measurement]) -> Result<(), Failure> {
    let info = model.info();
    let mut rows = vec![["model", "size", "params", "backend", "threads", "test", "t/s"].map(String::from)];
    for cell in measurements {
        rows.push([
            format!("{} ({})", description(model), arguments.load.name()),
            format!("{:.2} MiB", info.size_bytes as f64 / (1 << 20) as f64),
            format!("{:.2} M", info.parameters as f64 / 1e6),
            model.device().name.clone(),
            model.device().threads.to_string(),
            cell.test(),
            format!("{:.2} ± {:.2}", cell.mean(), cell.deviation()),
        ]);
    }
    let widths: Vec<usize> =
        (0..7).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(
                |(column, (cell, &width))| {
                    if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        output::line(&format!("| {} |", cells.join(" | ")))?;
        if index == 0 {
            let rules: Vec<String> = widths
                .iter()
                .enumerate()
                .map(
                    |(column, &width)| {
                        if column == 0 { "-".repeat(width) } else { format!("{}:", "-".repeat(width - 1)) }
                    },
                )
                .collect();
            output::line(&format!("| {} |", rules.join(" | ")))?;
        }
    }
    Ok(())
}

fn csv(arguments: &BenchArguments, model: &Model, measurements: &[Measurement]) -> Result<(), Failure> {
    for (index, cell) in measurements.iter().enumerate() {
        let Value::Object(mut row) = row(arguments, model, cell) else { continue };
        let samples: Vec<String> = cell.samples.iter().map(ToString::to_string).collect();
        row.insert("samples_ts".into(), samples.join(";").into());
        if index == 0 {
            output::line(&row.keys().cloned().collect::<Vec<_>>().join(","))?;
        }
        let quoted = |value: &Value| match value {
            Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            other => other.to_string(),
        };
        output::line(&row.values().map(quoted).collect::<Vec<_>>().join(","))?;
    }
    Ok(())
}

/// Time of each operation of one decode step, largest first.
fn profile(model: &Model) -> Result<(), Failure> {
    let mut times = model
        .engine()
        .with(|executor| {
            let mut text = executor.text();
            let result = executor.prefill(&mut text, &[0]).and_then(|()| {
                executor.profile(&mut [Part { text: &mut text, tokens: &[0], outs: Outs::Last }])
            });
            executor.release(text);
            result
        })
        .map_err(brasa::Error::from)?
        .map_err(brasa::Error::from)?;
    let total: f64 = times.iter().map(|time| time.time.as_secs_f64()).sum();
    times.sort_by_key(|time| std::cmp::Reverse(time.time));
    output::line("\ndecode step by operation:")?;
    for time in times {
        let seconds = time.time.as_secs_f64();
        output::line(&format!(
            "{:>9.1} µs {:>5.1} %  {:>7.2} GB/s  {}",
            seconds * 1e6,
            seconds / total * 100.0,
            time.bytes as f64 / seconds.max(1e-12) / 1e9,
            time.label
        ))?;
    }
    Ok(())
}
