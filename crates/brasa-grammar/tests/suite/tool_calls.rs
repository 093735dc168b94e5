//! Grammars of calls of tools: they allow what a model writes, and what they allow is read back as calls.

use std::sync::Arc;

use brasa_engine::MaskSource;
use brasa_grammar::{Grammar, Grammars};
use brasa_tokenizer::{
    AddSpecial, AnswerEvent, AnswerParser, HfFiles, OtherAnswers, ParseSpecial, Tokenizer, ToolChoice,
    ToolFormat,
};
use serde_json::{Value, json};

/// A vocabulary of bytes and control tokens, the last of which ends an answer.
fn tokenizer(control: &[&str]) -> Arc<Tokenizer> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut unprintable = 256..;
    let letters = (0..256).map(|byte| {
        let code = if printable(byte) { byte } else { unprintable.next().unwrap() };
        (char::from_u32(code).unwrap().to_string(), byte)
    });
    let vocab: serde_json::Map<_, _> = letters.map(|(letter, id)| (letter, id.into())).collect();
    let added: Vec<Value> = control
        .iter()
        .chain(&["<|im_end|>"])
        .zip(256..)
        .map(|(text, id)| {
            json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false})
        })
        .collect();
    let file = json!({
        "version": "1.0",
        "added_tokens": added,
        "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let file = file.to_string();
    Tokenizer::from_json(&HfFiles { tokenizer: &file, ..HfFiles::default() }).unwrap().into()
}

/// A vocabulary, and what grammars make of texts.
struct Judge {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    end: u32,
}

impl Judge {
    fn new(control: &[&str]) -> Self {
        let tokenizer = tokenizer(control);
        let vocab_size = 257 + control.len();
        let grammars = Grammars::new(Arc::clone(&tokenizer), vocab_size);
        Self { tokenizer, grammars, end: vocab_size as u32 - 1 }
    }

    fn compile(&self, grammar: &str) -> Arc<dyn MaskSource> {
        let compiled = self.grammars.compile(&Grammar::Lark(grammar.into()));
        compiled.unwrap_or_else(|error| panic!("{error}\n{grammar}"))
    }

    /// Nothing if a text is one of the grammar's; else the text up to the token that may not come, or the whole text if it may not
    /// end there.
    fn judge(&self, grammar: &Arc<dyn MaskSource>, text: &str) -> Result<(), String> {
        let mut mask = grammar.start();
        let mut words = vec![0; (self.end as usize + 1).div_ceil(32)];
        let mut ids = self.tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes).unwrap();
        ids.push(self.end);
        for (at, &id) in ids.iter().enumerate() {
            mask.fill(&[], &mut words).unwrap();
            if words[id as usize / 32] >> (id % 32) & 1 == 0 {
                return Err(self.tokenizer.decode(&ids[..at], false).unwrap());
            }
            if id != self.end {
                mask.accept(id);
            }
        }
        Ok(())
    }
}

