//! GGUF vocabularies that leave something out, or whose arrays do not fit: what is assumed is said, and the rest is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use brasa_tokenizer::{GgufVocabulary, Tokenizer, TokenizerError};

/// Outcome of reading a vocabulary.
enum Outcome {
    /// No word.
    Silent,
    /// One warning, with these words.
    Warned(&'static str),
    /// An error with these words.
    Refused(&'static str),
}
use Outcome::{Refused, Silent, Warned};

type Case = (&'static str, fn(&mut GgufVocabulary), Outcome);

fn check(whole: &GgufVocabulary, cases: &[Case]) {
    for (name, change, outcome) in cases {
        let mut source = whole.clone();
        change(&mut source);
        let found = Tokenizer::from_gguf(&source, None);
        match (outcome, &found) {
            (Silent, Ok(tokenizer)) => assert_eq!(tokenizer.warnings(), [""; 0], "{name}"),
            (Warned(words), Ok(tokenizer)) => {
                let warnings = tokenizer.warnings();
                assert!(warnings.len() == 1 && warnings[0].contains(words), "{name}: {warnings:?}");
                let Err(TokenizerError::Doubtful { doubt }) = tokenizer.judged_warnings(true) else {
                    panic!("{name} is in doubt")
                };
                assert_eq!(doubt, warnings[0]);
                assert_eq!(tokenizer.judged_warnings(false).unwrap(), warnings);
            }
            (Refused(words), Err(error)) => {
                assert!(error.to_string().contains(words), "{name}: {error}");
            }
            (_, found) => panic!("{name}: {found:?}"),
        }
    }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn byte_pair_vocabulary() -> GgufVocabulary {
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("llama-bpe".into()),
        tokens: texts(&["<|begin|>", "<|endoftext|>", "a", "b", "c", "ab"]),
        token_types: vec![3, 3, 1, 1, 1, 1],
        merges: texts(&["a b"]),
        bos: Some(0),
        eos: Some(1),
        ..GgufVocabulary::default()
    }
}

#[test]
fn byte_pairs() {
    let cases: &[Case] = &[
        ("whole", |_| {}, Silent),
        (
            "no pre",
            |v| v.pre = None,
            Warned("tokenizer.ggml.pre: not in the file; text is cut by the rule `default`"),
        ),
        ("default by name", |v| v.pre = Some("default".into()), Silent),
        (
            "unknown pre",
            |v| v.pre = Some("of-the-future".into()),
            Refused("tokenizer.ggml.pre `of-the-future`"),
        ),
        ("empty pre", |v| v.pre = Some(String::new()), Refused("tokenizer.ggml.pre ``")),
        ("no token types", |v| v.token_types.clear(), Warned("tokenizer.ggml.token_type: not in the file")),
        (
            "few token types",
            |v| v.token_types.truncate(3),
            Refused("token_type: 3 values found, expected one for each"),
        ),
        ("many token types", |v| v.token_types.push(1), Warned("the last 1 are passed over")),
        (
            "a strange type",
            |v| v.token_types[4] = 77,
            Warned("77 found for token 4, expected 1 to 6; the token so marked"),
        ),
        (
            "strange types",
            |v| v.token_types[2..].fill(-1),
            Warned("-1 found for token 2, expected 1 to 6; 4 tokens so marked"),
        ),
        ("undefined types", |v| v.token_types[4] = 0, Silent),
        ("no tokens", |v| v.tokens.clear(), Refused("tokenizer.ggml.tokens: no token found")),
        ("no merges", |v| v.merges.clear(), Refused("tokenizer.ggml.merges: no merges found")),
        ("a merge of one", |v| v.merges.push("ab".into()), Refused("\"ab\" found, expected two tokens")),
        ("a merge of strangers", |v| v.merges.push("q z".into()), Warned("merges: 1 of 2 name tokens")),
        (
            "bos beyond",
            |v| v.bos = Some(77),
            Warned("bos_token_id: 77 found, and the vocabulary has 6 tokens"),
        ),
        ("eos beyond", |v| v.eos = Some(u32::MAX), Warned("eos_token_id: 4294967295 found")),
        ("pad beyond", |v| v.padding = Some(77), Warned("padding_token_id: 77 found")),
        (
            "bos to add and none there",
            |v| (v.add_bos, v.bos) = (Some(true), None),
            Warned("add_bos_token: true, but there is no bos"),
        ),
        (
            "eos to add and none there",
            |v| (v.add_eos, v.eos) = (Some(true), None),
            Warned("add_eos_token: true, but there is no eos"),
        ),
        ("no bos, none to add", |v| (v.add_bos, v.bos) = (Some(false), None), Silent),
        (
            "no bos where the rule adds one",
            |v| v.bos = None,
            Warned("texts of `llama-bpe` begin with such a token"),
        ),
        ("no bos where the rule adds none", |v| (v.pre, v.bos) = (Some("qwen2".into()), None), Silent),
        ("no model of that name", |v| v.model = "rwkv".into(), Refused("tokenizer.ggml.model `rwkv`")),
        ("no tokenizer", |v| v.model = "none".into(), Refused("can only be run on token ids")),
    ];
    check(&byte_pair_vocabulary(), cases);
}

#[test]
fn the_callers_name_is_no_silence() {
    let source = GgufVocabulary { pre: None, ..byte_pair_vocabulary() };
    let named = Tokenizer::from_gguf(&source, Some("llama-bpe")).unwrap();
    assert_eq!(named.warnings(), [""; 0]);
}

#[test]
fn sentences() {
    let whole = GgufVocabulary {
        model: "llama".into(),
        tokens: texts(&["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a"]),
        token_types: vec![2, 3, 3, 1, 1, 1, 1],
        scores: vec![0.0; 7],
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..GgufVocabulary::default()
    };
    let cases: &[Case] = &[
        ("whole", |_| {}, Silent),
        ("no scores", |v| v.scores.clear(), Refused("tokenizer.ggml.scores: no scores found")),
        ("few scores", |v| v.scores.truncate(5), Refused("scores: 5 values found, expected one for each")),
        (
            "many scores",
            |v| v.scores.extend([0.0; 3]),
            Warned("scores: 10 values found for 7 tokens; the last 3"),
        ),
        ("NaN", |v| v.scores[4] = f32::NAN, Warned("scores: NaN found for token 4")),
        ("no token types", |v| v.token_types.clear(), Warned("token_type: not in the file")),
        ("no ids", |v| (v.bos, v.unknown) = (None, None), Silent),
        (
            "no bos where token 1 is text",
            |v| {
                v.bos = None;
                v.tokens[1] = "word".into();
                v.token_types[1] = 1;
            },
            Warned("bos_token_id: not in the file; 1 is taken, which is \"word\""),
        ),
        (
            "no unknown where token 0 is text",
            |v| {
                v.unknown = None;
                v.tokens[0] = "word".into();
                v.token_types[0] = 1;
            },
            Warned("unknown_token_id: not in the file; 0 is taken"),
        ),
        (
            "no bos, and none in front",
            |v| {
                (v.bos, v.add_bos) = (None, Some(false));
                v.tokens[1] = "word".into();
                v.token_types[1] = 1;
            },
            Silent,
        ),
        (
            "an unknown rule of spaces",
            |v| v.space_prefix_scheme = Some("last".into()),
            Refused("space_prefix_scheme `last`"),
        ),
        ("a rule of spaces", |v| v.space_prefix_scheme = Some("first".into()), Silent),
    ];
    check(&whole, cases);
}

#[test]
fn words() {
    let mut tokens: Vec<String> = (0..110).map(|id| format!("▁w{id}")).collect();
    let mut token_types = vec![1; 110];
    for (id, text) in [(100, "[UNK]"), (101, "[CLS]"), (102, "[SEP]")] {
        tokens[id] = text.into();
        token_types[id] = 3;
    }
    let whole = GgufVocabulary { model: "bert".into(), tokens, token_types, ..GgufVocabulary::default() };
    let cases: &[Case] = &[
        ("without ids", |_| {}, Silent),
        (
            "no separator where 102 is text",
            |v| {
                v.tokens[102] = "▁word".into();
                v.token_types[102] = 1;
            },
            Warned("seperator_token_id: not in the file; 102 is taken, which is \"▁word\""),
        ),
        (
            "no unknown in a short vocabulary",
            |v| {
                v.tokens.truncate(50);
                v.token_types.truncate(50);
            },
            Refused("unknown_token_id: no such token"),
        ),
        (
            "capitals",
            |v| v.tokens[20] = "▁Berlin".into(),
            Warned("lowercase: not in the file; text is turned into small letters, though 1 pieces"),
        ),
        (
            "capitals that are kept",
            |v| {
                v.tokens[20] = "▁Berlin".into();
                v.lowercase = Some(false);
            },
            Silent,
        ),
    ];
    check(&whole, cases);
}
