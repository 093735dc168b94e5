//! Keywords that are said with other keywords, and counts of properties: drawn answers are right by JSON Schema's own rules.

use brasa_fuzz::Rng;
use brasa_grammar::Grammar;
use serde_json::{Map, Value, json};

use super::common::{Verdict, compile, drawn, judge};

/// True if a value is right by a schema: the rules of JSON Schema 2020-12, as they stand there, for the keywords used here.
fn is_right(schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else { return *schema == json!(true) };
    let list = |name: &str| keywords.get(name).and_then(Value::as_array);
    let count = |name: &str| keywords.get(name).and_then(Value::as_u64).map(|count| count as usize);
    let is_kind = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    let within = |length: usize, least: &str, most: &str| {
        count(least).is_none_or(|least| length >= least) && count(most).is_none_or(|most| length <= most)
    };
    let same = |one: &Value, other: &Value| one == other || one.is_number() && one.as_f64() == other.as_f64();
    let is_known_kind = match keywords.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(is_kind),
        Some(kind) => is_kind(kind),
        None => true,
    };
    let condition = keywords.get("if").map(|condition| is_right(condition, value));
    is_known_kind
        && keywords.get("const").is_none_or(|one| same(one, value))
        && list("enum").is_none_or(|values| values.iter().any(|one| same(one, value)))
        && list("allOf").is_none_or(|parts| parts.iter().all(|part| is_right(part, value)))
        && list("anyOf").is_none_or(|parts| parts.iter().any(|part| is_right(part, value)))
        && keywords.get("not").is_none_or(|part| !is_right(part, value))
        && match condition {
            Some(true) => keywords.get("then").is_none_or(|then| is_right(then, value)),
            Some(false) => keywords.get("else").is_none_or(|otherwise| is_right(otherwise, value)),
            None => true,
        }
        && value.as_f64().is_none_or(|number| {
            let bound = |name: &str| keywords.get(name).and_then(Value::as_f64);
            bound("minimum").is_none_or(|least| number >= least)
                && bound("maximum").is_none_or(|most| number <= most)
        })
        && value.as_str().is_none_or(|text| {
            within(text.chars().count(), "minLength", "maxLength")
                && keywords.get("pattern").is_none_or(|pattern| {
                    regex::Regex::new(pattern.as_str().unwrap()).unwrap().is_match(text)
                })
        })
        && value.as_array().is_none_or(|items| {
            let is_unique = keywords.get("uniqueItems") != Some(&json!(true))
                || (0..items.len()).all(|one| (0..one).all(|other| !same(&items[one], &items[other])));
            within(items.len(), "minItems", "maxItems")
                && is_unique
                && keywords.get("items").is_none_or(|schema| items.iter().all(|item| is_right(schema, item)))
        })
        && value.as_object().is_none_or(|map| is_right_object(keywords, map, value))
}

fn is_right_object(keywords: &Map<String, Value>, map: &Map<String, Value>, value: &Value) -> bool {
    let maps = |name: &str| keywords.get(name).and_then(Value::as_object).into_iter().flatten();
    let count = |name: &str| keywords.get(name).and_then(Value::as_u64).map(|count| count as usize);
    let names = keywords.get("required").and_then(Value::as_array).into_iter().flatten();
    let has = |name: &Value| map.contains_key(name.as_str().unwrap());
    names.clone().all(has)
        && count("minProperties").is_none_or(|least| map.len() >= least)
        && count("maxProperties").is_none_or(|most| map.len() <= most)
        && keywords
            .get("propertyNames")
            .is_none_or(|schema| map.keys().all(|key| is_right(schema, &json!(key))))
        && ["dependencies", "dependentRequired", "dependentSchemas"].iter().flat_map(|name| maps(name)).all(
            |(key, then)| {
                !map.contains_key(key)
                    || match then {
                        Value::Array(names) => names.iter().all(has),
                        schema => is_right(schema, value),
                    }
            },
        )
        && map.iter().all(|(key, value)| {
            let own = maps("properties").filter(|(name, _)| *name == key);
            let patterns = maps("patternProperties")
                .filter(|(pattern, _)| regex::Regex::new(pattern).unwrap().is_match(key));
            let found: Vec<&Value> = own.chain(patterns).map(|(_, schema)| schema).collect();
            match (found.as_slice(), keywords.get("additionalProperties")) {
                ([], Some(schema)) => is_right(schema, value),
                (found, _) => found.iter().all(|schema| is_right(schema, value)),
            }
        })
}

