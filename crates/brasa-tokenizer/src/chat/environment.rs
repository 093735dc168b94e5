//! The template language of transformers: Jinja with loop controls, Python's methods and a few functions.
//!
//! A template is bounded in what it can do: instructions (fuel), nesting, and the size of what it writes.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::python;
use super::time::CivilTime;

/// Instructions of one rendering; a conversation of a thousand turns with tools needs a hundredth of it.
const FUEL: u64 = 20_000_000;
/// Levels of calls and blocks.
const RECURSION: usize = 200;

/// An environment as transformers sets it up, without templates.
pub fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(|out, _, value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&python::str(value))?),
    });
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", |value: &Value, kwargs: Kwargs| python::tojson(value, &kwargs));
    environment.add_filter("string", |value: &Value| python::str(value));
    // None is not iterable in Python, and an undefined value is empty.
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{}", python::str(message))))
    });
    Ok(environment)
}

/// Adds `strftime_now`, which answers with this moment.
pub fn set_time(environment: &mut Environment<'static>, time: Option<CivilTime>) {
    environment.add_function("strftime_now", move |pattern: &str| {
        time.unwrap_or_else(CivilTime::now).format(pattern)
    });
}

/// Marks the messages of templates among the engine's own.
pub const RAISED: &str = "\u{1}";

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind()))
    })
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (before, found, after) = match text.split_once(separator) {
                    Some((before, after)) => (before, separator, after),
                    None => (text, "", ""),
                };
                return Ok([before, found, after].into_iter().map(Value::from).collect());
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (before, found, after) = match text.rsplit_once(separator) {
                    Some((before, after)) => (before, separator, after),
                    None => ("", "", text),
                };
                return Ok([before, found, after].into_iter().map(Value::from).collect());
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Replaces the tag `generation`, which marks what to train on, by one that opens a scope and does nothing.
pub fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag[2..].find("%}").map(|end| end + 2) else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|char: char| char.is_whitespace() || char == '-' || char == '+');
        match word {
            "generation" => out.push_str(&tag[..end + 2].replace("generation", "with")),
            "endgeneration" => out.push_str(&tag[..end + 2].replace("endgeneration", "endwith")),
            // Only the opening is passed over: a string in the tag may hold `%}`.
            _ => {
                out.push_str("{%");
                rest = &tag[2..];
                continue;
            }
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}
