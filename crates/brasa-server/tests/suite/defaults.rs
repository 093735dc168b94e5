//! Settings of an operator: defaults of requests, names, a prefix of paths, further addresses.

use std::net::{IpAddr, SocketAddr};

use brasa::LoadOptions;
use brasa_server::{Server, ServerError, ServerOptions};
use serde_json::{Map, Value, json};

use super::client::{MODEL, Running, models, options, until};

#[expect(clippy::needless_pass_by_value, reason = "a test writes values in place")]
fn defaults(fields: Value) -> Map<String, Value> {
    fields.as_object().unwrap().clone()
}

#[test]
fn defaults_are_for_requests_that_do_not_say_it_themselves() {
    let server = Running::start(ServerOptions {
        request_defaults: defaults(json!({
            "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "seed": 5, "repeat_penalty": 1.5,
            "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": true,
            "typical_p": 0.5, "top_n_sigma": 1.5, "xtc_probability": 0.25, "xtc_threshold": 0.125, "dynatemp_range": 0.125,
            "dynatemp_exponent": 2.0, "dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
            "stop": ["§"], "logit_bias": [[7, 1.5], [8, false]], "json_schema": {"enum": ["ember"]},
            "chat_template_kwargs": {"enable_thinking": false, "flag": true},
        })),
        ..options()
    });
    let expected = json!({
        "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "seed": 5, "repeat_penalty": 1.5,
        "repeat_last_n": -1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "ignore_eos": true, "stop": ["§"],
        "typical_p": 0.5, "top_n_sigma": 1.5, "xtc_probability": 0.25, "xtc_threshold": 0.125, "dynatemp_range": 0.125,
        "dynatemp_exponent": 2.0, "dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": 3, "dry_penalty_last_n": -1,
    });
    let same = |settings: &Value, expected: &Value| {
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&settings[name], value, "{name}");
        }
    };
    let props = server.get("/props").json(200);
    same(&props["default_generation_settings"]["params"], &expected);
    // A request without fields, and one with its own.
    let body = json!({"prompt": "An ember is", "n_predict": 8, "ignore_eos": false});
    let answer = server.post("/completion", &body).json(200);
    assert_eq!(answer["content"], "\"ember\"");
    let own = json!({
        "temperature": 0.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "seed": 9, "repeat_penalty": 1.0, "repeat_last_n": 16,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": false, "stop": ["¶"],
    });
    let mut body = defaults(own.clone());
    body.extend(defaults(json!({"prompt": "An ember is", "n_predict": 4, "grammar": "root ::= \"coal\""})));
    let answer = server.post("/completion", &Value::Object(body)).json(200);
    same(&answer["generation_settings"], &own);
    assert_eq!(answer["content"], "coal");
    // Forms of other APIs have them too. A format of one's own, or tools, take the place of the operator's grammar.
    let asked = |path: &str, fields: Value| {
        let mut body = defaults(
            json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 8, "ignore_eos": false}),
        );
        body.extend(defaults(fields));
        server.post(path, &Value::Object(body)).json(200)
    };
    let chat = "/v1/chat/completions";
    assert_eq!(asked(chat, json!({}))["choices"][0]["message"]["content"], "\"ember\"");
    let format =
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["coal"]}}}});
    assert_eq!(asked(chat, format)["choices"][0]["message"]["content"], "\"coal\"");
    assert_eq!(asked("/v1/messages", json!({}))["content"][0]["text"], "\"ember\"");
    let answer =
        server.post("/v1/responses", &json!({"input": "x", "max_output_tokens": 8, "ignore_eos": false}));
    assert_eq!(answer.json(200)["output"][0]["content"][0]["text"], "\"ember\"");
    server.stop();
}

