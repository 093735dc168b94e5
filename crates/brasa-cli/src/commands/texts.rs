//! Splits an input into several texts.

use serde_json::Value;

use crate::failure::Failure;

/// The lines that are not empty.
pub fn lines(text: &str) -> Vec<String> {
    numbered(text).map(|(_, line)| line.into()).collect()
}

/// The texts of lines of JSON: a text, or an object with a `text`.
///
/// # Errors
///
/// [`Failure::Failed`], naming the line.
pub fn json_lines(text: &str) -> Result<Vec<String>, Failure> {
    let read = |(number, line): (usize, &str)| {
        let found: Option<Value> = serde_json::from_str(line).ok();
        let text = found.as_ref().and_then(|found| found.as_str().or_else(|| found.get("text")?.as_str()));
        text.map(String::from).ok_or_else(|| {
            Failure::Failed(format!("line {number}: expected a JSON text, or an object with a `text`"))
        })
    };
    numbered(text).map(read).collect()
}

/// The lines that are not empty, with their numbers from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty())
}
