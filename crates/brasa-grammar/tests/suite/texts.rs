//! Patterns together with lengths: what is left out of the parser's schema changes no mask, and texts are those of another engine.

use brasa_engine::MaskSource;
use brasa_grammar::{Grammar, Grammars};
use serde_json::{Value, json};

use super::common::{END, VOCAB, Verdict, allowed, compile, judge, tokenizer};

/// Marsaglia's xorshift64*.
fn next(state: &mut u64) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize
}

/// Follows one text through two grammars, and compares all masks, also those behind drafts. Mostly draws tokens of `favoured` where it can, so
/// that texts come near their longest. Returns the text.
fn walk_alike(one: &Grammar, other: &Grammar, favoured: &[&str], most_tokens: usize) -> String {
    let merges =
        [("a", "b"), ("ab", "ab"), ("abab", "abab"), ("abababab", "abababab"), ("\"", ","), ("b", "\"")];
    let tokenizer = tokenizer(&merges);
    let grammars = Grammars::new(tokenizer.clone(), VOCAB);
    let (one, other) = (grammars.compile(one).unwrap(), grammars.compile(other).unwrap());
    let (mut one, mut other) = (one.start(), other.start());
    let (mut left, mut right) = (vec![0; VOCAB.div_ceil(32)], vec![0; VOCAB.div_ceil(32)]);
    let (mut state, mut text) = (77_u64, Vec::new());
    for _ in 0..most_tokens {
        one.fill(&[], &mut left).unwrap();
        other.fill(&[], &mut right).unwrap();
        assert_eq!(allowed(&left), allowed(&right), "behind {:?}", String::from_utf8_lossy(&text));
        let ids = allowed(&left);
        let bytes = |id: u32| tokenizer.piece_bytes(id).unwrap().into_owned();
        let liked: Vec<u32> = ids
            .iter()
            .copied()
            .filter(|&id| favoured.iter().any(|text| text.as_bytes() == bytes(id)))
            .collect();
        let from = if liked.is_empty() || next(&mut state).is_multiple_of(16) { &ids } else { &liked };
        let id = from[next(&mut state) % from.len()];
        if id == END {
            break;
        }
        if next(&mut state).is_multiple_of(8) {
            let drafts = [id, ids[next(&mut state) % ids.len()]];
            one.fill(&drafts, &mut left).unwrap();
            other.fill(&drafts, &mut right).unwrap();
            assert_eq!(
                allowed(&left),
                allowed(&right),
                "behind {:?} and a draft",
                String::from_utf8_lossy(&text)
            );
        }
        one.accept(id);
        other.accept(id);
        text.extend(bytes(id));
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn masks_of_long_texts_are_those_of_the_whole_schema() {
    let arn = json!({"type": "string", "pattern": "^arn:[^:\"\\\\]+:a[ab]*:\\d{2}$", "minLength": 20, "maxLength": 470});
    let search = json!({"type": "string", "pattern": "a(b|ab){3}:", "minLength": 3, "maxLength": 450});
    for (schema, favoured, most_tokens) in [
        (
            json!({"type": "object", "properties": {"x": arn}, "required": ["x"], "additionalProperties": false}),
            &["ab", "abab"][..],
            400,
        ),
        (
            json!({"type": "array", "items": {"anyOf": [arn, search, {"type": "null"}]}}),
            &["abababab", "abab", "[", ":"][..],
            130,
        ),
    ] {
        let text = walk_alike(
            &Grammar::JsonSchema(schema.clone()),
            &Grammar::LenientJsonSchema(schema.clone()),
            favoured,
            most_tokens,
        );
        let longest = text.split('"').map(|text| text.chars().count()).max().unwrap();
        assert!(longest > 430, "{schema}: the longest text has {longest} characters");
    }
}

/// Lengths that a pattern implies are left out, and others are not.
#[test]
fn texts_are_those_of_another_engine() {
    let patterns = [
        "^ab{2,4}$",
        "^a+$",
        "^(ab)*$",
        "^a{2}(b|bab)$",
        "a{3}",
        "^b",
        "b$",
        "^(a|b[ab]{2})+$",
        "^a?b?$",
        "^(^a|b)$",
        "^$",
        "",
        "^ab|ba$",
        "^[^a]{1,3}$",
        "^é+b?$",
    ];
    let mut state = 99_u64;
    let mut whole = 0;
    for pattern in patterns {
        let engine = regex::Regex::new(pattern).unwrap();
        for (least, most) in [(0, 3), (1, 5), (2, 4), (3, 3), (4, 9)] {
            let schema = json!({"type": "string", "pattern": pattern, "minLength": least, "maxLength": most});
            let compiled = compile(&Grammar::JsonSchema(schema));
            for _ in 0..12 {
                let text: String =
                    (0..next(&mut state) % 7).map(|_| ['a', 'b', 'é'][next(&mut state) % 5 % 3]).collect();
                let is_right = engine.is_match(&text) && (least..=most).contains(&text.chars().count());
                let json = Value::from(text.clone()).to_string();
                let found = match &compiled {
                    Ok(grammar) => judge(&**grammar, json.as_bytes()) == Verdict::Whole,
                    Err(error) => {
                        assert!(
                            error.to_string().contains("nsatisfiable"),
                            "{pattern} {least} {most}: {error}"
                        );
                        false
                    }
                };
                assert_eq!(found, is_right, "{pattern} {least} {most} {text}");
                whole += usize::from(found);
            }
        }
    }
    assert!(whole > 60, "{whole} texts matched");
}
