//! The filters and tests of the engine. Each pays before it works, by an upper bound on the bytes that it reads and builds.
//!
//! A filter's result is converted to this module's containers, so that it is not lazy. Filters that are not listed do not exist;
//! a template that uses one fails with an error.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, tests};

use super::operations::{add, contains, pay_for_comparison, printed_bytes, scan};
use super::values::{Weight, own};
use super::{budget, data, text};
use crate::chat::python;

type Result<T> = std::result::Result<T, Error>;

/// Most arguments of a filter; `map` calls itself once for each.
const MOST_ARGUMENTS: usize = 64;

/// An upper bound on what a filter reads and builds, from its arguments.
#[derive(Clone, Copy)]
enum Cost {
    /// Reads a value without visiting its items.
    Glance,
    /// Reads the items of the first argument, or the bytes of a text.
    Items,
    /// Sorts the items of the first argument.
    Sort,
    /// Prints its arguments, and builds this number of bytes for each printed byte.
    Text(u64),
    /// Removes the characters of the second argument from both ends.
    Trim,
    /// Replaces every occurrence of the second argument by the third.
    Replace,
    /// Joins the items with the second argument.
    Join,
    /// Indents each line by the second argument's number of spaces.
    Indent,
    /// Fills the arguments into the pattern.
    Format,
    /// Splits the text at the second argument.
    Split,
    /// Makes groups: the second argument is their number or size.
    Groups,
    /// Prints its argument with every level indented.
    Indented,
}

impl Cost {
    fn pay(self, args: &[Value]) -> Result<()> {
        if args.len() > MOST_ARGUMENTS {
            return Err(Error::new(
                ErrorKind::TooManyArguments,
                format!("{} arguments, expected at most {MOST_ARGUMENTS}", args.len()),
            ));
        }
        let Some(first) = args.first() else { return Ok(()) };
        let text = first.as_str();
        match self {
            Self::Glance => Ok(()),
            Self::Items => items(first),
            Self::Sort => {
                items(first)?;
                let rounds = u64::from(usize::BITS - first.len().unwrap_or(0).leading_zeros());
                budget::work(Weight::of(first).steps().saturating_mul(rounds))
            }
            Self::Text(growth) => {
                let bytes = args.iter().fold(0, |sum: u64, arg| sum.saturating_add(printed_bytes(arg)));
                budget::memory(bytes.saturating_mul(growth))
            }
            Self::Trim => {
                Self::Text(1).pay(args)?;
                text::pay_for_strip(text.unwrap_or_default(), &printed(args, 1)?)
            }
            Self::Replace => {
                text::pay_for_replace(text.unwrap_or_default(), &printed(args, 1)?, &printed(args, 2)?, None)
            }
            Self::Join => {
                items(first)?;
                let between = named(args, 1, "d").map_or(0, |value| printed_bytes(&value));
                text::pay_for_join(first, between)
            }
            Self::Indent => {
                budget::memory(printed_bytes(first))?;
                let width = named(args, 1, "width").and_then(|width| width.as_usize()).unwrap_or(4) as u64;
                let lines = text.map_or(1, |text| text.matches('\n').count() as u64) + 2;
                budget::memory(width.saturating_mul(lines))
            }
            Self::Format => text::pay_for_format(text.unwrap_or_default(), &args[1..]),
            Self::Split => text::pay_for_split(text.unwrap_or_default(), args.get(1).and_then(Value::as_str)),
            Self::Groups => {
                items(first)?;
                let count = args.get(1).and_then(Value::as_usize).unwrap_or(0) as u64;
                budget::memory(count.saturating_mul(64))
            }
            Self::Indented => {
                let weight = Weight::of(first);
                let spaces = weight.nodes.saturating_mul(8 * u64::from(weight.depth));
                budget::memory(weight.printed_bytes().saturating_add(spaces))
            }
        }
    }
}