fn tools(strict: bool) -> Vec<Value> {
    let weather = json!({"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]},
        "more": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "boolean"}}}, "required": ["x"],
            "additionalProperties": false}}});
    vec![
        json!({"type": "function", "function": {"name": "weather", "parameters": weather, "strict": strict}}),
        json!({"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}),
    ]
}

/// The content and the calls of an answer.
fn read(format: ToolFormat, text: &str) -> (String, Vec<(String, Value)>) {
    let mut parser = AnswerParser::new(format, None, "", &tools(false), &ToolChoice::Auto);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let (mut content, mut calls) = (String::new(), Vec::new());
    for event in events {
        match event {
            AnswerEvent::Content(text) => content.push_str(&text),
            AnswerEvent::CallBegin { name, .. } => calls.push((name, String::new())),
            AnswerEvent::CallArguments { text, .. } => calls.last_mut().unwrap().1.push_str(&text),
            _ => {}
        }
    }
    let calls = calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect();
    (content, calls)
}

/// For each form: its control tokens, a call of `weather` with all arguments in the order of the schema, a call of `now`, and the
/// texts in front of, between and behind calls.
type Form = (&'static str, &'static [&'static str], &'static str, &'static str, [&'static str; 3]);

const JSON: &str = r#"{"city": "São \"P\"", "days": -3, "unit": "C", "more": {"x": [true]}}"#;

const FORMS: &[Form] = &[
    (
        "hermes",
        &[],
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": JSON}\n</tool_call>",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        ["", "\n", ""],
    ),
    (
        "llama-3",
        &[],
        "{\"name\": \"weather\", \"parameters\": JSON}",
        "{\"name\": \"now\", \"parameters\": {}}",
        ["", "; ", ""],
    ),
    (
        "generic",
        &[],
        "{\"name\": \"weather\", \"parameters\": JSON}",
        "{\"name\": \"now\", \"parameters\": {}}",
        ["", "\n", ""],
    ),
    (
        "mistral",
        &["[TOOL_CALLS]", "[ARGS]"],
        "[TOOL_CALLS]weather[ARGS]JSON",
        "[TOOL_CALLS]now[ARGS]{}",
        ["", "", ""],
    ),
    (
        "mistral",
        &["[TOOL_CALLS]"],
        "{\"name\": \"weather\", \"arguments\": JSON}",
        "{\"name\": \"now\", \"arguments\": {}}",
        ["[TOOL_CALLS][", ", ", "]"],
    ),
    (
        "qwen3-coder",
        &[],
        "<tool_call>\n<function=weather>\n<parameter=city>\nSão \"P\"\n</parameter>\n<parameter=days>\n-3\n</parameter>\n\
         <parameter=unit>\nC\n</parameter>\n<parameter=more>\n{\"x\": [true]}\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ["", "\n", ""],
    ),
    (
        "minimax-m2",
        &["<minimax:tool_call>", "</minimax:tool_call>"],
        "<invoke name=\"weather\">\n<parameter name=\"city\">São \"P\"</parameter>\n<parameter name=\"days\">-3</parameter>\n\
         <parameter name=\"unit\">C</parameter>\n<parameter name=\"more\">{\"x\": [true]}</parameter>\n</invoke>",
        "<invoke name=\"now\">\n</invoke>",
        ["<minimax:tool_call>\n", "\n", "\n</minimax:tool_call>"],
    ),
    (
        "glm",
        &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>São \"P\"</arg_value>\n<arg_key>days</arg_key>\n\
         <arg_value>-3</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n<arg_key>more</arg_key>\n\
         <arg_value>{\"x\": [true]}</arg_value>\n</tool_call>",
        "<tool_call>now\n</tool_call>",
        ["", "\n", ""],
    ),
    (
        "gemma-4",
        &["<|tool_call>", "<tool_call|>", "<|\"|>"],
        "<|tool_call>call:weather{city:<|\"|>São \"P\"<|\"|>,days:-3,unit:<|\"|>C<|\"|>,more:{x:[true]}}<tool_call|>",
        "<|tool_call>call:now{}<tool_call|>",
        ["", "", ""],
    ),
    (
        "functiongemma",
        &["<start_function_call>", "<end_function_call>"],
        "<start_function_call>call:weather{city:<escape>São \"P\"<escape>,days:-3,unit:<escape>C<escape>,more:{x:[true]}}\
         <end_function_call>",
        "<start_function_call>call:now{}<end_function_call>",
        ["", "", ""],
    ),
    (
        "lfm2",
        &["<|tool_call_start|>", "<|tool_call_end|>"],
        "weather(city=\"São \\\"P\\\"\", days=-3, unit=\"C\", more={\"x\": [True]})",
        "now()",
        ["<|tool_call_start|>[", ", ", "]<|tool_call_end|>"],
    ),
    (
        "llama-4",
        &[],
        "weather(city=\"São \\\"P\\\"\", days=-3, unit=\"C\", more={\"x\": [True]})",
        "now()",
        ["[", ", ", "]"],
    ),
    (
        "deepseek",
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ],
        "<｜tool▁call▁begin｜>weather<｜tool▁sep｜>JSON<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        ["<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"],
    ),
    (
        "kimi-k2",
        &[
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ],
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>JSON<|tool_call_end|>",
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ["<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"],
    ),
    (
        "phi-4-mini",
        &["<|tool_call|>", "<|/tool_call|>"],
        "{\"name\": \"weather\", \"arguments\": JSON}",
        "{\"name\": \"now\", \"arguments\": {}}",
        ["<|tool_call|>[", ", ", "]<|/tool_call|>"],
    ),
    (
        "command-r",
        &["<|START_ACTION|>", "<|END_ACTION|>"],
        "{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": JSON}",
        "{\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}}",
        ["<|START_ACTION|>[\n", ",\n", "\n]<|END_ACTION|>"],
    ),
];

