//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::sandbox::{Digits, marks, memory, pay_for_printing};

/// A text that grows within the budget of the rendering.
struct Paid {
    text: String,
    paid_bytes: usize,
}

impl Paid {
    /// An empty text for the printed form of a value. Pays for the texts in the value, which are the least size of that form.
    fn for_printing(value: &Value) -> Result<Self, Error> {
        let paid_bytes = pay_for_printing(value)?;
        Ok(Self { text: String::new(), paid_bytes })
    }

    /// Pays for the bytes written since the last payment, and for `more` bytes to come.
    fn pay(&mut self, more: usize) -> Result<(), Error> {
        let needed = self.text.len().saturating_add(more);
        let due = needed.saturating_sub(self.paid_bytes);
        self.paid_bytes += due;
        memory(due as u64)
    }
}

/// `str(value)`; an undefined value is empty.
pub fn str(value: &Value) -> Result<String, Error> {
    let mut out = Paid::for_printing(value)?;
    match value.as_str() {
        Some(text) => out.text.push_str(text),
        None => repr(value, &mut out, 0)?,
    }
    Ok(out.text)
}

const DEEPEST: usize = 64;

fn repr(value: &Value, paid: &mut Paid, depth: usize) -> Result<(), Error> {
    paid.pay(value.as_str().map_or(0, str::len))?;
    let out = &mut paid.text;
    if depth > DEEPEST {
        out.push_str("...");
        return Ok(());
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                paid.text.push_str(if index > 0 { ", " } else { "" });
                repr(&key, paid, depth + 1)?;
                paid.text.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), paid, depth + 1)?;
            }
            paid.text.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                paid.text.push_str(if index > 0 { ", " } else { "" });
                repr(&item, paid, depth + 1)?;
            }
            paid.text.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else if let Ok(float) = f64::try_from(value.clone()) {
        out.push_str(&repr_float(float));
    }
}

/// The shortest digits that give the same number, in the notation that Python chooses.
pub fn repr_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return (if value > 0.0 { "inf" } else { "-inf" }).to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = format!("{value}");
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn repr_str(text: &str, out: &mut String) {
    let marks = marks();
    let has = |quote: char| text.contains(|char| marks.plain_char(char) == quote);
    let quote = if has('\'') && !has('"') { '"' } else { '\'' };
    out.push(quote);
    let special = |char: char| {
        char < ' '
            || char == '\\'
            || char == quote
            || ('\u{7f}'..='\u{a0}').contains(&char)
            || char == '\u{ad}'
    };
    escape(text, out, special, |char, out| match char {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\\' => out.push_str("\\\\"),
        char if char == quote => out.extend(['\\', char]),
        char => {
            let _ = write!(out, "\\x{:02x}", char as u32);
        }
    });
    out.push(quote);
}

/// Writes `text`, with `write` for each special character; runs in between are copied whole. A mark is special if its character
/// is.
fn escape(text: &str, out: &mut String, special: impl Fn(char) -> bool, write: impl Fn(char, &mut String)) {
    let marks = marks();
    let mut rest = text;
    while let Some(at) = rest.find(|char| special(marks.plain_char(char))) {
        out.push_str(&rest[..at]);
        let mut chars = rest[at..].chars();
        if let Some(char) = chars.next() {
            write(marks.plain_char(char), out);
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

/// `json.dumps` with the arguments that transformers gives the filter `tojson`.
struct Json {
    ensure_ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub fn tojson(value: &Value, kwargs: &Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
        Some(indent) if !indent.is_none() && !indent.is_undefined() => {
            Some(" ".repeat(usize::try_from(indent)?.min(64)))
        }
        _ => None,
    };
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let (item_separator, key_separator) = match &separators {
        Some(pair) => (str(&pair.get_item_by_index(0)?)?, str(&pair.get_item_by_index(1)?)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let json = Json {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = Paid::for_printing(value)?;
    json.write(value, &mut out, 0)?;
    out.pay(0)?;
    Ok(Value::from(out.text))
}

impl Json {
    fn write(&self, value: &Value, paid: &mut Paid, depth: usize) -> Result<(), Error> {
        paid.pay(value.as_str().map_or(0, str::len))?;
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "value nested too deeply for JSON"));
        }
        let out = &mut paid.text;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => number(value, out),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                let mut items = keys.into_iter();
                self.list(paid, depth, ('{', '}'), |paid| {
                    let Some(key) = items.next() else { return Ok(false) };
                    self.string(&str(&key)?, &mut paid.text);
                    paid.text.push_str(&self.key_separator);
                    self.write(&value.get_item(&key)?, paid, depth + 1)?;
                    Ok(true)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = value.try_iter()?;
                self.list(paid, depth, ('[', ']'), |paid| {
                    let Some(item) = items.next() else { return Ok(false) };
                    self.write(&item, paid, depth + 1)?;
                    Ok(true)
                })?;
            }
            _ if Digits::of(value).is_some() => out.push_str(Digits::of(value).unwrap_or_default()),
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of type {other} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn list(
        &self,
        paid: &mut Paid,
        depth: usize,
        (open, close): (char, char),
        mut next: impl FnMut(&mut Paid) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        paid.text.push(open);
        let mut count = 0;
        loop {
            let before = paid.text.len();
            paid.text.push_str(if count > 0 { &self.item_separator } else { "" });
            self.new_line(paid, depth + 1)?;
            if !next(paid)? {
                paid.text.truncate(before);
                break;
            }
            count += 1;
        }
        if count > 0 {
            self.new_line(paid, depth)?;
        }
        paid.text.push(close);
        Ok(())
    }

    fn new_line(&self, paid: &mut Paid, depth: usize) -> Result<(), Error> {
        if let Some(indent) = &self.indent {
            paid.pay(indent.len().saturating_mul(depth))?;
            paid.text.push('\n');
            (0..depth).for_each(|_| paid.text.push_str(indent));
        }
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        let special =
            |char: char| char < ' ' || matches!(char, '"' | '\\') || (self.ensure_ascii && !char.is_ascii());
        escape(text, out, special, |char, out| match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            char => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        });
        out.push('"');
    }
}
