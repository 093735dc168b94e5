//! Spells out `uniqueItems` if the arrays with unique items can be listed.

use serde_json::{Map, Value, json};

use super::disjoint::are_same;

/// Most arrays into which one schema is spelled out: for five values there are 326.
const MOST_LISTS: usize = 330;
/// Keywords that restrict arrays in other ways than by items and their number.
const OTHERS: [&str; 9] =
    ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "prefixItems", "additionalItems", "contains"];

/// The arrays with unique items of a schema, if items have few known values. `None` if there are too many, or if the schema has
/// further keywords.
pub fn lists(keywords: &Map<String, Value>) -> Option<Vec<Value>> {
    if keywords.get("type")? != "array" || OTHERS.iter().any(|name| keywords.contains_key(*name)) {
        return None;
    }
    let items = keywords.get("items")?.as_object()?;
    let values = match (items.get("const"), items.get("enum")) {
        (Some(value), None) => std::slice::from_ref(value),
        (None, Some(values)) if !items.contains_key("$ref") => values.as_array()?.as_slice(),
        _ => return None,
    };
    let mut distinct: Vec<&Value> = Vec::new();
    for value in values {
        if !distinct.iter().any(|other| are_same(value, other)) {
            distinct.push(value);
        }
    }
    let bound = |name: &str, default: u64| match keywords.get(name) {
        None => Some(default),
        Some(count) => count.as_u64(),
    };
    let (least, most) = (bound("minItems", 0)?, bound("maxItems", distinct.len() as u64)?);
    // Lists of one length after the other.
    let mut lists: Vec<Vec<&Value>> = Vec::new();
    let mut longest = vec![Vec::new()];
    while let Some(list) = longest.first() {
        let count = list.len() as u64;
        if count >= least && count <= most {
            lists.extend_from_slice(&longest);
        }
        longest = longest
            .iter()
            .flat_map(|list| {
                let left = distinct.iter().filter(|value| !list.contains(value));
                left.map(|value| [list.as_slice(), &[*value]].concat())
            })
            .collect();
        if lists.len() + longest.len() > MOST_LISTS {
            return None;
        }
        if count >= most {
            break;
        }
    }
    Some(lists.iter().map(|list| spelled(items, list)).collect())
}

/// The schema of one array, in keywords that all drafts have.
fn spelled(items: &Map<String, Value>, list: &[&Value]) -> Value {
    let only = |value: &&Value| {
        let mut item = items.clone();
        item.shift_remove("const");
        item.insert("enum".into(), json!([value]));
        Value::Object(item)
    };
    let positions: Vec<Value> = list.iter().map(only).collect();
    let count = positions.len();
    json!({"type": "array", "items": positions, "additionalItems": false, "minItems": count, "maxItems": count})
}
