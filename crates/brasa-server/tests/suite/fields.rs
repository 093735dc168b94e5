//! The policy for fields: honoured, inert, refused, unknown; and wrong requests of every kind.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::{Running, options, server};

fn ask(more: &Value) -> super::client::Answer {
    let mut body = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server().post("/v1/chat/completions", &body)
}

#[test]
fn wrong_values_are_named() {
    for (body, param) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": -0.1}), "top_p"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"typical_p": 1.5}), "typical_p"),
        (json!({"typical_p": "all"}), "typical_p"),
        (json!({"top_n_sigma": true}), "top_n_sigma"),
        (json!({"xtc_probability": -0.5}), "xtc_probability"),
        (json!({"xtc_threshold": 2}), "xtc_threshold"),
        (json!({"dynatemp_range": -1}), "dynatemp_range"),
        (json!({"dynatemp_exponent": -1}), "dynatemp_exponent"),
        (json!({"dry_multiplier": -1}), "dry_multiplier"),
        (json!({"dry_base": -1}), "dry_base"),
        (json!({"dry_allowed_length": -1}), "dry_allowed_length"),
        (json!({"dry_allowed_length": 1.5}), "dry_allowed_length"),
        (json!({"dry_penalty_last_n": "all"}), "dry_penalty_last_n"),
        (json!({"dry_sequence_breakers": "\n"}), "dry_sequence_breakers"),
        (json!({"dry_multiplier": 1, "dry_sequence_breakers": [""]}), "dry_sequence_breakers"),
        (json!({"dry_multiplier": 1, "dry_sequence_breakers": ["x".repeat(41)]}), "dry_sequence_breakers"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"n": 0}), "n"),
        (json!({"n": 100_000}), "n"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": 7}), "stop"),
        (json!({"stop": vec!["x"; 65]}), "stop"),
        (json!({"logit_bias": {"1": 1000}}), "logit_bias"),
        (json!({"logit_bias": {"4294967295": 1}}), "logit_bias"),
        (json!({"logit_bias": [[1]]}), "logit_bias"),
        (json!({"seed": "x"}), "seed"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"seed": 1e300}), "seed"),
        (json!({"seed": 18_446_744_073_709_551_616.0}), "seed"),
        (json!({"max_tokens": 1e300}), "max_tokens"),
        (json!({"max_tokens": -1e300}), "max_tokens"),
        (json!({"top_k": 0.5}), "top_k"),
        (json!({"repeat_last_n": "64"}), "repeat_last_n"),
        (json!({"n": 1.5}), "n"),
        (json!({"logit_bias": [[1.5, 1]]}), "logit_bias"),
        (json!({"samplers": ["magic"]}), "samplers"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": ["x"]}), "messages[0]"),
        (
            json!({"messages": [{"role": "assistant", "content": null, "tool_calls":
                [{"id": "a", "type": "function", "function": {"arguments": "{}"}}]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (json!({"messages": [{"role": "user", "content": "x", "name": 7}]}), "messages[0].name"),
        (json!({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}), "messages[0].tool_calls"),
        (json!({"tools": [{"type": "magic"}]}), "tools[0].type"),
    ] {
        let (kind, found, _) = ask(&body).error(400);
        assert_eq!((kind.as_str(), found.as_deref()), ("invalid_request_error", Some(param)), "{body}");
    }
}

/// A whole number is one however it is written, in every field.
#[test]
fn whole_numbers_may_be_written_as_floats() {
    // As it is in the text: serde would write some of these otherwise.
    let ask = |field: &str, number: &str| {
        let limit = if field == "max_tokens" { "" } else { r#", "max_tokens": 1"# };
        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": "ember"}}], "logprobs": true, "{field}": {number}{limit}}}"#
        );
        server().send(
            "POST",
            "/v1/chat/completions",
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    };
    for (field, numbers) in [
        (
            "seed",
            &["42.0", "4.2e1", "-1.0", "-0.0", "1e2", "18446744073709551615", "9007199254740993.0", "-7"][..],
        ),
        ("max_tokens", &["4.0", "-1.0", "-1e0", "0.4e1"]),
        ("max_completion_tokens", &["2.0"]),
        ("top_k", &["40.0", "-1.0", "0.0", "4e1", "-1"]),
        ("repeat_last_n", &["64.0", "-1.0", "0.0"]),
        ("n", &["1.0"]),
        ("min_tokens", &["1.0"]),
        ("top_logprobs", &["2.0"]),
        ("logit_bias", &["[[5.0, 1]]"]),
    ] {
        for number in numbers {
            let answer = ask(field, number);
            assert_eq!(answer.status, 200, "{field} {number}: {}", answer.body);
        }
    }
    assert_eq!(ask("seed", "42.0").json(200)["choices"], ask("seed", "42").json(200)["choices"]);
    assert_eq!(ask("top_p", "0").json(200)["choices"], ask("temperature", "0").json(200)["choices"]);
    assert_eq!(ask("stop", "\"\"").status, 200, "an empty text is none");
}

/// A path, and its body with a call that has these arguments.
type Form<'a> = (&'a str, &'a dyn Fn(&Value) -> Value);

/// A call in the past cannot be corrected: a conversation goes on whatever its arguments are.
#[test]
fn histories_with_arguments_that_are_no_object_go_on_in_every_form() {
    let server = Running::start(options());
    let function = |arguments: &Value| json!({"name": "f", "arguments": arguments});
    let chat = |arguments: &Value| {
        let call = json!({"id": "c", "type": "function", "function": function(arguments)});
        json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "ember"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "coal"}]})
    };
    let responses = |arguments: &Value| {
        json!({"max_output_tokens": 1, "input": [
            {"role": "user", "content": "ember"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": "coal"}]})
    };
    let messages = |arguments: &Value| {
        json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "ember"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": arguments}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "coal"}]}]})
    };
    let forms: [Form; 7] = [
        ("/v1/chat/completions", &chat),
        ("/v1/chat/completions/input_tokens", &chat),
        ("/apply-template", &chat),
        ("/v1/responses", &responses),
        ("/v1/responses/input_tokens", &responses),
        ("/v1/messages", &messages),
        ("/v1/messages/count_tokens", &messages),
    ];
    let logged = || {
        let lines = server.log.lock().unwrap();
        lines.iter().filter(|line| line.contains("\"history_call\"")).count()
    };
    let whole = json!({"word": "ember", "list": [1, {"a": null}]});
    for arguments in [whole.clone(), whole.to_string().into(), Value::Null, json!("")] {
        for (path, body) in forms {
            server.post(path, &body(&arguments)).json(200);
        }
    }
    assert_eq!(logged(), 0);
    // A text that breaks off, texts of JSON that is no object, and values that are neither.
    let others = [
        json!("{\"word\": \"em"),
        json!("[1]"),
        json!("\\d"),
        json!("NaN"),
        json!(7),
        json!([1]),
        json!(true),
    ];
    for arguments in &others {
        for (path, body) in forms {
            server.post(path, &body(arguments)).json(200);
        }
        let prompt = server.post("/apply-template", &chat(arguments)).json(200)["prompt"].clone();
        let shown = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
        let quoted = json!(shown).to_string();
        let prompt = prompt.as_str().unwrap();
        assert!(
            prompt.contains(&shown) || prompt.contains(quoted.trim_matches('"')),
            "{arguments}: {prompt}"
        );
    }
    // Each answer tells it in the log.
    assert_eq!(logged(), 3 * others.len());
    // Numbers keep all digits, in the JSON text of an object and in an object.
    let object = r#"{"id": 12345678901234567890123}"#;
    for arguments in [json!(object).to_string(), object.to_owned()] {
        let body = chat(&json!("ARGUMENTS")).to_string().replace(r#""ARGUMENTS""#, &arguments);
        let prompt = server.send("POST", "/apply-template", &[], body.as_bytes()).json(200)["prompt"].clone();
        assert!(prompt.as_str().unwrap().contains("12345678901234567890123"), "{arguments}: {prompt}");
    }
}

#[test]
fn known_fields_that_are_not_honoured_are_refused_by_name() {
    let image = json!([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]);
    for (body, param) in [
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"web_search_options": {"x": 1}}), "web_search_options"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"function_call": "auto"}), "function_call"),
        (json!({"lora": [{"id": 0, "scale": 1}]}), "lora"),
        (json!({"mirostat": 2}), "mirostat"),
        (json!({"messages": [{"role": "user", "content": image}]}), "messages[0].content[0].type"),
    ] {
        let (_, found, code) = ask(&body).error(400);
        assert_eq!((found.as_deref(), code.as_str()), (Some(param), "unsupported_field"), "{body}");
    }
}

#[test]
fn neutral_and_inert_fields_pass() {
    for body in [
        json!({"audio": null, "modalities": ["text"], "functions": [], "prediction": {}, "lora": [], "mirostat": 0}),
        json!({"user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "verbosity": "low"}),
        json!({"typical_p": 1.0, "xtc_probability": 0.0, "dry_multiplier": 0, "n": 1.0, "logprobs": false}),
        json!({"tools": null, "stop": null, "seed": -1, "logit_bias": {"5": -100, " a": 1}}),
        json!({"samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"], "repetition_penalty": 1.1}),
    ] {
        ask(&body).json(200);
    }
}

#[test]
fn unknown_fields_are_counted_and_logged_once() {
    let count = || {
        let text = server().get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix("brasa:unknown_fields_total ")).unwrap();
        line.parse::<f64>().unwrap()
    };
    let before = count();
    for _ in 0..2 {
        ask(&json!({"utterly_unknown": 1})).json(200);
    }
    assert!(count() >= before + 2.0);
    let lines = server().log.lock().unwrap().clone();
    assert_eq!(lines.iter().filter(|line| line.contains("utterly_unknown")).count(), 1);
}

#[test]
fn unknown_fields_inside_objects_are_counted_and_logged_once() {
    let server = Running::start(options());
    let count = || {
        let text = server.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix("brasa:unknown_fields_total ")).unwrap();
        line.parse::<f64>().unwrap() as usize
    };
    let odd = |name: &str| json!({name: 1});
    let with = |mut object: Value, name: &str| {
        object.as_object_mut().unwrap().extend(odd(name).as_object().unwrap().clone());
        object
    };
    let part = with(json!({"type": "text", "text": "ember"}), "odd_part");
    let call = json!({"id": "c", "type": "function", "function": with(json!({"name": "f", "arguments": "{}"}), "odd_called")});
    let function = json!({"type": "function", "function": with(json!({"name": "f"}), "odd_function")});
    let chat = json!({
        "messages": [
            with(json!({"role": "user", "content": [part]}), "odd_message"),
            with(json!({"role": "user", "content": "x", "name": "n"}), "odd_message"),
            {"role": "assistant", "content": null, "tool_calls": [with(call, "odd_call")], "refusal": null, "annotations": []},
            {"role": "tool", "tool_call_id": "c", "content": "y"},
        ],
        "tools": [with(function, "odd_tool")], "tool_choice": "none", "max_tokens": 1, "stream": true,
        "stream_options": with(json!({"include_usage": true, "include_obfuscation": false}), "odd_stream"),
        "response_format": {"type": "json_schema",
            "json_schema": with(json!({"name": "n", "schema": {"type": "object", "odd_keyword": 1}}), "odd_format")},
    });
    let responses = json!({
        "input": [
            with(json!({"type": "message", "role": "user", "content": "ember", "id": "m", "status": "completed"}), "odd_item"),
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
        ],
        "tools": [with(json!({"type": "function", "name": "f"}), "odd_tool")],
        "text": with(json!({"format": {"type": "text"}, "verbosity": "low"}), "odd_text"),
        "reasoning": with(json!({"effort": "low", "summary": "auto"}), "odd_reasoning"), "max_output_tokens": 1,
    });
    let block =
        with(json!({"type": "text", "text": "ember", "cache_control": {"type": "ephemeral"}}), "odd_block");
    let messages = json!({
        "messages": [{"role": "user", "content": [block]}], "max_tokens": 1,
        "tools": [with(json!({"name": "f", "input_schema": {"type": "object"}}), "odd_tool")],
        "tool_choice": with(json!({"type": "none"}), "odd_choice"),
        "thinking": with(json!({"type": "enabled", "budget_tokens": 9}), "odd_thinking"),
        "output_config": with(json!({"effort": "low"}), "odd_config"),
    });
    let expected: [(&str, &Value, &[&str]); 3] = [
        (
            "/v1/chat/completions",
            &chat,
            &[
                "messages[].odd_message",
                "messages[].odd_message",
                "messages[].content[].odd_part",
                "messages[].tool_calls[].odd_call",
                "messages[].tool_calls[].function.odd_called",
                "tools[].odd_tool",
                "tools[].function.odd_function",
                "stream_options.odd_stream",
                "response_format.json_schema.odd_format",
            ],
        ),
        (
            "/v1/responses",
            &responses,
            &["input[].odd_item", "tools[].odd_tool", "text.odd_text", "reasoning.odd_reasoning"],
        ),
        (
            "/v1/messages",
            &messages,
            &[
                "messages[].content[].odd_block",
                "tools[].odd_tool",
                "tool_choice.odd_choice",
                "thinking.odd_thinking",
                "output_config.odd_config",
            ],
        ),
    ];
    let (mut total, mut logged) = (0, BTreeSet::new());
    for (path, body, names) in expected {
        for _ in 0..2 {
            let answer = server.post(path, body);
            assert_eq!(answer.status, 200, "{path} {}", answer.body);
            total += names.len();
            assert_eq!(count(), total, "{path}");
        }
        logged.extend(names.iter().copied());
    }
    let lines = server.log.lock().unwrap().clone();
    let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut names: Vec<String> =
        lines.filter_map(|line| line["unknown_field"].as_str().map(str::to_owned)).collect();
    names.sort();
    assert_eq!(names, logged.into_iter().collect::<Vec<_>>());
    server.stop();
}

