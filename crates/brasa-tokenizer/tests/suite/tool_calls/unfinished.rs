//! Calls that are long, never end, or are cut off.

use brasa_tokenizer::{AnswerEvent, AnswerParser, ToolChoice, ToolFormat};

use super::{Answer, tools};

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