/// Checks values by name, and values that are drawn.
fn check(schema: &Value, right: &[Value], wrong: &[Value]) {
    let grammar =
        compile(&Grammar::JsonSchema(schema.clone())).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for (values, expected) in [(right, true), (wrong, false)] {
        for value in values {
            assert_eq!(is_right(schema, value), expected, "the test itself: {schema} {value}");
            let verdict = judge(&*grammar, value.to_string().as_bytes());
            assert_eq!(verdict == Verdict::Whole, expected, "{schema} {value}: {verdict:?}");
        }
    }
    let mut rng = Rng::new(13);
    for _ in 0..3 {
        let Some(text) = drawn(&*grammar, &mut rng, 60) else { continue };
        let value: Value = match serde_json::from_str(&text) {
            Ok(value) => value,
            // A number of any size is JSON.
            Err(error) if error.to_string().contains("number out of range") => continue,
            Err(error) => panic!("{schema} {text}: {error}"),
        };
        assert!(is_right(schema, &value), "{schema} {text}");
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a test writes values in place")]
fn closed(keys: &[&str], others: Value) -> Value {
    let properties: Map<String, Value> = keys
        .iter()
        .map(|key| ((*key).to_owned(), json!({"type": "integer", "maximum": 9, "minimum": 0})))
        .collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    schema.as_object_mut().unwrap().extend(others.as_object().unwrap().clone());
    schema
}

#[test]
fn properties_are_counted_by_their_names() {
    check(
        &closed(&["a", "b", "c"], json!({"minProperties": 2})),
        &[
            json!({"a": 1, "b": 1}),
            json!({"a": 1, "c": 1}),
            json!({"b": 1, "c": 1}),
            json!({"a": 1, "b": 1, "c": 1}),
        ],
        &[json!({}), json!({"a": 1}), json!({"c": 1})],
    );
    check(
        &closed(&["a", "b", "c"], json!({"minProperties": 2, "maxProperties": 2, "required": ["b"]})),
        &[json!({"a": 1, "b": 1}), json!({"b": 1, "c": 1})],
        &[json!({"b": 1}), json!({"a": 1, "c": 1}), json!({"a": 1, "b": 1, "c": 1})],
    );
    check(
        &closed(&["a", "b", "c"], json!({"maxProperties": 1, "type": ["object", "null"]})),
        &[json!({}), json!({"a": 1}), json!({"c": 1}), json!(null)],
        &[json!({"a": 1, "b": 1}), json!(1)],
    );
    let open = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}, "minProperties": 1});
    check(
        &open,
        &[json!({"a": 1}), json!({"b": 2}), json!({"a": 1, "x": 2})],
        &[json!({}), json!({"a": 2}), json!({"b": 1})],
    );
    check(
        &json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": {"const": 2}, "minProperties": 2}),
        &[json!({"a": 1, "b": 2})],
        &[json!({"a": 1}), json!({"b": 2})],
    );
    check(
        &json!({"type": "object", "patternProperties": {"^x_[ab]$": {"const": 1}}, "additionalProperties": false, "minProperties": 1}),
        &[json!({"x_a": 1}), json!({"x_a": 1, "x_b": 1})],
        &[json!({}), json!({"x_c": 1})],
    );
    check(
        &json!({"minProperties": 1, "maxLength": 2}),
        &[json!({"a": 1}), json!(3), json!("ab")],
        &[json!({}), json!("abc")],
    );
    // Which keys are meant cannot be counted.
    for schema in [
        json!({"type": "object", "minProperties": 2, "maxProperties": 2}),
        json!({"type": "object", "properties": {"a": true}, "minProperties": 2}),
        json!({"type": "object", "patternProperties": {"^x_[ab]$": {"const": 1}}, "additionalProperties": false, "minProperties": 2, "maxProperties": 2}),
        json!({"items": {"additionalProperties": {"type": "null"}, "minProperties": 3}}),
    ] {
        let error = compile(&Grammar::JsonSchema(schema.clone())).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("minProperties")), "{schema}: {error:?}");
    }
}