/// The names in one of the lists of fields in the server's documentation.
pub fn documented(list: &str) -> Vec<&'static str> {
    let text = include_str!("../../../../docs/server.md");
    let start = format!("- **{list}**");
    let (_, rest) = text.split_once(&start).unwrap();
    let list = rest.split("\n- ").next().unwrap();
    // Values that ask for nothing, flags, and members of other fields are named there too.
    let others = ["null", "false", "true", "0", "1", "-1", "n", "x-request-id"];
    let names = list.split('`').skip(1).step_by(2);
    let is_name =
        |name: &&str| !name.starts_with(['-', '/']) && !name.contains(".rs") && !others.contains(name);
    let names: Vec<&str> = names.filter(is_name).collect();
    assert!(names.len() > 5, "{names:?}");
    names
}

#[test]
fn the_documentation_says_what_is_inert_and_what_is_refused() {
    for name in documented("Inert") {
        ask(&json!({name: {"x": 1}})).json(200);
        // The log is given back before a failure: a lock that breaks here breaks every test of this server.
        let line = json!({"unknown_field": name}).to_string();
        let unknown = server().log.lock().unwrap().contains(&line);
        assert!(!unknown, "{name} is unknown");
    }
    for name in documented("Refused") {
        let bodies = [
            ("/v1/responses", json!({"input": "ember", "max_output_tokens": 1})),
            ("/completion", json!({"prompt": "ember", "n_predict": 1})),
            ("/v1/completions", json!({"prompt": "ember", "max_tokens": 1})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1}),
            ),
            ("/v1/messages", json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1})),
        ];
        let refusals = bodies.into_iter().filter_map(|(path, mut body)| {
            body[name] = 7.into();
            let answer = server().post(path, &body);
            (answer.status == 400).then(|| answer.error(400).1)
        });
        assert!(refusals.flatten().any(|param| param == name), "{name} is not refused");
    }
}

