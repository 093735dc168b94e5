//! Tools that take a free text: declared, called, constrained, and read in a history.

use brasa::LoadOptions;
use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::client::{Running, options, server};

const LARK: &str = "start: begin line{1,2} line~0..1 end // a patch\nbegin: \"*** \\\"Begin\\\"\" LF\nend: \"*** End\"i\n\
    line: (\"+\" | \"-\") /[^\\n\\/ -~]{0,3}/ ANY LF -> line\nANY: \"a\"..\"c\" /[\\\\\"x]/\n%import common.LF\n";

/// The grammar of Codex's tool that edits files.
const APPLY_PATCH: &str = r#"start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"#;

/// Checks that a text is one of `LARK`, without the library that reads grammars.
fn check_lark(text: &str) {
    let body = text.strip_prefix("*** \"Begin\"\n").unwrap_or_else(|| panic!("{text:?}"));
    let (lines, end) = body.rsplit_once('\n').unwrap();
    assert_eq!(end.to_lowercase(), "*** end", "{text:?}");
    for line in lines.split('\n') {
        let rest = line.strip_prefix(['+', '-']).unwrap_or_else(|| panic!("{text:?}"));
        let mut letters = rest.chars().rev();
        assert!(letters.next().is_some_and(|letter| "\\\"x".contains(letter)), "{text:?}");
        assert!(letters.next().is_some_and(|letter| "abc".contains(letter)), "{text:?}");
        assert!(
            letters.clone().count() <= 3 && letters.all(|letter| !(' '..='~').contains(&letter)),
            "{text:?}"
        );
    }
}

fn lark() -> Value {
    json!({"type": "grammar", "syntax": "lark", "definition": LARK})
}

fn regex(definition: &str) -> Value {
    json!({"type": "grammar", "syntax": "regex", "definition": definition})
}

/// A request of responses for a call of the only tool.
fn response(format: &Value, more: &Value) -> Value {
    let mut body = json!({"input": "Go.", "seed": 5, "temperature": 1, "max_output_tokens": 200,
        "tools": [{"type": "custom", "name": "patch", "description": "Patches.", "format": format}],
        "tool_choice": {"type": "custom", "name": "patch"}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text of the call in a response, which has to be the same streamed.
fn input(server: &Running, body: &Value) -> String {
    let answer = server.post("/v1/responses", body).json(200);
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("custom_tool_call"), &json!("patch")), "{answer}");
    let text = item["input"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let mut body = body.clone();
    body["stream"] = true.into();
    let events = server.post("/v1/responses", &body).named_events();
    let of = |name: &str| -> Vec<Value> {
        events.iter().filter(|(event, _)| event == name).map(|(_, value)| value.clone()).collect()
    };
    let added = &of("response.output_item.added")[0]["item"];
    assert_eq!((&added["type"], &added["input"]), (&json!("custom_tool_call"), &json!("")));
    let deltas = of("response.custom_tool_call_input.delta");
    assert!(deltas.iter().all(|delta| delta["item_id"] == added["id"] && delta["delta"] != ""));
    let streamed: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(streamed, text);
    assert_eq!(of("response.custom_tool_call_input.done")[0]["input"], text);
    assert_eq!(of("response.output_item.done")[0]["item"]["input"], text);
    assert!(of("response.function_call_arguments.delta").is_empty());
    text.to_owned()
}

#[test]
fn a_text_follows_its_grammar_in_every_form_of_calls() {
    for mark in [
        "",
        "<tool_call>",
        "[TOOL_CALLS]",
        "<tool_call>\n<function=",
        "<|tool_call>call:",
        "<minimax:tool_call>",
    ] {
        let template = format!(
            "{{% for message in messages %}}{{{{ message.content }}}}\n{{% endfor %}}{{% if tools %}}{mark}{{% endif %}}"
        );
        let load = LoadOptions { chat_template: Some(template), ..options().load };
        let server = Running::start(ServerOptions { load, ..options() });
        let format = json!({"type": "grammar", "syntax": "lark", "definition": APPLY_PATCH});
        let text = input(&server, &response(&format, &json!({"max_output_tokens": 150})));
        assert!(text.starts_with("*** Begin Patch\n*** "), "{mark} {text:?}");
        for seed in 0..3 {
            check_lark(&input(&server, &response(&lark(), &json!({"seed": seed}))));
            let text = input(&server, &response(&regex("^a/[\"\\\\]{2}(\n|é)\\d$"), &json!({"seed": seed})));
            let letters: Vec<char> = text.chars().collect();
            assert_eq!((letters.len(), &letters[..2]), (6, &['a', '/'][..]), "{mark} {text:?}");
            assert!(letters[2..4].iter().all(|letter| "\"\\".contains(*letter)), "{mark} {text:?}");
            assert!("\né".contains(letters[4]) && letters[5].is_numeric(), "{mark} {text:?}");
        }
        server.stop();
    }
}

#[test]
fn chats_have_custom_tools_too() {
    let tool = json!({"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar":
        {"syntax": "lark", "definition": LARK}}}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools":
        [{"type": "custom", "custom": {"name": "patch"}}]}});
    for choice in [json!("required"), json!({"type": "custom", "custom": {"name": "patch"}}), allowed] {
        let mut body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": [tool], "tool_choice": choice,
            "seed": 5, "parallel_tool_calls": false, "max_tokens": 200});
        let answer = server().post("/v1/chat/completions", &body).json(200);

        let choice = &answer["choices"][0];
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(
            (&call["type"], &choice["finish_reason"]),
            (&json!("custom"), &json!("tool_calls")),
            "{answer}"
        );
        let text = call["custom"]["input"].as_str().unwrap();
        check_lark(text);
        body["stream"] = true.into();
        let events = server().post("/v1/chat/completions", &body).events();
        let calls = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
        let calls: Vec<&Value> = calls.filter(|call| !call.is_null()).collect();
        assert_eq!((&calls[0]["type"], &calls[0]["custom"]["name"]), (&json!("custom"), &json!("patch")));
        let streamed: String = calls.iter().map(|call| call["custom"]["input"].as_str().unwrap()).collect();
        assert_eq!(streamed, text);
    }
}

