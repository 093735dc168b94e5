//! Operations on texts with [marks](crate::chat::marks). Each works as on the text without marks, and its result keeps them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::budget;
use super::values::list;
use crate::chat::marks::Marks;

type Result<T> = std::result::Result<T, Error>;

thread_local! {
    static MARKS: RefCell<Arc<Marks>> = RefCell::default();
}

/// Sets the marks of the rendering that begins on this thread.
pub fn begin(marks: Marks) {
    MARKS.set(Arc::new(marks));
}

/// The marks of the rendering on this thread.
pub fn marks() -> Arc<Marks> {
    MARKS.with_borrow(Arc::clone)
}

/// A text without marks.
pub fn plain(text: &str) -> Result<Cow<'_, str>> {
    MARKS.with_borrow(|marks| {
        if marks.may_be_in(text) {
            budget::memory(text.len() as u64)?;
        }
        Ok(marks.plain(text))
    })
}

/// A text without marks; any other value unchanged.
pub fn plain_value(value: Value) -> Result<Value> {
    if !is_marked(&value) {
        return Ok(value);
    }
    Ok(value.as_str().map(plain).transpose()?.map_or_else(|| value.clone(), Value::from))
}

fn is_marked(value: &Value) -> bool {
    value.as_str().is_some_and(|text| MARKS.with_borrow(|marks| marks.may_be_in(text)))
}

/// How an operation uses the characters of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// Passes characters on without reading any.
    Passes,
    /// Takes parts of the first argument, in order.
    Cuts,
    /// Replaces one text by another.
    Replaces,
    /// Sorts the items of a list, or selects some.
    Orders,
    /// Reads all characters, and makes another text of them.
    Reads,
}

impl Sight {
    /// How a filter uses characters.
    pub fn of_filter(name: &str) -> Self {
        match name {
            "trim" | "split" | "lines" => Self::Cuts,
            "replace" => Self::Replaces,
            "sort" | "unique" | "min" | "max" => Self::Orders,
            "lower" | "upper" | "title" | "capitalize" | "int" | "float" | "escape" | "e" | "pprint"
            | "round" | "abs" => Self::Reads,
            _ => Self::Passes,
        }
    }

    /// How a method of texts uses characters.
    pub fn of_method(name: &str) -> Self {
        match name {
            "strip" | "lstrip" | "rstrip" | "split" | "splitlines" => Self::Cuts,
            "replace" => Self::Replaces,
            "format" | "join" => Self::Passes,
            _ => Self::Reads,
        }
    }
}

/// Runs an operation on texts without marks, and restores the marks in its result.
pub fn through(
    sight: Sight,
    args: Vec<Value>,
    call: impl FnOnce(&[Value]) -> Result<Value>,
) -> Result<Value> {
    if sight == Sight::Orders {
        return in_order(args, call);
    }
    if sight == Sight::Passes || !args.iter().any(is_marked) {
        return call(&args);
    }
    let marked = args[0].clone();
    // Any other value is printed first.
    let sight = if marked.as_str().is_some() { sight } else { Sight::Reads };
    let (text, written) = (marked.as_str().unwrap_or_default(), args.get(2).cloned());
    let plain_args = args.into_iter().map(plain_value).collect::<Result<Vec<_>>>()?;
    let plain_text = plain(text)?;
    let second = plain_args.get(1).and_then(|value| value.as_str().map(str::to_owned));
    match sight {
        Sight::Replaces => {
            let (Some(old), Some(new)) = (second, written) else { return call(&plain_args) };
            let most = plain_args.get(3).and_then(|most| usize::try_from(most.clone()).ok());
            Ok(replaced(text, &plain_text, &old, new.as_str().unwrap_or(&new.to_string()), most).into())
        }
        Sight::Cuts => {
            let result = call(&plain_args)?;
            let one = result.as_str().is_some();
            let pieces = if one { vec![result] } else { result.try_iter()?.collect() };
            let between = if one { 0 } else { second.map_or(0, |separator| separator.len()) };
            let mut at = 0;
            let mut places = Vec::with_capacity(pieces.len());
            for piece in &pieces {
                let piece = piece.as_str().unwrap_or_default();
                // Between two pieces lies the separator, or characters with which no piece begins.
                let start = at + plain_text[at..].find(piece).unwrap_or_default();
                places.push(start..start + piece.len());
                at = start + piece.len();
                at += if plain_text.len() - at >= between { between } else { 0 };
            }
            budget::memory(text.len() as u64 + 64 * places.len() as u64)?;
            let mut cut = cut_at(text, &plain_text, places.into_iter()).into_iter().map(Value::from);
            if one { Ok(cut.next().unwrap_or_default()) } else { list(cut.collect()) }
        }
        Sight::Reads | Sight::Passes | Sight::Orders => {
            let result = call(&plain_args)?;
            match (result.kind(), result.as_str()) {
                (ValueKind::String, Some(read)) => {
                    budget::memory(4 * read.len() as u64)?;
                    Ok(marked_like(text, read).into())
                }
                _ => Ok(result),
            }
        }
    }
}