#[test]
fn negations_of_simple_schemas_are_exact() {
    let text = |not: Value| json!({"type": "string", "not": not});
    check(
        &text(json!({"const": "ab"})),
        &[json!(""), json!("a"), json!("abc"), json!("b"), json!("ü\n")],
        &[json!("ab"), json!(1)],
    );
    check(
        &text(json!({"enum": ["", "a", "abc", "\"]"]})),
        &[json!("ab"), json!("b"), json!("\"")],
        &[json!(""), json!("a"), json!("abc"), json!("\"]")],
    );
    check(
        &json!({"not": {"type": ["string", "object", "array"]}}),
        &[json!(1.5), json!(null), json!(true)],
        &[json!("a"), json!({}), json!([])],
    );
    check(
        &json!({"type": "integer", "not": {"enum": [3, 5.0]}, "minimum": 0, "maximum": 9}),
        &[json!(0), json!(4), json!(9)],
        &[json!(3), json!(5), json!(10)],
    );
    check(&json!({"not": {"const": null}}), &[json!(1), json!("a"), json!(false)], &[json!(null)]);
    check(&json!({"type": "boolean", "not": {"const": true}}), &[json!(false)], &[json!(true)]);
    check(
        &closed(&["a", "b"], json!({"not": {"required": ["a", "b"]}})),
        &[json!({}), json!({"a": 1}), json!({"b": 1})],
        &[json!({"a": 1, "b": 1})],
    );
    check(
        &closed(&["a", "b", "c"], json!({"not": {"anyOf": [{"required": ["a"]}, {"required": ["b", "c"]}]}})),
        &[json!({}), json!({"b": 1}), json!({"c": 1})],
        &[json!({"a": 1}), json!({"b": 1, "c": 1})],
    );
    check(
        &closed(&["a", "b"], json!({"not": {"properties": {"a": {"const": 3}}, "required": ["a"]}})),
        &[json!({}), json!({"a": 2}), json!({"b": 3})],
        &[json!({"a": 3}), json!({"a": 3, "b": 1})],
    );
    check(&text(json!({"maxLength": 2})), &[json!("abc")], &[json!("ab")]);
    check(
        &text(json!({"pattern": "[^a-c]"})),
        &[json!(""), json!("ab"), json!("cc")],
        &[json!("d"), json!("ad"), json!("\"")],
    );
    check(
        &text(json!({"pattern": "^[a-c\"]{2,3}$"})),
        &[json!(""), json!("a"), json!("abca"), json!("ad"), json!("\n\\")],
        &[json!("ab"), json!("ab\"")],
    );
    check(
        &text(json!({"pattern": "^[\\s.]+$"})),
        &[json!(""), json!("a"), json!(" a")],
        &[json!(" "), json!(".\t.")],
    );
    check(
        &text(json!({"pattern": "^ab\""})),
        &[json!(""), json!("a"), json!("ab"), json!("b"), json!("aab\"")],
        &[json!("ab\""), json!("ab\"c")],
    );
    check(
        &text(json!({"pattern": "^(ab|c[de])$"})),
        &[json!(""), json!("c"), json!("cde"), json!("abc")],
        &[json!("ab"), json!("cd"), json!("ce")],
    );
    check(
        &json!({"type": "object", "not": {"properties": {"a": true}, "additionalProperties": false}}),
        &[json!({"b": 1}), json!({"a": 1, "b": 1}), json!({"b": 1, "c": 1})],
        &[json!({}), json!({"a": 1}), json!(1)],
    );
    check(&json!({"not": {"not": {"type": "null"}}}), &[json!(null)], &[json!(1)]);
}

