//! `oneOf` as `anyOf`, where both allow the same values or `anyOf` allows fewer.
//!
//! They allow the same values if no value is right by two branches. Where branches overlap, the overlap is cut out if it is known: `null` that
//! several branches allow, objects told apart by the properties that they require, and whatever a branch does not allow, if that can be said.
//!
//! Otherwise more than the overlap may be cut out ([`Extent::Part`]): no answer is right by two branches, and some right answers cannot be
//! given. Every other `oneOf` stays as it is.

use serde_json::{Map, Value, json};

use super::disjoint::Proofs;
use super::negation::{any, negated};
use super::texts;
use crate::limits::PATTERNS_TOGETHER;

/// Annotations, which do not restrict values.
const REMARKS: [&str; 6] = ["title", "description", "$comment", "default", "examples", "deprecated"];
/// Most alternatives into which branches are split.
const MOST_ALTERNATIVES: usize = 64;
/// Names of properties that are tried for each pair of branches.
const MOST_NAMES: usize = 32;

/// Values that are left when a branch is cut out of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All values that are right by the other branch alone.
    All,
    /// Some of these values.
    Part,
}

/// Replaces `oneOf` in `keywords` by an `anyOf`, if one is known to this extent. Returns true if the `anyOf` may allow fewer values.
pub fn replace(proofs: &mut Proofs<'_>, keywords: &mut Map<String, Value>, extent: Extent) -> bool {
    let Some(branches) = keywords.get("oneOf").and_then(Value::as_array) else { return false };
    if keywords.contains_key("anyOf") {
        return false;
    }
    let all = by_required(branches)
        .or_else(|| disjoint(proofs, keywords, branches))
        .or_else(|| cut(proofs, keywords, branches, Extent::All));
    let is_part = all.is_none();
    let known = match extent {
        Extent::Part if is_part => cut(proofs, keywords, branches, Extent::Part),
        _ => all,
    };
    let Some(any) = known else { return false };
    // The parser's objects have their properties in the order of keywords.
    *keywords = std::mem::take(keywords)
        .into_iter()
        .map(|(name, value)| match name.as_str() {
            "oneOf" => ("anyOf".into(), Value::Array(any.clone())),
            _ => (name, value),
        })
        .collect();
    is_part
}

/// The branches, if no value is valid by two of them. `null` is removed from all if several allow it.
fn disjoint(
    proofs: &mut Proofs<'_>,
    keywords: &Map<String, Value>,
    branches: &[Value],
) -> Option<Vec<Value>> {
    let beside = beside(keywords);
    let may_be_null: Vec<_> =
        branches.iter().filter(|branch| !proofs.is_wrong(&Value::Null, &[branch, &beside])).collect();
    let is_null_shared = may_be_null.len() > 1;
    if is_null_shared && may_be_null.iter().filter(|branch| proofs.allows_null(branch)).count() < 2 {
        return None;
    }
    let any_but_null = json!({"type": ["boolean", "number", "string", "array", "object"]});
    for (number, branch) in branches.iter().enumerate() {
        let one = [branch, &beside, &any_but_null];
        let one = if is_null_shared { &one[..] } else { &one[..2] };
        if !branches[number + 1..].iter().all(|other| proofs.are_disjoint(one, &[other, &beside])) {
            return None;
        }
    }
    if !is_null_shared {
        return Some(branches.to_vec());
    }
    Some(branches.iter().map(|branch| json!({"allOf": [branch, any_but_null]})).collect())
}

/// Each branch without the values of the others; with [`Extent::Part`], some more values may be missing. `None` if no such schemas are known.
fn cut(
    proofs: &mut Proofs<'_>,
    keywords: &Map<String, Value>,
    branches: &[Value],
    extent: Extent,
) -> Option<Vec<Value>> {
    let beside = beside(keywords);
    let mut left = MOST_ALTERNATIVES;
    let mut alternatives = Vec::new();
    for (number, branch) in branches.iter().enumerate() {
        let branch_of = [branch, &beside];
        let (mut cuts, mut parts) = (Vec::new(), Vec::new());
        for (other, schema) in branches.iter().enumerate() {
            let other_of = [schema, &beside];
            if other == number || proofs.are_disjoint(&branch_of, &other_of) {
                continue;
            }
            let part = match extent {
                Extent::Part => without_common(proofs, branch_of, other_of),
                Extent::All => Vec::new(),
            };
            if part.is_empty() {
                cuts.push(if is_whole(branch) || is_whole(&beside) {
                    negated(proofs.root(), &of_numbers(schema))
                } else {
                    negated(proofs.root(), schema)
                }?);
            } else {
                parts.push(part);
            }
        }
        shorten(&mut parts, (MOST_ALTERNATIVES / branches.len()).max(1));
        cuts.append(&mut parts);
        left = left.checked_sub(cuts.iter().map(Vec::len).fold(1, usize::saturating_mul))?;
        let mut all = vec![branch.clone()];
        all.extend(cuts.iter().map(|wrong| any(wrong)));
        let alternative = json!({"allOf": all});
        if texts::patterns_together(proofs.root(), &alternative, &mut 200) > PATTERNS_TOGETHER {
            return None;
        }
        alternatives.push(alternative);
    }
    Some(alternatives)
}