#[test]
fn the_documentation_says_what_responses_refuse() {
    let text = include_str!("../../../../docs/server.md");
    let (_, section) = text.split_once("### What responses refuse\n").unwrap();
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    let mut documented: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let message = |content: Value| json!([{"type": "message", "role": "user", "content": content}]);
    let refused = [
        ("background", json!({"background": true}), "background"),
        ("conversation", json!({"conversation": {"id": "c"}}), "conversation"),
        ("prompt", json!({"prompt": {"id": "p"}}), "prompt"),
        ("previous_response_id", json!({"previous_response_id": "r"}), "previous_response_id"),
        ("top_logprobs", json!({"top_logprobs": 2}), "top_logprobs"),
        ("include", json!({"include": ["message.output_text.logprobs"]}), "include"),
        ("truncation", json!({"truncation": "middle"}), "truncation"),
        ("timings_per_token", json!({"timings_per_token": true}), "timings_per_token"),
        ("return_progress", json!({"return_progress": true}), "return_progress"),
        ("tools[].type", json!({"tools": [{"type": "mcp"}]}), "tools[0].type"),
        ("input[].type", json!({"input": [{"type": "item_reference", "id": "i"}]}), "input[0].type"),
        (
            "input[].content[].type",
            json!({"input": message(json!([{"type": "input_image", "image_url": "x"}]))}),
            "input[0].content[0].type",
        ),
    ];
    for (name, more, param) in &refused {
        let mut body = json!({"input": "ember", "max_output_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server().post("/v1/responses", &body);
        assert_eq!(answer.error(400).1.as_deref(), Some(*param), "{name}");
    }
    let mut known: Vec<&str> = refused.iter().map(|(name, ..)| *name).collect();
    // Fields that the code refuses by name are all among them.
    let code =
        [include_str!("../../src/api/responses/mod.rs"), include_str!("../../src/api/responses/input.rs")]
            .concat();
    for call in ["refuse(", "only(", "unsupported("] {
        for rest in code.split(call).skip(1).map(str::trim_start).filter(|rest| rest.starts_with('"')) {
            let name = rest.split('"').nth(1).unwrap();
            assert!(known.contains(&name), "{name} is refused, and nobody says so");
        }
    }
    known.sort_unstable();
    documented.sort_unstable();
    assert_eq!(documented, known);
    let neutral = json!({"background": false, "conversation": null, "top_logprobs": 0, "include": [], "truncation": "auto",
        "input": "ember", "max_output_tokens": 1, "return_progress": false, "previous_response_id": null});
    server().post("/v1/responses", &neutral).json(200);
}

#[test]
fn bodies_that_are_no_objects_are_refused() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "{", "[]", "7", "\"x\"", "{\"a\": 1} x", "\u{feff}{}", deep.as_str(), "{\"a\": nan}"] {
        let answer = server().send("POST", "/v1/chat/completions", &[], body.as_bytes());
        answer.error(400);
    }
    server().send("POST", "/v1/chat/completions", &[], b"\xff\xfe{}").error(400);
}

