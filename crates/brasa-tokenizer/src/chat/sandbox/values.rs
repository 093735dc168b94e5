//! Lists, maps and namespaces with a known cost of walking over them.
//!
//! Parts are shared: forty steps of `d = [d, d]` take little memory, but printing the result never ends. So each container keeps
//! the weight of the tree that a walk visits, with shared parts counted as often as they occur, and a walk pays this weight
//! first. The depth is limited when a container is made, so no walk, comparison or release recurses deeper than [`DEEPEST`]. The
//! engine's own containers, some of which are lazy views of others, are converted to these as soon as an operation returns them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, Value};

use super::budget;
use crate::chat::exact;

/// Most levels of nested lists and maps. JSON is read to 128 levels.
pub const DEEPEST: u32 = 160;
/// Bytes that are counted for a container besides its items.
const CONTAINER_BYTES: u64 = 128;
/// Bytes that are counted for an item of a list.
const ITEM_BYTES: u64 = 32;
/// Bytes that are counted for a key with its value.
const PAIR_BYTES: u64 = 160;

/// The cost of a walk over a value, with shared parts counted as often as they occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// Number of values, containers included.
    pub nodes: u64,
    /// Bytes of all texts.
    pub bytes: u64,
    /// Levels of containers.
    pub depth: u32,
}

impl Weight {
    /// The weight of a value.
    pub fn of(value: &Value) -> Self {
        if let Some(text) = value.as_str() {
            return Self { nodes: 1, bytes: text.len() as u64, depth: 0 };
        }
        let Some(object) = value.as_object() else { return Self { nodes: 1, bytes: 0, depth: 0 } };
        if let Some(list) = object.downcast_ref::<List>() {
            list.weight
        } else if let Some(map) = object.downcast_ref::<Map>() {
            map.weight
        } else if let Some(numbers) = object.downcast_ref::<Numbers>() {
            Self { nodes: numbers.count as u64 + 1, bytes: 0, depth: 1 }
        } else if let Some(namespace) = object.downcast_ref::<Namespace>() {
            let values = namespace.values.lock().unwrap_or_else(PoisonError::into_inner);
            let mut weight = Self { nodes: 1, bytes: 0, depth: 1 };
            for (key, value) in values.iter() {
                weight.add(Self { nodes: 1, bytes: key.len() as u64, depth: 0 });
                weight.add(Self::of(value));
            }
            weight
        } else if value.is_kwargs() {
            let mut weight = Self { nodes: 1, bytes: 0, depth: 1 };
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                weight.add(Self::of(&key));
                weight.add(Self::of(&value));
            }
            weight
        } else {
            let bytes = Digits::of(value).map_or(0, str::len) as u64;
            Self { nodes: 1, bytes, depth: 0 }
        }
    }

    /// Steps of a walk: one for each byte, and 16 for each value, which takes as long as 16 bytes.
    pub fn steps(self) -> u64 {
        self.nodes.saturating_mul(16).saturating_add(self.bytes)
    }

    /// A bound on the bytes that the value takes when printed in any notation.
    pub fn printed_bytes(self) -> u64 {
        self.nodes.saturating_mul(48).saturating_add(self.bytes.saturating_mul(10))
    }

    /// Adds the weight of a part of the container.
    fn add(&mut self, part: Self) {
        self.nodes = self.nodes.saturating_add(part.nodes);
        self.bytes = self.bytes.saturating_add(part.bytes);
        self.depth = self.depth.max(part.depth + 1);
    }
}

/// A list or tuple.
#[derive(Debug)]
pub struct List {
    items: Vec<Value>,
    /// Attributes that name the first items, for groups made by `groupby`.
    names: &'static [&'static str],
    weight: Weight,
}

/// A map in the order in which its keys were added.
#[derive(Debug)]
pub struct Map {
    pairs: Value,
    weight: Weight,
}

/// The numbers of `range()`, computed on access.
#[derive(Debug)]
pub struct Numbers {
    /// The first number.
    pub start: i64,
    /// The difference between two neighbours.
    pub step: i64,
    /// Number of numbers.
    pub count: usize,
}

/// A whole number beyond 128 bits, which can only be printed.
#[derive(Debug)]
pub struct Digits(String);

impl Digits {
    /// A value for the number with these digits.
    fn value(digits: &str) -> Value {
        digits.parse::<i128>().map_or_else(|_| Value::from_object(Self(digits.to_owned())), Value::from)
    }

    /// The digits of such a number; `None` for other values.
    pub fn of(value: &Value) -> Option<&str> {
        value.downcast_object_ref::<Self>().map(|digits| digits.0.as_str())
    }
}

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// The result of `namespace()`: a map with attributes that can be set.
#[derive(Debug, Default)]
pub struct Namespace {
    values: Mutex<BTreeMap<Arc<str>, Value>>,
}

/// Pays for a walk over all of a value.
pub fn walk(value: &Value) -> Result<(), Error> {
    budget::work(Weight::of(value).steps())
}

