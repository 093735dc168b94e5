//! Answers against llama.cpp's expectations and SGLang's detectors (tools/golden/tool_calls.py).

use std::collections::BTreeSet;

use brasa_tokenizer::{AnswerParser, ThoughtMarks, ToolChoice, ToolFormat};
use serde_json::Value;

use super::{folder, plain_tokenizer, read_however_cut};
use crate::common::unpacked;

/// Texts that Brasa reads differently, by a part of them, and why.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "SGLang drops a line break at the end of MiniMax's values; the template of MiniMax puts none there",
        "\\n\");\n}\n</parameter>\n</invoke>",
    ),
    ("SGLang reads a text as null where null is allowed too", "<parameter name=\"note\">é"),
    ("SGLang reads Gemma's null as a text", "options:{x:null"),
    ("SGLang reads no tuples", "(1, 2)"),
    ("behind the first word of an answer, marks around thoughts are text", "up?<channel|>"),
    ("behind the first word of an answer, llama.cpp drops the marks of thoughts", "up?<|channel>thought"),
    ("llama.cpp drops half a mark in front of the thoughts", "<|channel><|channel>"),
];

#[test]
fn answers_are_taken_apart_as_elsewhere_however_they_are_cut() {
    let golden: Value =
        serde_json::from_slice(&unpacked(&folder().join("calls/golden.json.xz"))).expect("json");
    let tokenizer = plain_tokenizer();
    let cases = golden["cases"].as_array().expect("cases");
    let (mut wrong, mut differ) = (Vec::new(), BTreeSet::new());
    for case in cases {
        let text = |key: &str| case[key].as_str().unwrap_or_default();
        let format = ToolFormat::by_name(text("format")).expect("format");
        // The mark alone tells whose it is.
        let marks = case["thoughts"].as_str().and_then(|start| ThoughtMarks::of(Some(start), &tokenizer));
        let tools = case["tools"].as_array().or(golden["tools"].as_array()).expect("tools");
        let parser = AnswerParser::new(format, marks, text("prompt"), tools, &ToolChoice::Auto);
        let found = read_however_cut(&parser, text("text"));
        let calls: Vec<(String, Value)> = case["calls"]
            .as_array()
            .expect("calls")
            .iter()
            .map(|call| {
                let arguments = call[1].as_str().expect("text");
                (call[0].as_str().expect("name").to_owned(), serde_json::from_str(arguments).expect("json"))
            })
            .collect();
        let expected = (text("reasoning").trim(), text("content").trim(), calls);
        let found = (found.reasoning.trim(), found.content.trim(), found.calls());
        let reason = DIFFERENT.iter().find(|(_, part)| text("text").contains(part));
        match (found == expected, reason) {
            (true, None) => {}
            (false, Some((reason, _))) if text("from") != "llama.cpp" || text("format") == "gemma-4" => {
                differ.insert(*reason);
            }
            _ => wrong.push(format!(
                "{} {} {:?}\n  found {found:?}\n  other {expected:?}",
                text("format"),
                text("from"),
                text("text")
            )),
        }
    }
    for text in &wrong {
        println!("{text}");
    }
    assert!(cases.len() > 230);
    assert_eq!(differ.len(), DIFFERENT.len(), "{differ:?}");
    assert!(wrong.is_empty(), "{} of {} cases differ", wrong.len(), cases.len());
}
