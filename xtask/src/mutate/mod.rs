//! `cargo xtask mutate`: breaks small models in thousands of ways and gives them to every command of `brasa`.
//!
//! Each run takes a seed model, changes one of its files (or two) in places that mean something, and starts one command on it
//! as a process of its own, with at most 2 GiB of address space, 32 MiB a file and 10 seconds. A command may succeed or refuse,
//! with words; it must not panic, die of a signal, hang, or write anywhere but to the output that it was given. Before anything
//! is changed, every command has to succeed on every seed, so that refusals mean something.
//!
//! A run depends on the seed and its own number alone: `--seed N --only RUN` repeats one, and what failed is kept in
//! `target/mutate`.

mod child;
mod gguf;
mod json;
mod models;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use brasa_fuzz::Rng;
use indicatif::{ProgressBar, ProgressStyle};

use child::{COMMANDS, Limits, Verdict};
use models::Model;

/// Usage of the task.
pub const USAGE: &str =
    "cargo xtask mutate [--runs N] [--seed N] [--only RUN] [--jobs N] [--binary PATH] [--release]";

/// Failures after which the rest is not worth waiting for.
const MOST_FAILURES: usize = 100;

/// Options of the task.
pub struct Options {
    runs: u64,
    seed: u64,
    only: Option<u64>,
    jobs: usize,
    binary: Option<PathBuf>,
    release: bool,
}

impl Options {
    /// A number of runs with mutations chosen by `seed`.
    pub fn new(runs: u64, seed: u64) -> Self {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        Self { runs, seed, only: None, jobs, binary: None, release: false }
    }

    /// Reads the arguments behind the task's name.
    ///
    /// # Errors
    ///
    /// The usage, if an argument is unknown.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut options = Self::new(10_000, now.as_secs());
        let mut arguments = arguments.iter();
        while let Some(flag) = arguments.next() {
            if flag == "--release" {
                options.release = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("usage: {USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}"));
            match flag.as_str() {
                "--runs" => options.runs = number()?,
                "--seed" => options.seed = number()?,
                "--only" => options.only = Some(number()?),
                "--jobs" => options.jobs = number()?.max(1) as usize,
                "--binary" => options.binary = Some(value.into()),
                _ => return Err(format!("unknown flag {flag}\nusage: {USAGE}")),
            }
        }
        Ok(options)
    }
}

/// Counts of what happened.
#[derive(Default)]
struct Tally {
    /// By command: runs that succeeded, and runs that were refused.
    commands: BTreeMap<&'static str, [u64; 2]>,
    failures: Vec<String>,
    slowest: (f64, u64),
}

