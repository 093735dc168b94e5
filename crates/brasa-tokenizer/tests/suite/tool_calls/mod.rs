//! Calls of tools in answers, however the texts are cut.

mod forms;
mod golden;
mod grammars;
mod templates;
mod unfinished;

use std::path::PathBuf;

use brasa_tokenizer::{AnswerEvent, AnswerParser, HfFiles, Tokenizer, ToolChoice, ToolFormat};
use serde_json::{Value, json};

pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

pub fn plain_tokenizer() -> Tokenizer {
    let file = r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    Tokenizer::from_json(&HfFiles { tokenizer: file, ..HfFiles::default() }).expect("tokenizer")
}

/// An answer, put together from its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    /// Names, arguments, and whether the call ended.
    pub calls: Vec<(String, String, bool)>,
    /// The kinds of the events, without repetitions.
    order: String,
}

impl Answer {
    pub fn read(mut parser: AnswerParser, fragments: &[&str]) -> Self {
        let mut answer = Self::default();
        for fragment in fragments {
            answer.add(parser.push(fragment));
        }
        answer.add(parser.finish());
        answer
    }

    pub fn add(&mut self, events: Vec<AnswerEvent>) {
        for event in events {
            let kind = match event {
                AnswerEvent::Reasoning(text) => {
                    assert_ne!(text, "");
                    self.reasoning.push_str(&text);
                    'r'
                }
                AnswerEvent::Content(text) => {
                    assert_ne!(text, "");
                    self.content.push_str(&text);
                    'c'
                }
                AnswerEvent::CallBegin { index, name } => {
                    assert_eq!(index, self.calls.len());
                    assert!(self.calls.last().is_none_or(|call| call.2), "{self:?}");
                    self.calls.push((name, String::new(), false));
                    'b'
                }
                AnswerEvent::CallArguments { index, text } => {
                    assert_ne!(text, "");
                    assert_eq!(index + 1, self.calls.len());
                    let call = &mut self.calls[index];
                    assert!(!call.2);
                    call.1.push_str(&text);
                    'a'
                }
                AnswerEvent::CallEnd { index } => {
                    assert_eq!(index + 1, self.calls.len());
                    let was_open = !std::mem::replace(&mut self.calls[index].2, true);
                    assert!(was_open);
                    'e'
                }
                other => panic!("{other:?}"),
            };
            if !self.order.ends_with(kind) {
                self.order.push(kind);
            }
        }
    }

    /// Names and arguments. Every call has ended, with an object for arguments.
    pub fn calls(&self) -> Vec<(String, Value)> {
        let calls = self.calls.iter().map(|(name, arguments, ended)| {
            assert!(ended);
            let value: Value = serde_json::from_str(arguments).unwrap_or_else(|_| panic!("{arguments}"));
            assert!(value.is_object(), "{arguments}");
            (name.clone(), value)
        });
        calls.collect()
    }
}

/// Reads a text whole, and asserts that every way to cut it once, every way to cut a short one twice, and single characters give
/// the same answer.
pub fn read_however_cut(parser: &AnswerParser, text: &str) -> Answer {
    let whole = Answer::read(parser.clone(), &[text]);
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &cut in &cuts {
        let (before, behind) = text.split_at(cut);
        assert_eq!(Answer::read(parser.clone(), &[before, behind]), whole, "{before:?} {behind:?}");
        if text.len() <= 64 {
            for &second in cuts.iter().filter(|&&second| second > cut) {
                let (middle, last) = behind.split_at(second - cut);
                assert_eq!(Answer::read(parser.clone(), &[before, middle, last]), whole, "{text:?}");
            }
        }
    }
    let letters: Vec<String> = text.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(Answer::read(parser.clone(), &letters), whole, "{text:?}");
    whole
}

pub fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "list": {"type": "array"}, "any": {},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]}}}}}),
        json!({"type": "function", "function": {"name": "g"}}),
    ]
}

/// The content of an answer without thoughts, and its calls in angle brackets.
pub fn shown(format: &str, choice: &ToolChoice, text: &str) -> String {
    let format = ToolFormat::by_name(format).expect("format");
    let answer = read_however_cut(&AnswerParser::new(format, None, "", &tools(), choice), text);
    let calls = answer.calls.iter().map(|(name, arguments, _)| format!("<{name} {arguments}>"));
    format!("{}{}", answer.content, calls.collect::<String>())
}
