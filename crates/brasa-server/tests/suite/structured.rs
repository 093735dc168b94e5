//! Answers that follow a grammar, and calls of tools that are asked for, in every form of request.

use std::sync::LazyLock;

use brasa::{GenerateOptions, Grammar, LoadOptions, Message, Model, SamplingParams};
use serde_json::{Value, json};

use super::client::{Running, options, server};
use brasa_server::{ModelData, ServerOptions};

const QUESTION: &str = "What does \"ember\" mean?";

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"word": {"enum": ["ember", "harbor"]}, "size": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["word", "size"],
        "additionalProperties": false,
    })
}

/// Checks what the schema says, without the library that wrote the grammar.
fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    check_value(&value);
}

fn check_value(value: &Value) {
    assert_eq!(value.as_object().map(serde_json::Map::len), Some(2), "{value}");
    assert!(value["word"] == "ember" || value["word"] == "harbor", "{value}");
    assert!(value["size"].as_u64().is_some_and(|size| (10..100).contains(&size)), "{value}");
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(more: &Value) -> Value {
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "seed": 5, "temperature": 1, "max_tokens": 80});
    with(body, more)
}

/// The answer that the library gives by itself.
fn library() -> (String, String) {
    let ModelData::Path(path) = &options().models[0].data else { unreachable!("a path") };
    let model = Model::load(path, &options().load).unwrap();
    let mut sampling =
        SamplingParams { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..SamplingParams::default() };
    model.recommended_sampling().apply(&mut sampling);
    sampling.temperature = 1.0;
    sampling.seed = 5;
    sampling.repeat_last_n = Some(64);
    let mask = Some(model.grammar(&Grammar::JsonSchema(schema())).unwrap());
    let options = GenerateOptions { sampling, mask, max_tokens: Some(80), ..GenerateOptions::default() };
    let chat = model.chat(&[Message::new("user", QUESTION)], &options).unwrap().into_text().unwrap();
    let raw = model.generate(QUESTION, &options).unwrap().into_text().unwrap();
    (chat, raw)
}

#[test]
fn every_form_gives_the_answer_of_the_library() {
    let (chatted, raw) = library();
    check(&chatted);
    check(&raw);
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema()}});
    let flat = json!({"type": "json_schema", "name": "x", "strict": true, "schema": schema()});
    for more in [
        json!({"response_format": format}),
        json!({"response_format": {"type": "json_object", "schema": schema()}}),
        json!({"response_format": {"type": "json_object", "value": schema()}}),
        json!({"response_format": {"type": "json", "value": schema()}}),
        json!({"json_schema": schema()}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"guided_json": schema().to_string()}),
    ] {
        let answer = server().post("/v1/chat/completions", &chat(&more)).json(200);
        assert_eq!(answer["choices"][0]["message"]["content"], chatted, "{more}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let body = with(json!({"prompt": QUESTION, "seed": 5, "temperature": 1, "max_tokens": 80}), &more);
        assert_eq!(server().post("/v1/completions", &body).json(200)["choices"][0]["text"], raw, "{more}");
        assert_eq!(server().post("/completion", &body).json(200)["content"], raw, "{more}");
    }
    let body = json!({"input": QUESTION, "seed": 5, "temperature": 1, "max_output_tokens": 80, "text": {"format": flat}});
    let answer = server().post("/v1/responses", &body).json(200);
    assert_eq!(answer["output"][0]["content"][0]["text"], chatted);
    for more in [json!({"output_config": {"format": flat}}), json!({"output_format": flat})] {
        let answer = server().post("/v1/messages", &chat(&more)).json(200);
        assert_eq!(answer["content"][0]["text"], chatted, "{more}");
    }
}

#[test]
fn a_grammar_holds_for_every_choice_streamed_or_whole_with_probabilities() {
    let body = chat(
        &json!({"n": 3, "logprobs": true, "top_logprobs": 1, "response_format": {"type": "json_schema", "json_schema": {"schema": schema()}}}),
    );
    let whole = server().post("/v1/chat/completions", &body).json(200);
    let events = server().post("/v1/chat/completions", &with(body, &json!({"stream": true}))).events();
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let text = choice["message"]["content"].as_str().unwrap();
        check(text);
        let parts = events.iter().map(|event| &event["choices"][0]).filter(|part| part["index"] == index);
        let (mut streamed, mut tokens) = (String::new(), 0);
        for part in parts {
            streamed += part["delta"]["content"].as_str().unwrap_or_default();
            tokens += part["logprobs"]["content"].as_array().map_or(0, Vec::len);
        }
        assert_eq!(streamed, text);
        assert_eq!(tokens, choice["logprobs"]["content"].as_array().unwrap().len());
    }
}

