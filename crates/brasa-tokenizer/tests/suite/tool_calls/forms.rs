//! Calls of every form, with slips of models, and texts that are none.

use brasa_tokenizer::{AnswerParser, ToolChoice, ToolFormat};

use super::{read_however_cut, shown, tools};

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
