//! Numbers of schemas at the edges of `i64`, `u64` and `f64`.

use brasa_fuzz::Rng;
use brasa_grammar::{Grammar, Literals};
use serde_json::{Value, json};

use super::common::{Verdict, compile, drawn, judge};

/// Compiles a schema.
fn of(schema: &str) -> std::sync::Arc<dyn brasa_engine::MaskSource> {
    let mut value: Value = serde_json::from_str(schema).unwrap();
    Literals::of(schema.as_bytes()).put_back(&mut value);
    compile(&Grammar::JsonSchema(value)).unwrap_or_else(|error| panic!("{schema}: {error}"))
}

fn check(schema: &str, right: &[&str], wrong: &[&str]) {
    let grammar = of(schema);
    for (texts, is_right) in [(right, true), (wrong, false)] {
        for text in texts {
            let verdict = judge(&*grammar, text.as_bytes());
            assert_eq!(verdict == Verdict::Whole, is_right, "{schema} {text}: {verdict:?}");
        }
    }
}

#[test]
fn constants_are_as_written() {
    check(
        r#"{"const": 1234567890123456789}"#,
        &["1234567890123456789"],
        &["1234567890123456768", "1234567890123456788"],
    );
    check(r#"{"const": 9007199254740992}"#, &["9007199254740992"], &["9007199254740993"]);
    check(
        r#"{"enum": [9007199254740993, -9223372036854775808, 18446744073709551615]}"#,
        &["9007199254740993", "-9223372036854775808", "18446744073709551615"],
        &["9007199254740992", "-9223372036854775807", "18446744073709551616", "9223372036854775808"],
    );
    check(
        r#"{"type": "integer", "enum": ["a", 9007199254740993, 7, 0.5]}"#,
        &["7", "9007199254740993"],
        &["\"a\"", "0.5"],
    );
    check(
        r#"{"enum": ["a", 9007199254740993, null, [1]]}"#,
        &["\"a\"", "9007199254740993", "null", "[1]"],
        &["9007199254740992"],
    );
    check(r#"{"enum": [1e308, -1e308, -0, 0.1, 1e-7]}"#, &["1e308", "-1e308", "0.1"], &["2e308", "1"]);
    check(
        r#"{"const": {"id": 9007199254740993, "all": [1, 9007199254740995]}}"#,
        &[r#"{"id": 9007199254740993, "all": [1, 9007199254740995]}"#],
        &[
            r#"{"id": 9007199254740992, "all": [1, 9007199254740995]}"#,
            r#"{"id": 9007199254740993, "all": [1, 9007199254740996]}"#,
        ],
    );
    check(
        r#"{"anyOf": [{"const": 9007199254740993}, {"type": "string", "maxLength": 1}, {"const": 3}]}"#,
        &["9007199254740993", "\"a\"", "3"],
        &["9007199254740992", "4"],
    );
    check(
        r#"{"oneOf": [{"const": 9007199254740993}, {"const": 9007199254740992}, {"type": "null"}]}"#,
        &["9007199254740993", "9007199254740992", "null"],
        &["9007199254740994"],
    );
}

#[test]
fn bounds_are_as_written() {
    check(
        r#"{"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}"#,
        &[
            "-9223372036854775808",
            "9223372036854775807",
            "0",
            "-1",
            "999999999999999999",
            "9223372036854775800",
        ],
        &["-9223372036854775809", "9223372036854775808", "10000000000000000000", "01", "1.5"],
    );
    check(
        r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551615}"#,
        &["0", "18446744073709551615"],
        &["18446744073709551616", "-1", "20000000000000000000"],
    );
    check(
        r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740999}"#,
        &["9007199254740993", "9007199254740999", "9007199254740996"],
        &["9007199254740992", "9007199254741000"],
    );
    check(
        r#"{"type": "integer", "exclusiveMinimum": 9223372036854775800, "exclusiveMaximum": 9223372036854775807}"#,
        &["9223372036854775801", "9223372036854775806"],
        &["9223372036854775800", "9223372036854775807"],
    );
    check(
        r#"{"type": "integer", "minimum": 9007199254740992, "exclusiveMinimum": true}"#,
        &["9007199254740993"],
        &["9007199254740992"],
    );
    check(
        r#"{"type": "integer", "maximum": -9007199254740993}"#,
        &["-9007199254740993", "-10000000000000000", "-123456789012345678901234567890"],
        &["-9007199254740992", "0", "9007199254740993"],
    );
    check(
        r#"{"type": "number", "minimum": -1e308, "maximum": 1e308}"#,
        &["0", "-0.5", "123456789.25", "-17"],
        &["\"a\"", "1e309"],
    );
    let edge = format!("1{}", "0".repeat(308));
    check(
        r#"{"type": "number", "minimum": -1e308, "maximum": 1e308}"#,
        &[&edge, &format!("-{edge}"), &format!("{edge}.0"), &"9".repeat(308)],
        &[&format!("{edge}.01"), &edge.replace("10", "11"), &format!("{edge}0")],
    );
    check(
        r#"{"type": "number", "minimum": 9007199254740993, "exclusiveMaximum": 9007199254740994}"#,
        &["9007199254740993", "9007199254740993.999"],
        &["9007199254740992.99", "9007199254740994", "9007199254740994.0"],
    );
    check(
        r#"{"type": "number", "exclusiveMinimum": -1e20, "maximum": 0.25}"#,
        &["-99999999999999999999.9", "0.25", "0.250", "0.2", "0", "-5"],
        &["-100000000000000000000", "0.251", "0.3", "1"],
    );
    check(r#"{"type": "integer", "minimum": 1e20, "maximum": 100000000000000000002}"#.replace("100000000000000000002", "1.5e20").as_str(),
        &["100000000000000000000", "150000000000000000000"], &["99999999999999999999", "150000000000000000001", "1e20"]);
    // Other types are not touched.
    check(
        r#"{"minimum": 9007199254740993}"#,
        &["9007199254740993", "\"a\"", "null", "[1]", "{\"a\": 2}"],
        &["9007199254740992", "1"],
    );
    check(
        r#"{"type": ["integer", "null", "string"], "minimum": 9007199254740993, "maxLength": 1}"#,
        &["null", "9007199254740993", "\"a\""],
        &["9007199254740992", "\"ab\"", "true"],
    );
}

#[test]
fn bounds_of_several_schemas_hold_together() {
    let int64 = r#""$defs": {"int64": {"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}}"#;
    check(
        &format!(r##"{{"allOf": [{{"$ref": "#/$defs/int64"}}, {{"minimum": 5}}], {int64}}}"##),
        &["5", "9223372036854775807"],
        &["4", "-9", "9223372036854775808"],
    );
    check(
        &format!(r##"{{"$ref": "#/$defs/int64", "exclusiveMaximum": 0, {int64}}}"##),
        &["-1", "-9223372036854775808"],
        &["0", "-9223372036854775809"],
    );
    check(
        &format!(
            r##"{{"anyOf": [{{"$ref": "#/$defs/int64"}}, {{"type": "null"}}], "description": "x", {int64}}}"##
        ),
        &["7", "null"],
        &["9223372036854775808"],
    );
    check(
        &format!(r##"{{"type": "array", "items": {{"$ref": "#/$defs/int64"}}, "minItems": 1, {int64}}}"##),
        &["[7, 8]"],
        &["[]", "[9223372036854775808]"],
    );
    check(
        &format!(
            r##"{{"type": "object", "properties": {{"a": {{"$ref": "#/$defs/int64"}}, "b": {{"$ref": "#"}}}}, "additionalProperties": false, {int64}}}"##
        ),
        &[r#"{"a": 1, "b": {"b": {"a": 2}}}"#],
        &[r#"{"a": 9223372036854775808}"#],
    );
    check(
        r#"{"type": "integer", "anyOf": [{"minimum": 9007199254740993}, {"maximum": 3}]}"#,
        &["9007199254740993", "3", "-70"],
        &["4", "9007199254740992"],
    );
    check(
        r#"{"oneOf": [{"type": "integer", "minimum": 9007199254740993}, {"type": "integer", "maximum": 9007199254740992}]}"#,
        &["9007199254740993", "0"],
        &["1.5", "null"],
    );
}

#[test]
fn multiples_are_exact() {
    check(r#"{"type": "number", "multipleOf": 0.07}"#, &["0.07", "7", "-0.14", "0"], &["0.08", "0.071"]);
    check(
        r#"{"type": "integer", "multipleOf": 10, "minimum": 9007199254740993}"#,
        &["9007199254741000"],
        &["9007199254740993", "9007199254740990"],
    );
    // Their product is beyond 32 bits.
    check(
        r#"{"type": "integer", "allOf": [{"multipleOf": 300000}, {"multipleOf": 200000}]}"#,
        &["600000", "-1200000", "0"],
        &["300000", "400000"],
    );
    check(
        r#"{"type": "integer", "multipleOf": 0.7, "minimum": 9007199254740993}"#,
        &["9007199254740995"],
        &["9007199254740996"],
    );
}

#[test]
fn numbers_that_cannot_be_described_are_named() {
    for (schema, part) in [
        (r#"{"type": "integer", "multipleOf": 9007199254740993}"#, "`multipleOf`: 9007199254740993"),
        (
            r#"{"type": "integer", "allOf": [{"multipleOf": 4294967291}, {"multipleOf": 4294967279}]}"#,
            "multipleOf",
        ),
        (r#"{"multipleOf": 0}"#, "multipleOf"),
        (
            r#"{"type": "array", "items": {"enum": [9007199254740993, 9007199254740992]}, "uniqueItems": true}"#,
            "uniqueItems",
        ),
        (r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740992}"#, "nsatisfiable"),
        (
            r#"{"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740998, "multipleOf": 10}"#,
            "nsatisfiable",
        ),
        (r#"{"const": [1, {"a": 9007199254740993}], "minItems": 1}"#, "const"),
    ] {
        let value: Value = serde_json::from_str(schema).unwrap();
        let error = compile(&Grammar::JsonSchema(value)).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{schema}: {error:?}");
    }
}

/// Numbers within ranges are drawn, and measured with integers of 128 bits.
#[test]
fn drawn_numbers_are_within_their_bounds() {
    let mut rng = Rng::new(4);
    let edges: Vec<i128> = [
        0_i128,
        1,
        9,
        10,
        1 << 31,
        1 << 53,
        (1 << 53) + 1,
        i128::from(i64::MAX),
        i128::from(i64::MAX) + 1,
        i128::from(u64::MAX),
    ]
    .into_iter()
    .flat_map(|edge| [edge, -edge, edge - 3, edge + 5])
    .filter(|edge| *edge >= i128::from(i64::MIN) && *edge <= i128::from(u64::MAX))
    .collect();
    for _ in 0..24 {
        let (one, other) = (*rng.choose(&edges), *rng.choose(&edges));
        let (low, high) = (one.min(other), one.max(other));
        let divisor = *rng.choose(&[1_i128, 1, 3, 1000]);
        let kind = *rng.choose(&["integer", "number"]);
        let schema =
            format!(r#"{{"type": "{kind}", "minimum": {low}, "maximum": {high}, "multipleOf": {divisor}}}"#);
        let has_some =
            low.div_euclid(divisor) * divisor == low || (low.div_euclid(divisor) + 1) * divisor <= high;
        let Ok(grammar) = compile(&Grammar::JsonSchema(serde_json::from_str(&schema).unwrap())) else {
            assert!(!has_some, "{schema}");
            continue;
        };
        for edge in [low, high] {
            let verdict = judge(&*grammar, edge.to_string().as_bytes());
            assert_eq!(verdict == Verdict::Whole, edge % divisor == 0, "{schema} {edge}");
        }
        for beyond in [low - 1, high + 1] {
            assert_ne!(judge(&*grammar, beyond.to_string().as_bytes()), Verdict::Whole, "{schema} {beyond}");
        }
        for _ in 0..2 {
            let Some(text) = drawn(&*grammar, &mut rng, 60) else { continue };
            let whole = text.split_once('.').map_or(text.as_str(), |(whole, _)| whole);
            let number: i128 = whole.parse().unwrap();
            let has_fraction =
                text.split_once('.').is_some_and(|(_, rest)| rest.bytes().any(|digit| digit != b'0'));
            assert!(number >= low && (number < high || number == high && !has_fraction), "{schema} {text}");
            assert!(number % divisor == 0, "{schema} {text}");
        }
    }
}

/// Numbers that a JSON value does not hold are put back from the text.
#[test]
fn numbers_beyond_64_bits_are_read_from_the_text() {
    check(
        r#"{"const": 12345678901234567890123}"#,
        &["12345678901234567890123"],
        &["12345678901234567000000", "1.2345678901234568e22"],
    );
    check(
        r#"{"type": "integer", "minimum": -9223372036854775809, "maximum": 18446744073709551617}"#,
        &["-9223372036854775809", "18446744073709551617"],
        &["-9223372036854775810", "18446744073709551618"],
    );
    check(
        r#"{"type": "number", "minimum": 0.10000000000000000001, "maximum": 0.2}"#,
        &["0.10000000000000000002"],
        &["0.1", "0.21"],
    );
    check(
        r#"{"enum": ["18446744073709551616", 18446744073709551616]}"#,
        &["18446744073709551616", "\"18446744073709551616\""],
        &["18446744073709552000"],
    );
    let two = r#"{"enum": [1e22, 10000000000000000000001]}"#;
    let mut value: Value = serde_json::from_str(two).unwrap();
    Literals::of(two.as_bytes()).put_back(&mut value);
    let error = compile(&Grammar::JsonSchema(value)).err().unwrap().to_string();
    assert!(error.starts_with("JSON schema, #: the number written here, or another"), "{error}");
    let lark = compile(&Grammar::Lark("start: %json {\"const\": 18446744073709551616}".into())).unwrap();
    assert_eq!(judge(&*lark, b"18446744073709551616"), Verdict::Whole);
}

#[test]
fn schemas_in_lark_are_exact_too() {
    let lark = r#"start: "<" %json {"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740994} ">" | "%json {" NAME | other
        // %json {"not": {}}
        NAME: /%json \{"not": 1\}/
        other: %json {"const": 12345678901234567}"#;
    let grammar = compile(&Grammar::Lark(lark.into())).unwrap();
    for (text, is_right) in [
        ("<9007199254740993>", true),
        ("<9007199254740992>", false),
        ("12345678901234567", true),
        ("12345678901234568", false),
        ("%json {%json {\"not\": 1}", true),
    ] {
        assert_eq!(judge(&*grammar, text.as_bytes()) == Verdict::Whole, is_right, "{text}");
    }
    let error = compile(&Grammar::Lark("start: %json {\"items\": {\"not\": {\"pattern\": \"a.b\"}}}".into()))
        .err()
        .unwrap();
    assert_eq!(error.to_string(), "JSON schema, #/items: `not` is not supported");
}

/// Draft 4 has no `const`: what stands for a number is none, and a constant of a schema is meant all the same.
#[test]
fn numbers_are_exact_in_every_draft() {
    for draft in ["draft-04/schema#", "draft-06/schema#", "draft-07/schema#", "other"] {
        let schema = json!({"$schema": format!("http://json-schema.org/{draft}"), "type": "object", "additionalProperties": false,
            "properties": {"a": {"type": "number", "multipleOf": 0.01, "minimum": 0}, "b": {"const": [1, 9_007_199_254_740_993_u64]}, "c": {"const": "x"}}});
        let grammar = compile(&Grammar::JsonSchema(schema)).unwrap();
        for (text, is_right) in [
            (r#"{"a":0.25}"#, true),
            (r#"{"a":7}"#, true),
            (r#"{"a":-1}"#, false),
            (r#"{"a":0.125}"#, false),
            (r#"{"a":[]}"#, false),
            (r#"{"b":[1,9007199254740993]}"#, true),
            (r#"{"b":[1,9007199254740992]}"#, false),
            (r#"{"c":"x"}"#, true),
            (r#"{"c":"y"}"#, false),
        ] {
            assert_eq!(judge(&*grammar, text.as_bytes()) == Verdict::Whole, is_right, "{draft} {text}");
        }
    }
}
