//! Automation in Rust: `cargo xtask ci` runs exactly what CI runs.

mod aarch64;
mod cuda;

use std::process::{Command, ExitCode};

use aarch64::Outcome;

/// How long each fuzz target runs; 2 seconds where nobody asks for more.
const FUZZ_SECONDS: &str = "60";

/// Each step of CI: its name and the cargo arguments that run it.
const STEPS: &[(&str, &[&str])] = &[
    ("format", &["fmt", "--all", "--check"]),
    ("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ("tests", &["test", "--workspace"]),
    ("docs", &["doc", "--workspace", "--no-deps"]),
];

fn main() -> ExitCode {
    let task = std::env::args().nth(1);
    let argument = std::env::args().nth(2);
    match (task.as_deref(), argument.as_deref()) {
        (Some("ci"), None) => ci(),
        (Some("aarch64"), None) => other_architecture(),
        (Some("cuda"), None) => outcome(cuda::embed()),
        (Some("cuda"), Some("--check")) => outcome(cuda::check()),
        (other, _) => {
            eprintln!("unknown task {other:?}\nusage: cargo xtask ci | aarch64 | cuda [--check]");
            ExitCode::from(2)
        }
    }
}

fn ci() -> ExitCode {
    for (name, arguments) in STEPS {
        eprintln!("== {name}: cargo {}", arguments.join(" "));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(*arguments).env("RUSTDOCFLAGS", "-D warnings").env("BRASA_FUZZ_SECONDS", FUZZ_SECONDS);
        if let Err(failure) = succeed(&mut cargo, name) {
            eprintln!("{failure}");
            return ExitCode::FAILURE;
        }
    }
    if let Err(failure) = cuda::check() {
        eprintln!("{failure}");
        return ExitCode::FAILURE;
    }
    other_architecture()
}

/// The exit code of a task, its failure printed.
fn outcome(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs cargo; what failed where it does not succeed.
fn succeed(cargo: &mut Command, what: &str) -> Result<(), String> {
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what}: cannot start cargo: {error}")),
    }
}

fn other_architecture() -> ExitCode {
    match aarch64::run() {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Skipped(missing) => {
            eprintln!("== aarch64: skipped, kernels for it were neither compiled nor run: {missing}");
            ExitCode::SUCCESS
        }
        Outcome::Failed(what) => {
            eprintln!("aarch64 failed: {what}");
            ExitCode::FAILURE
        }
    }
}