#[test]
fn grammars_that_are_no_schemas_hold_too() {
    let content = |more: &Value| {
        let answer = server().post("/v1/chat/completions", &chat(more)).json(200);
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let one = "yes (a.b) | \"no\"\n";
    for (more, texts) in [
        (json!({"grammar": "root ::= \"yes\" | \"no\""}), ["yes", "no"]),
        (json!({"grammar": "%llguidance {}\nstart: \"yes\" | \"no\""}), ["yes", "no"]),
        (json!({"structured_outputs": {"grammar": "root ::= \"yes\""}}), ["yes", "yes"]),
        (json!({"structured_outputs": {"regex": "y(es)?"}}), ["yes", "y"]),
        (json!({"guided_regex": "y(es)?"}), ["yes", "y"]),
        (json!({"structured_outputs": {"choice": [one, "7"]}}), [one, "7"]),
        (json!({"guided_choice": ["ä", "{}"]}), ["ä", "{}"]),
        (json!({"guided_grammar": "root ::= [x]"}), ["x", "x"]),
    ] {
        let text = content(&more);
        assert!(texts.contains(&text.as_str()), "{more}: {text}");
    }
    // An object of any kind may be longer than the answer, but begins as one.
    assert!(content(&json!({"response_format": {"type": "json_object"}})).starts_with('{'));
    assert!(content(&json!({"structured_outputs": {"json_object": true}})).starts_with('{'));
}

#[test]
fn wrong_grammars_are_refused_by_name() {
    let format = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let place = "response_format.json_schema.schema";
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    for (more, param, code, said) in [
        (format(json!({"uniqueItems": true, "type": "array"})), place, "unsupported_schema", "uniqueItems"),
        (format(json!({"type": "objekt"})), place, "invalid_grammar", "objekt"),
        (format(json!([])), place, "invalid_value", "a list"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            place,
            "missing_field",
            "schema",
        ),
        (json!({"response_format": {"type": "yaml"}}), "response_format.type", "invalid_value", "yaml"),
        (json!({"response_format": 7}), "response_format", "invalid_value", "a number"),
        (json!({"grammar": "root ::= ("}), "grammar", "invalid_grammar", "line 1"),
        (json!({"grammar": "root ::= \"a\"", "json_schema": {}}), "json_schema", "invalid_value", "both"),
        (
            json!({"grammar": "root ::= \"a\"", "grammar_lazy": true}),
            "grammar_lazy",
            "unsupported_field",
            "triggers",
        ),
        (json!({"guided_regex": "("}), "guided_regex", "invalid_grammar", "regular expression"),
        (json!({"guided_choice": []}), "guided_choice", "invalid_value", "0 texts"),
        (
            json!({"structured_outputs": {"structural_tag": {"a": 1}}}),
            "structured_outputs.structural_tag",
            "unsupported_field",
            "whole",
        ),
        // Each of both grammars is checked beside the other.
        (
            with(format(json!({"type": "objekt"})), &json!({"tools": tools})),
            place,
            "invalid_grammar",
            "objekt",
        ),
    ] {
        let answer = server().post("/v1/chat/completions", &chat(&more));
        let (_, found, found_code) = answer.error(400);
        assert_eq!((found.as_deref(), found_code.as_str()), (Some(param), code), "{more}: {}", answer.body);
        assert!(answer.body.contains(said), "{more}: {}", answer.body);
    }
    // Who asks for less gets what there is.
    let lenient = json!({"response_format": {"type": "json_schema", "json_schema":
        {"strict": false, "schema": with(schema(), &json!({"minProperties": 2, "x-nothing": 1}))}}});
    let answer = server().post("/v1/chat/completions", &chat(&lenient)).json(200);
    check(answer["choices"][0]["message"]["content"].as_str().unwrap());
}

fn tools() -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": schema()}});
    json!([tool("look_up"), tool("measure")])
}

/// A choice of one of the tools.
fn allowed(mode: &str) -> Value {
    let tools = json!([{"type": "function", "function": {"name": "measure"}}]);
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
}

