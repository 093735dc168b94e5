//! Models' vocabularies for tests, and texts measured by grammars.

use std::sync::{Arc, LazyLock};

use brasa_engine::MaskSource;
use brasa_fuzz::Rng;
use brasa_grammar::{Grammar, GrammarError, Grammars};
use brasa_graph::sampling::SamplingError;
use brasa_tokenizer::{AddSpecial, HfFiles, ParseSpecial, Tokenizer};
use serde_json::json;

/// The token that ends an answer.
pub const END: u32 = 256;
/// A token in front of thoughts, and the one behind them.
pub const THINK: [u32; 2] = [257, 258];
/// Padding: logits without a token.
pub const PADDING: u32 = 260;
/// Logits: 256 bytes, four tokens, and padding.
pub const VOCAB: usize = 300;

/// A vocabulary of bytes.
pub static BYTES: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(tokenizer(&[]), VOCAB));

/// A tokenizer of single bytes and of texts that are merged from two tokens.
pub fn tokenizer(merges: &[(&str, &str)]) -> Arc<Tokenizer> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut unprintable = 256..;
    let letters = (0..256).map(|byte| {
        let code = if printable(byte) { byte } else { unprintable.next().unwrap() };
        (char::from_u32(code).unwrap().to_string(), byte)
    });
    let mut vocab: serde_json::Map<_, _> = letters.map(|(letter, id)| (letter, id.into())).collect();
    for (number, (one, other)) in merges.iter().enumerate() {
        vocab.insert(format!("{one}{other}"), (261 + number).into());
    }
    let merges: Vec<String> = merges.iter().map(|(one, other)| format!("{one} {other}")).collect();
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    let file = json!({
        "version": "1.0",
        "added_tokens": [added(END, "<|im_end|>"), added(257, "<think>"), added(258, "</think>"), added(259, "<tool>")],
        "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    let file = file.to_string();
    Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).unwrap().into()
}

pub fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes).unwrap()
}

/// The ids that a mask allows.
pub fn allowed(words: &[u32]) -> Vec<u32> {
    (0..words.len() as u32 * 32).filter(|id| words[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

pub fn compile(grammar: &Grammar) -> Result<Arc<dyn MaskSource>, GrammarError> {
    BYTES.compile(grammar).map(|compiled| compiled as Arc<dyn MaskSource>)
}

/// How far a grammar goes with a text.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The text is one of the grammar's.
    Whole,
    /// The text is the beginning of one.
    Beginning,
    /// The byte at this place may not come.
    Refused(usize),
}

/// Measures a text byte by byte, with a grammar whose masks can all be made.
pub fn judge(grammar: &dyn MaskSource, text: &[u8]) -> Verdict {
    try_judge(grammar, text).unwrap()
}

/// Measures a text byte by byte. A mask that takes more than its limits of work is an error.
pub fn try_judge(grammar: &dyn MaskSource, text: &[u8]) -> Result<Verdict, SamplingError> {
    let mut mask = grammar.start();
    let mut words = vec![u32::MAX; VOCAB.div_ceil(32)];
    let has = |words: &[u32], id: u32| words[id as usize / 32] >> (id % 32) & 1 == 1;
    for (at, &byte) in text.iter().enumerate() {
        mask.fill(&[], &mut words)?;
        assert!(allowed(&words).iter().all(|&id| id < PADDING), "padding may never come");
        if !has(&words, byte.into()) {
            return Ok(Verdict::Refused(at));
        }
        mask.accept(byte.into());
    }
    mask.fill(&[], &mut words)?;
    Ok(if has(&words, END) { Verdict::Whole } else { Verdict::Beginning })
}

/// A text of a grammar, whose bytes are drawn among those that may come. `None` if it does not end soon.
pub fn drawn(grammar: &dyn MaskSource, rng: &mut Rng, most_bytes: usize) -> Option<String> {
    let mut mask = grammar.start();
    let mut words = vec![0; VOCAB.div_ceil(32)];
    let mut text = Vec::new();
    while text.len() < most_bytes {
        mask.fill(&[], &mut words).unwrap();
        let ids = allowed(&words);
        assert!(!ids.is_empty(), "nothing may follow {:?}", String::from_utf8_lossy(&text));
        // Blanks and letters come in large numbers.
        let kinds: [fn(u32) -> bool; 4] = [
            |id| id == END,
            |id| u8::try_from(id).is_ok_and(|byte| byte.is_ascii_digit()),
            |id| u8::try_from(id).is_ok_and(|byte| byte.is_ascii_punctuation()),
            |_| true,
        ];
        let kind = rng.choose(&kinds);
        let some: Vec<u32> = ids.iter().copied().filter(|&id| kind(id)).collect();
        let id = *rng.choose(if some.is_empty() { &ids } else { &some });
        if id == END {
            return Some(String::from_utf8(text).unwrap());
        }
        mask.accept(id);
        text.push(id as u8);
    }
    None
}