#[test]
fn calls_of_custom_tools_are_read_in_a_history() {
    let tokens = |path: &str, body: &Value| server().post(path, body).json(200)["input_tokens"].clone();
    let arguments = json!({"input": "a\n\"b\""}).to_string();
    let items = |call: Value, output: &str| {
        json!({"input": [{"type": "message", "role": "user", "content": "Go."}, call,
            {"type": output, "call_id": "c1", "output": "Done."}]})
    };
    let custom = items(
        json!({"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "c1", "name": "patch",
            "input": "a\n\"b\""}),
        "custom_tool_call_output",
    );
    let function = items(
        json!({"type": "function_call", "call_id": "c1", "name": "patch", "arguments": arguments}),
        "function_call_output",
    );
    let path = "/v1/responses/input_tokens";
    assert_eq!(tokens(path, &custom), tokens(path, &function));
    let messages = |call: Value| {
        json!({"messages": [{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Done."}]})
    };
    let path = "/v1/chat/completions/input_tokens";
    let custom = json!({"id": "c1", "type": "custom", "custom": {"name": "patch", "input": "a\n\"b\""}});
    let function =
        json!({"id": "c1", "type": "function", "function": {"name": "patch", "arguments": arguments}});
    assert_eq!(tokens(path, &messages(custom)), tokens(path, &messages(function)));
    for (call, param) in [
        (json!({"type": "custom", "custom": {"input": "a"}}), "messages[1].tool_calls[0].custom.name"),
        (
            json!({"type": "custom", "custom": {"name": "f", "input": {}}}),
            "messages[1].tool_calls[0].custom.input",
        ),
    ] {
        let answer = server().post("/v1/chat/completions", &messages(call));
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{}", answer.body);
    }
}

#[test]
fn wrong_custom_tools_are_refused_by_name() {
    let grammar = |syntax: &str, definition: &str| json!({"type": "grammar", "syntax": syntax, "definition": definition});
    for (format, param, said) in [
        (json!({"type": "yaml"}), "tools[0].format.type", "yaml"),
        (json!({"type": "grammar", "syntax": "lark"}), "tools[0].format.definition", "missing"),
        (grammar("ebnf", "a"), "tools[0].format.syntax", "ebnf"),
        (grammar("lark", "start: ("), "tools[0].format.definition", "Lark"),
        (grammar("regex", "("), "tools[0].format.definition", "regular expression"),
        // The generic form writes JSON, where these have no form.
        (grammar("lark", "start: %json {\"type\": \"number\"}"), "tools", "%json"),
        (grammar("lark", "start: /a/ A\nA: ~/b/ & /./"), "tools", "~"),
    ] {
        let answer = server().post("/v1/responses", &response(&format, &json!({})));
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{format}: {}", answer.body);
        assert!(answer.body.contains(said), "{format}: {}", answer.body);
    }
    let unnamed = json!({"input": "Go.", "tools": [{"type": "custom"}]});
    assert_eq!(server().post("/v1/responses", &unnamed).error(400).1.as_deref(), Some("tools[0].name"));
    let other =
        response(&json!({"type": "text"}), &json!({"tool_choice": {"type": "custom", "name": "other"}}));
    assert_eq!(server().post("/v1/responses", &other).error(400).1.as_deref(), Some("tool_choice"));
    let function = json!({"type": "function", "name": "patch", "parameters": {"type": "object"}});
    for twin in [json!({"type": "custom", "name": "patch"}), function] {
        let twins = json!({"input": "ember", "tools": [{"type": "custom", "name": "patch"}, twin]});
        assert_eq!(server().post("/v1/responses", &twins).error(400).1.as_deref(), Some("tools"));
    }
}