#[test]
fn calls_that_are_required_are_made() {
    for (choice, names) in [
        (json!("required"), ["look_up", "measure"]),
        (json!({"type": "function", "function": {"name": "measure"}}), ["measure", "measure"]),
        (allowed("required"), ["measure", "measure"]),
    ] {
        let more =
            json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "logprobs": true});
        let answer = server().post("/v1/chat/completions", &chat(&more)).json(200);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null);
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1);
        assert!(names.contains(&calls[0]["function"]["name"].as_str().unwrap()), "{calls:?}");
        let arguments = calls[0]["function"]["arguments"].as_str().unwrap();
        check(arguments);
        let body = with(chat(&more), &json!({"stream": true}));
        let events = server().post("/v1/chat/completions", &body).events();
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]["function"]);
        let streamed: String = deltas.filter_map(|function| function["arguments"].as_str()).collect();
        assert_eq!(streamed, arguments);
    }
    // Hidden tools are not called.
    let body = chat(&json!({"tools": tools(), "tool_choice": "none", "max_tokens": 8}));
    let answer = server().post("/v1/chat/completions", &body).json(200);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"], Value::Null);
}

#[test]
fn mistrals_calls_have_ids_of_nine_characters() {
    let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}{% if tools %}[TOOL_CALLS]{% endif %}";
    let load = LoadOptions { chat_template: Some(template.into()), ..options().load };
    let server = Running::start(ServerOptions { load, ..options() });
    let body = chat(&json!({"tools": tools(), "tool_choice": "required", "parallel_tool_calls": false}));
    let answer = server.post("/v1/chat/completions", &body).json(200);
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    let id = call["id"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(id.len() == 9 && id.bytes().all(|letter| letter.is_ascii_alphanumeric()), "{id}");
    check(call["function"]["arguments"].as_str().unwrap());
    let events = server.post("/v1/chat/completions", &with(body, &json!({"stream": true}))).events();
    let calls = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
    let calls: Vec<&Value> = calls.filter(|call| !call.is_null()).collect();
    // The first part names the call, and all parts say whose they are.
    for (at, call) in calls.iter().enumerate() {
        let is_first = at == 0;
        assert_eq!(call["index"], 0);
        assert_eq!(call["id"].as_str().is_some_and(|id| id.len() == 9), is_first, "{call}");
        assert_eq!((call["type"].is_string(), call["function"]["name"].is_string()), (is_first, is_first));
    }
    assert!(calls.len() > 1, "{calls:?}");
    server.stop();
}

/// A server whose model writes calls behind a mark.
fn marked() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        let template = "{% for message in messages %}{{ message.content }}\n{% endfor %}\
            {% if tools %}<tool_call>{{ tools | tojson }}{% endif %}";
        let load = LoadOptions { chat_template: Some(template.into()), ..options().load };
        Running::start(ServerOptions { load, ..options() })
    });
    &SERVER
}

/// Biases that make an answer begin with a call, and that keep it from that. The mark of calls is one token or several.
fn toward_calls() -> [Value; 2] {
    let mark = server().post("/tokenize", &json!({"content": "<tool_call>"})).json(200);
    let first = &mark["tokens"][0];
    [json!([[first, 100]]), json!([[first, -100]])]
}

