//! Masks: what they allow, when an answer may end, drafts, thoughts.

use std::sync::Arc;

use brasa_grammar::{Grammar, Grammars};
use brasa_graph::sampling::SamplingError;
use brasa_tokenizer::ThoughtMarks;
use serde_json::json;

use super::common::{BYTES, END, THINK, VOCAB, Verdict, allowed, compile, ids, judge, tokenizer};

fn words() -> Vec<u32> {
    vec![u32::MAX; VOCAB.div_ceil(32)]
}

fn letters(bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| byte.into()).collect()
}

#[test]
fn an_answer_may_end_exactly_where_the_grammar_does() {
    let grammar = compile(&Grammar::Regex("ab?(cd)*".into())).unwrap();
    let (mut mask, mut words) = (grammar.start(), words());
    let mut next = |id: Option<u8>| {
        if let Some(id) = id {
            mask.accept(id.into());
        }
        mask.fill(&[], &mut words).unwrap();
        allowed(&words).iter().map(|&id| if id == END { '$' } else { id as u8 as char }).collect::<String>()
    };
    assert_eq!(next(None), "a");
    assert_eq!(next(Some(b'a')), "bc$");
    assert_eq!(next(Some(b'c')), "d");
    assert_eq!(next(Some(b'd')), "c$");
    // Where nothing else may come, the end is forced.
    let done = compile(&Grammar::Regex("x".into())).unwrap();
    let mut mask = done.start();
    mask.accept(b'x'.into());
    mask.fill(&[], &mut words).unwrap();
    assert_eq!(allowed(&words), [END]);
    mask.accept(END);
    mask.fill(&[], &mut words).unwrap();
    assert_eq!(allowed(&words), [END], "behind the end there is nothing but the end");
}

/// Masks of one grammar know nothing of each other, and asking twice gives one answer.
#[test]
fn masks_are_independent() {
    let grammar = compile(&Grammar::Regex("a*b".into())).unwrap();
    let (mut one, mut other, mut words) = (grammar.start(), grammar.start(), words());
    one.accept(b'b'.into());
    for _ in 0..2 {
        one.fill(&[], &mut words).unwrap();
        assert_eq!(allowed(&words), [END]);
        other.fill(&[], &mut words).unwrap();
        assert_eq!(allowed(&words), letters(b"ab"));
    }
}

/// A token that the mask did not allow ends this text with an error; others go on.
#[test]
fn a_wrong_token_is_an_error_of_its_own_text() {
    let grammar = compile(&Grammar::Regex("a*b".into())).unwrap();
    let (mut wrong, mut right, mut words) = (grammar.start(), grammar.start(), words());
    wrong.accept(b'z'.into());
    right.accept(b'a'.into());
    for _ in 0..2 {
        assert!(matches!(wrong.fill(&[], &mut words), Err(SamplingError::Mask { .. })));
        right.fill(&[], &mut words).unwrap();
        assert_eq!(allowed(&words).len(), 2);
        wrong.accept(b'a'.into());
        right.accept(b'a'.into());
    }
}

/// Masks behind drafts are those behind the same text accepted; drafts that may not come allow nothing.
#[test]
fn drafts_are_measured_like_accepted_text() {
    let text = br#"{"a": [1, -2.5e3, "x\n"], "b": null}"#;
    let grammar = compile(&Grammar::AnyJson).unwrap();
    let drafts: Vec<u32> = letters(text);
    let (mut mask, mut expected, mut found) = (grammar.start(), words(), words());
    for at in 0..=text.len() {
        for ahead in [1, 2, 7, drafts.len() - at] {
            let drafts = &drafts[at..drafts.len().min(at + ahead)];
            let mut plain = grammar.start();
            for &id in &drafts[..0]
                .iter()
                .chain(&text.map(u32::from)[..at])
                .chain(drafts)
                .copied()
                .collect::<Vec<_>>()
            {
                plain.accept(id);
            }
            plain.fill(&[], &mut expected).unwrap();
            mask.fill(drafts, &mut found).unwrap();
            assert_eq!(found, expected, "behind {at} bytes and {} drafts", drafts.len());
        }
        mask.fill(&[b'?'.into(), b'"'.into()], &mut found).unwrap();
        let in_text = text[..at].split(|&byte| byte == b'"').count() % 2 == 0 && text[at - 1] != b'\\';
        assert_eq!(allowed(&found).is_empty(), !in_text, "`?` may only come in a text");
        if let Some(&byte) = text.get(at) {
            mask.accept(byte.into());
        }
    }
}

