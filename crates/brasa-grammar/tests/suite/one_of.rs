//! `oneOf`: where it is an `anyOf`, what is cut out where branches overlap, and what is refused.

use brasa_grammar::Grammar;
use serde_json::{Value, json};

use super::common::{Verdict, compile, judge};

/// Checks which values a schema with `oneOf` allows.
fn check(schema: &Value, right: &[Value], wrong: &[Value]) {
    let grammar =
        compile(&Grammar::JsonSchema(schema.clone())).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for (values, is_right) in [(right, true), (wrong, false)] {
        for value in values {
            let verdict = judge(&*grammar, value.to_string().as_bytes());
            assert_eq!(verdict == Verdict::Whole, is_right, "{schema} {value}: {verdict:?}");
        }
    }
}

#[test]
fn branches_without_a_common_value_are_alternatives() {
    let user = json!({"type": "object", "properties": {"login": {"type": "string"}}, "required": ["login"], "additionalProperties": false});
    let team = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": false});
    let definitions = json!({"user": user, "team": team, "either": {"oneOf": [{"$ref": "#/$defs/user"}, {"type": "null"}]}});
    check(
        &json!({"oneOf": [{"$ref": "#/$defs/team"}, {"$ref": "#/$defs/either"}], "$defs": definitions}),
        &[json!({"name": "a"}), json!({"login": "b"}), json!(null)],
        &[json!({"name": "a", "login": "b"}), json!({})],
    );
    let of_kind = |kind: &str, value: Value| json!({"properties": {"kind": {"enum": [kind, kind.to_uppercase()]}, "value": value}, "required": ["kind", "value"]});
    check(
        &json!({"type": "object", "oneOf": [of_kind("a", json!({"type": "null"})), of_kind("b", json!({"type": "integer"}))]}),
        &[json!({"kind": "a", "value": null}), json!({"kind": "B", "value": 7})],
        &[json!({"kind": "a", "value": 7}), json!({"kind": "c", "value": 7})],
    );
    check(
        &json!({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3, "maxLength": 3}, {"const": 4},
            {"type": "integer", "maximum": 3}, {"type": "array", "items": {"oneOf": [{"type": "array"}, {"type": "boolean"}]}}]}),
        &[json!("ab"), json!("abc"), json!(4), json!(3), json!([true, []])],
        &[json!("abcd"), json!(5), json!([[], 1])],
    );
    check(
        &json!({"oneOf": [{"type": "array", "items": {"enum": ["a", "b"]}}, {"type": "array", "items": {"const": "*"}, "minItems": 1}]}),
        &[json!([]), json!(["a", "b"]), json!(["*", "*"])],
        &[json!(["a", "*"]), json!(["c"])],
    );
    // An inner choice, and an enumeration whose values the other branch excludes.
    check(
        &json!({"oneOf": [{"anyOf": [{"type": "null"}, {"type": "boolean"}]}, {"enum": ["abc", 1]}, {"type": "string", "maxLength": 2}]}),
        &[json!(null), json!("abc"), json!("a"), json!(1)],
        &[json!("abd"), json!(2)],
    );
}

#[test]
fn overlaps_that_are_known_are_cut_out() {
    // `null` is right by both branches, and so by the whole wrong.
    check(
        &json!({"oneOf": [{"type": ["string", "null"]}, {"type": ["number", "null"]}]}),
        &[json!("a"), json!(1.5)],
        &[json!(null), json!(true)],
    );
    check(
        &json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
            "additionalProperties": false, "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]}),
        &[
            json!({"a": null}),
            json!({"a": null, "b": null}),
            json!({"a": null, "c": null}),
            json!({"b": null, "c": null}),
        ],
        &[json!({}), json!({"b": null}), json!({"a": null, "b": null, "c": null})],
    );
    // All that is no object is right by both branches.
    check(
        &json!({"properties": {"a": {"type": "null"}}, "oneOf": [{"required": ["a"]}, {"required": ["b"], "title": "b"}]}),
        &[json!({"a": null}), json!({"b": 1})],
        &[json!(1), json!([]), json!({"c": 1})],
    );
}

#[test]
fn branches_that_may_overlap_are_refused() {
    let open =
        |key: &str| json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
    for schema in [
        json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}),
        json!({"oneOf": [{"type": "string", "format": "uri"}, {"enum": [""]}]}),
        json!({"oneOf": [open("a"), open("b")]}),
        json!({"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}]}),
        json!({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}]}),
        json!({"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]}),
        json!({"oneOf": [{"required": ["a"]}, {"type": "object", "required": ["b"]}]}),
        json!({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]}),
        json!({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}),
        json!({"oneOf": [{"type": ["null", "string"], "pattern": "^a"}, {"type": ["null", "string"], "pattern": "^b"}]}),
        json!({"oneOf": [{"$ref": "#/oneOf/1"}, {"type": ["null", "string"]}]}),
    ] {
        let error = compile(&Grammar::JsonSchema(schema.clone())).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains("oneOf")), "{schema}: {error:?}");
    }
}

/// Schemas whose proofs would take longer than anybody waits are refused, and soon.
#[test]
fn proofs_are_bounded() {
    let choices = |keyword: &str| json!({keyword: vec![json!({"$ref": "#/$defs/a"}); 60]});
    let values = |first: usize| json!({"enum": (first..first + 3_000).map(|number| json!(number)).collect::<Vec<_>>()});
    for (one, other, definition) in [
        (json!({"$ref": "#/$defs/a"}), json!({"$ref": "#/$defs/a"}), choices("anyOf")),
        (json!({"$ref": "#/$defs/a"}), json!({"type": "null"}), choices("allOf")),
        (values(0), values(5_000), json!(true)),
    ] {
        let schema = json!({"oneOf": [one, other], "$defs": {"a": definition}});
        let error = compile(&Grammar::JsonSchema(schema)).err().map(|error| error.to_string());
        assert!(error.is_some(), "{error:?}");
    }
}
