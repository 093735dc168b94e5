//! Tables of comma-separated values (RFC 4180): a row of names, then a row for each example.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::lines::{LineFault, each_whole_line};
use super::row::Fault;

/// Most bytes of a record.
const MOST_BYTES: usize = 64 << 20;
/// Names of columns with JSON in their cells.
const JSON: [&str; 5] = ["messages", "tools", "tokens", "input_ids", "weights"];

/// Calls `each` with the number of the first line of every record and its fields by name. Stops at the first error.
pub fn each_record(
    reader: impl BufRead,
    mut each: impl FnMut(usize, Map<String, Value>) -> Result<(), Fault>,
) -> Result<(), LineFault> {
    let mut names: Option<Vec<String>> = None;
    let (mut first, mut record) = (1, String::new());
    let mut take = |first: usize, record: &str| -> Result<(), Fault> {
        let cells = cells(record.trim_end_matches(['\r', '\n']))?;
        match &names {
            None => names = Some(cells.into_iter().map(|name| name.trim().to_owned()).collect()),
            Some(names) => each(first, fields(names, cells)?)?,
        }
        Ok(())
    };
    each_whole_line(reader, |number, line| {
        if record.is_empty() {
            if line.trim().is_empty() {
                return Ok(());
            }
            first = number;
        }
        record += line;
        let at_first = |fault| LineFault::Row(first, fault);
        if record.len() > MOST_BYTES {
            let what = format!("a record of more than {} MiB", MOST_BYTES >> 20);
            return Err(at_first(Fault::new(what, "is a quote closed that was opened there?")));
        }
        // A line break between quotes is part of a cell.
        if record.bytes().filter(|byte| *byte == b'"').count() % 2 == 0 {
            take(first, &record).map_err(at_first)?;
            record.clear();
        }
        Ok(())
    })?;
    if record.is_empty() {
        return Ok(());
    }
    let fault = Fault::new("a quote that is not closed", "a quote within a cell is written twice");
    Err(LineFault::Row(first, fault))
}

fn cells(record: &str) -> Result<Vec<String>, Fault> {
    let mut cells = Vec::new();
    let mut rest = record;
    loop {
        let Some(mut quoted) = rest.strip_prefix('"') else {
            let (cell, after) =
                rest.split_once(',').map_or((rest, None), |(cell, after)| (cell, Some(after)));
            if cell.contains('"') {
                let what = format!("a quote within cell {}", cells.len() + 1);
                return Err(Fault::new(
                    what,
                    "put the whole cell in quotes, and write a quote within it twice",
                ));
            }
            cells.push(cell.to_owned());
            match after {
                Some(after) => rest = after,
                None => return Ok(cells),
            }
            continue;
        };
        let mut cell = String::new();
        while let Some((part, after)) = quoted.split_once('"') {
            cell += part;
            quoted = after;
            match after.strip_prefix('"') {
                Some(after) => {
                    cell.push('"');
                    quoted = after;
                }
                None => break,
            }
        }
        cells.push(cell);
        match quoted.strip_prefix(',') {
            Some(after) => rest = after,
            None if quoted.is_empty() => return Ok(cells),
            None => {
                let what = format!("text behind the quotes of cell {}", cells.len());
                return Err(Fault::new(what, "a quote within a cell is written twice"));
            }
        }
    }
}

fn fields(names: &[String], cells: Vec<String>) -> Result<Map<String, Value>, Fault> {
    if cells.len() != names.len() {
        let what = format!("{} cells, the first row names {}", cells.len(), names.len());
        return Err(Fault::new(what, "a cell with a comma is put in quotes"));
    }
    let field = |(name, cell): (&String, String)| {
        if !JSON.contains(&name.as_str()) {
            return Some(Ok((name.clone(), Value::String(cell))));
        }
        let parsed = (!cell.trim().is_empty()).then(|| serde_json::from_str(&cell))?;
        Some(parsed.map(|value| (name.clone(), value)).map_err(|error| {
            Fault::new(format!("{name}: not JSON: {error}"), format!("cells of {name} are JSON"))
        }))
    };
    names.iter().zip(cells).filter_map(field).collect()
}
