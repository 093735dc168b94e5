//! JSON schemas: what they accept, and what of them is refused by name.

use std::sync::Arc;

use brasa_grammar::{Grammar, GrammarError, Grammars};
use serde_json::{Value, json};

use super::common::{VOCAB, Verdict, compile, judge, tokenizer};

#[test]
fn answers_are_of_the_schema() {
    let point = json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": -3}, "y": {"type": "number"}},
        "required": ["x"], "additionalProperties": false});
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "unused": {"not": {}}}});
    let neutral =
        json!({"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": false, "if": {}});
    let single = json!({"type": "array", "uniqueItems": true, "maxItems": 1});
    let unequal =
        json!({"type": "array", "items": {"enum": [1, "a", true, 1.0]}, "uniqueItems": true, "minItems": 2});
    let refers = json!({"type": "object", "properties": {"all": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true},
        "one": {"$ref": "#/properties/all/items"}}});
    for (schema, text, verdict) in [
        (&point, r#"{"x": -3, "y": 1.5e2}"#, Verdict::Whole),
        (&point, "{\n    \"x\": 7\n}", Verdict::Whole),
        (&point, r#"{"x": -4}"#, Verdict::Refused(7)),
        (&point, r#"{"y""#, Verdict::Refused(2)),
        (&point, "{   ", Verdict::Refused(2)),
        (&tree, "[[], [[]]]", Verdict::Whole),
        (&tree, "[1", Verdict::Refused(1)),
        (&neutral, "[null,null]", Verdict::Whole),
        (&neutral, "[null,null,", Verdict::Refused(10)),
        (&json!({}), "[1, {\"\": \"ü\"}, null]", Verdict::Whole),
        (&json!({}), "\"a\n", Verdict::Refused(2)),
        (&json!(true), "3", Verdict::Whole),
        (&json!({"type": "string", "format": "date"}), "\"2026-02-30\"", Verdict::Refused(9)),
        (
            &json!({"type": "string", "format": "date-time"}),
            "\"2026-02-03t05:51:59.6+01:00\"",
            Verdict::Whole,
        ),
        (&json!({"type": "string", "format": "date-time"}), "\"2026-02-03T05:51:60Z", Verdict::Refused(18)),
        (&json!({"type": "string", "format": "time"}), "\"19:13:60Z", Verdict::Refused(7)),
        (&json!({"type": "string", "format": "date"}), "\"2024-02-29\"", Verdict::Whole),
        (&json!({"type": "string", "format": "date"}), "\"2000-02-29\"", Verdict::Whole),
        (&json!({"type": "string", "format": "date"}), "\"1999-12-31\"", Verdict::Whole),
        (&json!({"type": "string", "format": "date"}), "\"0475-02-29", Verdict::Refused(10)),
        (&json!({"type": "string", "format": "date"}), "\"1900-02-29", Verdict::Refused(10)),
        (&json!({"type": "string", "format": "date"}), "\"0000", Verdict::Refused(4)),
        (&json!({"type": "string", "format": "date-time"}), "\"2024-02-29T23:59:59.25Z\"", Verdict::Whole),
        (&json!({"type": "string", "format": "date-time"}), "\"2026-02-29", Verdict::Refused(10)),
        (&json!({"type": "string", "format": "date-time"}), "\"0000", Verdict::Refused(4)),
        (&json!({"type": "string", "format": "date", "pattern": "-29$"}), "\"2023-02", Verdict::Refused(7)),
        (
            &json!({"type": "string", "format": "date-time", "pattern": "Z$"}),
            "\"2026-02-03T05:51:60",
            Verdict::Refused(18),
        ),
        (&json!({"type": "string", "format": "json-pointer", "pattern": "^/a"}), "\"/a/~1\"", Verdict::Whole),
        (&json!({"type": "string", "format": "json-pointer", "pattern": "^/a"}), "\"/b", Verdict::Refused(2)),
        (&json!({"type": "string", "format": "AWS::EC2::VPC.Id"}), "\"a b\"", Verdict::Whole),
        (&json!({"type": "integer", "format": "int64"}), "-1", Verdict::Whole),
        (&json!({"type": "string", "format": "uri-template"}), "\"https://a/{b}{/c}\"", Verdict::Whole),
        (&json!({"type": "string", "format": "uri-template"}), "\"{a}}", Verdict::Refused(4)),
        (&json!({"type": "string", "format": "uri-reference"}), "\"../a%20b/c?d=e/?#f\"", Verdict::Whole),
        (&json!({"type": "string", "format": "uri-reference"}), "\"urn:a:b\"", Verdict::Whole),
        (&json!({"type": "string", "format": "uri-reference"}), "\"//a.b:80/c:d\"", Verdict::Whole),
        (&json!({"type": "string", "format": "iri-reference"}), "\"a b", Verdict::Refused(2)),
        (&json!({"type": "string", "format": "iri"}), "\"a/", Verdict::Refused(2)),
        (&json!({"type": "string", "format": "idn-hostname"}), "\"a.example\"", Verdict::Whole),
        (&json!({"type": "string", "format": "json-pointer"}), "\"/a~0b//ü\"", Verdict::Whole),
        (&json!({"type": "string", "format": "json-pointer"}), "\"/~2", Verdict::Refused(3)),
        (&json!({"type": "string", "format": "relative-json-pointer"}), "\"12/a\"", Verdict::Whole),
        (&json!({"type": "string", "format": "relative-json-pointer"}), "\"01", Verdict::Refused(2)),
        (&json!({"type": "object", "uniqueItems": true}), "{}", Verdict::Whole),
        (&json!({"type": "string", "pattern": "^a+$", "maxLength": 2}), "\"aaa", Verdict::Refused(3)),
        (&single, "[7]", Verdict::Whole),
        (&single, "[7,", Verdict::Refused(2)),
        (&unequal, r#"["a", 1, true]"#, Verdict::Whole),
        (&refers, r#"{"all":["a","b"],"one":"b"}"#, Verdict::Whole),
        (&refers, r#"{"all":["a","a""#, Verdict::Refused(13)),
        (&unequal, r#"["a"]"#, Verdict::Refused(4)),
        (&unequal, r#"[1, "a", 1"#, Verdict::Refused(9)),
        (&unequal, r#"[true, 1, "a","#, Verdict::Refused(13)),
        (&json!({"enum": [1, "b", null]}), "\"b\"", Verdict::Whole),
        (&json!({"oneOf": [{"type": "null"}, {"type": "integer"}]}), "12", Verdict::Whole),
    ] {
        let grammar =
            compile(&Grammar::JsonSchema(schema.clone())).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(judge(&*grammar, text.as_bytes()), verdict, "{schema} {text}");
    }
}

/// A name that is spelled with an escape is the same name, and may not pass for a further property.
#[test]
fn names_have_one_spelling() {
    let named = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let pattern = json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}});
    for schema in [&named, &pattern] {
        for grammar in [Grammar::JsonSchema(schema.clone()), Grammar::Lark(format!("start: %json {schema}"))]
        {
            let grammar = compile(&grammar).unwrap();
            assert_eq!(judge(&*grammar, br#"{"a": null"#), Verdict::Refused(6), "{schema}");
            assert_eq!(judge(&*grammar, br#"{"\u0061": null"#), Verdict::Refused(3), "{schema}");
            assert_eq!(judge(&*grammar, br#"{"b\"\n": null}"#), Verdict::Whole, "{schema}");
        }
    }
    let open = compile(&Grammar::JsonSchema(json!({"type": "object"}))).unwrap();
    assert_eq!(judge(&*open, br#"{"\u0007": "\u0007"}"#), Verdict::Whole);
}

#[test]
fn what_is_not_supported_is_named_with_its_place() {
    let keyword =
        |keyword: &str, place: &str| GrammarError::Keyword { keyword: keyword.into(), place: place.into() };
    for (schema, error) in [
        (json!({"not": {"pattern": "a.b"}}), keyword("not", "#")),
        (json!({"type": "object", "minProperties": 2}), keyword("minProperties", "#")),
        (
            json!({"patternProperties": {"^x_[ab]$": {"const": 1}}, "additionalProperties": false, "minProperties": 2}),
            keyword("minProperties", "#"),
        ),
        (
            json!({"properties": {"a/b": {"items": {"contains": {}}}}}),
            keyword("contains", "#/properties/a~1b/items"),
        ),
        (json!({"anyOf": [true, {"uniqueItems": true}]}), keyword("uniqueItems", "#/anyOf/1")),
        (
            json!({"type": "array", "items": {"enum": [1, 2, 3, 4, 5, 6]}, "uniqueItems": true}),
            keyword("uniqueItems", "#"),
        ),
        (
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"if": {"format": "date"}, "then": false}}}),
            keyword("if", "#/$defs/a"),
        ),
        (json!({"type": "string", "format": "color"}), keyword("format: color", "#")),
        (json!({"x-guidance": {}}), keyword("x-guidance", "#")),
    ] {
        let strict = compile(&Grammar::JsonSchema(schema.clone()));
        assert_eq!(strict.err(), Some(error), "{schema}");
        assert!(compile(&Grammar::LenientJsonSchema(schema.clone())).is_ok(), "{schema}");
    }
    for (schema, part) in [
        (json!(3), "#: expected a schema, found a number"),
        (json!({"properties": []}), "#/properties: expected a map of schemas, found a list"),
        (json!({"anyOf": {}}), "#/anyOf: expected a list of schemas, found an object"),
        (json!({"$ref": "other.json"}), "only places of this schema"),
        (json!({"$ref": "#/$defs/b"}), "there is no such place"),
        (json!({"type": "text"}), "Invalid type: text"),
        (json!({"type": "string", "pattern": "a(?=b)"}), "look"),
        (json!(false), "nsatisfiable"),
        (
            json!({"items": {"allOf": vec![json!({"pattern": ".*a.{3}.*"}); 20]}}),
            "#/items: 20 patterns that hold together are not supported, at most 4 are",
        ),
    ] {
        let error = compile(&Grammar::JsonSchema(schema.clone())).unwrap_err().to_string();
        assert!(error.starts_with("JSON schema") && error.contains(part), "{schema}: {error}");
    }
    assert!(
        compile(&Grammar::LenientJsonSchema(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]})))
            .is_ok()
    );
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({}), |inner, _| json!({"items": inner}))
}

#[test]
fn large_schemas_are_bounded() {
    assert!(compile(&Grammar::JsonSchema(nested(90))).is_ok());
    for grammar in [Grammar::JsonSchema(nested(101)), Grammar::LenientJsonSchema(nested(101))] {
        assert!(matches!(compile(&grammar), Err(GrammarError::TooLarge { count: 101, most: 100, .. })));
    }
    let many = json!({"anyOf": vec![json!({"type": "null"}); 9_000]});
    assert!(matches!(compile(&Grammar::JsonSchema(many)), Err(GrammarError::TooLarge { most: 8_000, .. })));
    // A chain of references is as deep as it is long.
    let links = 3_000;
    let link = |number: usize| {
        (
            format!("d{number}"),
            json!({"type": "array", "items": {"$ref": format!("#/$defs/d{}", number + 1)}}),
        )
    };
    let mut definitions: serde_json::Map<_, _> = (0..links).map(link).collect();
    definitions.insert(format!("d{links}"), json!({"type": "null"}));
    let chain = json!({"$ref": "#/$defs/d0", "$defs": definitions});
    let grammar = compile(&Grammar::JsonSchema(chain)).unwrap();
    assert_eq!(judge(&*grammar, b"[[[["), Verdict::Beginning);
}

#[test]
fn repeated_grammars_are_compiled_once() {
    let grammars = Grammars::new(tokenizer(&[]), VOCAB);
    let schema = |text: &str| Grammar::JsonSchema(serde_json::from_str(text).unwrap());
    let one = schema(r#"{"properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]}"#);
    let other = schema(r#"{"properties": {"b": {"const": 2}, "a": {"const": 1}}, "required": ["a", "b"]}"#);
    assert_eq!(one, other, "equal as values, but with the properties in another order");
    let first = grammars.compile(&one).unwrap();
    assert!(Arc::ptr_eq(&first, &grammars.compile(&one).unwrap()));
    assert_eq!(judge(&*grammars.compile(&other).unwrap(), br#"{"b""#), Verdict::Beginning);
    let lenient = Grammar::LenientJsonSchema(json!({"not": {"pattern": "a.b"}}));
    assert!(grammars.compile(&lenient).is_ok());
    assert!(grammars.compile(&Grammar::JsonSchema(json!({"not": {"pattern": "a.b"}}))).is_err());
    for text in ["a", "b"] {
        let regex = grammars.compile(&Grammar::Regex(text.into())).unwrap();
        assert_eq!(judge(&*regex, text.as_bytes()), Verdict::Whole);
        assert!(grammars.compile(&Grammar::Lark(text.into())).is_err());
    }
    assert!(Arc::ptr_eq(&first, &grammars.compile(&one).unwrap()));
    for number in 0..64 {
        grammars.compile(&schema(&format!(r#"{{"const": {number}}}"#))).unwrap();
    }
    assert!(
        !Arc::ptr_eq(&first, &grammars.compile(&one).unwrap()),
        "what was not used for longest is dropped"
    );
}

/// An object with many properties that may be left out is served up to a limit, which is named beyond.
#[test]
fn properties_that_may_be_left_out_are_bounded() {
    let wide = |count: usize| {
        let properties: serde_json::Map<_, _> =
            (0..count).map(|number| (format!("p{number}"), json!({"type": "integer"}))).collect();
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    };
    let grammar = compile(&Grammar::JsonSchema(wide(500))).unwrap();
    assert_eq!(judge(&*grammar, br#"{"p77": 2, "p499": 3}"#), Verdict::Whole);
    for grammar in [Grammar::JsonSchema(wide(501)), Grammar::LenientJsonSchema(wide(501))] {
        assert!(matches!(compile(&grammar), Err(GrammarError::TooLarge { count: 501, most: 500, .. })));
    }
}
