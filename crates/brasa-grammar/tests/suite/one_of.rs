//! `oneOf`: where it is an `anyOf`, what is cut out where branches overlap, and what a warning says.

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
fn values_of_several_branches_are_cut_out() {
    let open =
        |key: &str| json!({"type": "object", "properties": {key: {"type": "string"}}, "required": [key]});
    check(
        &json!({"oneOf": [open("a"), open("b")]}),
        &[json!({"a": "x"}), json!({"b": "x"}), json!({"a": "x", "b": 1}), json!({"b": "x", "a": 1})],
        &[json!({}), json!({"a": "x", "b": "y"}), json!(1)],
    );
    check(
        &json!({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 3}]}),
        &[json!(2), json!(4)],
        &[json!(3), json!(2.5)],
    );
    check(
        &json!({"type": "number", "oneOf": [{"maximum": 2}, {"maximum": 5}]}),
        &[json!(2.5), json!(5)],
        &[json!(2), json!(-1), json!(5.5)],
    );
    check(
        &json!({"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]}),
        &[json!({"a": 1}), json!({"a": 2})],
        &[json!({}), json!({"a": 3}), json!(1)],
    );
    check(
        &json!({"oneOf": [{"required": ["a"]}, {"type": "object", "required": ["b"]}]}),
        &[json!({"a": 1}), json!({"b": 1}), json!(5), json!("x")],
        &[json!({}), json!({"a": 1, "b": 1})],
    );
    check(
        &json!({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 2}]}),
        &[json!("a"), json!("abc")],
        &[json!("ab"), json!(1)],
    );
    check(&json!({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}), &[json!(2)], &[json!(1)]);
    check(
        &json!({"oneOf": [{"type": ["null", "string"], "pattern": "^a"}, {"type": ["null", "string"], "pattern": "^b"}]}),
        &[json!("a"), json!("bc")],
        &[json!(null), json!("c"), json!("")],
    );
    // A reference, remarks of programs, and closed objects, which both allow the empty one.
    let closed = |key: &str| json!({"type": "object", "properties": {key: {"type": "null"}}, "additionalProperties": false, "x-order": 1});
    check(
        &json!({"oneOf": [{"$ref": "#/$defs/a"}, closed("b")], "$defs": {"a": closed("a")}}),
        &[json!({"a": null}), json!({"b": null})],
        &[json!({}), json!({"a": null, "b": null}), json!({"a": 1})],
    );
    check(
        &json!({"oneOf": [{"type": "string", "pattern": "^[0-9 x]+$"}, {"enum": ["any", "7"]}]}),
        &[json!("1 x 2"), json!("any")],
        &[json!("7"), json!("a"), json!("")],
    );
}

