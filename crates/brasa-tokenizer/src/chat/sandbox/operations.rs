//! The operators that can build or walk over something large. Each pays first.
//!
//! They give the results of the engine's own operators (the tests evaluate a table of expressions with both). The other operators
//! are defined for numbers alone and are the engine's own.

use minijinja::value::{DynObject, Kwargs, ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::slice::slice;
use super::values::{Namespace, Numbers, Weight, list, map, own, walk};
use super::{budget, data, guard};

type Result<T> = std::result::Result<T, Error>;

/// Bytes that are counted for a macro besides the variables that it uses.
const MACRO_BYTES: u64 = 2048;
/// Bytes that are counted for a variable that a macro keeps.
const KEPT_BYTES: u64 = 128;

/// Adds the filters by which [`guard`] replaces operators.
pub fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(guard::ADD, add);
    environment.add_filter(guard::MULTIPLY, multiply);
    environment.add_filter(guard::CONCATENATE, concatenate);
    environment.add_filter(guard::EQUAL, |a: &Value, b: &Value| compared(a, b, |a, b| a == b));
    environment.add_filter(guard::UNEQUAL, |a: &Value, b: &Value| compared(a, b, |a, b| a != b));
    environment.add_filter(guard::LESS, |a: &Value, b: &Value| compared(a, b, |a, b| a < b));
    environment.add_filter(guard::AT_MOST, |a: &Value, b: &Value| compared(a, b, |a, b| a <= b));
    environment.add_filter(guard::GREATER, |a: &Value, b: &Value| compared(a, b, |a, b| a > b));
    environment.add_filter(guard::AT_LEAST, |a: &Value, b: &Value| compared(a, b, |a, b| a >= b));
    environment.add_filter(guard::IN, |value: &Value, container: &Value| contains(container, value));
    environment.add_filter(guard::ITEM, |value: &Value, key: &Value| {
        scan(value)?;
        value.get_item(key)
    });
    environment.add_filter(guard::LIST, |items: Rest<Value>| list(items.0));
    environment.add_filter(guard::MAP, |items: Rest<Value>| {
        map(items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())))
    });
    environment.add_filter(guard::WALK, |value: ValueOrKwargs| {
        walk(&value)?;
        // A loop that remembers itself by `loop.changed(loop)` would never be released: it sees a copy.
        own(value.into_value())
    });
    environment.add_filter(guard::COMPARED, |value: ValueOrKwargs| {
        walk(&value)?;
        own(data::plain_value(value.into_value())?)
    });
    environment.add_filter(guard::SCAN, |value: ValueOrKwargs| {
        scan(&value)?;
        Ok(value.into_value())
    });
    environment.add_filter(guard::SLICE, slice);
    environment.add_filter(guard::SET, |value: Value, namespace: &Value, name: &str| {
        match namespace.downcast_object_ref::<Namespace>() {
            Some(namespace) => namespace.set(name, value).map(|()| ""),
            None => Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("can only assign to namespaces, not {}", namespace.kind()),
            )),
        }
    });
    environment
        .add_filter(guard::MACRO, |names: u64| budget::memory(MACRO_BYTES + KEPT_BYTES * names).map(|()| ""));
}

/// Adds the functions that make containers.
pub fn add_functions_to(environment: &mut Environment<'static>) {
    environment.add_function("range", range);
    environment.add_function("dict", |value: Option<Value>, update_with: Kwargs| {
        let mut pairs = Vec::new();
        if let Some(value) = value.filter(|value| !value.is_undefined()) {
            let object = value.as_object().filter(|object| object.repr() == ObjectRepr::Map);
            let object = object.ok_or_else(|| Error::from(ErrorKind::InvalidOperation))?;
            scan(&value)?;
            pairs.extend(object.try_iter_pairs().into_iter().flatten());
        }
        for name in update_with.args() {
            pairs.push((Value::from(name), update_with.peek(name)?));
        }
        map(pairs)
    });
    environment.add_function("namespace", |defaults: Option<ValueOrKwargs>| {
        let namespace = Namespace::default();
        if let Some(defaults) = defaults.map(ValueOrKwargs::into_value) {
            let pairs = defaults.as_object().filter(|object| object.repr() == ObjectRepr::Map);
            let pairs = pairs.and_then(DynObject::try_iter_pairs).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidOperation,
                    format!("expected object or keyword arguments, got {}", defaults.kind()),
                )
            })?;
            budget::memory(256)?;
            for (key, value) in pairs {
                if let Some(key) = key.as_str() {
                    namespace.set(key, value)?;
                }
            }
        }
        Ok(Value::from_object(namespace))
    });
    // It prints everything that the template knows.
    environment.remove_global("debug");
}

/// Pays for the items of a list or map, or the bytes of a text.
pub fn scan(value: &Value) -> Result<()> {
    budget::work(match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.len().unwrap_or(1) as u64,
    })
}

/// Pays for a comparison, which takes at most as long as a walk over the smaller side.
pub fn pay_for_comparison(a: &Value, b: &Value) -> Result<()> {
    budget::work(Weight::of(a).steps().min(Weight::of(b).steps()))
}