/// Pays for reading items one after the other. The items of a text are its characters, each of which becomes a value.
fn items(value: &Value) -> Result<()> {
    if let Some(text) = value.as_str() {
        return budget::memory(32 * text.len() as u64);
    }
    scan(value)
}

/// An argument that may be given by position or by name.
fn named(args: &[Value], index: usize, name: &str) -> Option<Value> {
    let by_place = args.get(index).filter(|value| !value.is_kwargs()).cloned();
    by_place.or_else(|| {
        let kwargs = args.last().filter(|value| value.is_kwargs())?;
        kwargs.get_attr(name).ok().filter(|value| !value.is_undefined())
    })
}

/// An argument as text.
fn printed(args: &[Value], index: usize) -> Result<String> {
    let Some(value) = args.get(index) else { return Ok(String::new()) };
    budget::memory(printed_bytes(value))?;
    Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Adds all filters and tests to an empty environment.
pub fn add_to(environment: &mut Environment<'static>) {
    let engine: [(&'static str, Value, Cost); 47] = [
        ("safe", Value::from_function(filters::safe), Cost::Text(2)),
        ("escape", Value::from_function(filters::escape), Cost::Text(6)),
        ("e", Value::from_function(filters::escape), Cost::Text(6)),
        ("lower", Value::from_function(filters::lower), Cost::Text(3)),
        ("upper", Value::from_function(filters::upper), Cost::Text(3)),
        ("title", Value::from_function(filters::title), Cost::Text(3)),
        ("capitalize", Value::from_function(filters::capitalize), Cost::Text(3)),
        ("replace", Value::from_function(filters::replace), Cost::Replace),
        ("dictsort", Value::from_function(filters::dictsort), Cost::Sort),
        ("items", Value::from_function(filters::items), Cost::Items),
        ("reverse", Value::from_function(filters::reverse), Cost::Items),
        ("trim", Value::from_function(filters::trim), Cost::Trim),
        ("join", Value::from_function(filters::join), Cost::Join),
        ("split", Value::from_function(filters::split), Cost::Split),
        ("lines", Value::from_function(filters::lines), Cost::Split),
        ("default", Value::from_function(filters::default), Cost::Glance),
        ("d", Value::from_function(filters::default), Cost::Glance),
        ("round", Value::from_function(filters::round), Cost::Glance),
        ("abs", Value::from_function(filters::abs), Cost::Glance),
        ("int", Value::from_function(filters::int), Cost::Text(1)),
        ("float", Value::from_function(filters::float), Cost::Text(1)),
        ("attr", Value::from_function(filters::attr), Cost::Items),
        ("first", Value::from_function(filters::first), Cost::Glance),
        ("last", Value::from_function(filters::last), Cost::Items),
        ("min", Value::from_function(filters::min), Cost::Sort),
        ("max", Value::from_function(filters::max), Cost::Sort),
        ("sort", Value::from_function(filters::sort), Cost::Sort),
        ("list", Value::from_function(filters::list), Cost::Items),
        ("bool", Value::from_function(filters::bool), Cost::Glance),
        ("batch", Value::from_function(filters::batch), Cost::Groups),
        ("slice", Value::from_function(filters::slice), Cost::Groups),
        ("sum", Value::from_function(sum), Cost::Items),
        ("indent", Value::from_function(filters::indent), Cost::Indent),
        ("select", Value::from_function(filters::select), Cost::Items),
        ("reject", Value::from_function(filters::reject), Cost::Items),
        ("selectattr", Value::from_function(filters::selectattr), Cost::Items),
        ("rejectattr", Value::from_function(filters::rejectattr), Cost::Items),
        ("map", Value::from_function(filters::map), Cost::Items),
        ("groupby", Value::from_function(filters::groupby), Cost::Sort),
        ("unique", Value::from_function(filters::unique), Cost::Sort),
        ("chain", Value::from_function(filters::chain), Cost::Items),
        ("zip", Value::from_function(filters::zip), Cost::Items),
        ("pprint", Value::from_function(filters::pprint), Cost::Indented),
        ("format", Value::from_function(filters::format), Cost::Format),
        ("length", Value::from_function(length), Cost::Glance),
        ("count", Value::from_function(length), Cost::Glance),
        (
            "tojson",
            Value::from_function(|value: &Value, kwargs: Kwargs| python::tojson(value, &kwargs)),
            Cost::Glance,
        ),
    ];
    for (name, function, cost) in engine {
        environment.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            cost.pay(&args)?;
            own(data::through(data::Sight::of_filter(name), args, |args| function.call(state, args))?)
        });
    }
    environment.add_filter("string", |value: &Value| python::str(value));
    add_tests_to(environment);
}

