//! Calls of tools in answers, against llama.cpp's expectations and SGLang's detectors (tools/golden/tool_calls.py), however the
//! texts are cut.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use brasa_tokenizer::{AnswerEvent, AnswerParser, HfFiles, ThoughtMarks, Tokenizer, ToolChoice, ToolFormat};
use serde_json::{Value, json};

use crate::common::unpacked;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn plain_tokenizer() -> Tokenizer {
    let file = r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    Tokenizer::from_json(&HfFiles { tokenizer: file, ..HfFiles::default() }).expect("tokenizer")
}

/// An answer, put together from its events.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    content: String,
    /// Names, arguments, and whether the call ended.
    calls: Vec<(String, String, bool)>,
    /// The kinds of the events, without repetitions.
    order: String,
}

impl Answer {
    fn read(mut parser: AnswerParser, fragments: &[&str]) -> Self {
        let mut answer = Self::default();
        for fragment in fragments {
            answer.add(parser.push(fragment));
        }
        answer.add(parser.finish());
        answer
    }

    fn add(&mut self, events: Vec<AnswerEvent>) {
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
    fn calls(&self) -> Vec<(String, Value)> {
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
fn read_however_cut(parser: &AnswerParser, text: &str) -> Answer {
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

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "list": {"type": "array"}, "any": {},
            "either": {"anyOf": [{"type": "string"}, {"type": "boolean"}]}}}}}),
        json!({"type": "function", "function": {"name": "g"}}),
    ]
}

/// The content of an answer without thoughts, and its calls in angle brackets.
fn shown(format: &str, choice: &ToolChoice, text: &str) -> String {
    let format = ToolFormat::by_name(format).expect("format");
    let answer = read_however_cut(&AnswerParser::new(format, None, "", &tools(), choice), text);
    let calls = answer.calls.iter().map(|(name, arguments, _)| format!("<{name} {arguments}>"));
    format!("{}{}", answer.content, calls.collect::<String>())
}