fn compared(a: &Value, b: &Value, compare: fn(&Value, &Value) -> bool) -> Result<bool> {
    pay_for_comparison(a, b)?;
    Ok(compare(&data::plain_value(a.clone())?, &data::plain_value(b.clone())?))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// `a + b` for texts, lists and numbers.
pub fn add(a: &Value, b: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        budget::memory((a.len() + b.len()) as u64)?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(a) && is_list(b) {
        scan(a)?;
        scan(b)?;
        return list(a.try_iter()?.chain(b.try_iter()?).collect());
    }
    numbers(a, b, "+", i128::checked_add, |a, b| a + b)
}

fn multiply(a: &Value, b: &Value) -> Result<Value> {
    let invalid = |message: &'static str| Error::new(ErrorKind::InvalidOperation, message);
    if let Some((text, count)) = a.as_str().map(|text| (text, b)).or_else(|| b.as_str().map(|text| (text, a)))
    {
        let count =
            count.as_usize().ok_or_else(|| invalid("strings can only be multiplied with integers"))?;
        let bytes = text.len().checked_mul(count).filter(|bytes| *bytes <= 100_000_000);
        let bytes = bytes.ok_or_else(|| invalid("repeated string is too large"))?;
        budget::memory(bytes as u64)?;
        return Ok(Value::from(text.repeat(count)));
    }
    let of_list = is_list(a).then_some((a, b)).or_else(|| is_list(b).then_some((b, a)));
    if let Some((items, count)) = of_list {
        let count = count
            .as_usize()
            .ok_or_else(|| invalid("sequences and iterables can only be multiplied with integers"))?;
        let items: Vec<Value> = items.try_iter()?.collect();
        let all = items.len().checked_mul(count).filter(|all| *all <= 100_000_000);
        let all = all.ok_or_else(|| invalid("repeated sequence is too large"))?;
        if all == 0 {
            return list(Vec::new());
        }
        // What the list takes is paid for before it is made.
        budget::memory(24 * all as u64)?;
        return list(std::iter::repeat_n(items, count).flatten().collect());
    }
    numbers(a, b, "*", i128::checked_mul, |a, b| a * b)
}

fn concatenate(a: &Value, b: &Value) -> Result<Value> {
    for value in [a, b] {
        budget::memory(printed_bytes(value))?;
    }
    Ok(Value::from(match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => [a, b].concat(),
        _ => format!("{a}{b}"),
    }))
}

/// An upper bound on the bytes of a value when printed.
pub fn printed_bytes(value: &Value) -> u64 {
    value.as_str().map_or_else(|| Weight::of(value).printed_bytes(), |text| text.len() as u64)
}

/// `value in container`.
pub fn contains(container: &Value, value: &Value) -> Result<bool> {
    if container.is_undefined() {
        return Ok(false);
    }
    if let Some(text) = container.as_str() {
        budget::work(text.len() as u64)?;
        let text = data::plain(text)?;
        if let Some(part) = value.as_str() {
            return Ok(text.contains(&*data::plain(part)?));
        }
        budget::memory(printed_bytes(value))?;
        return Ok(text.contains(&value.to_string()));
    }
    match container.as_object().map(DynObject::repr) {
        Some(ObjectRepr::Plain) => Ok(false),
        Some(ObjectRepr::Map) => Ok(container.as_object().is_some_and(|map| map.get_value(value).is_some())),
        Some(_) => {
            // Each item is compared as far as the shorter of the two goes.
            let of_value = Weight::of(value).steps().saturating_mul(container.len().unwrap_or(0) as u64);
            budget::work(of_value.min(Weight::of(container).steps()))?;
            let value = data::plain_value(value.clone())?;
            for item in container.try_iter()? {
                if data::plain_value(item)? == value {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, "cannot perform a containment check on this value"))
        }
    }
}

fn numbers(
    a: &Value,
    b: &Value,
    sign: &str,
    integers: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value> {
    let is_float = |value: &Value| value.is_number() && !value.is_integer();
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(a) || !is_number(b) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tried to use {sign} operator on unsupported types {} and {}", a.kind(), b.kind()),
        ));
    }
    if is_float(a) || is_float(b) {
        return Ok(Value::from(floats(float(a)?, float(b)?)));
    }
    let result = integers(i128::try_from(a.clone())?, i128::try_from(b.clone())?);
    match result.map(i64::try_from) {
        Some(Ok(small)) => Ok(Value::from(small)),
        Some(Err(_)) => Ok(Value::from(result.unwrap_or_default())),
        None => Err(Error::new(ErrorKind::InvalidOperation, format!("unable to calculate {a} {sign} {b}"))),
    }
}

fn float(value: &Value) -> Result<f64> {
    if value.is_number() && !value.is_integer() {
        return f64::try_from(value.clone());
    }
    Ok(i128::try_from(value.clone())? as f64)
}

/// Numbers from `lower` to below `upper`, at most 100,000 of them.
fn range(lower: i64, upper: Option<i64>, step: Option<i64>) -> Result<Value> {
    let invalid = |message: &'static str| Error::new(ErrorKind::InvalidOperation, message);
    let (start, end) = upper.map_or((0, lower), |upper| (lower, upper));
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(invalid("cannot create range with step of 0"));
    }
    let distance =
        if step > 0 { i128::from(end) - i128::from(start) } else { i128::from(start) - i128::from(end) };
    let count = if distance <= 0 { 0 } else { (distance - 1) / i128::from(step).abs() + 1 };
    match usize::try_from(count) {
        Ok(count) if count <= 100_000 => Ok(Value::from_object(Numbers { start, step, count })),
        _ => Err(invalid("range has too many elements")),
    }
}