fn add_tests_to(environment: &mut Environment<'static>) {
    type Comparison = fn(&Value, &Value) -> bool;
    let comparisons: [(Comparison, &[&'static str]); 6] = [
        (tests::is_eq, &["eq", "equalto", "=="]),
        (tests::is_ne, &["ne", "!="]),
        (tests::is_lt, &["lt", "lessthan", "<"]),
        (tests::is_le, &["le", "<="]),
        (tests::is_gt, &["gt", "greaterthan", ">"]),
        (tests::is_ge, &["ge", ">="]),
    ];
    for (compare, names) in comparisons {
        for name in names {
            environment.add_test(*name, move |a: &Value, b: &Value| {
                pay_for_comparison(a, b)?;
                Ok::<_, Error>(compare(&data::plain_value(a.clone())?, &data::plain_value(b.clone())?))
            });
        }
    }
    environment.add_test("in", |value: &Value, container: &Value| contains(container, value));
    environment.add_test("sameas", |a: &Value, b: &Value| {
        pay_for_comparison(a, b)?;
        Ok::<_, Error>(tests::is_sameas(a, b))
    });
    for (name, test) in [
        ("startingwith", Value::from_function(tests::is_startingwith)),
        ("endingwith", Value::from_function(tests::is_endingwith)),
        ("lower", Value::from_function(tests::is_lower)),
        ("upper", Value::from_function(tests::is_upper)),
    ] {
        environment.add_test(name, move |state: &mut State<'_, '_>, args: Rest<Value>| {
            Cost::Text(1).pay(&args)?;
            let args = args.0.into_iter().map(data::plain_value).collect::<Result<Vec<_>>>()?;
            Ok::<_, Error>(test.call(state, &args)?.is_true())
        });
    }
    // None is not iterable in Python, and an undefined value is empty.
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | String | Seq | Map | Iterable)
    });
}

fn length(value: &Value) -> Result<usize> {
    if value.is_undefined() {
        return Ok(0);
    }
    if let Some(text) = value.as_str() {
        budget::work(text.len() as u64 / 8)?;
    }
    value.len().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind()))
    })
}

/// Adds the items, or an attribute of them, to `start`; lists are joined.
fn sum(values: &Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    let args = args.into_values();
    let (attribute, start, kwargs): (Option<Value>, Option<Value>, Kwargs) = from_args(&args)?;
    let attribute = match attribute {
        None => kwargs.get::<Option<Value>>("attribute")?,
        given => given,
    };
    let mut sum = match start {
        None => kwargs.get::<Option<Value>>("start")?.unwrap_or_else(|| Value::from(0)),
        Some(start) => start,
    };
    kwargs.assert_all_used()?;
    for item in values.try_iter()?.checked() {
        let mut item = item?;
        if let Some(path) = attribute.as_ref().and_then(|path| path.as_str()) {
            for part in path.split('.') {
                let key = part.parse::<usize>().map_or_else(|_| Value::from(part), Value::from);
                item = item.get_item(&key).unwrap_or_default();
            }
        }
        if item.is_undefined() {
            continue;
        }
        if sum.is_number() && !item.is_number() && item.kind() != ValueKind::Bool {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("can only sum numbers, got {}", item.kind()),
            ));
        }
        sum = add(&sum, &item)?;
    }
    Ok(sum)
}
