//! Patterns with lengths, in a form for which masks are computed faster.
//!
//! The parser intersects a pattern with a length. The intersection has new states at each character, which must all be computed.
//! So a length that the pattern implies is dropped, and a schema with long texts gets a loose form without their maximum lengths.
//! The loose form allows the same tokens while an open string has at most [`Loose::slack_chars`] characters, those of the token
//! included.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::edit;
use super::lengths::Lengths;

/// Least [`Loose::slack_chars`] for which a loose form is made.
const LEAST_SLACK: usize = 400;
/// Most values that are examined to check that no text must match two schemas.
const MOST_STEPS: usize = 200_000;

/// A schema without those length limits that matter only after many characters.
pub struct Loose {
    pub schema: Value,
    /// Most characters of an open string for which the schema allows the same tokens as the exact one.
    pub slack_chars: usize,
}

/// Most patterns that one text may have to match at once. Follows references and choices, up to `steps` schemas.
pub fn patterns_together(root: &Value, schema: &Value, steps: &mut usize) -> usize {
    let Some(keywords) = schema.as_object().filter(|_| *steps > 0) else { return 0 };
    *steps -= 1;
    let mut parts = |name: &str| {
        let parts = keywords.get(name).and_then(Value::as_array).into_iter().flatten();
        parts.map(|part| patterns_together(root, part, steps)).collect::<Vec<_>>()
    };
    let all: usize = parts("allOf").iter().sum();
    let any = parts("anyOf").into_iter().chain(parts("oneOf")).max().unwrap_or(0);
    let target =
        keywords.get("$ref").and_then(Value::as_str).and_then(|name| root.pointer(name.strip_prefix('#')?));
    let behind = target.map_or(0, |target| patterns_together(root, target, steps));
    usize::from(keywords.contains_key("pattern")) + all + any + behind
}

/// Removes length limits that a pattern implies.
pub fn drop_implied_lengths(keywords: &mut Map<String, Value>) {
    let Some(lengths) = keywords.get("pattern").and_then(Value::as_str).and_then(Lengths::of) else { return };
    if count(keywords, "minLength").is_some_and(|least| least <= lengths.least) {
        keywords.shift_remove("minLength");
    }
    if let (Some(most), Some(longest)) = (count(keywords, "maxLength"), lengths.most)
        && longest <= most
    {
        keywords.shift_remove("maxLength");
    }
}

/// The loose form of `schema`, which has patterns at `places`. `None` if no text is long, or if texts may have to match several
/// schemas at once.
pub fn loosen(schema: &Value, places: &[String]) -> Option<Loose> {
    let slack = |keywords: &Map<String, Value>| {
        let pattern = keywords.get("pattern")?.as_str()?;
        let most = count(keywords, "maxLength")?;
        let lengths = Lengths::of(pattern).filter(|_| !keywords.contains_key("format"))?;
        // What is as long as the least length has an end behind as many characters more.
        let least = count(keywords, "minLength").unwrap_or(0);
        let slack = most.checked_sub(lengths.rest)?;
        (slack >= LEAST_SLACK && slack >= least).then_some(slack)
    };
    let long: Vec<_> = places
        .iter()
        .filter_map(|place| Some((slack(schema.pointer(place.strip_prefix('#')?)?.as_object()?)?, place)))
        .collect();
    let slack_chars = long.iter().map(|(slack, _)| *slack).min()?;
    let mut steps = 0;
    if has_narrowed_texts(schema, &mut steps) {
        return None;
    }
    let mut loose = schema.clone();
    for (_, place) in &long {
        edit(&mut loose, place, |keywords| {
            keywords.shift_remove("maxLength");
        });
    }
    Some(Loose { schema: loose, slack_chars })
}

fn count(keywords: &Map<String, Value>, name: &str) -> Option<usize> {
    keywords.get(name)?.as_u64()?.try_into().ok()
}

/// True if a text may have to match two schemas at once, so that the end of a text by one may not be an end by the other. Also
/// true if `steps` are not enough.
fn has_narrowed_texts(schema: &Value, steps: &mut usize) -> bool {
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(keywords) => {
                if is_narrowed(schema, keywords, steps) {
                    return true;
                }
                open.extend(keywords.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
        *steps += 1;
        if *steps > MOST_STEPS {
            return true;
        }
    }
    false
}

/// True if `keywords` combines two or more schemas that restrict texts.
fn is_narrowed(root: &Value, keywords: &Map<String, Value>, steps: &mut usize) -> bool {
    let mut operands: Vec<Vec<(&str, &Value)>> = vec![Vec::new()];
    for (name, value) in keywords {
        match (name.as_str(), value) {
            ("allOf", Value::Array(parts)) => operands.extend(parts.iter().map(|part| vec![("allOf", part)])),
            (name @ ("anyOf" | "oneOf" | "$ref" | "enum" | "const" | "patternProperties"), value) => {
                operands.push(vec![(name, value)]);
            }
            ("$defs" | "definitions" | "examples" | "default", _) => {}
            (name, value) => operands[0].push((name, value)),
        }
    }
    operands.iter().filter(|operand| operand.iter().any(|part| says_of_texts(root, *part, steps))).count() > 1
}

/// True if a keyword, or a schema inside its value, restricts texts.
fn says_of_texts<'a>(root: &'a Value, keyword: (&'a str, &'a Value), steps: &mut usize) -> bool {
    let (mut open, mut seen) = (vec![keyword], HashSet::new());
    while let Some((name, value)) = open.pop() {
        *steps += 1;
        if *steps > MOST_STEPS {
            return true;
        }
        match (name, value) {
            ("pattern" | "format" | "minLength" | "maxLength" | "enum" | "const", _) => return true,
            ("$ref", Value::String(reference)) => {
                let target = reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                if seen.insert(reference) {
                    open.extend(target.map(|target| ("", target)));
                }
            }
            ("$defs" | "definitions" | "examples" | "default", _) => {}
            ("properties" | "patternProperties", Value::Object(map)) => {
                open.extend(map.values().map(|schema| ("", schema)));
            }
            (_, Value::Object(keywords)) => {
                open.extend(keywords.iter().map(|(name, value)| (name.as_str(), value)));
            }
            (_, Value::Array(items)) => open.extend(items.iter().map(|item| ("", item))),
            _ => {}
        }
    }
    false
}