/// If the values that a branch does not allow cannot be said, no value of two branches is left, and most values of one branch are.
#[test]
fn a_part_of_each_branch_is_left() {
    check(
        &json!({"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "null"}}]}),
        &[json!(["a", "b"]), json!([null])],
        &[json!([]), json!(["a", null]), json!(1)],
    );
    let uri = json!({"type": "string", "format": "uri"});
    check(
        &json!({"oneOf": [{"required": ["a"], "properties": {"a": uri}}, {"required": ["b"], "properties": {"b": uri}}]}),
        &[json!({"a": "x:y"}), json!({"b": "x:y"}), json!({"a": "x:y", "c": 1})],
        &[json!({"a": "x:y", "b": "x:y"}), json!({}), json!({"a": 1})],
    );
    let of_kind =
        |kind: &str| json!({"type": "object", "properties": {"kind": {"const": kind}, "link": uri}});
    check(
        &json!({"oneOf": [of_kind("a"), of_kind("b"), of_kind("c")]}),
        &[json!({"kind": "a", "link": "x:y"}), json!({"kind": "c"})],
        &[json!({}), json!({"link": "x:y"}), json!({"kind": "d"}), json!({"kind": "b", "link": "x"})],
    );
    let closed = |key: &str| json!({"properties": {key: uri}, "additionalProperties": false});
    check(
        &json!({"type": "object", "oneOf": [closed("a"), closed("b")]}),
        &[json!({"a": "x:y"}), json!({"b": "x:y"})],
        &[json!({}), json!({"a": "x:y", "b": "x:y"}), json!(1)],
    );
}

/// Up to draft 7, keywords beside a reference say nothing, so that `1` is right by both branches.
#[test]
fn keywords_beside_references_say_nothing_in_old_drafts() {
    let schema = |draft: &str| json!({"$schema": draft, "definitions": {"any": {}}, "oneOf": [{"$ref": "#/definitions/any", "type": "string"}, {"type": "number"}]});
    check(&schema("http://json-schema.org/draft-07/schema#"), &[json!("a")], &[json!(1)]);
    check(&schema("https://json-schema.org/draft/2020-12/schema"), &[json!("a"), json!(1)], &[json!(null)]);
}

/// If nothing is left of a branch, the branches are alternatives.
#[test]
fn a_schema_of_which_nothing_is_left_is_not_narrowed() {
    let schema = json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "format": "uri"}},
        "allOf": [{"oneOf": [{"required": ["a"], "properties": {"a": {"format": "uri"}}}, {"required": ["b"], "properties": {"b": {"format": "uri"}}}]}]});
    let grammar = compile(&Grammar::JsonSchema(schema)).unwrap();
    assert_eq!(judge(&*grammar, br#"{"a":"x:y","b":1}"#), Verdict::Whole);
    assert!(matches!(grammar.warnings(), [warning] if warning.contains("#/allOf/0:")));
}

/// The values that a branch does not allow cannot always be said. The answer then satisfies one branch at least, and a warning says so.
#[test]
fn branches_that_may_overlap_are_alternatives_with_a_warning() {
    for (one_of, place) in [
        (json!([{"type": "number"}, {"type": "integer"}]), "#"),
        (json!([{"type": "string", "format": "uri"}, {"enum": [""]}]), "#"),
        (
            json!([{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"enum": ["a"]}}]),
            "#",
        ),
        (json!([{"$ref": "#/oneOf/1"}, {"type": ["null", "string"]}]), "#"),
    ] {
        let schema = json!({"oneOf": one_of});
        let grammar = compile(&Grammar::JsonSchema(schema.clone())).unwrap();
        let [warning] = grammar.warnings() else { panic!("{schema}: {:?}", grammar.warnings()) };
        assert!(
            warning.starts_with(&format!("JSON schema, {place}: `oneOf` is read as `anyOf`")),
            "{warning}"
        );
    }
    let inner = json!({"oneOf": [{"type": "number"}, {"type": "integer"}]});
    let schema = json!({"properties": {"a/b": inner}, "oneOf": [{"required": ["a/b"]}, {"required": ["c"]}]});
    let grammar = compile(&Grammar::JsonSchema(schema.clone())).unwrap();
    assert_eq!(judge(&*grammar, br#"{"a/b":1}"#), Verdict::Whole);
    assert_eq!(judge(&*grammar, br#"{"a/b":"#), Verdict::Beginning);
    assert!(matches!(judge(&*grammar, br#"{"a/b":1,"c":1}"#), Verdict::Refused(_)));
    assert!(matches!(grammar.warnings(), [warning] if warning.contains("#/properties/a~1b:")));
    // A schema in a grammar, and one that needs no warning.
    let lark = compile(&Grammar::Lark(format!("start: %json {schema}"))).unwrap();
    assert_eq!(lark.warnings().len(), 1);
    let apart = compile(&Grammar::JsonSchema(json!({"oneOf": [{"type": "null"}, {"type": "integer"}]})));
    assert!(apart.unwrap().warnings().is_empty());
    // Numbers that the parser would round.
    let numbers = r#"{"oneOf": [{"type": "number"}, {"type": "integer", "minimum": 9007199254740993}]}"#;
    let grammar = compile(&Grammar::JsonSchema(serde_json::from_str(numbers).unwrap())).unwrap();
    assert_eq!(grammar.warnings().len(), 1);
    assert_eq!(judge(&*grammar, b"9007199254740993"), Verdict::Whole);
}

/// Schemas whose proofs would take longer than anybody waits are refused or coerced, and soon.
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
        let compiled = compile(&Grammar::JsonSchema(schema));
        assert!(compiled.map_or(true, |grammar| !grammar.warnings().is_empty()));
    }
}
