//! Payments for building texts, and Python's methods of texts, lists and maps.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, State, Value};

use super::operations::{printed_bytes, scan};
use super::values::{own, walk};
use super::{budget, data};

type Result<T> = std::result::Result<T, Error>;

/// Bytes that are counted for a short text in a list.
const PIECE_BYTES: u64 = 64;

/// Pays for `text.replace(from, to, most)`.
pub fn pay_for_replace(text: &str, from: &str, to: &str, most: Option<usize>) -> Result<()> {
    budget::work(text.len() as u64)?;
    let found = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    let found = most.map_or(found, |most| found.min(most));
    budget::memory((text.len() as u64).saturating_add((found as u64).saturating_mul(to.len() as u64)))
}

/// Pays for all items of a list as text, with `between_bytes` bytes between them.
pub fn pay_for_join(items: &Value, between_bytes: u64) -> Result<()> {
    let count = items.len().unwrap_or(0) as u64;
    budget::memory(count.saturating_mul(between_bytes))?;
    if items.as_str().is_some() {
        return budget::memory(count);
    }
    for item in items.try_iter()? {
        budget::memory(printed_bytes(&item))?;
    }
    Ok(())
}

/// Pays for the parts of `text` between the occurrences of `separator`; of white space if it is `None`.
pub fn pay_for_split(text: &str, separator: Option<&str>) -> Result<()> {
    budget::work(text.len() as u64)?;
    let pieces = match separator {
        Some("") => text.len(),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    budget::memory(text.len() as u64 + PIECE_BYTES * (pieces as u64 + 1))
}

/// Pays for filling arguments into a pattern, in either of Python's notations.
///
/// Every number in the pattern may be a width, and every field may print the longest argument.
pub fn pay_for_format(pattern: &str, args: &[Value]) -> Result<()> {
    budget::work(pattern.len() as u64)?;
    let mut widths = 0_u64;
    for digits in pattern.split(|char: char| !char.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        widths = widths.saturating_add(digits.parse().unwrap_or(u64::MAX));
    }
    if pattern.contains('*') {
        for width in args.iter().filter_map(Value::as_i64) {
            widths = widths.saturating_add(width.unsigned_abs());
        }
    }
    let fields = pattern.matches(['%', '{']).count() as u64;
    let longest = args.iter().map(printed_bytes).max().unwrap_or(0).saturating_add(64);
    // A filling character has up to four bytes, and digits may stand in groups.
    let filled = widths.saturating_mul(8).saturating_add(fields.saturating_mul(longest));
    budget::memory(filled.saturating_add(pattern.len() as u64))
}

/// Pays for `text.strip(chars)`: each character may be compared with all of `chars`.
pub fn pay_for_strip(text: &str, chars: &str) -> Result<()> {
    budget::memory(4 * chars.len() as u64)?;
    budget::work((text.len() as u64).saturating_mul(1 + chars.len() as u64 / 8))
}

/// Calls a method of Python's texts, lists and maps.
pub fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    // Arguments were paid for when they were given.
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        if let Some(result) = cut(text, name, args)? {
            return Ok(result);
        }
        pay_for_method(text, name, args)?;
    } else if name == "count" {
        walk(value)?;
    } else if name != "get" {
        scan(value)?;
    }
    let call = |state: &mut State<'_, '_>, value: &Value, args: &[Value]| {
        minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
    };
    if value.kind() != ValueKind::String {
        return own(call(state, value, args)?);
    }
    let all = std::iter::once(value).chain(args).cloned().collect();
    own(data::through(data::Sight::of_method(name), all, |all| call(state, &all[0], &all[1..]))?)
}

fn pay_for_method(text: &str, name: &str, args: &[Value]) -> Result<()> {
    let argument = |index: usize| args.get(index).and_then(Value::as_str);
    match name {
        "upper" | "lower" | "title" | "capitalize" => budget::memory(3 * text.len() as u64),
        "strip" | "lstrip" | "rstrip" => {
            budget::memory(text.len() as u64)?;
            pay_for_strip(text, argument(0).unwrap_or_default())
        }
        "replace" => {
            let most = args.get(2).and_then(Value::as_i64).and_then(|most| usize::try_from(most).ok());
            pay_for_replace(text, argument(0).unwrap_or_default(), argument(1).unwrap_or_default(), most)
        }
        "split" => pay_for_split(text, argument(0)),
        "splitlines" => pay_for_split(text, Some("\n")),
        "format" => pay_for_format(text, args),
        "join" => args.first().map_or(Ok(()), |items| pay_for_join(items, text.len() as u64)),
        _ => budget::work(text.len() as u64),
    }
}

/// Calls a method that the engine lacks; `None` for other methods.
fn cut(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>> {
    if !matches!(name, "removeprefix" | "removesuffix" | "partition" | "rpartition") {
        return Ok(None);
    }
    budget::memory(text.len() as u64)?;
    let (part,): (&str,) = from_args(args)?;
    let (plain, part) = (data::plain(text)?, data::plain(part)?);
    let (length, of_part) = (plain.len(), part.len());
    // Where the parts end.
    let ends = match name {
        "removeprefix" => [if plain.starts_with(&*part) { of_part } else { 0 }, length, length],
        "removesuffix" => [0, if plain.ends_with(&*part) { length - of_part } else { length }, length],
        "partition" => plain.find(&*part).map_or([length; 3], |at| [at, at + of_part, length]),
        _ => plain.rfind(&*part).map_or([0, 0, length], |at| [at, at + of_part, length]),
    };
    let parts =
        data::cut_at(text, &plain, [0, ends[0], ends[1], ends[2]].windows(2).map(|ends| ends[0]..ends[1]));
    if name.starts_with("remove") {
        return Ok(parts.into_iter().nth(1).map(Value::from));
    }
    own(parts.into_iter().map(Value::from).collect()).map(Some)
}