#[test]
fn an_answer_is_calls_or_follows_the_grammar() {
    let format = json!({"type": "json_schema", "json_schema": {"schema": {"type": "object", "required": ["fit"],
        "properties": {"fit": {"enum": ["<tool_call>", "b"]}}, "additionalProperties": false}}});
    let [calls, content] = toward_calls();
    for choice in [json!("auto"), allowed("auto")] {
        for seed in 0..2 {
            let ask = |more: &Value| {
                let rest = json!({"tools": tools(), "tool_choice": choice, "response_format": format, "seed": seed,
                    "max_tokens": 300});
                let body = with(chat(&rest), more);
                let whole = marked().post("/v1/chat/completions", &body).json(200);
                let events =
                    marked().post("/v1/chat/completions", &with(body, &json!({"stream": true}))).events();
                let message = whole["choices"][0]["message"].clone();
                let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
                let streamed: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
                assert_eq!(streamed, message["content"].as_str().unwrap_or_default(), "{message}");
                assert_eq!(
                    deltas.iter().any(|delta| delta["tool_calls"].is_array()),
                    message["tool_calls"].is_array(),
                    "{message}"
                );
                (message, whole["choices"][0]["finish_reason"].clone())
            };
            let (called, finish) = ask(&json!({"logit_bias": calls, "parallel_tool_calls": false}));
            assert_eq!((&called["content"], finish), (&Value::Null, json!("tool_calls")), "{called}");
            let function = &called["tool_calls"][0]["function"];
            assert!(choice == "auto" || function["name"] == "measure", "{called}");
            check(function["arguments"].as_str().unwrap());
            // A text that holds the mark of calls is content all the same.
            let (said, finish) = ask(&json!({"logit_bias": content}));
            assert_eq!((&said["tool_calls"], finish), (&Value::Null, json!("stop")), "{said}");
            let value: Value = serde_json::from_str(said["content"].as_str().unwrap()).unwrap();
            assert!(value["fit"] == "<tool_call>" || value["fit"] == "b", "{said}");
        }
    }
    // Calls that are required are the whole answer.
    let body = chat(&json!({"tools": tools(), "tool_choice": "required", "response_format": format,
        "parallel_tool_calls": false}));
    let answer = marked().post("/v1/chat/completions", &body).json(200);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
}

#[test]
fn the_other_forms_have_calls_beside_a_grammar_too() {
    let [_, content] = toward_calls();
    let flat = json!([{"type": "function", "name": "measure", "parameters": schema()}]);
    let format = json!({"type": "json_schema", "name": "x", "schema": schema()});
    let body = json!({"input": QUESTION, "seed": 5, "max_output_tokens": 80, "tools": flat, "logit_bias": content,
        "text": {"format": format}});
    let answer = marked().post("/v1/responses", &body).json(200);
    check(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    let inputs = json!([{"name": "measure", "input_schema": schema()}]);
    let body = chat(&json!({"tools": inputs, "logit_bias": content, "output_config": {"format": format}}));
    let answer = marked().post("/v1/messages", &body).json(200);
    check(answer["content"][0]["text"].as_str().unwrap());
}

#[test]
fn calls_that_begin_like_other_answers_have_a_grammar_beside_them_too() {
    let format = json!({"type": "json_schema", "json_schema": {"schema": schema()}});
    let ask = |more: &Value| {
        let body = with(chat(&json!({"tools": tools(), "response_format": format})), more);
        server().post("/v1/chat/completions", &body).json(200)["choices"][0].clone()
    };
    // The model decides: its answer is a call, or follows the schema.
    for seed in 0..4 {
        let answer = ask(&json!({"seed": seed, "parallel_tool_calls": false}));
        let message = &answer["message"];
        match message["tool_calls"].as_array() {
            Some(calls) => {
                assert_eq!(
                    (&answer["finish_reason"], &message["content"]),
                    (&json!("tool_calls"), &Value::Null)
                );
                check(calls[0]["function"]["arguments"].as_str().unwrap());
            }
            None => check(message["content"].as_str().unwrap()),
        }
    }
    check(ask(&json!({"tool_choice": "none"}))["message"]["content"].as_str().unwrap());
    let answer = ask(&json!({"tool_choice": "required", "parallel_tool_calls": false}));
    assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
}

/// A call that is cut off is a call as far as it came, required or not, and no input is made up for it.
#[test]
fn calls_that_are_cut_off_are_told_in_one_way() {
    let choice = json!({"type": "function", "function": {"name": "measure"}});
    let ask = |most: usize| {
        let more = json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": false, "max_tokens": most});
        let answer = server().post("/v1/chat/completions", &chat(&more)).json(200);
        answer["choices"][0].clone()
    };
    let whole = ask(80);
    let arguments = whole["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    let (mut cut, mut in_arguments) = (0, 0);
    for most in 1..40 {
        let answer = ask(most);
        if answer["finish_reason"] != "length" {
            break;
        }
        // Before its name is known, a call is text.
        let Some(call) = answer["message"]["tool_calls"].get(0) else {
            assert_eq!(cut, 0, "{answer}");
            continue;
        };
        cut += 1;
        let part = call["function"]["arguments"].as_str().unwrap();
        assert!(arguments.starts_with(part), "{answer}");
        if part == arguments {
            // Only the end of the call is missing.
            break;
        }
        assert_eq!(answer["message"]["content"], Value::Null, "{answer}");
        in_arguments += usize::from(!part.is_empty());
        let inputs = json!([{"name": "measure", "input_schema": schema()}]);
        let body = chat(&json!({"tools": inputs, "max_tokens": most, "tool_choice":
            {"type": "tool", "name": "measure", "disable_parallel_tool_use": true}}));
        let answer = server().post("/v1/messages", &body).json(200);
        assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
        let block = &answer["content"][0];
        assert_eq!((&block["type"], &block["input"]), (&json!("tool_use"), &json!({})), "{answer}");
    }
    assert!(cut > 3 && in_arguments > 3, "{cut} {in_arguments}");
}

#[test]
fn calls_are_required_in_the_other_forms_too() {
    let flat: Vec<Value> = tools()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| with(tool["function"].clone(), &json!({"type": "function"})))
        .collect();
    let body = json!({"input": QUESTION, "seed": 5, "max_output_tokens": 80, "tools": flat,
        "tool_choice": {"type": "function", "name": "measure"}, "parallel_tool_calls": false});
    let answer = server().post("/v1/responses", &body).json(200);
    let call =
        answer["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    assert_eq!(call["name"], "measure");
    check(call["arguments"].as_str().unwrap());
    let inputs: Vec<Value> =
        ["look_up", "measure"].map(|name| json!({"name": name, "input_schema": schema()})).into();
    for choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "measure"}),
    ] {
        let answer =
            server().post("/v1/messages", &chat(&json!({"tools": inputs, "tool_choice": choice}))).json(200);
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let blocks = answer["content"].as_array().unwrap();
        assert_eq!(blocks.len(), 1, "{answer}");
        check_value(&blocks[0]["input"]);
    }
}

