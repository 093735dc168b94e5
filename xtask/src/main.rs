//! Automation in Rust: `cargo xtask ci` runs exactly what CI runs.

mod aarch64;
mod cuda;
#[cfg(test)]
mod dead_tests;
#[cfg(test)]
mod links;
mod mutate;
mod sentences;
mod times;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use aarch64::Outcome;

/// How many times more inputs each fuzz target gets than in `cargo test`.
const FUZZ_TIMES: &str = "3";

/// Runs of commands on broken models: about a minute.
const MUTATIONS: u64 = 1_000;

/// Each step of CI: its name and the cargo arguments that run it.
const STEPS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    // All failures of a run are told, not the first alone.
    ("tests", &["test", "--workspace", "--no-fail-fast"]),
    ("docs", &["doc", "--workspace", "--no-deps"]),
];

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    let argument = std::env::args().nth(2);
    let run = Run::new();
    let done = match (task.as_deref(), argument.as_deref()) {
        (Some("ci"), None) => run.ci(),
        (Some("sentences"), None) => check_sentences(),
        (Some("aarch64"), None) => run.other_architecture(),
        (Some("cuda"), Some("--check")) => cuda::check(),
        (Some("cuda"), _) => cuda::embed(&std::env::args().skip(2).collect::<Vec<_>>()),
        (Some("times"), None) => times::run(&|| run.cargo()),
        (Some("mutate"), _) => {
            let arguments: Vec<String> = std::env::args().skip(2).collect();
            mutate::Options::parse(&arguments).and_then(|options| mutate::run(&options))
        }
        (other, _) => {
            eprintln!(
                "unknown task {other:?}\nusage: cargo xtask ci | sentences | aarch64 | cuda [--check | IMAGE…] | times | mutate"
            );
            eprintln!("       {}", mutate::USAGE);
            return ExitCode::from(2);
        }
    };
    run.tell_skipped();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Settings that every step of one run shares.
struct Run {
    /// Seed of all fuzz targets.
    seed: String,
    /// File in which tests note what they skip.
    skipped: PathBuf,
}

impl Run {
    /// Takes the seed from `BRASA_FUZZ_SEED`, or else from the clock, so that each run mutates differently.
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = std::env::var("BRASA_FUZZ_SEED").unwrap_or_else(|_| now.as_secs().to_string());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let skipped = folder.join(format!("skipped-{}.txt", std::process::id()));
        // Without the folder, or with a file of an earlier run, only the report at the end would suffer.
        let _ = std::fs::create_dir_all(&folder);
        let _ = std::fs::remove_file(&skipped);
        Self { seed, skipped }
    }

    fn ci(&self) -> Result<(), String> {
        let seed = &self.seed;
        eprintln!(
            "== fuzzing {FUZZ_TIMES} times as long as `cargo test`; repeat it with BRASA_FUZZ_SEED={seed}"
        );
        timed("sentences", check_sentences)?;
        for (name, arguments) in STEPS {
            eprintln!("== {name}: cargo {}", arguments.join(" "));
            let mut cargo = self.cargo();
            cargo.args(*arguments).env("RUSTDOCFLAGS", "-D warnings");
            cargo.env("BRASA_FUZZ_TIMES", FUZZ_TIMES).env("BRASA_SWEEPS", "1");
            timed(name, || succeed(&mut cargo, name))
                .map_err(|failure| format!("{failure} (BRASA_FUZZ_SEED={seed})"))?;
        }
        eprintln!("== mutations: cargo xtask mutate --runs {MUTATIONS} --seed {seed}");
        timed("mutations", || mutate::run(&mutate::Options::new(MUTATIONS, seed.parse().unwrap_or(0))))?;
        timed("kernels for CUDA", cuda::check_images)?;
        timed("kernels for aarch64", || self.other_architecture())
    }

    fn other_architecture(&self) -> Result<(), String> {
        match aarch64::run(&|| self.cargo()) {
            Outcome::Passed => Ok(()),
            Outcome::Failed(what) => Err(format!("aarch64 failed: {what}")),
            Outcome::Skipped(missing) => {
                let line = format!("skipped: kernels for aarch64, neither compiled nor run: {missing}\n");
                let mut lines = std::fs::read_to_string(&self.skipped).unwrap_or_default();
                lines.push_str(&line);
                std::fs::write(&self.skipped, lines).map_err(|error| format!("{line}{error}"))
            }
        }
    }

    /// Cargo, with the environment that all steps share.
    fn cargo(&self) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.env("BRASA_FUZZ_SEED", &self.seed).env("BRASA_SKIPPED", &self.skipped);
        // A snapshot that differs fails, and no file is written.
        cargo.env("INSTA_UPDATE", "no");
        cargo
    }

    /// Repeats at the end what was skipped on the way, each line once.
    fn tell_skipped(&self) {
        let lines = std::fs::read_to_string(&self.skipped).unwrap_or_default();
        let mut lines: Vec<&str> = lines.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        eprintln!("== skipped: {}", if lines.is_empty() { "nothing" } else { "" });
        for line in lines {
            eprintln!("{line}");
        }
    }
}

/// Checks the doc comments of this repository.
fn check_sentences() -> Result<(), String> {
    sentences::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
}

/// Does a step and says how long it took: all of them together must stay under 50 minutes.
fn timed<T>(step: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = run();
    eprintln!("== {step} took {} s", start.elapsed().as_secs());
    outcome
}

/// Runs cargo; what failed where it does not succeed.
fn succeed(cargo: &mut Command, what: &str) -> Result<(), String> {
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what}: cannot start cargo: {error}")),
    }
}