#[test]
fn grammars_of_calls_allow_what_is_read_back() {
    for (name, control, weather, now, [before, between, behind]) in FORMS {
        let format = ToolFormat::by_name(name).unwrap();
        let judge = Judge::new(control);
        let weather = weather.replace("JSON", JSON);
        let constraint = |strict: bool, choice: &ToolChoice, parallel: bool| {
            let lark = format.constraint(&tools(strict), choice, parallel, &judge.tokenizer).unwrap();
            lark.map(|lark| judge.compile(&lark))
        };
        let one = format!("{before}{weather}{behind}");
        let two = format!("{before}{weather}{between}{now}{behind}");
        let weather_call = ("weather".to_owned(), serde_json::from_str::<Value>(JSON).unwrap());
        let now_call = ("now".to_owned(), json!({}));
        assert_eq!(read(format, &one), (String::new(), vec![weather_call.clone()]), "{name}");
        assert_eq!(read(format, &two), (String::new(), vec![weather_call, now_call]), "{name}");

        let required = constraint(false, &ToolChoice::Required, true).unwrap();
        assert_eq!(judge.judge(&required, &one), Ok(()), "{name}");
        assert_eq!(judge.judge(&required, &two), Ok(()), "{name}");
        assert!(judge.judge(&required, "").is_err() && judge.judge(&required, "Hi").is_err(), "{name}");
        let refused = judge.judge(&required, &one.replace("weather", "wether")).unwrap_err();
        assert!(refused.ends_with("we"), "{name} {refused}");
        let refused = judge.judge(&required, &one.replace("-3", "\"x\"")).unwrap_err();
        assert!(!refused.ends_with("\"x"), "{name} {refused}");

        // All forms go one way here.
        if ["hermes", "lfm2"].contains(name) {
            let single = constraint(false, &ToolChoice::Required, false).unwrap();
            assert_eq!(judge.judge(&single, &one), Ok(()), "{name}");
            assert!(judge.judge(&single, &two).is_err(), "{name}");
            let named = constraint(false, &ToolChoice::Named("now".into()), true).unwrap();
            assert_eq!(judge.judge(&named, &format!("{before}{now}{behind}")), Ok(()), "{name}");
            assert!(judge.judge(&named, &one).is_err(), "{name}");
        }

        // The model decides: the grammar sets in where a call begins.
        assert!(constraint(false, &ToolChoice::Auto, true).is_none());
        assert!(constraint(true, &ToolChoice::None, true).is_none());
        let auto = constraint(true, &ToolChoice::Auto, true).unwrap();
        for text in [&one, &two, "Hi <b> there."] {
            assert_eq!(judge.judge(&auto, text), Ok(()), "{name}");
        }
        let wrong = one.replace("weather", "wether");
        assert!(judge.judge(&auto, &wrong).is_err(), "{name}");
        if !["llama-3", "llama-4", "generic"].contains(name) {
            let text = format!("Let me see. {one}");
            assert_eq!(judge.judge(&auto, &text), Ok(()), "{name}");
            assert!(judge.judge(&auto, &format!("Let me see. {wrong}")).is_err(), "{name}");
        }
    }
}