#[test]
fn wrong_choices_and_tools_are_refused_by_name() {
    let strict = json!([{"type": "function", "function": {"name": "f", "strict": true,
        "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}}}]);
    for (more, param) in [
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": "sometimes"}), "tool_choice"),
        (
            json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
        ),
        (json!({"tools": tools(), "parallel_tool_calls": 7}), "parallel_tool_calls"),
        (json!({"tools": strict}), "tools"),
    ] {
        let answer = server().post("/v1/chat/completions", &chat(&more));
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{more}: {}", answer.body);
    }
}

#[test]
fn priorities_are_honoured_where_the_operator_allows_them() {
    let body = chat(&json!({"priority": 3, "max_tokens": 1}));
    assert_eq!(server().post("/v1/chat/completions", &body).error(400).1.as_deref(), Some("priority"));
    server().post("/v1/chat/completions", &chat(&json!({"priority": 0, "max_tokens": 1}))).json(200);
    let open = Running::start(ServerOptions { allow_priority: true, ..options() });
    open.post("/v1/chat/completions", &body).json(200);
    open.stop();
}

/// The log says of an answer that its schema's `oneOf` was read as `anyOf`, in every form of request; a schema that is held says nothing.
#[test]
fn coerced_choices_are_in_the_log() {
    let overlapping = json!({"oneOf": [{"type": "number", "maximum": 9, "minimum": 1}, {"type": "integer", "maximum": 9, "minimum": 1}]});
    let apart = json!({"oneOf": [{"type": "null"}, {"type": "boolean"}]});
    for (id, path, body) in [
        ("coerced-1", "/v1/chat/completions", chat(&json!({"json_schema": overlapping, "n": 2}))),
        (
            "coerced-2",
            "/completion",
            json!({"prompt": QUESTION, "n_predict": 40, "json_schema": overlapping}),
        ),
        (
            "coerced-3",
            "/v1/messages",
            chat(&json!({"output_config": {"format": {"type": "json_schema", "schema": overlapping}}})),
        ),
    ] {
        let answer = server().send("POST", path, &[("x-request-id", id)], body.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{answer:?}");
        let line = server().logged(|line| line["id"] == id);
        let [warning] = line["warnings"].as_array().unwrap().as_slice() else { panic!("{line}") };
        assert!(
            warning.as_str().unwrap().starts_with("JSON schema, #: `oneOf` is read as `anyOf`"),
            "{line}"
        );
    }
    let body = chat(&json!({"json_schema": apart})).to_string();
    server().send("POST", "/v1/chat/completions", &[("x-request-id", "exact-1")], body.as_bytes());
    assert!(server().logged(|line| line["id"] == "exact-1").get("warnings").is_none());
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true,
        "parameters": {"type": "object", "properties": {"a": overlapping}, "required": ["a"]}}});
    let body = chat(&json!({"tools": [tool], "tool_choice": "required"})).to_string();
    server().send("POST", "/v1/chat/completions", &[("x-request-id", "tool-1")], body.as_bytes());
    let line = server().logged(|line| line["id"] == "tool-1");
    assert!(
        line["warnings"][0].as_str().is_some_and(|warning| warning.contains("#/properties/a:")),
        "{line}"
    );
}

/// Numbers of tools have all the digits that were written, in the prompt and in the arguments.
#[test]
fn numbers_of_tools_are_exact() {
    let parameters = r#"{"type": "object", "properties": {"id": {"const": 18446744073709551617}, "share": {"const": 0.12345678901234567891}},
        "required": ["id", "share"]}"#;
    let ask = |path: &str, tool: &str, choice: &str| {
        let words = match path {
            "/v1/responses" => r#""input": "Go.", "max_output_tokens": 120"#,
            "/apply-template" => r#""messages": [{"role": "user", "content": "Go."}]"#,
            _ => r#""messages": [{"role": "user", "content": "Go."}], "max_tokens": 120"#,
        };
        let body = format!(r#"{{{words}, "tools": [{tool}], "tool_choice": {choice}}}"#);
        server().send("POST", path, &[], body.as_bytes())
    };
    let expected = r#"{"id": 18446744073709551617, "share": 0.12345678901234567891}"#;
    let tight = |text: &str| text.replace([' ', '\n'], "");
    let function = format!(r#"{{"name": "f", "parameters": {parameters}}}"#);
    let chat_tool = format!(r#"{{"type": "function", "function": {function}}}"#);
    let answer = ask("/v1/chat/completions", &chat_tool, r#""required""#).json(200);
    let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(tight(call["arguments"].as_str().unwrap()), tight(expected));
    let flat = format!(r#"{{"type": "function", "name": "f", "strict": true, "parameters": {parameters}}}"#);
    let answer = ask("/v1/responses", &flat, r#""required""#);
    let echo = r#""const":18446744073709551617},"share":{"const":0.12345678901234567891}"#;
    assert!(answer.body.contains(echo), "{answer:?}");
    let answer = answer.json(200);
    assert_eq!(tight(answer["output"][0]["arguments"].as_str().unwrap()), tight(expected));
    let named = format!(r#"{{"name": "f", "input_schema": {parameters}}}"#);
    let answer = ask("/v1/messages", &named, r#"{"type": "any"}"#);
    assert!(answer.body.contains(r#""input":{"id":18446744073709551617,"#), "{answer:?}");
    let prompt = ask("/apply-template", &chat_tool, r#""auto""#).json(200)["prompt"].to_string();
    for digits in [":18446744073709551617}", ":0.12345678901234567891}"] {
        assert!(prompt.contains(digits), "{digits}: {prompt}");
    }
    // Calls of a history keep the digits too, unless which of two numbers was meant is not known.
    let tokens = |number: &str, other: &str| {
        let call = format!(r#"{{"type": "tool_use", "id": "c", "name": "f", "input": {{"id": {number}}}}}"#);
        let result = r#"{"type": "tool_result", "tool_use_id": "c", "content": "yes"}"#;
        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": "Go."}}, {{"role": "assistant", "content": [{call}]}}, {{"role": "user", "content": [{result}]}}],
                "metadata": {{"user_id": {other}}}, "tools": [{{"name": "f", "input_schema": {{"type": "object"}}}}]}}"#
        );
        let answer = server().send("POST", "/v1/messages/count_tokens", &[], body.as_bytes());
        answer.json(200)["input_tokens"].as_u64().unwrap()
    };
    let exact = tokens("18446744073709551617", "1");
    assert_eq!(exact, tokens("1844674407370955161", "1") + 1);
    assert_ne!(exact, tokens("18446744073709551617", "18446744073709551618"));
    // Which of two was meant is not known once they are rounded.
    let two = chat_tool.replace("0.12345678901234567891", "18446744073709551618");
    let answer = ask("/v1/chat/completions", &two, r#""required""#);
    assert_eq!(answer.error(400).1.as_deref(), Some("tools[0]"), "{answer:?}");
}