#[test]
fn a_prompt_beyond_the_context_is_told_in_the_words_that_clients_know() {
    let text = "word ".repeat(2000);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/responses", json!({"input": text})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1})),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let answer = server().post(path, &body).json(400);
            let message = answer["error"]["message"].as_str().unwrap();
            let numbers =
                message.strip_prefix("prompt is too long: ").and_then(|rest| rest.strip_suffix(" maximum"));
            let (tokens, context) =
                numbers.and_then(|numbers| numbers.split_once(" tokens > ")).expect(message);
            assert!(tokens.parse::<usize>().unwrap() > context.parse().unwrap(), "{path}: {message}");
            assert_eq!(answer["error"]["code"], "context_length_exceeded", "{path}");
            assert!(answer["error"]["hint"].is_string(), "{path}: {answer}");
        }
    }
}

#[test]
fn a_prompt_beyond_the_context_is_refused() {
    let text = "word ".repeat(2000);
    let answer = server().post("/v1/completions", &json!({"prompt": text}));
    assert_eq!(answer.error(400).2, "context_length_exceeded");
    let answer = server().post("/v1/completions", &json!({"prompt": [4_000_000]}));
    assert_eq!(answer.error(400).1.as_deref(), Some("prompt"));
    server().post("/v1/completions", &json!({"prompt": []})).error(400);
    server().post("/v1/completions", &json!({"prompt": vec!["x"; 300]})).error(400);
    server().post("/v1/completions", &json!({"prompt": "x", "best_of": 4})).error(400);
    server().post("/detokenize", &json!({"tokens": [-1]})).error(400);
    server().post("/detokenize", &json!({"tokens": [4_000_000]})).error(400);
}

#[test]
fn paths_and_methods_that_do_not_exist_are_told() {
    assert_eq!(server().get("/v1/assistants").error(404).2, "unknown_path");
    assert_eq!(server().get("/api/tags").error(404).0, "not_found_error");
    assert_eq!(server().get("/v1/chat/completions").error(405).2, "method_not_allowed");
    // Names that are no text.
    server().get("/v1/models/%ff").error(400);
    server().post("/slots/%ff?action=erase", &json!({})).error(400);
}