/// An answer is calls, or follows another grammar, and never both; and it is read as what it is.
#[test]
fn an_answer_is_calls_or_follows_another_grammar() {
    let schema = json!({"type": "object", "required": ["name", "parameters"], "additionalProperties": false, "properties": {
        "name": {"type": "string", "maxLength": 40}, "parameters": {"type": "object"}}});
    let others = [
        // Content that looks like a call of some forms, and content with a mark of calls in it.
        (
            Grammar::JsonSchema(schema),
            vec![
                r#"{"name": "now", "parameters": {}}"#,
                r#"{"name": "<tool_call>\n{", "parameters": {"a": [1]}}"#,
            ],
            vec![r#"{"name": 7"#, "Hi"],
        ),
        (
            Grammar::Gbnf("root ::= \"yes\" | \"<title>\" [a-z]+\n".into()),
            vec!["yes", "<title>no"],
            vec!["yess", "<tool>"],
        ),
        (Grammar::Regex(r"[0-9]{2}/\d{2}|\[\w+".into()), vec!["12/34", "[T"], vec!["12/3", "x"]),
        (Grammar::Lark("start: call_9 call_9\ncall_9: /a+/ \";\"".into()), vec!["aa;a;"], vec!["aa;"]),
    ];
    for (name, control, weather, now, [before, between, behind]) in FORMS {
        let format = ToolFormat::by_name(name).unwrap();
        let judge = Judge::new(control);
        let calls = |choice: &ToolChoice, others: OtherAnswers| {
            format.calls_alone(&tools(false), choice, true, others, &judge.tokenizer)
        };
        // Calls without a mark are JSON or lists, and so may the content be: what is a call of a tool is one.
        let is_marked = !["llama-3", "llama-4", "generic"].contains(name);
        // Nothing tells a list of calls as Python writes them from a list of JSON.
        let is_list = *name == "llama-4";
        if is_list {
            let error = calls(&ToolChoice::Auto, OtherAnswers::Any).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let no_lists = if is_list { OtherAnswers::NoLists } else { OtherAnswers::Any };
        assert_eq!(calls(&ToolChoice::None, no_lists).unwrap(), None);
        let calls = calls(&ToolChoice::Auto, no_lists).unwrap().unwrap();
        let one = format!("{before}{}{behind}", weather.replace("JSON", JSON));
        let two = format!("{before}{}{between}{now}{behind}", weather.replace("JSON", JSON));
        for (other, right, wrong) in others.iter().take(if is_list { 1 } else { others.len() }) {
            let either = Grammar::OneOf(vec![Grammar::Lark(calls.clone()), other.clone()]);
            let either: Arc<dyn MaskSource> =
                judge.grammars.compile(&either).unwrap_or_else(|error| panic!("{name} {error}"));
            assert_eq!(judge.judge(&either, &one), Ok(()), "{name} {other:?}");
            assert_eq!(judge.judge(&either, &two), Ok(()), "{name} {other:?}");
            let misspelt = one.replace("weather", "wether");
            let is_other = !is_marked && !is_list && matches!(other, Grammar::JsonSchema(_));
            assert!(is_other || judge.judge(&either, &misspelt).is_err(), "{name} {other:?}");
            assert!(judge.judge(&either, "").is_err(), "{name} {other:?}");
            // A text that holds a control token cannot be spelt here.
            let is_plain = |text: &&&str| !control.iter().any(|token| text.contains(token));
            for text in right.iter().filter(is_plain) {
                assert_eq!(judge.judge(&either, text), Ok(()), "{name} {other:?}");
                assert!(judge.judge(&either, &format!("{text}{one}")).is_err(), "{name} {other:?}");
                assert!(judge.judge(&either, &format!("{one}{text}")).is_err(), "{name} {other:?}");
                let is_call = !is_marked && text.starts_with("{\"name\": \"now\"");
                let expected = if is_call { (String::new(), 1) } else { ((*text).to_owned(), 0) };
                assert_eq!(read_either(format, text), expected, "{name}");
            }
            for text in wrong {
                assert!(judge.judge(&either, text).is_err(), "{name} {other:?} {text}");
            }
        }
        assert_eq!(read_either(format, &two), (String::new(), 2), "{name}");
    }
    // No grammar describes the calls of gpt-oss.
    let format = ToolFormat::by_name("gpt-oss").unwrap();
    let judge = Judge::new(&["<|channel|>", "<|constrain|>", "<|call|>"]);
    for others in [OtherAnswers::Any, OtherAnswers::NoLists] {
        let calls = format.calls_alone(&tools(false), &ToolChoice::Auto, true, others, &judge.tokenizer);
        let error = calls.unwrap_err().to_string();
        assert!(error.contains("gpt-oss") && error.contains("`tool_choice`"), "{error}");
    }
}

/// The content and the number of calls of an answer that is one or the other.
fn read_either(format: ToolFormat, text: &str) -> (String, usize) {
    let mut parser = AnswerParser::new(format, None, "", &tools(false), &ToolChoice::Auto).either();
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let content = events.iter().filter_map(|event| match event {
        AnswerEvent::Content(text) => Some(text.as_str()),
        _ => None,
    });
    let calls = events.iter().filter(|event| matches!(event, AnswerEvent::CallBegin { .. })).count();
    (content.collect(), calls)
}

/// Arguments hold what their schema names, with numbers of any size, and an error says whose schema it is.
#[test]
fn arguments_are_closed_and_exact() {
    let judge = Judge::new(&["<tool_call>", "</tool_call>"]);
    let format = ToolFormat::by_name("hermes").unwrap();
    let tool = |strict: Value, parameters: &Value| json!({"type": "function", "function": {"name": "f", "strict": strict, "parameters": parameters}});
    let lark = |tool: Value| {
        format.constraint(&[tool], &ToolChoice::Required, false, &judge.tokenizer).unwrap().unwrap()
    };
    let parameters = json!({"type": "object", "properties": {"id": {"const": 1_234_567_890_123_456_789_u64},
        "in": {"type": "object", "properties": {"a": {"type": "null"}}}}, "required": ["id"]});
    for (strict, is_open) in [(json!(null), false), (json!(true), false), (json!(false), true)] {
        let grammar = judge.compile(&lark(tool(strict, &parameters)));
        for (arguments, is_right) in [
            (r#"{"id": 1234567890123456789}"#, true),
            (r#"{"id": 1234567890123456768}"#, false),
            (r#"{"id": 1234567890123456789, "in": {"a": null}}"#, true),
            (r#"{"id": 1234567890123456789, "in": {"b": 1}}"#, is_open),
            (r#"{"id": 1234567890123456789, "more": 1}"#, is_open),
        ] {
            let text = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
            assert_eq!(judge.judge(&grammar, &text).is_ok(), is_right, "{is_open} {arguments}");
        }
    }
    let parameters = json!({"type": "object", "properties": {"a": {"contains": {}}}});
    let error = judge.grammars.compile(&Grammar::Lark(lark(tool(json!(true), &parameters)))).unwrap_err();
    assert_eq!(
        error.to_string(),
        "JSON schema, parameters of `f`, #/properties/a: `contains` is not supported"
    );
    judge.compile(&lark(tool(json!(null), &parameters)));
    let impossible = json!({"type": "object", "properties": {"a": false}, "required": ["a"]});
    let error =
        judge.grammars.compile(&Grammar::Lark(lark(tool(json!(true), &impossible)))).unwrap_err().to_string();
    assert!(error.starts_with("JSON schema: ") && !error.contains("start:"), "{error}");
}