#[test]
fn defaults_that_no_request_could_have_end_the_server() {
    for (fields, named) in [
        (json!({"tempreature": 1}), "`tempreature`"),
        (json!({"temperature": "hot"}), "`temperature`"),
        (json!({"samplers": ["top_k", "top_k"]}), "`samplers`"),
        (json!({"logit_bias": [[999_999_999, 1]]}), "999999999"),
        (json!({"grammar": "root ::= ("}), "grammar"),
        (json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs"),
        (json!({"reasoning_effort": "much"}), "reasoning_effort"),
    ] {
        let options = ServerOptions { request_defaults: defaults(fields.clone()), ..options() };
        let ended = Server::bind(options).and_then(Server::run);
        match ended {
            Err(ServerError::Options(message)) => assert!(message.contains(named), "{fields}: {message}"),
            other => panic!("{fields}: {other:?}"),
        }
    }
}

#[test]
fn everything_is_below_the_prefix() {
    let server = Running::start(ServerOptions {
        api_prefix: "/llm/a".into(),
        api_keys: vec!["k".into()],
        ..options()
    });
    let get = |path: &str| server.get(path);
    assert_eq!(get("/llm/a/health").status, 200);
    assert!(get("/llm/a/").body.contains("<html"));
    let moved = get("/llm/a");
    assert_eq!((moved.status, moved.header("location")), (308, Some("/llm/a/")));
    assert_eq!(get("/llm/a/assets/app.js").status, 200);
    // The key is needed as at the root, and nothing is elsewhere.
    assert_eq!(get("/llm/a/v1/models").status, 401);
    let key = [("authorization", "Bearer k")];
    assert_eq!(server.send("GET", "/llm/a/v1/models?x=1", &key, b"").status, 200);
    for path in ["/health", "/llm/ab/health", "/llm", "/", "/llm/av1/models"] {
        assert_eq!(server.send("GET", path, &key, b"").status, 404, "{path}");
    }
    server.stop();
    for wrong in ["llm", "/llm/", "//", "/a b", "/{x}"] {
        let options = ServerOptions { api_prefix: wrong.into(), ..options() };
        assert!(matches!(Server::bind(options), Err(ServerError::Options(_))), "{wrong}");
    }
}

#[test]
fn a_server_listens_at_all_its_addresses() {
    let second = IpAddr::from([127, 0, 0, 3]);
    let server = Running::start(ServerOptions { more_hosts: vec![second], http_threads: 1, ..options() });
    let stream = std::net::TcpStream::connect(SocketAddr::new(second, server.address.port()));
    assert!(stream.is_ok(), "{stream:?}");
    server.stop();
    let public = ServerOptions { more_hosts: vec![IpAddr::from([192, 0, 2, 1])], ..options() };
    assert!(
        matches!(Server::bind(public), Err(ServerError::Options(message)) if message.contains("192.0.2.1"))
    );
}

#[test]
fn names_and_loading_by_hand() {
    let server = Running::start(ServerOptions {
        models_dir: Some(models()),
        autoload: false,
        aliases: vec!["second".into()],
        tags: vec!["small".into()],
        load: LoadOptions { max_sequences: Some(3), ..options().load },
        ..options()
    });
    until("it is loaded", || server.get("/health").status == 200);
    assert_eq!(server.get("/props").json(200)["total_slots"], 3);
    let list = server.get("/v1/models").json(200);
    assert_eq!(
        (&list["data"][0]["tags"], &list["data"][0]["aliases"]),
        (&json!(["small"]), &json!(["second"]))
    );
    assert_eq!(list["data"][1]["tags"], Value::Null);
    let ask =
        |model: &str| server.post("/completion", &json!({"model": model, "prompt": "a", "n_predict": 1}));
    assert_eq!((ask(MODEL).status, ask("second").status), (200, 200));
    assert_eq!(ask("tiny-llama").error(400).2, "model_not_loaded");
    server.post("/models/load", &json!({"model": "tiny-llama"})).json(200);
    assert_eq!(ask("tiny-llama").status, 200);
    server.stop();
}