/// Pays for printing a value: for the walk and the bytes of all texts in the value. Returns the number of bytes.
pub fn pay_for_printing(value: &Value) -> Result<usize, Error> {
    walk(value)?;
    let bytes = Weight::of(value).bytes;
    budget::memory(bytes)?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Makes a list.
pub fn list(items: Vec<Value>) -> Result<Value, Error> {
    named_list(items, &[])
}

fn named_list(mut items: Vec<Value>, names: &'static [&'static str]) -> Result<Value, Error> {
    budget::memory(CONTAINER_BYTES + ITEM_BYTES * items.len() as u64)?;
    let mut weight = Weight { nodes: 1, bytes: 0, depth: 1 };
    for item in &mut items {
        contain(item)?;
        weight.add(Weight::of(item));
    }
    check(weight)?;
    Ok(Value::from_object(List { items, names, weight }))
}

/// Makes a map. Of pairs with equal keys, the last value is kept.
pub fn map(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Value, Error> {
    let mut weight = Weight { nodes: 1, bytes: 0, depth: 1 };
    budget::memory(CONTAINER_BYTES)?;
    let mut kept = Vec::new();
    for (key, mut value) in pairs {
        if key.as_object().is_some() {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("a {} cannot be the key of a map", key.kind()),
            ));
        }
        budget::memory(PAIR_BYTES)?;
        contain(&mut value)?;
        weight.add(Weight::of(&key));
        weight.add(Weight::of(&value));
        kept.push((key, value));
    }
    check(weight)?;
    Ok(Value::from_object(Map { pairs: Value::from_pairs(kept), weight }))
}

fn check(weight: Weight) -> Result<(), Error> {
    if weight.depth > DEEPEST { Err(budget::exceeded("depth of values")) } else { Ok(()) }
}

/// Prepares a value for being stored in a container.
fn contain(value: &mut Value) -> Result<(), Error> {
    if value.downcast_object_ref::<Namespace>().is_some() {
        // It could then contain itself, and would never be released.
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot be kept inside of another value",
        ));
    }
    *value = own(std::mem::take(value))?;
    Ok(())
}

/// Converts the engine's containers, lazy ones too, to those of this module. Other values are unchanged.
pub fn own(value: Value) -> Result<Value, Error> {
    own_at(value, 0)
}

fn own_at(value: Value, depth: u32) -> Result<Value, Error> {
    let Some(object) = value.as_object() else {
        return Ok(value.as_str().and_then(exact::digits).map_or(value.clone(), Digits::value));
    };
    // A macro is a map of its name and arguments to the engine, but what counts is that it can be called.
    if is_own(object) || object.repr() == ObjectRepr::Plain || object.type_name().ends_with("::Macro") {
        return Ok(value);
    }
    if depth > DEEPEST {
        return Err(budget::exceeded("depth of values"));
    }
    if object.repr() == ObjectRepr::Map {
        let mut pairs = Vec::new();
        for (key, value) in object.try_iter_pairs().into_iter().flatten() {
            budget::memory(ITEM_BYTES)?;
            pairs.push((key, own_at(value, depth + 1)?));
        }
        return map(pairs);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        budget::memory(ITEM_BYTES)?;
        items.push(own_at(item?, depth + 1)?);
    }
    // The filter `groupby` returns pairs whose parts have names.
    let names: &[&str] = if object.type_name().contains("GroupTuple") { &["grouper", "list"] } else { &[] };
    named_list(items, names)
}

fn is_own(object: &DynObject) -> bool {
    object.downcast_ref::<List>().is_some()
        || object.downcast_ref::<Map>().is_some()
        || object.downcast_ref::<Numbers>().is_some()
        || object.downcast_ref::<Namespace>().is_some()
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_usize() {
            Some(index) => self.items.get(index).cloned(),
            None => self.get_value_by_str(key.as_str()?),
        }
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        let index = self.names.iter().position(|name| *name == key)?;
        self.items.get(index).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

impl Object for Numbers {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize().filter(|index| *index < self.count)?;
        Some(Value::from(self.start.wrapping_add(self.step.wrapping_mul(index as i64))))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.count)
    }
}

impl Map {
    fn object(&self) -> Option<&DynObject> {
        self.pairs.as_object()
    }
}

impl Object for Map {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        // A container is no key, and would be walked to compute its hash.
        if key.as_object().is_some() { None } else { self.object()?.get_value(key) }
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.object()?.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.object().map_or(Enumerator::Empty, DynObject::enumerate)
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.object()?.enumerator_len()
    }
}

impl Namespace {
    /// Sets an attribute.
    pub fn set(&self, name: &str, mut value: Value) -> Result<(), Error> {
        contain(&mut value)?;
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if !values.contains_key(name) {
            budget::memory(CONTAINER_BYTES + name.len() as u64)?;
        }
        values.insert(name.into(), value);
        Ok(())
    }
}

impl Object for Namespace {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        Enumerator::Values(values.keys().map(|key| Value::from(Arc::clone(key))).collect())
    }
}
