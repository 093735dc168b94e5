//! Writes text to standard output and standard error at once. At a terminal, control characters are shown as escapes; a pipe gets
//! every byte.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::path::Path;

use brasa::Metrics;
use brasa::formats::{Existing, FormatError, OutputFile};

use crate::failure::Failure;
use crate::interrupt;
use crate::visible::visible;

/// Most columns of tables and reports.
pub const COLUMNS: usize = 100;

/// Permission to replace a file.
#[derive(Clone, Copy)]
pub struct Force {
    /// True if the user gave the option.
    pub given: bool,
    /// The option that forces the replacement, for the hint.
    pub how: &'static str,
}

/// Writes text and makes it visible at once.
///
/// # Errors
///
/// [`Failure::OutputClosed`] if the reader has closed standard output.
pub fn write(text: &str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let shown = if out.is_terminal() { visible(text) } else { text.into() };
    out.write_all(shown.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes one line.
///
/// # Errors
///
/// [`Failure::OutputClosed`] if the reader has closed standard output.
pub fn line(text: &str) -> Result<(), Failure> {
    write(&format!("{text}\n"))
}

/// Writes a control sequence for the terminal, such as one of [`Paint`](crate::paint::Paint).
///
/// # Errors
///
/// [`Failure::OutputClosed`] if the reader has closed standard output.
pub fn command(sequence: &'static str) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(sequence.as_bytes())?;
    Ok(out.flush()?)
}

/// `text` in lines of at most [`COLUMNS`] columns, each indented. Longer words are not split.
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        match lines.last_mut() {
            Some(line) if columns + 1 + width <= COLUMNS => {
                line.extend([" ", word]);
                columns += 1 + width;
            }
            _ => {
                lines.push(format!("{:indent$}{word}", ""));
                columns = indent + width;
            }
        }
    }
    lines.join("\n")
}

/// `count` and its noun: "1 token", "2 tokens".
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The cost of an answer, as text. A single token has no speed, since its time is that of the prompt.
pub fn cost(metrics: &Metrics) -> String {
    let at = |tokens_per_second: f64| {
        if tokens_per_second > 0.0 { format!(" at {tokens_per_second:.1} tok/s") } else { String::new() }
    };
    format!(
        "{} ({} cached){}, {} generated{}",
        plural(metrics.prompt_tokens, "prompt token"),
        metrics.cached_tokens,
        at(metrics.prefill_tokens_per_second()),
        metrics.generated_tokens,
        at(metrics.decode_tokens_per_second()),
    )
}

/// Writes one line to standard error. Errors are ignored, since a terminal can be closed before its programs end.
pub fn note(text: &str) {
    let mut out = stderr().lock();
    let shown = if out.is_terminal() { visible(text) } else { text.into() };
    let _ = writeln!(out, "{shown}");
}

/// Refuses an existing file without `force`, before the work whose result would be written.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn refuse_existing(path: &Path, force: Force) -> Result<(), Failure> {
    if force.given || !path.is_file() {
        return Ok(());
    }
    Err(refused(FormatError::Exists { path: path.to_owned() }, force))
}

/// The failure for an output file that cannot be written.
fn refused(error: FormatError, force: Force) -> Failure {
    match error {
        FormatError::Exists { .. } => Failure::Failed(format!("{error}\nhint: {} replaces it", force.how)),
        error => Failure::Failed(error.to_string()),
    }
}

/// Writes a file, which appears whole or not at all; a device or a pipe is written in place. An existing file is replaced only
/// with `force`.
///
/// # Errors
///
/// [`Failure::Failed`], naming the file.
pub fn file(
    path: &Path,
    force: Force,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let refused = |error: FormatError| refused(error, force);
    interrupt::clean_up_when_killed();
    let existing = if force.given { Existing::Replace } else { Existing::Keep };
    let mut file = OutputFile::create(path, existing).map_err(refused)?;
    for stale in file.removed() {
        note(&format!("{}: removed, a leftover of a run that was killed", stale.display()));
    }
    write(&mut file).map_err(|error| Failure::file(path, &error))?;
    file.commit().map_err(refused)
}