#[test]
fn calls_of_every_form() {
    for (format, text, expected) in [
        // Text around calls, without the space between.
        ("hermes", "A \n<tool_call>\n{\"name\": \"g\"}\n</tool_call>\n B\n", "A\n B\n<g {}>"),
        (
            "hermes",
            "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>\nB",
            "B<f {\"a\": 1}>",
        ),
        ("hermes", "<tool_call>{\"name\": \"g\", \"arguments\": null}</tool_call>", "<g {}>"),
        // Small models leave braces out.
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>.", ".<f {\"a\": 1}>"),
        ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}", "<f {\"a\": 1}>"),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\n\ty\"}}",
            "<f {\"a\": \"x\\n\\ty\"}>",
        ),
        // Slips whose meaning is beyond doubt.
        (
            "hermes",
            r#"<tool_call>{"name": "f", "arguments": "{\"text\": \"a\\n\\\"b\", \"count\": 1}"}</tool_call>"#,
            r#"<f {"text": "a\n\"b", "count": 1}>"#,
        ),
        ("hermes", r#"<tool_call>{"arguments": "{}", "name": "g"}</tool_call>"#, "<g {}>"),
        ("hermes", r#"<tool_call>{"name": "g", "arguments": ""}</tool_call>"#, "<g {}>"),
        (
            "hermes",
            r#"<tool_call>{"name": "f", "arguments": {"text": "\d+\.",},}</tool_call>"#,
            r#"<f {"text": "\\d+\\."}>"#,
        ),
        (
            "hermes",
            "<tool_call>{'name': 'f', 'arguments': {'text': 'x', 'any': [True, None, False,]}}</tool_call>",
            r#"<f {"text": "x", "any": [true, null, false]}>"#,
        ),
        ("hermes", "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}}\n</tool_call>", "<g {}>"),
        ("hermes", "<tool_call>\n{\"name\": \"functions.g\", \"arguments\": {}}\n</tool_call>", "<g {}>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{\"any\": {'a': 1,},}}", "<f {\"any\": {\"a\": 1}}>"),
        ("llama-3", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}}", "<f {\"a\": 1}>"),
        ("generic", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}}", "<f {\"a\": 1}>"),
        // What is meant is not sure.
        (
            "hermes",
            r#"<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>"#,
            r#"<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>"#,
        ),
        // Values that hold tags, and tags that are left out.
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=text>\nreturn \"</parameter>\"\n</function> </parameter> x\n</parameter>\n</function>\n</tool_call>",
            r#"<f {"text": "return \"</parameter>\"\n</function> </parameter> x"}>"#,
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=text>\n<a>\n</parameter>\n</a>\n</function>\n</tool_call> B",
            "B<f {\"text\": \"<a>\\n</parameter>\\n</a>\"}>",
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=text>\na\n<parameter=h>\n<parameter=count>\n1\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            "<f {\"text\": \"a\\n<parameter=h>\", \"count\": 1}><g {}>",
        ),
        ("qwen3-coder", "<function=f>\n<parameter=count>\n1\n</function>\n", "<f {\"count\": 1}>"),
        (
            "qwen3-coder",
            "<function=f>\n<parameter=text>\n1\n</function>\n<function=g>\n</function>",
            "<f {\"text\": \"1\"}><g {}>",
        ),
        (
            "seed-oss",
            "<seed:tool_call>\n<function=f>\n<parameter=text>\na</parameter> b\n</function>\n</seed:tool_call>",
            "<f {\"text\": \"a</parameter> b\"}>",
        ),
        (
            "glm",
            "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a</arg_value> b </tool_call>, c</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[1]\n</tool_call>\n<tool_call>g\n</tool_call>",
            "<f {\"text\": \"a</arg_value> b </tool_call>, c\", \"list\": [1]}><g {}>",
        ),
        (
            "minimax-m2",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a</parameter> b </invoke> c</parameter>\n<parameter name=\"count\">2</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
            "<f {\"text\": \"a</parameter> b </invoke> c\", \"count\": 2}><g {}>",
        ),
        (
            "gemma-4",
            "<|tool_call>call:f{text:<|\"|>a<|\"|> b <|\"|> , any:[<|\"|>x<|\"|>]}<tool_call|>",
            "<f {\"text\": \"a<|\\\"|> b \", \"any\": [\"x\"]}>",
        ),
        // Text that is no call is content. A bracket too many is not the end of the arguments.
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1]]}}</tool_call> z",
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1]]}}</tool_call> z",
        ),
        ("hermes", "<tool_call>{\"name\": \"h\"}</tool_call>", "<tool_call>{\"name\": \"h\"}</tool_call>"),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": {a: 1}}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": {a: 1}}</tool_call>",
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        ),
        ("hermes", "<tool_call> <tool_call>{\"name\": \"g\"}", "<tool_call><g {}>"),
        ("hermes", " <tool_call>\n{\"name\": \"f\", \"argu", " <tool_call>\n{\"name\": \"f\", \"argu"),
        ("hermes", "a < b, <tool and <tool_calls>", "a < b, <tool and <tool_calls>"),
        ("hermes", "<tool_call>{\"name\": \"g\"}</tool_call> </tool_call", "</tool_call<g {}>"),
        (
            "llama-3",
            "{\"name\": \"f\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"g\", \"parameters\": {}}",
            "<f {}><g {}>",
        ),
        ("llama-3", "{\"names\": [\"f\"]}", "{\"names\": [\"f\"]}"),
        ("llama-3", "See [f] and [f(x)] or {\"name\": \"g\"}.", "See [f] and [f(x)] or {\"name\": \"g\"}."),
        ("llama-3", "<|python_tag|>f.call(text=\"a\", list=[])", "<f {\"text\": \"a\", \"list\": []}>"),
        ("llama-3", "[f(any=-.5)]", "[f(any=-.5)]"),
        (
            "llama-3",
            r#"[f(text='\'\x41\u00e9\\', any={'a': (1, None,), "b": -0.5}), g()]"#,
            r#"<f {"text": "'Aé\\", "any": {"a": [1, null], "b": -0.5}}><g {}>"#,
        ),
        ("llama-3", "[f(text='''a'b''', any=\"\")]", r#"<f {"text": "a'b", "any": ""}>"#),
        (
            "qwen3-coder",
            "<function=f>\n<parameter=text>\n</b\n</parameter>\n<parameter=count>\n12\n</parameter>\n</function>",
            "<f {\"text\": \"</b\", \"count\": 12}>",
        ),
        (
            "qwen3-coder",
            "<function=f><parameter=either>true</parameter><parameter=any>{\"a\": [1]}</parameter></function>",
            "<f {\"either\": true, \"any\": {\"a\": [1]}}>",
        ),
        (
            "qwen3-coder",
            "<function=f><parameter=either>yes</parameter><parameter=count>two</parameter></function>",
            "<f {\"either\": \"yes\", \"count\": \"two\"}>",
        ),
        ("qwen3-coder", "Write <function=f> there", "Write <function=f> there"),
        (
            "qwen3-coder",
            "<tool_call>\n<function=h>\n</function>\n</tool_call>",
            "<tool_call>\n<function=h>\n</function>\n</tool_call>",
        ),
        (
            "glm",
            "<tool_call>f<arg_key>list</arg_key><arg_value>[1]</arg_value></tool_call>",
            "<f {\"list\": [1]}>",
        ),
        (
            "gemma-4",
            "<|tool_call>call:f{text:<|\"|>{\"a\"},\n<|\"|>,any:{b:[true,x y]}}<tool_call|>",
            r#"<f {"text": "{\"a\"},\n", "any": {"b": [true, "x y"]}}>"#,
        ),
        (
            "functiongemma",
            "<start_function_call>call:f{count:3,text:<escape>a<escape>}<end_function_call><start_function_response>",
            "<f {\"count\": 3, \"text\": \"a\"}>",
        ),
        (
            "phi-4-mini",
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
            "<f {}><g {}>",
        ),
        ("phi-4-mini", "functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "<f {\"a\": 1}>"),
        ("phi-4-mini", "Use functools[0].", "Use functools[0]."),
        (
            "llama-4",
            "<|python_start|>[f(text=\"a\", any=[1, {'b': None}]), g()]<|python_end|>",
            r#"<f {"text": "a", "any": [1, {"b": null}]}><g {}>"#,
        ),
        ("llama-4", "[g(), f(either=True)]", "<g {}><f {\"either\": true}>"),
        ("llama-4", "<|python_start|>print(1)<|python_end|>", "<|python_start|>print(1)<|python_end|>"),
        ("llama-4", "See [1], [f] and [h()].", "See [1], [f] and [h()]."),
        (
            "functiongemma",
            "<start_function_call>call:g{}<end_function_call><start_function_call>call:f{list:[<escape>é<escape>,-1],any:{a:true}}<end_function_call>",
            "<g {}><f {\"list\": [\"é\", -1], \"any\": {\"a\": true}}>",
        ),
        (
            "functiongemma",
            "<start_function_call>call:h{}<end_function_call>",
            "<start_function_call>call:h{}<end_function_call>",
        ),
        (
            "phi-4-mini",
            "Then <|tool_call|>[{\"name\": \"h\", \"arguments\": {}}]",
            "Then <|tool_call|>[{\"name\": \"h\", \"arguments\": {}}]",
        ),
        ("generic", "```json\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```", "<f {\"a\": 1}>"),
        ("generic", "```json\n{\"a\": 1}\n```", "```json\n{\"a\": 1}\n```"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{\"a\": 1}", "<f {\"a\": 1}>"),
        (
            "command-r",
            "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
            "<g {}>",
        ),
    ] {
        assert_eq!(shown(format, &ToolChoice::Auto, text), expected, "{format} {text}");
        assert_eq!(shown(format, &ToolChoice::None, text), text, "{format}");
    }
    let text = "<tool_call>{\"name\": \"g\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>";
    let only = |name: &str| ToolChoice::Allowed { names: vec![name.into()], required: false };
    assert_eq!(shown("hermes", &only("f"), text), "<tool_call>{\"name\": \"g\"}</tool_call><f {}>");
    assert_eq!(shown("hermes", &ToolChoice::Named("x".into()), text), text);
}

#[test]
fn long_arguments_grow_and_nothing_is_held_for_ever() {
    let format = ToolFormat::by_name("hermes").expect("format");
    let new = || AnswerParser::new(format, None, "", &tools(), &ToolChoice::Auto);
    // Arguments come as they are written, and cannot be taken back.
    let mut parser = new();
    let begin = "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"";
    assert_eq!(parser.push(begin), []);
    assert_eq!(parser.push(&"x".repeat(50)), []);
    assert_eq!(parser.push(&"y".repeat(50)).len(), 2);
    let more = parser.push("more");
    assert_eq!(more, [AnswerEvent::CallArguments { index: 0, text: "more".into() }]);
    assert_eq!(parser.clone().finish(), [AnswerEvent::CallEnd { index: 0 }]);
    let end = [AnswerEvent::CallArguments { index: 0, text: "\"".into() }, AnswerEvent::CallEnd { index: 0 }];
    assert_eq!(parser.push("\"]")[..2], end);
    assert_eq!(parser.finish(), []);
    // Text that goes on and on without becoming a call is let go.
    for (begin, letter) in [
        ("<tool_call>", " "),
        ("<tool_call>{\"arguments\": {\"a\": \"", "z"),
        ("<tool_call>{\"id\": \"", "z"),
        ("", " "),
    ] {
        let mut parser = new();
        assert_eq!(parser.push(begin), []);
        let events = parser.push(&letter.repeat(1 << 17));
        assert!(matches!(&events[..], [AnswerEvent::Content(text)] if text.len() > 1 << 16), "{begin}");
    }
}

/// A call that a limit of tokens cuts off is told in one way, however short it is.
#[test]
fn calls_that_are_cut_off_are_calls_as_far_as_they_came() {
    let long = "x".repeat(150);
    for (format, before, begin) in [
        ("hermes", "A <tool_call>\n{\"name\": \"f\", ", "\"arguments\": {\"text\": \""),
        ("llama-3", "{\"name\": \"f\", ", "\"parameters\": {\"text\": \""),
        ("generic", "{\"name\": \"f\", ", "\"parameters\": {\"text\": \""),
        ("qwen3-coder", "<tool_call>\n<function=f>\n", "<parameter=text>\n"),
        ("glm", "<tool_call>f\n", "<arg_key>text</arg_key>\n<arg_value>"),
        ("minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n", "<parameter name=\"text\">"),
        ("gemma-4", "<|tool_call>call:f{", "text:<|\"|>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{", "\"text\": \""),
        ("kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{", "\"text\": \""),
        ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{", "\"text\": \""),
        ("lfm2", "<|tool_call_start|>[f(", "text=\""),
    ] {
        let format = ToolFormat::by_name(format).expect("format");
        let mut shown = Vec::new();
        for text in ["", "short", long.as_str()] {
            let mut parser = AnswerParser::new(format, None, "", &tools(), &ToolChoice::Auto);
            let mut answer = Answer::default();
            let begin = if text.is_empty() { "" } else { begin };
            let events = parser.push(&format!("{before}{begin}{text}"));
            // Long arguments come as they are written.
            assert_eq!(
                events.iter().any(|event| matches!(event, AnswerEvent::CallBegin { .. })),
                text.len() > 96
            );
            answer.add(events);
            answer.add(parser.cut_off());
            let [(name, arguments, true)] = &answer.calls[..] else { panic!("{format:?} {answer:?}") };
            let expected = format!("{{\"text\": \"{text}");
            assert!(expected.starts_with(arguments.as_str()), "{arguments}");
            assert!(text.is_empty() || arguments.ends_with(text), "{arguments}");
            shown.push((name.clone(), answer.content));
        }
        assert!(shown.iter().all(|one| *one == shown[0]), "{shown:?}");
    }
    // A call without a name is text, and so is a short one that the model itself ended.
    let hermes = ToolFormat::by_name("hermes").expect("format");
    for (text, is_cut) in
        [("<tool_call>\n{\"na", true), ("<tool_call>\n{\"name\": \"f\", \"arguments\": {", false)]
    {
        let mut parser = AnswerParser::new(hermes, None, "", &tools(), &ToolChoice::Required);
        let mut answer = Answer::default();
        answer.add(parser.push(text));
        answer.add(if is_cut { parser.cut_off() } else { parser.finish() });
        assert_eq!((answer.content.as_str(), answer.calls.len()), (text, 0));
    }
}

/// Answers that are either calls or texts of another grammar: JSON that is no call is content, in forms without marks too.
#[test]
fn answers_are_calls_or_content() {
    for (format, text, expected) in [
        ("generic", "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "<f {\"a\": 1}>"),
        ("generic", "{\"name\": \"f\", \"age\": 3}", "{\"name\": \"f\", \"age\": 3}"),
        (
            "generic",
            "{\"a\":\n{\"name\": \"f\", \"parameters\": {}}}",
            "{\"a\":\n{\"name\": \"f\", \"parameters\": {}}}",
        ),
        ("llama-3", "[{\"a\": 1}]", "[{\"a\": 1}]"),
        ("llama-3", "{\"name\": \"g\", \"parameters\": {}}", "<g {}>"),
        ("hermes", "{\"name\": \"g\", \"arguments\": {}}", "{\"name\": \"g\", \"arguments\": {}}"),
        ("hermes", "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", "<g {}>"),
    ] {
        let form = ToolFormat::by_name(format).expect("format");
        let parser = AnswerParser::new(form, None, "", &tools(), &ToolChoice::Auto).either();
        let answer = read_however_cut(&parser, text);
        let calls = answer.calls.iter().map(|(name, arguments, _)| format!("<{name} {arguments}>"));
        assert_eq!(format!("{}{}", answer.content, calls.collect::<String>()), expected, "{format}");
    }
}

#[test]
fn forms_are_found_in_published_templates_and_vocabularies() {
    let tokenizer = plain_tokenizer();
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder().join("chat/templates")).expect("folder") {
        let path = entry.expect("entry").path();
        let source = std::fs::read_to_string(&path).expect("template");
        let name = path.file_stem().and_then(|name| name.to_str()).expect("name").to_owned();
        found.entry(ToolFormat::of(Some(&source), &tokenizer).name()).or_default().push(name);
    }
    let counts: Vec<(&str, usize)> = found.iter().map(|(&format, names)| (format, names.len())).collect();
    assert_eq!(
        counts,
        [
            ("command-r", 1),
            ("deepseek", 2),
            ("gemma-4", 2),
            // SmolLM3's, Gemma 2's and Phi 3.5's templates know nothing of tools.
            ("generic", 3),
            ("glm", 2),
            ("gpt-oss", 1),
            ("hermes", 5),
            ("kimi-k2", 1),
            ("lfm2", 1),
            ("llama-3", 3),
            ("minimax-m2", 1),
            ("mistral", 4),
            ("nemotron-nano", 1),
            ("qwen3-coder", 2),
        ],
        "{found:#?}"
    );
    assert_eq!(ToolFormat::of(None, &tokenizer).name(), "generic");
    let template = "{{ tools }}";
    let with = |tokens: &[&str]| {
        let added: Vec<Value> = tokens
            .iter()
            .zip(0..)
            .map(|(token, id)| json!({"id": id, "content": token, "special": true}))
            .collect();
        let vocabulary: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(token, id)| ((*token).to_owned(), id.into())).collect();
        let model = json!({"type": "BPE", "vocab": vocabulary, "merges": []});
        let file = json!({"model": model, "added_tokens": added}).to_string();
        Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).expect("tokenizer")
    };
    for (tokens, format) in [
        (&["<tool_call>", "</tool_call>"][..], "hermes"),
        (&["[TOOL_CALLS]", "[ARGS]"], "mistral"),
        (&["<|tool_call>", "<tool_call|>", "<tool_call>", "</tool_call>"], "gemma-4"),
        (&["<start_function_call>", "<end_function_call>"], "functiongemma"),
        (&["<|tool_call|>", "<|/tool_call|>"], "phi-4-mini"),
        (&["<|python_tag|>"], "llama-3"),
        (&["<|python_start|>", "<|python_end|>"], "llama-4"),
    ] {
        let tokenizer = with(tokens);
        let found = ToolFormat::of(Some(template), &tokenizer);
        assert_eq!(found.name(), format);
        // Marks are shown, though they are control tokens.
        let shown = found.token_ids(&tokenizer);
        let mut stream = tokenizer.decode_stream(true).showing(shown.into());
        assert_eq!(stream.push(1.min(tokens.len() as u32 - 1)).expect("id"), tokens[1.min(tokens.len() - 1)]);
        // A template that knows nothing of tools gets the general form.
        assert_eq!(ToolFormat::of(Some("{{ messages }}"), &tokenizer).name(), "generic");
    }
}

