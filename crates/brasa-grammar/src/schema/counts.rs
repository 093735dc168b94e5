//! Limits on the number of properties, for objects whose properties the parser cannot count.
//!
//! The parser counts the members of an object. An object with the same key twice has one property, so a minimum is exact only for
//! keys that occur once: those of `properties`. A maximum is always met.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::rewrite::with_other_types;

/// Most alternatives into which one limit is spelled out.
const MOST_ALTERNATIVES: usize = 64;

/// True if an object may only have the properties of `properties`.
pub fn is_closed(keywords: &Map<String, Value>) -> bool {
    let has_patterns =
        keywords.get("patternProperties").and_then(Value::as_object).is_some_and(|map| !map.is_empty());
    keywords.get("additionalProperties") == Some(&Value::Bool(false)) && !has_patterns
}

/// Names of the properties that a schema requires.
fn required(keywords: &Map<String, Value>) -> HashSet<&str> {
    keywords
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// Names of the optional properties.
pub fn optional(keywords: &Map<String, Value>) -> Vec<&str> {
    let required = required(keywords);
    let properties = keywords.get("properties").and_then(Value::as_object).into_iter().flatten();
    let optional =
        properties.filter(|(key, schema)| !required.contains(key.as_str()) && **schema != Value::Bool(false));
    optional.map(|(key, _)| key.as_str()).collect()
}

/// The number of properties that an object needs besides the required ones.
pub fn missing(keywords: &Map<String, Value>) -> u64 {
    let least = keywords.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
    least.saturating_sub(required(keywords).len() as u64)
}

/// True if counting members gives the same number of properties as JSON Schema.
pub fn is_exact(keywords: &Map<String, Value>) -> bool {
    missing(keywords) <= 1
}

/// Alternatives that together allow the objects with the number of properties that the schema demands. `None` if the parser can
/// count them, or if there are too many.
pub fn alternatives(keywords: &Map<String, Value>) -> Option<Vec<Value>> {
    let (names, least) = (optional(keywords), usize::try_from(missing(keywords)).ok()?);
    let most = match keywords.get("maxProperties") {
        Some(most) => Some(usize::try_from(most.as_u64()?).ok()?.saturating_sub(required(keywords).len())),
        None => None,
    };
    let is_closed = is_closed(keywords);
    let most = most.filter(|most| !is_closed || *most < names.len());
    // Without properties that may be left out, the parser's count is the right one up to one member.
    let knows = names.is_empty() && (least <= 1 || !is_closed);
    if knows || least == 0 && most.is_none() || least > 1 && !is_closed {
        return None;
    }
    let sets = match most {
        None => {
            let mut sets = chosen(names.len(), least)?;
            if !is_closed {
                // None of the known ones, but another one.
                sets.push(Vec::new());
            }
            sets
        }
        Some(most) => {
            let mut sets = Vec::new();
            for count in (if is_closed { least } else { 0 })..=most.min(names.len()) {
                sets.extend(chosen(names.len(), count)?);
                if sets.len() > MOST_ALTERNATIVES {
                    return None;
                }
            }
            sets
        }
    };
    let alternative = |set: &Vec<usize>| {
        // Of those that come first, none but the chosen ones; without a greatest number, any behind these.
        let last = set.last().copied().filter(|_| most.is_none()).unwrap_or(names.len());
        let absent =
            (0..last).filter(|at| !set.contains(at)).map(|at| (names[at].to_owned(), Value::Bool(false)));
        let mut present = keywords.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        present.extend(set.iter().map(|&at| Value::from(names[at])));
        let mut alternative =
            json!({"type": "object", "properties": absent.collect::<Map<_, _>>(), "required": present});
        if set.len() < least {
            alternative["minProperties"] = keywords["minProperties"].clone();
        }
        alternative
    };
    Some(with_other_types(keywords, sets.iter().map(alternative).collect()))
}

/// All ways to choose `count` out of `of` numbers; `None` if there are too many.
fn chosen(of: usize, count: usize) -> Option<Vec<Vec<usize>>> {
    let mut sets = vec![Vec::new()];
    for _ in 0..count {
        let longer = |set: &Vec<usize>| {
            let next = set.last().map_or(0, |last| last + 1);
            (next..of).map(|at| [set.as_slice(), &[at]].concat()).collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(longer).collect();
        if sets.len() > MOST_ALTERNATIVES * 16 {
            return None;
        }
    }
    (sets.len() <= MOST_ALTERNATIVES).then_some(sets)
}
