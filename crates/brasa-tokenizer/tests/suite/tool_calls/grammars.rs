//! Grammars that hold a model to calls.

use brasa_tokenizer::{ToolChoice, ToolFormat};
use serde_json::{Value, json};

use super::{plain_tokenizer, tools};

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