/// Runs an operation that sorts or selects items of a list. Items of the result are items of the list, with their marks.
fn in_order(mut args: Vec<Value>, call: impl FnOnce(&[Value]) -> Result<Value>) -> Result<Value> {
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let items: Vec<Value> = match args.first().filter(|first| is_list(first)) {
        Some(first) => first.try_iter()?.collect(),
        None => Vec::new(),
    };
    if !items.iter().any(is_marked) {
        return call(&args);
    }
    let mut marked: BTreeMap<Value, VecDeque<Value>> = BTreeMap::new();
    let mut plain_items = Vec::with_capacity(items.len());
    for item in items {
        let plain = plain_value(item.clone())?;
        if is_marked(&item) {
            marked.entry(plain.clone()).or_default().push_back(item);
        }
        plain_items.push(plain);
    }
    args[0] = list(plain_items)?;
    let mut with_marks = |plain: Value| marked.get_mut(&plain).and_then(VecDeque::pop_front).unwrap_or(plain);
    let result = call(&args)?;
    if is_list(&result) { list(result.try_iter()?.map(with_marks).collect()) } else { Ok(with_marks(result)) }
}

/// Parts of `text`, which has marks, at ascending ranges of bytes of `plain`, the same text without marks.
pub fn cut_at<'a>(text: &'a str, plain: &str, places: impl Iterator<Item = Range<usize>>) -> Vec<&'a str> {
    let mut ends =
        text.char_indices().zip(plain.char_indices()).map(|((own, _), (plain, _))| (plain, own)).peekable();
    let mut own_place = |place: usize| {
        while ends.peek().is_some_and(|(plain, _)| *plain < place) {
            ends.next();
        }
        ends.peek().map_or(text.len(), |(_, own)| *own)
    };
    places.map(|place| own_place(place.start)..own_place(place.end)).map(|place| &text[place]).collect()
}

/// A text with marks in which `old` is replaced by `new`, at most `most` times.
fn replaced(text: &str, plain: &str, old: &str, new: &str, most: Option<usize>) -> String {
    let found = plain.match_indices(old).take(most.unwrap_or(usize::MAX));
    let places: Vec<Range<usize>> = found.map(|(at, _)| at..at + old.len()).collect();
    let starts = std::iter::once(0).chain(places.iter().map(|place| place.end));
    let kept = starts.zip(places.iter().map(|place| place.start).chain([plain.len()]));
    cut_at(text, plain, kept.map(|(start, end)| start..end)).join(new)
}

/// `read` with marks. If it has as many characters as `text`, at the places where `text` has marks; otherwise at every character
/// that can have one.
fn marked_like(text: &str, read: &str) -> String {
    let marks = marks();
    if text.chars().count() != read.chars().count() {
        return marks.mark(read);
    }
    let chars = text.chars().zip(read.chars());
    chars.map(|(own, char)| if marks.plain_char(own) == own { char } else { marks.mark_char(char) }).collect()
}
