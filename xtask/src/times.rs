//! `cargo xtask times`: where the time of a build from nothing and of the tests goes, crate by crate and suite by suite.
//!
//! It builds in a folder of its own, `target/times`, which it empties first: the program as users build it, then the tests. Figures of
//! single crates add up to more than the whole, as cargo compiles several at a time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

/// Rows of a table of crates.
const MOST_ROWS: usize = 25;

/// Builds and tests everything from nothing with the cargo that `cargo` returns, and prints the tables on standard output.
///
/// # Errors
///
/// The name of the step of cargo that failed, or the reason why its output cannot be read.
pub fn run(cargo: &dyn Fn() -> Command) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/times");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let cargo = || {
        let mut cargo = cargo();
        cargo.env("CARGO_TARGET_DIR", &folder).env("CARGO_INCREMENTAL", "0");
        cargo
    };
    let release = timed(cargo().args(["build", "--release", "--timings"]))?;
    let crates_of_release = crates(&newest_report(&folder)?)?;
    let tests = timed(cargo().args(["test", "--workspace", "--no-run", "--timings"]))?;
    let crates_of_tests = crates(&newest_report(&folder)?)?;
    let programs = programs(&mut cargo())?;
    let (suites, whole) = suites(&mut cargo(), &programs)?;
    println!("cargo build --release, from nothing: {release:.0} s");
    table(&crates_of_release);
    println!("cargo test --workspace --no-run, behind it: {tests:.0} s");
    table(&crates_of_tests);
    println!("cargo test --workspace, once built: {whole:.0} s");
    table(&suites);
    Ok(())
}

/// Runs a command to its end; its seconds.
fn timed(command: &mut Command) -> Result<f64, String> {
    let start = Instant::now();
    super::succeed(command, "cargo")?;
    Ok(start.elapsed().as_secs_f64())
}

/// The report that `--timings` wrote last.
fn newest_report(target: &Path) -> Result<String, String> {
    let path = target.join("cargo-timings/cargo-timing.html");
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The seconds that each crate of a report took, in all of its units.
fn crates(report: &str) -> Result<BTreeMap<String, f64>, String> {
    let begin = "const UNIT_DATA = ";
    let units = report.split_once(begin).and_then(|(_, behind)| behind.split_once(";\n"));
    let (units, _) = units.ok_or("cargo's report has no list of units")?;
    let units: Vec<Value> =
        serde_json::from_str(units).map_err(|error| format!("cargo's report: {error}"))?;
    let mut seconds = BTreeMap::new();
    for unit in &units {
        let (Some(name), Some(duration)) = (unit["name"].as_str(), unit["duration"].as_f64()) else {
            return Err(format!("cargo's report: a unit without name or duration: {unit}"));
        };
        *seconds.entry(name.to_owned()).or_default() += duration;
    }
    Ok(seconds)
}

/// The crate of each program of tests, by the program's file name.
fn programs(cargo: &mut Command) -> Result<BTreeMap<String, String>, String> {
    let output = cargo.args(["test", "--workspace", "--no-run", "--message-format=json"]).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    let mut programs = BTreeMap::new();
    for line in output.stdout.lines().map_while(Result::ok) {
        let message: Value =
            serde_json::from_str(&line).map_err(|error| format!("cargo: {error}: {line}"))?;
        let (Some(program), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let file = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = Path::new(manifest).parent().and_then(Path::file_name).unwrap_or_default();
        let target = message["target"]["name"].as_str().unwrap_or_default();
        programs.insert(file, format!("{} {target}", folder.to_string_lossy()));
    }
    Ok(programs)
}

/// Runs all tests; the seconds of each program, and of all with their documentation's.
fn suites(
    cargo: &mut Command,
    programs: &BTreeMap<String, String>,
) -> Result<(BTreeMap<String, f64>, f64), String> {
    let start = Instant::now();
    cargo.args(["test", "--workspace", "--no-fail-fast"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = cargo.spawn().map_err(|error| format!("cannot start cargo: {error}"))?;
    let lines = child.stderr.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    let mut seconds = BTreeMap::new();
    let mut running: Option<(String, Instant)> = None;
    for line in lines.map_while(Result::ok) {
        let Some(begun) = suite_of(&line, programs) else { continue };
        if let Some((name, since)) = running.replace((begun, Instant::now())) {
            *seconds.entry(name).or_default() += since.elapsed().as_secs_f64();
        }
    }
    if let Some((name, since)) = running {
        *seconds.entry(name).or_default() += since.elapsed().as_secs_f64();
    }
    match child.wait() {
        Ok(status) if status.success() => Ok((seconds, start.elapsed().as_secs_f64())),
        Ok(status) => Err(format!("tests failed: {status}")),
        Err(error) => Err(format!("tests: {error}")),
    }
}

/// The tests that begin with a line of cargo's.
fn suite_of(line: &str, programs: &BTreeMap<String, String>) -> Option<String> {
    if let Some(of) = line.trim().strip_prefix("Doc-tests ") {
        return Some(format!("{of} doc comments"));
    }
    let path = line.trim().strip_prefix("Running ")?.rsplit_once('(')?.1.strip_suffix(')')?;
    let file = Path::new(path).file_name()?.to_str()?;
    Some(programs.get(file).cloned().unwrap_or_else(|| file.to_owned()))
}

/// Prints the rows that took longest.
fn table(seconds: &BTreeMap<String, f64>) {
    let mut rows: Vec<_> = seconds.iter().collect();
    rows.sort_by(|a, b| b.1.total_cmp(a.1));
    for (name, seconds) in rows.iter().take(MOST_ROWS) {
        println!("{seconds:8.1} s  {name}");
    }
    let rest: f64 = rows.iter().skip(MOST_ROWS).map(|(_, seconds)| **seconds).sum();
    if rest > 0.0 {
        println!("{rest:8.1} s  {} others", rows.len() - MOST_ROWS);
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_a_crate_are_added() {
        let report = "<script>\nconst UNIT_DATA = [{\"name\":\"a\",\"duration\":1.5},\n{\"name\":\"b\",\"duration\":2},{\"name\":\"a\",\"duration\":0.25}];\nconst X = 1;\n";
        let expected = BTreeMap::from([("a".to_owned(), 1.75), ("b".to_owned(), 2.0)]);
        assert_eq!(crates(report), Ok(expected));
        assert!(crates("<html>").is_err());
        assert!(crates("const UNIT_DATA = [{\"name\":\"a\"}];\n").is_err());
    }

    #[test]
    fn suites_have_the_names_of_their_crates() {
        let programs = BTreeMap::from([("suite-1f".to_owned(), "brasa-cpu suite".to_owned())]);
        let of = |line: &str| suite_of(line, &programs);
        assert_eq!(
            of("     Running tests/suite/main.rs (target/x/deps/suite-1f)"),
            Some("brasa-cpu suite".into())
        );
        assert_eq!(of("     Running unittests src/lib.rs (target/x/deps/a-2)"), Some("a-2".into()));
        assert_eq!(of("   Doc-tests brasa"), Some("brasa doc comments".into()));
        assert_eq!(of("   Compiling brasa v0.1.0"), None);
    }
}