#[test]
fn grammars_of_calls_are_made_where_they_are_asked_for() {
    let tokenizer = plain_tokenizer();
    let hermes = ToolFormat::by_name("hermes").expect("format");
    let strict = [json!({"type": "function", "function": {"name": "g", "strict": true}})];
    let constraint = |format: ToolFormat, tools: &[Value], choice: ToolChoice, parallel| {
        format.constraint(tools, &choice, parallel, &tokenizer).map_err(|error| error.to_string())
    };
    for choice in [ToolChoice::Auto, ToolChoice::None] {
        assert_eq!(constraint(hermes, &tools(), choice, true), Ok(None));
    }
    assert_eq!(constraint(hermes, &strict, ToolChoice::None, true), Ok(None));
    let lark = |tools: &[Value], choice, parallel| {
        let lark = constraint(hermes, tools, choice, parallel).expect("grammar").expect("grammar");
        let rules = lark.lines().filter(|line| line.starts_with(|letter: char| letter.is_lowercase()));
        rules.collect::<Vec<_>>().join("\n")
    };
    let call = r#"call_6: "{\"name\": \"g\", \"arguments\": " %json {"type":"object","x-guidance":{"whitespace_pattern":"\\x20|(?:\\r?\\n){1,2}[\\x20\\t]{0,40}","lenient":LENIENT,"coerce_one_of":LENIENT},"x-brasa-place":"parameters of `g`"} "}""#;
    assert_eq!(
        lark(&tools(), ToolChoice::Named("g".into()), true),
        format!(
            "start: \"<tool_call>\\n\" one_7 \"\\n</tool_call>\"  \"\"\n{}\none_7: call_6",
            call.replace("LENIENT", "true")
        )
    );
    assert_eq!(
        lark(&strict, ToolChoice::Auto, false),
        format!(
            "start: calls_9 | SOME_TEXT\n{}\none_7: call_6\nuntil_8[lazy]: TEXT \"<tool_call>\"\n\
             calls_9: until_8 \"\\n\" one_7 \"\\n</tool_call>\"  \"\"",
            call.replace("LENIENT", "false")
        )
    );
    let error = constraint(hermes, &tools(), ToolChoice::Named("h".into()), true).expect_err("error");
    assert!(error.starts_with("tool_choice `function h` is not supported"), "{error}");
    let harmony = ToolFormat::by_name("gpt-oss").expect("format");
    let error = constraint(harmony, &tools(), ToolChoice::Required, true).expect_err("error");
    assert!(error.contains("`gpt-oss` is not supported"), "{error}");
}
