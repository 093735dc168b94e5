//! GBNF: llama.cpp's own grammars against llama.cpp's own judgement, and errors.

use std::collections::BTreeMap;

use brasa_engine::MaskSource;
use brasa_grammar::{Grammar, GrammarError, gbnf};

use super::common::{END, VOCAB, Verdict, allowed, compile, judge};

/// The text of a line in which `judge.py` has written line breaks, tabs and backslashes as escapes.
fn unescaped(line: &str) -> Vec<u8> {
    let (mut text, mut rest) = (Vec::new(), line.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        let (byte, length) = match (first, tail) {
            (b'\\', [b'n', ..]) => (b'\n', 1),
            (b'\\', [b't', ..]) => (b'\t', 1),
            (b'\\', [b'r', ..]) => (b'\r', 1),
            (b'\\', [b'x', high, low, ..]) => {
                let digits = [*high, *low];
                (u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap(), 3)
            }
            (b'\\', [other, ..]) => (*other, 1),
            _ => (*first, 0),
        };
        text.push(byte);
        rest = &rest[length..];
    }
    text
}

/// The verdict of one look behind the whole text.
fn glance(grammar: &dyn MaskSource, text: &[u8]) -> &'static str {
    let drafts: Vec<u32> = text.iter().map(|&byte| byte.into()).collect();
    let mut words = vec![u32::MAX; VOCAB.div_ceil(32)];
    grammar.start().fill(&drafts, &mut words).unwrap();
    match allowed(&words) {
        ids if ids.is_empty() => "refused",
        ids if ids.contains(&END) => "whole",
        _ => "beginning",
    }
}

/// `tests/gbnf/judgements.txt` is what llama.cpp's parser says; `judge.py` beside it makes it.
#[test]
fn texts_are_judged_as_llama_cpp_judges_them() {
    let mut grammars = BTreeMap::new();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in include_str!("../gbnf/judgements.txt").lines() {
        let mut fields = line.splitn(3, '\t');
        let (name, verdict, text) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap());
        let grammar = grammars.entry(name.to_owned()).or_insert_with(|| {
            let path = format!("{}/tests/gbnf/{name}.gbnf", env!("CARGO_MANIFEST_DIR"));
            compile(&Grammar::Gbnf(std::fs::read_to_string(path).unwrap())).unwrap()
        });
        let found = glance(&**grammar, &unescaped(text));
        count += 1;
        if found != verdict {
            wrong.push(format!("{line}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 1300 && grammars.len() == 15);
}

/// Lexemes stay long: a character at a time, a mask costs a hundred times as much.
#[test]
fn json_is_cut_into_long_lexemes() {
    let lark = gbnf::to_lark(include_str!("../gbnf/json.gbnf"), &|_| None).unwrap();
    let lexemes: Vec<&str> = lark.lines().filter(|line| line.starts_with('T')).collect();
    assert_eq!(lexemes.len(), 10, "{lark}");
    assert!(lexemes.iter().any(|text| text.contains("(?:true|false|null)")), "{lark}");
}

#[test]
fn notation() {
    for (grammar, text, verdict) in [
        ("root ::= \"\\x41\\u00e9\\U0001F600\\\\\\\"\\[\\]\" # end", "Aé😀\\\"[]", Verdict::Whole),
        ("root ::= [^a-c\\n\\]-]+", "xyz", Verdict::Whole),
        ("root ::= [^a-c\\n\\]-]+", "x-", Verdict::Refused(1)),
        ("root ::= [a\\-z]{2,3}", "a-z", Verdict::Whole),
        ("root ::= [-a]{2,}", "-a-a", Verdict::Whole),
        ("root ::= (\"a\"\n  | \"b\" # more\n )* \"c\"?\nunused ::= root", "abac", Verdict::Whole),
        ("root ::= .{2}\r\n", "ü\n", Verdict::Whole),
        ("root ::= \"\" | \"a\" root", "aa", Verdict::Whole),
        ("root ::= a b\na ::= \"x\"?\nb ::= a{0,0}", "", Verdict::Whole),
        // The last of two rules counts.
        ("root ::= \"a\"\nroot ::= \"b\"", "b", Verdict::Whole),
        // llama.cpp refuses rules that begin with themselves.
        ("root ::= root \"+\" n | n\nn ::= [0-9]", "1+2+3", Verdict::Whole),
    ] {
        let compiled =
            compile(&Grammar::from_text(grammar)).unwrap_or_else(|error| panic!("{grammar}: {error}"));
        assert_eq!(judge(&*compiled, text.as_bytes()), verdict, "{grammar}");
    }
    let tokens =
        gbnf::to_lark("root ::= <think> !<[7]> \"a\"", &|name| (name == "<think>").then_some(257)).unwrap();
    assert!(tokens.contains("(<[257]> <[^7]> T0)"), "{tokens}");
    assert!(matches!(Grammar::from_text("%llguidance {}\nstart: \"a\""), Grammar::Lark(_)));
}

#[test]
fn errors_name_the_place() {
    let deep = format!("root ::= {}", "(".repeat(200));
    for (grammar, line, column, what) in [
        ("", 1, 1, "there is no rule `root`"),
        ("rot ::= \"a\"", 1, 1, "there is no rule `root`"),
        ("root ::= \"a", 1, 10, "the text does not end"),
        ("root ::= \"a\"\nb ::= [a", 2, 7, "the class does not end"),
        ("root ::= b\n", 1, 10, "there is no rule `b`"),
        ("root = \"a\"", 1, 6, "expected `::=` behind the name `root`"),
        ("root ::= \"a\" )", 1, 14, "expected the end of the rule, found `)`"),
        ("root ::= (\"a\"", 1, 14, "expected `)`"),
        ("root ::= *", 1, 10, "there is nothing in front of `*` to repeat"),
        ("root ::= \"\"*", 1, 12, "there is nothing in front of `*` to repeat"),
        ("root ::= \"a\"{3,2}", 1, 13, "the second number is less than the first"),
        ("root ::= \"a\"{9999}", 1, 14, "at most 2000 repetitions are possible"),
        ("root ::= \"\\q\"", 1, 11, "unknown escape `\\q`"),
        ("root ::= \"\\ud800\"", 1, 11, "there is no character D800"),
        ("root ::= \"\\x4\"", 1, 11, "expected 2 hexadecimal digits behind `\\x`"),
        ("root ::= [z-a]", 1, 10, "a range ends before it begins"),
        ("root ::= []", 1, 10, "the class has no characters"),
        ("root ::= <nobody>", 1, 10, "the vocabulary has no token `<nobody>`"),
        (&deep, 1, 111, "more than 100 levels of parentheses"),
    ] {
        let expected = GrammarError::Gbnf { line, column, what: what.into() };
        assert_eq!(gbnf::to_lark(grammar, &|_| None), Err(expected), "{grammar}");
    }
    let large = "root ::= (((\"a\"{2000}){2000}){2000})";
    assert!(matches!(gbnf::to_lark(large, &|_| None), Err(GrammarError::TooLarge { .. })));
}