/// Runs the driver.
///
/// # Errors
///
/// What failed, with the command that repeats it.
pub fn run(options: &Options) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let binary = match &options.binary {
        Some(path) => std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => build(&root, options.release)?,
    };
    let models = models::all(&root.join("models"))?;
    let scratch = Scratch::new()?;
    let kept = root.join("target/mutate");
    eprintln!(
        "== {} runs over {} models and {} commands, seed {}",
        options.only.map_or(options.runs, |_| 1),
        models.len(),
        COMMANDS.len(),
        options.seed
    );
    check_seeds(&binary, &models, &scratch)?;

    let tally = Mutex::new(Tally::default());
    let next = AtomicU64::new(options.only.unwrap_or(0));
    let end = options.only.map_or(options.runs, |run| run + 1);
    let bar = ProgressBar::new(end - next.load(Ordering::Relaxed));
    if let Ok(style) = ProgressStyle::with_template("mutating {bar:40} {pos}/{len} {eta} left {msg}") {
        bar.set_style(style);
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        for worker in 0..options.jobs {
            let (tally, next, bar, models, binary) = (&tally, &next, &bar, &models, &binary);
            let (folder, kept) = (scratch.0.join(format!("worker-{worker}")), &kept);
            scope.spawn(move || {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= end || lock(tally).failures.len() >= MOST_FAILURES {
                        break;
                    }
                    let outcome = one(binary, models, &folder, options.seed, run);
                    let mut tally = lock(tally);
                    record(
                        &mut tally,
                        run,
                        outcome,
                        &folder,
                        &kept.join(format!("{}-{run}", options.seed)),
                        options,
                    );
                    bar.set_message(format!("{} failed", tally.failures.len()));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    report(&tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner), started, options)
}

fn lock(tally: &Mutex<Tally>) -> std::sync::MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Builds the command; its path.
fn build(root: &Path, release: bool) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-p", "brasa-cli"]).args(release.then_some("--release")).current_dir(root);
    crate::succeed(&mut cargo, "building brasa")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join(if release { "release" } else { "debug" }).join("brasa");
    std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs every command on every model as it is. Each has to succeed.
fn check_seeds(binary: &Path, models: &[Model], scratch: &Scratch) -> Result<(), String> {
    let folder = scratch.0.join("seeds");
    for model in models {
        for command in COMMANDS {
            let io = |error: std::io::Error| format!("{}: {error}", folder.display());
            model.write(&folder).map_err(io)?;
            let outcome = child::run(binary, &folder, model, command, &Limits::default()).map_err(io)?;
            if outcome.verdict != Verdict::Succeeded {
                return Err(format!("{} on {} unchanged: {outcome}", command.name, model.name));
            }
        }
    }
    Ok(())
}

/// One run: its command and outcome, and a description of what was changed.
struct Run {
    command: &'static str,
    change: String,
    outcome: child::Outcome,
}

fn one(binary: &Path, models: &[Model], folder: &Path, seed: u64, run: u64) -> Result<Run, std::io::Error> {
    let mut rng = Rng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ Rng::new(run).bits());
    let mut model = rng.choose(models).clone();
    let command = &COMMANDS[run as usize % COMMANDS.len()];
    let mut change = model.mutate(&mut rng);
    if rng.below(6) == 0 {
        change = format!("{change}; {}", model.mutate(&mut rng));
    }
    model.write(folder)?;
    let outcome = child::run(binary, folder, &model, command, &Limits::default())?;
    Ok(Run { command: command.name, change: format!("{}: {change}", model.name), outcome })
}

fn record(
    tally: &mut Tally,
    run: u64,
    outcome: std::io::Result<Run>,
    folder: &Path,
    kept: &Path,
    options: &Options,
) {
    let Run { command, change, outcome } = match outcome {
        Ok(run) => run,
        Err(error) => return tally.failures.push(format!("run {run}: the driver itself: {error}")),
    };
    if outcome.seconds > tally.slowest.0 {
        tally.slowest = (outcome.seconds, run);
    }
    let counts = tally.commands.entry(command).or_default();
    match outcome.verdict {
        Verdict::Succeeded => counts[0] += 1,
        Verdict::Refused => counts[1] += 1,
        Verdict::Failed(_) => {
            let failure = format!(
                "run {run}: {command} on {change}\n  {outcome}\n  kept in {}; again: cargo xtask mutate --seed {} --only {run}",
                kept.display(),
                options.seed
            );
            let _ = std::fs::remove_dir_all(kept);
            if let Err(error) = copy(folder, kept) {
                eprintln!("{}: {error}", kept.display());
            }
            let _ = std::fs::write(kept.join("what.txt"), &failure);
            eprintln!("{failure}");
            tally.failures.push(failure);
        }
    }
}

fn report(tally: &Tally, started: Instant, options: &Options) -> Result<(), String> {
    let seconds = started.elapsed().as_secs_f64();
    let mut total = 0;
    for (command, [succeeded, refused]) in &tally.commands {
        total += succeeded + refused;
        println!("{command:<24} {succeeded:>6} succeeded {refused:>6} refused");
    }
    let (slowest, run) = tally.slowest;
    println!(
        "{total} runs in {seconds:.0} s, the slowest {slowest:.2} s (run {run}); {} failed, seed {}",
        tally.failures.len(),
        options.seed
    );
    if tally.failures.is_empty() { Ok(()) } else { Err(tally.failures.join("\n")) }
}

/// Copies a folder of plain files and folders.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            std::fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// A folder for models and outputs, in memory if the system has a place for that; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("brasa-mutate-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
