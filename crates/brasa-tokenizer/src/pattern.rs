//! Regular expressions from files: conversion, compilation and time limits.

use std::cell::Cell;
use std::fmt::Display;
use std::time::{Duration, Instant};

use fancy_regex::{Expr, Regex};
use serde_json::Value;
use tokenizers::Offsets;
use tokenizers::pattern::Pattern;

use crate::{Result, TokenizerError};

/// Most characters that a pattern may require in a match. Sizes of longer matches overflow inside the engine, and no token is as
/// long.
const LONGEST_MATCH: usize = 1 << 20;

/// Compiles a pattern.
///
/// # Errors
///
/// [`TokenizerError::Malformed`] if it is not a valid pattern, or requires matches of more than [`LONGEST_MATCH`] characters.
pub fn compile(pattern: &str) -> Result<Regex> {
    check(pattern)?;
    Regex::new(pattern).map_err(|error| malformed(pattern, error))
}

fn check(pattern: &str) -> Result<()> {
    let tree = Expr::parse_tree(pattern).map_err(|error| malformed(pattern, error))?;
    if Sizes::default().of(&tree.expr) > LONGEST_MATCH {
        return Err(malformed(pattern, format!("repeats up to more than {LONGEST_MATCH} characters")));
    }
    Ok(())
}

fn malformed(pattern: &str, reason: impl Display) -> TokenizerError {
    TokenizerError::malformed(format!("pattern {pattern:?}"), reason)
}

/// Refuses a part of `tokenizer.json` with a pattern that [`compile`] would refuse.
///
/// # Errors
///
/// Errors of [`compile`].
pub fn check_all(part: &Value) -> Result<()> {
    match part {
        Value::Object(fields) => {
            if let Some(pattern) = fields.get("Regex").and_then(Value::as_str) {
                check(pattern)?;
            }
            fields.values().try_for_each(check_all)
        }
        Value::Array(items) => items.iter().try_for_each(check_all),
        _ => Ok(()),
    }
}

/// For each group, first group first, a lower bound of the characters that it matches.
#[derive(Default)]
struct Sizes(Vec<usize>);

impl Sizes {
    /// A lower bound of the characters that `expr` matches, with every branch taken; saturates.
    fn of(&mut self, expr: &Expr) -> usize {
        match expr {
            Expr::Concat(parts) | Expr::Alt(parts) => {
                parts.iter().fold(0, |sum: usize, part| sum.saturating_add(self.of(part)))
            }
            Expr::Group(inner) => {
                let group = self.0.len();
                self.0.push(0);
                self.0[group] = self.of(inner);
                self.0[group]
            }
            Expr::LookAround(inner, _) | Expr::AtomicGroup(inner) => self.of(inner),
            Expr::Repeat { child, lo, .. } => self.of(child).saturating_mul((*lo).max(1)),
            Expr::Conditional { condition, true_branch, false_branch } => {
                [condition, true_branch, false_branch]
                    .into_iter()
                    .fold(0, |sum: usize, part| sum.saturating_add(self.of(part)))
            }
            Expr::Backref { group, .. } => {
                group.checked_sub(1).and_then(|group| self.0.get(group)).copied().unwrap_or(0)
            }
            Expr::Delegate { size, .. } => *size,
            _ => 1,
        }
    }
}

thread_local! {
    static UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Starts the time limit for the patterns of a file on a text of `bytes` bytes: ten seconds plus 20 µs for each byte.
///
/// One search ends after a million backtracking steps, but a text may need very many searches.
pub fn begin_text(bytes: usize) {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    let most = Duration::from_secs(10) + Duration::from_micros(bytes.saturating_mul(20).min(1 << 40));
    UNTIL.set(Instant::now().checked_add(most));
}

/// An error once the time limit is exceeded.
pub fn check_time() -> tokenizers::Result<()> {
    if UNTIL.get().is_some_and(|until| Instant::now() > until) {
        return Err("its patterns take too long".into());
    }
    Ok(())
}

/// A pattern from a file, with limited time. Its failure is an error.
pub struct Fallible<'a>(pub &'a Regex);

impl Pattern for Fallible<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        let mut pieces = Vec::new();
        let mut done = 0;
        for (index, found) in self.0.find_iter(inside).enumerate() {
            let found = found?;
            if index % 64 == 0 {
                check_time()?;
            }
            if done < found.start() {
                pieces.push(((done, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            done = found.end();
        }
        if done < inside.len() || inside.is_empty() {
            pieces.push(((done, inside.len()), false));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_repeats_are_refused() {
        let doubled: Vec<String> = (1..60).map(|group| format!(r"(\{group}\{group})")).collect();
        let doubling = format!("(ab){}", doubled.concat());
        for pattern in [
            "a{18446744073709551615}b",
            "(?x)a { # much\n 9999999999 , }",
            "(?<=(?:a{99999}){99999})b",
            "(?:(?:a{4294967295}){4294967295}){2}|x",
            "(?(a{18446744073709551614})bc|d)",
            &doubling,
        ] {
            let error = compile(pattern).expect_err(pattern).to_string();
            assert!(error.contains("repeats up to more than 1048576 characters"), "{pattern}: {error}");
        }
    }

    #[test]
    fn patterns_of_real_files_compile() {
        for pattern in
            [r"\d{1,3}(?=(?:\d{3})*\b)", r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}", r"(a)\1{2}", "a{,5}"]
        {
            compile(pattern).expect(pattern);
        }
    }

    #[test]
    fn patterns_are_found_in_depth() {
        let part = serde_json::json!({"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a{9999999}"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": "a{9999999}"}, "content": ""}]});
        assert!(check_all(&part).is_err());
        assert!(check_all(&part["normalizers"][0]).is_ok());
    }
}