/// Masks find many tokens at once by their shapes. Here each token's bytes are taken one by one instead, by a parser without a mask.
#[test]
fn masks_have_the_tokens_that_come_byte_by_byte() {
    // Words of small letters, of others, behind blanks, with digits, marks, quotes, escapes, and characters whole and cut.
    let merges = [
        ("a", "r"),
        ("ar", "n"),
        ("arn", "arn"),
        ("arnarn", "arnarn"),
        ("A", "b"),
        ("Ab", "arn"),
        ("Ġ", "a"),
        ("Ġa", "r"),
        ("Ġar", "arn"),
        ("Ġ", "A"),
        ("ĠA", "Ab"),
        ("1", "2"),
        ("12", "a"),
        (":", ":"),
        ("a", ":"),
        ("a:", "1"),
        ("-", "a"),
        ("a", "\""),
        ("\"", "}"),
        ("a\"", "}"),
        ("\"", ","),
        ("\\", "n"),
        ("a", "\\"),
        ("Ã", "©"),
        ("a", "Ã"),
        ("Ã©", "a"),
        ("Ġ", "Ã©"),
        ("â", "Ĥ"),
        ("âĤ", "¬"),
        ("¬", "a"),
        ("Ã©", "Ã©"),
        ("arnarnarnarn", "arnarnarnarn"),
        ("{", "\""),
        ("\"", ":"),
    ];
    let grammars = Grammars::new(tokenizer(&merges), VOCAB);
    let bytes_of = |id: u32| {
        let tokenizer = tokenizer(&merges);
        tokenizer.piece_bytes(id).unwrap().iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>()
    };
    let long: Vec<(u32, Vec<u32>)> = (261..261 + merges.len() as u32).map(|id| (id, bytes_of(id))).collect();
    let short = (0..256).map(|byte| (byte, vec![byte]));
    let tokens: Vec<(u32, Vec<u32>)> = long.into_iter().chain(short).collect();
    let text =
        |schema: serde_json::Value| json!({"type": "object", "properties": {"a": schema}, "required": ["a"]});
    let cases = [
        (text(json!({"type": "string", "pattern": "^[a-z]{1,7}$"})), r#"{"a":"arnar"}"#),
        (
            text(
                json!({"type": "string", "pattern": "^arn:[a-z0-9-]+:.+$", "minLength": 7, "maxLength": 23}),
            ),
            r#"{"a":"arn:a-1:Ab:: é€"}"#,
        ),
        (
            text(json!({"type": "string", "pattern": "^[\\p{L} ]+$", "maxLength": 15})),
            r#"{"a":"arn Ab éé a"}"#,
        ),
        (
            text(json!({"type": "string", "pattern": "arn|[^:]{3}$", "maxLength": 26})),
            r#"{"a":"arnarn arnarn"}"#,
        ),
        (text(json!({"type": "string", "maxLength": 6})), r#"{"a":"a\né€A"}"#),
        (text(json!({"type": "string", "pattern": "^[ -~]*$"})), r#"{"a":"Ab 12::\" a"}"#),
        (text(json!({"type": "string", "format": "uri"})), r#"{"a":"arn:a-1::12a"}"#),
        (
            json!({"patternProperties": {"^[A-z]{2,5}$": {"type": "integer"}}, "additionalProperties": false}),
            r#"{"Abarn":12}"#,
        ),
        (json!({"enum": ["arnarn Ab", "arnAb", 12]}), r#""arnarn Ab""#),
    ];
    let mut compared = 0;
    for (schema, text) in cases {
        let grammar = Grammar::JsonSchema(schema.clone());
        let (all, single) = (grammars.compile(&grammar).unwrap(), compile(&grammar).unwrap());
        let (mut mask, mut bytes) = (brasa_engine::MaskSource::start(&*all), single.start());
        let (mut words, mut behind) = (words(), words());
        let mut left = letters(text.as_bytes());
        while !left.is_empty() {
            let at = text.len() - left.len();
            mask.fill(&[], &mut words).unwrap_or_else(|error| panic!("{schema}, behind {at} bytes: {error}"));
            let (found, mut forced) = (allowed(&words), Vec::new());
            mask.forced(&mut forced);
            // Forced text has one spelling.
            for (id, token) in tokens.iter().filter(|_| forced.is_empty()) {
                compared += 1;
                // Every single byte at some places, since they are many.
                if token.len() > 1 || (id + at as u32).is_multiple_of(4) {
                    bytes.fill(token, &mut behind).unwrap();
                    let may_come = behind.iter().any(|&word| word != 0);
                    assert_eq!(
                        found.contains(id),
                        may_come,
                        "{schema}: {token:?} behind {at} bytes of {text}"
                    );
                }
            }
            let next = forced.first().copied().unwrap_or(left[0]);
            mask.accept(next);
            let taken = tokens.iter().find(|(id, _)| *id == next).map_or(1, |(_, token)| token.len());
            left.drain(..taken).for_each(|byte| bytes.accept(byte));
        }
        mask.fill(&[], &mut words).unwrap();
        assert!(allowed(&words).contains(&END), "{schema}: {text} is not whole");
    }
    assert!(compared > 20_000, "{compared} tokens compared");
}

/// With long tokens, what is forced is spelled as the tokenizer spells it.
#[test]
fn forced_text_has_the_tokenizers_spelling() {
    let tokenizer = tokenizer(&[("a", "b"), ("ab", "c"), ("\"", ":")]);
    let grammars = Grammars::new(tokenizer.clone(), VOCAB);
    let schema = json!({"type": "object", "properties": {"abc": {"const": "abab"}}, "required": ["abc"],
        "additionalProperties": false});
    let grammar = grammars.compile(&Grammar::JsonSchema(schema)).unwrap();
    let (mut mask, mut words, mut text) = (brasa_engine::MaskSource::start(&*grammar), words(), Vec::new());
    while text.last() != Some(&END) {
        mask.fill(&[], &mut words).unwrap();
        // The longest tokens have the highest ids. Blanks could come between parts.
        let id = allowed(&words).into_iter().rev().find(|id| *id != u32::from(b' ')).unwrap();
        text.push(id);
        mask.accept(id);
    }
    assert_eq!(text, [ids(&tokenizer, r#"{"abc":"abab"}"#), vec![END]].concat());
}

/// Forced tokens are those that come one by one where a mask allows no other.
#[test]
fn forced_tokens_are_those_of_masks_with_one() {
    let tokenizer = tokenizer(&[("a", "b"), ("ab", "c"), ("\"", ":"), ("c", "\"")]);
    let grammars = Grammars::new(tokenizer, VOCAB);
    let schema = json!({"type": "object", "properties": {"abcab": {"const": "abab"}, "c": {"type": "boolean"}},
        "required": ["abcab", "c"], "additionalProperties": false});
    let grammars = [
        grammars.compile(&Grammar::JsonSchema(schema)).unwrap() as Arc<dyn brasa_engine::MaskSource>,
        grammars
            .compile(&Grammar::Lark("start: \"abc\" /[xy]/ \"abcdefghijklmnopqrstuvwxyz\"".into()))
            .unwrap(),
        compile(&Grammar::AnyJson).unwrap(),
    ];
    let (mut known, mut wrong) = (0, 0);
    for (number, grammar) in grammars.iter().enumerate() {
        let (mut mask, mut words, mut pending) = (grammar.start(), words(), Vec::new());
        for place in 0..60 {
            let mut forced = Vec::new();
            mask.forced(&mut forced);
            mask.fill(&[], &mut words).unwrap();
            let now = allowed(&words);
            let id = now[(place * 7 + number) % now.len()];
            if let Some(&guess) = forced.first() {
                known += 1;
                wrong += usize::from(now != [guess]);
            }
            // What was forced is still forced one token later.
            assert!(
                pending.iter().zip(&forced).all(|(pending, forced)| pending == forced),
                "{pending:?}: {forced:?}"
            );
            if id == END {
                break;
            }
            mask.accept(id);
            pending = if forced.first() == Some(&id) { forced.split_off(1) } else { Vec::new() };
        }
    }
    assert!(known > 15 && wrong * 10 <= known, "{wrong} of {known} wrong");
}

#[test]
fn a_grammar_sets_in_behind_the_thoughts() {
    let tokenizer = tokenizer(&[("Ċ", "Ċ")]);
    let grammars = Grammars::new(tokenizer.clone(), VOCAB);
    let marks = ThoughtMarks::of(None, &tokenizer);
    assert_eq!(marks.map(|marks| marks.end), Some("</think>"));
    let grammar = grammars.compile(&Grammar::Regex("yes|no".into())).unwrap();
    let wrapped = |prompt: &str| grammars.after_thoughts(grammar.clone(), marks, prompt);
    let breaks = [letters(b"\n"), vec![261]].concat();
    let answer = letters(b"ny");
    let allowed_behind = |prompt: &str, text: &[u32]| {
        let (mut mask, mut fresh, mut found, mut drafted) =
            (wrapped(prompt).start(), wrapped(prompt).start(), words(), words());
        for &id in text {
            mask.accept(id);
        }
        mask.fill(&[], &mut found).unwrap();
        fresh.fill(text, &mut drafted).unwrap();
        assert_eq!(drafted, found, "drafts and accepted text {text:?}");
        allowed(&found)
    };
    // Thoughts may come, or the answer at once.
    let both: Vec<u32> = answer.iter().copied().chain([THINK[0]]).collect();
    assert_eq!(allowed_behind("user: ?\n", &[]), both);
    assert_eq!(allowed_behind("user: ?\n", &letters(b"n")), letters(b"o"));
    // In thoughts all may come but the end and padding.
    let thought = allowed_behind("<think>\n", &letters(b"hm\n"));
    assert_eq!(thought.len(), 256 + 1 + 3, "{thought:?}");
    assert!(!thought.contains(&END));
    assert_eq!(allowed_behind("?", &[&THINK[..1], &letters(b"y")].concat()), thought);
    // The mark may be one token or be spelled.
    for mark in [vec![THINK[1]], letters(b"</think>")] {
        let text = [letters(b"hm"), mark].concat();
        let mut behind = [breaks.clone(), answer.clone()].concat();
        behind.sort_unstable();
        assert_eq!(allowed_behind("<think>", &text), behind);
        assert_eq!(allowed_behind("<think>", &[&text[..], &[261]].concat()), answer);
        assert_eq!(allowed_behind("<think>", &[&text[..], &[261], &letters(b"yes")].concat()), [END]);
        assert_eq!(allowed_behind("<think>", &[&text[..], &letters(b"yes")].concat()), [END]);
    }
    // What the grammar forces is forced in the answer alone.
    let forced_behind = |text: &[u32]| {
        let (mut mask, mut forced) = (wrapped("<think>").start(), Vec::new());
        for &id in text {
            mask.accept(id);
        }
        mask.fill(&[], &mut words()).unwrap();
        mask.forced(&mut forced);
        forced
    };
    assert!(forced_behind(&letters(b"hm")).is_empty());
    assert!(forced_behind(&[THINK[1]]).is_empty());
    assert_eq!(forced_behind(&[&[THINK[1]], &letters(b"y")[..]].concat()), letters(b"es"));
    // A prompt that has closed the thoughts leaves nothing but the answer.
    assert_eq!(allowed_behind("<think>\n\n</think>\n\n", &[]), answer);
}

#[test]
fn control_tokens_come_only_by_name() {
    let any = compile(&Grammar::Regex("(?s:.)*".into())).unwrap();
    let (mut mask, mut words) = (any.start(), words());
    mask.fill(&[], &mut words).unwrap();
    assert!(allowed(&words).iter().all(|&id| id <= END), "{:?}", allowed(&words));
    for text in ["start: <tool> \"a\"", "start: <[259]> \"a\""] {
        let named = compile(&Grammar::Lark(text.into())).unwrap();
        let mut mask = named.start();
        mask.fill(&[], &mut words).unwrap();
        assert_eq!(allowed(&words), [259]);
        mask.accept(259);
        mask.fill(&[], &mut words).unwrap();
        assert_eq!(allowed(&words), letters(b"a"));
    }
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    let without = Grammars::new(tokenizer(&[]), 256);
    assert_eq!(without.compile(&Grammar::AnyJson).err(), Some(brasa_grammar::GrammarError::NoEnd));
    assert!(BYTES.compile(&Grammar::AnyJson).is_ok());
}

#[test]
fn regular_expressions_and_lark() {
    let regex = compile(&Grammar::Regex(r"[a-c]{2,3}/\d+ü?".into())).unwrap();
    for (text, verdict) in [
        ("ab/1", Verdict::Whole),
        ("abc/22ü", Verdict::Whole),
        ("abc", Verdict::Beginning),
        ("abcc", Verdict::Refused(3)),
        ("ab/1ö", Verdict::Refused(5)),
    ] {
        assert_eq!(judge(&*regex, text.as_bytes()), verdict, "{text}");
    }
    let lark = compile(&Grammar::Lark("start: \"(\" start? \")\"".into())).unwrap();
    assert_eq!(judge(&*lark, b"((()))"), Verdict::Whole);
    assert_eq!(judge(&*lark, b"(()))"), Verdict::Refused(4));
    for (grammar, part) in [
        (Grammar::Regex("a(?=b)".into()), "look"),
        (Grammar::Regex("(".into()), "regular expression: "),
        (Grammar::Lark("begin: \"a\"".into()), "start"),
        (Grammar::Lark("start: nothing".into()), "nothing"),
        (Grammar::Lark("start: <nobody>".into()), "nobody"),
    ] {
        let error = compile(&grammar).unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains('<') | error.contains("nobody"), "{error}");
    }
}