#[test]
fn dependencies_and_conditions_are_exact() {
    check(
        &closed(&["a", "b", "c"], json!({"dependentRequired": {"a": ["b"], "c": ["a"]}})),
        &[json!({}), json!({"b": 1}), json!({"a": 1, "b": 1}), json!({"a": 1, "b": 1, "c": 1})],
        &[json!({"a": 1}), json!({"c": 1}), json!({"b": 1, "c": 1})],
    );
    check(
        &closed(&["a", "b"], json!({"dependencies": {"a": {"properties": {"b": {"const": 7}}}}})),
        &[json!({"a": 1}), json!({"a": 1, "b": 7}), json!({"b": 1})],
        &[json!({"a": 1, "b": 1})],
    );
    check(
        &json!({"dependentSchemas": {"a": {"maxProperties": 1}}, "maxLength": 1}),
        &[json!({"a": 1}), json!("a"), json!({"b": 1, "c": 2})],
        &[json!({"a": 1, "c": 2}), json!("ab")],
    );
    let condition = json!({"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}});
    check(
        &closed(&["a", "b", "c"], condition),
        &[json!({"a": 1, "b": 2}), json!({"a": 2, "c": 1}), json!({"c": 1})],
        &[json!({"a": 1}), json!({"a": 1, "c": 1}), json!({"a": 2, "b": 1}), json!({})],
    );
    check(
        &closed(&["a", "b"], json!({"if": {"required": ["a"]}, "then": {"required": ["b"]}})),
        &[json!({}), json!({"a": 1, "b": 1}), json!({"b": 1})],
        &[json!({"a": 1})],
    );
    check(
        &json!({"type": "object", "propertyNames": {"pattern": "^[a-c]$"}, "additionalProperties": {"const": 1}}),
        &[json!({}), json!({"a": 1})],
        &[json!({"d": 1}), json!({"a": 2})],
    );
    check(
        &json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}}),
        &[json!({"a": 1}), json!({"b": null})],
        &[json!({"c": 1})],
    );
}

#[test]
fn lists_of_five_values_have_no_equal_items() {
    check(
        &json!({"type": "array", "items": {"enum": ["a", "b", "c", 1, null]}, "uniqueItems": true, "minItems": 2}),
        &[json!(["a", "b"]), json!([null, 1, "c", "b", "a"])],
        &[json!(["a"]), json!(["a", "a"]), json!([1, "a", 1])],
    );
}

/// The parser by itself takes a class without `"` or `\` for one that has both.
#[test]
fn classes_without_marks_of_json_exclude_them() {
    for (pattern, right, wrong) in [
        ("^[^\"]*$", vec!["", "a\\b\n", "ü\t"], vec!["\"", "a\"b"]),
        (r"^[^\\]*$", vec!["a\"b"], vec!["\\", "a\\b"]),
        (r#"^[^<>:"/\\|?*]+\.txt$"#, vec!["a.txt", "\ta.txt"], vec!["a\"b.txt", "\\.txt"]),
        (r#"[^"\n]x"#, vec!["ax", "\\x", "\"ax\""], vec!["\"x", "\nx"]),
        (r"^([^\x22a]\d)+$", vec!["b1", "\\1"], vec!["\"1", "a1"]),
    ] {
        let schema = json!({"type": "string", "pattern": pattern});
        let values = |texts: Vec<&str>| texts.into_iter().map(|text| json!(text)).collect::<Vec<_>>();
        check(&schema, &values(right), &values(wrong));
    }
    check(
        &json!({"type": "object", "patternProperties": {"^[^\"]$": {"const": 1}}, "additionalProperties": false}),
        &[json!({"a": 1}), json!({"\\": 1})],
        &[json!({"\"": 1})],
    );
}
