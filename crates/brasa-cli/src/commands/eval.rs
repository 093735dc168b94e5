//! `brasa eval`: speed, reuse of keys and values, files of state, probes and sameness of answers, in a minute.

use std::ops::ControlFlow;
use std::time::Duration;

use brasa::ProbeKind;
use brasa::eval::{FastEvalConfig, FastEvalReport, ModelRunner, run_fast_eval};
use brasa::statistics::{median, spread};

use super::bench::aligned;
use crate::args::EvalArguments;
use crate::failure::Failure;
use crate::output::plural;
use crate::{input, interrupt, load, output};

/// Evaluates and prints the report. After the report, the command fails if a check has failed.
pub fn eval(arguments: &EvalArguments) -> Result<(), Failure> {
    let defaults = FastEvalConfig::default();
    let prompt = match (&arguments.prompt, &arguments.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => input::text(path)?,
        (None, None) => defaults.prompt,
    };
    let config = FastEvalConfig {
        prompt,
        max_tokens: arguments.n,
        runs: arguments.runs,
        cache_prompts: arguments.cache_prompt.clone(),
        ..defaults
    };
    let model = load::model(&arguments.load)?;
    let facts = load::facts(&arguments.load.source, &model);
    let mut runner = ModelRunner::new(&model, facts, || interrupt::check().is_ok());
    let bar = load::count_bar("");
    let report = run_fast_eval(&mut runner, &config, &mut |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.section);
        if interrupt::check().is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    bar.finish_and_clear();
    interrupt::check()?;
    let report = report?;
    if arguments.json { output::line(&report.to_json().to_string()) } else { table(&report) }?;
    let failed = report.quality.checks.iter().filter(|check| check.required && check.difference.is_some());
    let failed: Vec<&str> = failed.map(|check| check.name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("answers that must be equal differ: {}", failed.join("; "))))
}

/// Prints the report as tables.
fn table(report: &FastEvalReport) -> Result<(), Failure> {
    let facts = &report.facts;
    output::line(&format!("{}, {} keys and values\n", facts.heading(), facts.kv_name()))?;
    let mut rows = vec![["measured", "median", "spread", ""].map(String::from)];
    let generation = &report.generation;
    let tokens = report.config.max_tokens;
    let prompt = plural(generation.prompt_tokens, "token");
    rows.push(speed(&format!("prompt of {prompt}"), &generation.prefill, String::new()));
    rows.push(speed(&format!("answer of {tokens} tokens"), &generation.decode, String::new()));
    rows.push(time("first token", &generation.first_token, String::new()));
    let cache = &report.prompt_cache;
    if cache.attempted {
        let rate = format!("{:.1} % of prompts cached", cache.hit_rate() * 100.0);
        rows.push(time("first token, prompt cached", &cache.warm_first_token, rate));
    }
    let restore = &report.kv_restore;
    if restore.attempted {
        let size = format!("{} of {}", bytes(restore.bytes), plural(restore.tokens, "token"));
        rows.push(time("keys and values restored", &restore.samples, size));
    }
    let bundle = &report.state_bundle;
    if bundle.attempted {
        rows.push(time("bundle saved and loaded", &bundle.round_trips(), bytes(bundle.bytes)));
    }
    let probes = &report.probes;
    if probes.attempted {
        let events: usize = probes.events.values().sum();
        let cost = format!("{events} events, {:+.1} % time", probes.overhead() * 100.0);
        rows.push(speed("answer with probes", &probes.probed, cost));
    }
    output::write(&aligned(&rows))?;
    let [peak, active] = [generation.peak_memory_bytes, generation.active_memory_bytes]
        .map(|size| size.map_or_else(|| "unknown".into(), bytes));
    output::line(&format!(
        "\nmemory: {peak} of the process at most, {active} of keys, values and temporaries on the device"
    ))?;
    let kinds: Vec<&str> = probes.events.keys().copied().map(ProbeKind::name).collect();
    if !kinds.is_empty() {
        output::line(&format!("probes: {}", kinds.join(", ")))?;
    }
    output::line("")?;
    for check in &report.quality.checks {
        let verdict = match (&check.difference, check.required) {
            (None, _) => "same".into(),
            (Some(difference), true) => format!("DIFFERS: {difference}"),
            (Some(difference), false) => {
                format!("differs: {difference} (--deterministic forbids that)")
            }
        };
        output::line(&format!("{:<26}{verdict}", check.name))?;
    }
    Ok(())
}

fn speed(what: &str, samples: &[f64], note: String) -> [String; 4] {
    [what.into(), format!("{:.2} tok/s", median(samples)), percent(spread(samples)), note]
}

fn time(what: &str, samples: &[Duration], note: String) -> [String; 4] {
    let samples: Vec<f64> = samples.iter().map(|sample| sample.as_secs_f64() * 1e3).collect();
    [what.into(), format!("{:.2} ms", median(&samples)), percent(spread(&samples)), note]
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn bytes(count: u64) -> String {
    indicatif::HumanBytes(count).to_string()
}