/// Schemas of values that are not right by both `branch` and `other`: of lists with an item, of objects with a property of `branch` that tells
/// the two apart, and of objects without a property that only `other` requires. Empty if there are none.
///
/// Authors of schemas mean such values. A property that is present and wrong by `other` would tell them apart too, but makes strange answers.
fn without_common(proofs: &mut Proofs<'_>, branch: [&Value; 2], other: [&Value; 2]) -> Vec<Value> {
    let mut are_apart = |part: &Value| proofs.are_disjoint(&[branch[0], branch[1], part], &other);
    let has_items = json!({"minItems": 1});
    if are_apart(&has_items) {
        return vec![has_items];
    }
    let (own, required) = (proofs.names(&branch), proofs.names(&other).1);
    let with = |name: &&str| {
        let any = json!({"required": [name]});
        let object = json!({"type": "object", "required": [name]});
        [any, object].into_iter().find(|part| proofs.are_disjoint(&[branch[0], branch[1], part], &other))
    };
    let mut parts: Vec<Value> = own.0.iter().take(MOST_NAMES).filter_map(with).collect();
    let without = required.iter().filter(|name| !own.1.contains(*name)).take(MOST_NAMES);
    parts.extend(without.map(|name| json!({"type": "object", "properties": {*name: false}})));
    parts
}

/// Drops schemas until no more than `most` combinations are left. One schema of each choice stays.
fn shorten(choices: &mut [Vec<Value>], most: usize) {
    while choices.iter().map(Vec::len).fold(1, usize::saturating_mul) > most {
        match choices.iter_mut().max_by_key(|choice| choice.len()) {
            Some(longest) if longest.len() > 1 => _ = longest.pop(),
            _ => break,
        }
    }
}

/// True for a schema that allows only whole numbers.
fn is_whole(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "integer")
}

/// A schema of whole numbers turned into one of numbers. Both allow the same whole numbers.
fn of_numbers(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if is_whole(&schema) {
        schema["type"] = json!("number");
    }
    schema
}

/// The keywords beside `oneOf` that restrict each branch.
fn beside(keywords: &Map<String, Value>) -> Value {
    let beside =
        ["type", "required"].iter().filter_map(|name| Some(((*name).into(), keywords.get(*name)?.clone())));
    Value::Object(beside.collect())
}

/// Branches of objects that require the properties of one branch but not all of those of any other.
fn by_required(branches: &[Value]) -> Option<Vec<Value>> {
    let mut required = Vec::new();
    let mut other_kinds = 0;
    for branch in branches {
        let keywords = branch.as_object()?;
        let is_known =
            |name: &String| matches!(name.as_str(), "type" | "required") || REMARKS.contains(&name.as_str());
        if !keywords.keys().all(is_known) {
            return None;
        }
        match keywords.get("type") {
            None => other_kinds += 1,
            Some(kind) if kind == "object" => {}
            Some(_) => return None,
        }
        let keys: Option<Vec<&str>> =
            keywords.get("required")?.as_array()?.iter().map(Value::as_str).collect();
        required.push(keys?);
    }
    // Values of other kinds are right by all branches that do not ask for objects.
    if other_kinds == 1 {
        return None;
    }
    let mut alternatives = Vec::new();
    for (number, keys) in required.iter().enumerate() {
        let others =
            required.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, others)| others);
        // Of each other branch one property must be missing.
        let mut missing: Vec<Vec<&str>> = vec![Vec::new()];
        for others in others {
            let left: Vec<&str> = others.iter().copied().filter(|key| !keys.contains(key)).collect();
            missing = missing
                .iter()
                .flat_map(|chosen| left.iter().map(|key| [chosen.as_slice(), &[*key]].concat()))
                .collect();
            if missing.len() > MOST_ALTERNATIVES {
                return None;
            }
        }
        alternatives.extend(missing.into_iter().map(|missing| {
            let absent: Map<_, _> = missing.into_iter().map(|key| (key.into(), Value::Bool(false))).collect();
            json!({"type": "object", "required": keys, "properties": absent})
        }));
    }
    (!alternatives.is_empty()).then_some(alternatives)
}
