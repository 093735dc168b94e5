//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// `str(value)`; an undefined value is empty.
pub fn str(value: &Value) -> String {
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let mut out = String::new();
    repr(value, &mut out, 0);
    out
}

const DEEPEST: usize = 64;

fn repr(value: &Value, out: &mut String, depth: usize) {
    if depth > DEEPEST {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out, depth + 1);
                out.push_str(": ");
                repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out, depth + 1);
            }
            out.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else if let Ok(float) = f64::try_from(value.clone()) {
        out.push_str(&repr_float(float));
    }
}

/// The shortest digits that mean the same number, in Python's choice of notation.
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
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            char if char < ' ' || ('\u{7f}'..='\u{a0}').contains(&char) || char == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", char as u32);
            }
            char => out.push(char),
        }
    }
    out.push(quote);
}

/// `json.dumps` with the arguments that transformers gives its filter.
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
        Some(pair) => (str(&pair.get_item_by_index(0)?), str(&pair.get_item_by_index(1)?)),
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
    let mut out = String::new();
    json.write(value, &mut out, 0)?;
    Ok(Value::from(out))
}

impl Json {
    fn write(&self, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "value nested too deeply for JSON"));
        }
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
                self.list(out, depth, ('{', '}'), |out| {
                    let Some(key) = items.next() else { return Ok(false) };
                    self.string(&str(&key), out);
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(&key)?, out, depth + 1)?;
                    Ok(true)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = value.try_iter()?;
                self.list(out, depth, ('[', ']'), |out| {
                    let Some(item) = items.next() else { return Ok(false) };
                    self.write(&item, out, depth + 1)?;
                    Ok(true)
                })?;
            }
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
        out: &mut String,
        depth: usize,
        (open, close): (char, char),
        mut next: impl FnMut(&mut String) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut count = 0;
        loop {
            let before = out.len();
            out.push_str(if count > 0 { &self.item_separator } else { "" });
            self.new_line(out, depth + 1);
            if !next(out)? {
                out.truncate(before);
                break;
            }
            count += 1;
        }
        if count > 0 {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                char if char < ' ' || (self.ensure_ascii && !char.is_ascii()) => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}
