//! Clients that mean harm: without a key, huge, from elsewhere; in [`connections`] slow and silent ones.

mod connections;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use brasa_server::{Server, ServerError, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, Running, options, server};

const KEY: &str = "correct horse";

/// The time that clients of the strict server may be silent.
const PATIENCE: Duration = Duration::from_millis(400);

/// A server with a key and little patience.
fn strict() -> &'static Running {
    static SERVER: LazyLock<Running> = LazyLock::new(|| {
        Running::start(ServerOptions {
            api_keys: vec!["another".into(), KEY.into()],
            client_timeout: PATIENCE,
            ping_every: Duration::from_millis(1),
            max_body_bytes: 10_000,
            cors_origins: vec!["https://friend.example".into()],
            ..options()
        })
    });
    &SERVER
}

fn with_key(path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {KEY}");
    strict().send("POST", path, &[("authorization", &bearer)], body.to_string().as_bytes())
}

/// The time until the server closes a connection, and what it sent before.
fn closed(mut stream: TcpStream) -> (Duration, Vec<u8>) {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let (started, mut bytes) = (Instant::now(), Vec::new());
    // A reset is an end too.
    let _ = stream.read_to_end(&mut bytes);
    (started.elapsed(), bytes)
}

#[test]
fn every_path_but_health_needs_the_key() {
    for path in [
        "/v1/models",
        "/props",
        "/slots",
        "/metrics",
        "/v1/metrics",
        "/lora-adapters",
        "/nothing",
        "/health/../slots",
    ] {
        assert_eq!(strict().get(path).error(401).0, "authentication_error", "{path}");
    }
    for path in [
        "/v1/chat/completions",
        "/completion",
        "/tokenize",
        "/models/unload",
        "/v1/messages",
        "/slots/0?action=erase",
    ] {
        assert_eq!(strict().post(path, &json!({})).status, 401, "{path}");
    }
    assert_eq!(strict().get("/health").status, 200);
    assert_eq!(strict().get("/v1/health").status, 200);
    for header in [
        ("authorization", "Bearer wrong"),
        ("authorization", "correct horse"),
        ("authorization", "Basic correct horse"),
        ("x-api-key", "correct hors"),
        ("x-api-key", ""),
        ("authorization", "Bearer "),
    ] {
        assert_eq!(strict().send("GET", "/v1/models", &[header], b"").status, 401, "{header:?}");
    }
    for header in
        [("authorization", "Bearer correct horse"), ("authorization", "bearer another"), ("x-api-key", KEY)]
    {
        assert_eq!(strict().send("GET", "/v1/models", &[header], b"").status, 200, "{header:?}");
    }
}

#[test]
fn keys_that_are_nearly_right_are_wrong() {
    // Keys are compared as digests, whole and in constant time: nothing that comes near opens the server.
    let near: Vec<String> = (1..KEY.len())
        .flat_map(|end| [KEY[..end].to_owned(), KEY[end..].to_owned(), format!("{KEY}{}", &KEY[..end])])
        .chain([KEY.to_uppercase(), KEY.replace(' ', ""), format!("{KEY} another"), format!("{KEY},another")])
        .chain([format!("\"{KEY}\""), "*".into(), "null".into(), "x".repeat(8000)])
        .collect();
    for key in &near {
        for header in [("x-api-key", key.clone()), ("authorization", format!("Bearer {key}"))] {
            let answer = strict().send("GET", "/v1/models", &[(header.0, &header.1)], b"");
            assert_eq!(answer.status, 401, "{key}");
            assert_eq!(answer.error(401).2, "invalid_api_key");
        }
    }
    // A key belongs into the head alone.
    for path in ["/v1/models?api_key=correct%20horse", "/v1/models?key=correct+horse"] {
        assert_eq!(strict().get(path).status, 401, "{path}");
    }
}

#[test]
fn an_address_that_others_reach_needs_a_key() {
    let public = || ServerOptions { host: IpAddr::from([0, 0, 0, 0]), ..options() };
    assert!(matches!(Server::bind(public()), Err(ServerError::Options(_))));
    assert!(Server::bind(ServerOptions { api_keys: vec!["k".into()], ..public() }).is_ok());
    assert!(Server::bind(ServerOptions { allow_public_without_key: true, ..public() }).is_ok());
    assert!(Server::bind(ServerOptions { api_keys: vec![" ".into()], ..public() }).is_err());
}

#[test]
fn pages_of_other_origins_are_refused() {
    let key = format!("Bearer {KEY}");
    let ask = |origin: &str| {
        strict().send("GET", "/v1/models", &[("authorization", &key), ("origin", origin)], b"")
    };
    assert_eq!(ask("https://evil.example").error(403).2, "origin_not_allowed");
    assert_eq!(ask("null").status, 403);
    assert_eq!(ask("https://evil.example").header("access-control-allow-origin"), None);
    let own = format!("http://{}", strict().address);
    assert_eq!(ask(&own).status, 200);
    let friend = ask("https://friend.example");
    assert_eq!(
        (friend.status, friend.header("access-control-allow-origin")),
        (200, Some("https://friend.example"))
    );
    let preflight = |origin: &str| {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ];
        strict().send("OPTIONS", "/v1/models", &headers, b"")
    };
    assert_eq!(preflight("https://friend.example").status, 204);
    assert_eq!(
        preflight("https://friend.example").header("access-control-allow-headers"),
        Some("authorization")
    );
    assert_eq!(preflight("https://evil.example").status, 403);
}

#[test]
fn no_page_of_another_origin_is_served_by_default() {
    let (host, body) = (server().address, json!({"content": "x"}).to_string());
    let port = host.port();
    for origin in [
        "https://evil.example".to_owned(),
        "null".to_owned(),
        "http://127.0.0.1".to_owned(),
        format!("http://127.0.0.1.evil.example:{port}"),
        format!("http://localhost:{port}"),
        "file://".to_owned(),
    ] {
        let asks = ("access-control-request-method", "POST");
        for (method, path, headers) in [
            ("GET", "/v1/models", vec![("origin", origin.as_str())]),
            ("POST", "/tokenize", vec![("origin", origin.as_str()), ("content-type", "text/plain")]),
            ("OPTIONS", "/tokenize", vec![("origin", origin.as_str()), asks]),
        ] {
            let answer = server().send(method, path, &headers, body.as_bytes());
            assert_eq!(answer.error(403).2, "origin_not_allowed", "{method} {origin}");
            assert!(!answer.head.contains("access-control-allow"), "{}", answer.head);
        }
    }
    // Programs that are no browsers name no origin.
    assert_eq!(server().post("/tokenize", &json!({"content": "x"})).status, 200);
}

#[test]
fn media_are_not_fetched() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}/x.png", listener.local_addr().unwrap());
    let parts = [
        json!({"type": "image_url", "image_url": {"url": url}}),
        json!({"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
        json!({"type": "file", "file": {"file_data": url}}),
    ];
    for part in parts {
        let body = json!({"messages": [{"role": "user", "content": [part]}]});
        let (_, param, code) = server().post("/v1/chat/completions", &body).error(400);
        assert_eq!(param.as_deref(), Some("messages[0].content[0].type"), "{body}");
        assert_eq!(code, "unsupported_field");
    }
    let block = json!({"type": "image", "source": {"type": "url", "url": url}});
    let body = json!({"messages": [{"role": "user", "content": [block]}], "max_tokens": 1});
    server().post("/v1/messages", &body).json(400);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "somebody asked for {url}");
}

#[test]
fn everything_that_could_be_endless_is_bounded() {
    let deep = (0..110).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let format = |schema: Value| json!({"type": "json_schema", "json_schema": {"schema": schema}});
    let biases: Vec<Value> = (0..4097).map(|_| json!([5, 1])).collect();
    let wide: Vec<Value> = (0..9000).map(|number| json!({"const": number})).collect();
    let place = "response_format.json_schema.schema";
    for (more, param) in [
        (json!({"n": 257}), "n"),
        (json!({"stop": vec!["x"; 65]}), "stop"),
        (json!({"stop": "x".repeat(4097)}), "stop"),
        (json!({"logit_bias": biases}), "logit_bias"),
        (json!({"response_format": format(deep)}), place),
        (json!({"response_format": format(json!({"anyOf": wide}))}), place),
        (json!({"grammar": format!("root ::= \"{}\"", "x".repeat(3 << 20))}), "grammar"),
        (json!({"guided_choice": vec!["x"; 1025]}), "guided_choice"),
        (json!({"messages": vec![json!({"role": "user", "content": "x"}); 10_001]}), "messages"),
        (json!({"logprobs": true, "top_logprobs": 1_000_000}), "top_logprobs"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "ember"}], "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server().post("/v1/chat/completions", &body);
        assert_eq!(answer.error(400).1.as_deref(), Some(param), "{}", answer.body);
    }
    let prompts = json!({"prompt": vec!["x"; 100], "n": 3, "max_tokens": 1});
    assert_eq!(server().post("/v1/completions", &prompts).error(400).1.as_deref(), Some("n"));
    let body = json!({"prompt": vec!["x"; 257], "n_predict": 1});
    assert_eq!(server().post("/completion", &body).error(400).1.as_deref(), Some("prompt"));
    // A tool whose schema is as deep as no template should see.
    let nested = format!("{{\"tools\": {}1{}}}", "[".repeat(200), "]".repeat(200));
    let answer = server().send("POST", "/v1/chat/completions", &[], nested.as_bytes());
    assert_eq!(answer.error(400).2, "invalid_json");
}

#[test]
fn large_bodies_are_refused_before_they_are_read() {
    assert_eq!(
        with_key("/tokenize", &json!({"content": "x".repeat(20_000)})).error(413).2,
        "request_too_large"
    );
    let mut stream = TcpStream::connect(strict().address).unwrap();
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 99999999999\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let (_, bytes) = closed(stream);
    assert_eq!(Answer::parse(&bytes).status, 413);
    // A body in chunks tells no length.
    let mut stream = TcpStream::connect(strict().address).unwrap();
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..20 {
        if stream.write_all(format!("400\r\n{}\r\n", "x".repeat(1024)).as_bytes()).is_err() {
            break;
        }
    }
    let (_, bytes) = closed(stream);
    // The answer may be lost with the connection, which is closed with unread bytes in it.
    assert!(bytes.is_empty() || Answer::parse(&bytes).status == 413);
}

#[test]
fn an_address_that_asks_too_often_has_to_wait() {
    let server = Running::start(ServerOptions { rate_limit_per_minute: Some(5), ..options() });
    let statuses: Vec<u16> = (0..7).map(|_| server.get("/health").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let refused = server.get("/health");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() <= 12);
    refused.error(429);
    server.stop();
}

#[test]
fn models_outside_the_folder_cannot_be_loaded() {
    let load = |path: &str| with_key("/v1/models/load", &json!({"path": path}));
    for path in ["/etc/passwd", "../../etc/passwd", "nothing.gguf", ""] {
        assert_eq!(load(path).error(403).2, "path_not_allowed", "{path}");
    }
}

#[test]
fn strangers_load_and_unload_nothing() {
    let host = IpAddr::from([0, 0, 0, 0]);
    let mut server = Running::start(ServerOptions { host, allow_public_without_key: true, ..options() });
    server.address.set_ip(IpAddr::from([127, 0, 0, 1]));
    for path in ["/models/load", "/models/unload", "/v1/models/load", "/v1/models/unload"] {
        assert_eq!(server.post(path, &json!({"model": "lexicon"})).error(403).2, "key_needed", "{path}");
    }
    server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).json(200);
    assert_eq!(server.get("/v1/models").json(200)["data"][0]["status"]["value"], "loaded");
    server.stop();
}

#[test]
fn the_log_holds_no_prompt_and_no_key() {
    let secret = "xylophonic marmalade";
    with_key(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": secret}], "max_tokens": 1}),
    )
    .json(200);
    let line = strict().logged(|line| line["path"] == "/v1/chat/completions" && line["status"] == 200);
    for key in ["time", "id", "method", "ms", "model", "prompt_tokens", "completion_tokens", "finish"] {
        assert!(!line[key].is_null(), "{key}: {line}");
    }
    let log = strict().log.lock().unwrap().concat();
    assert!(!log.contains("marmalade") && !log.contains(KEY), "{log}");
}

#[test]
fn request_ids_are_echoed_if_they_are_plain() {
    let ask = |id: &str| strict().send("GET", "/health", &[("x-request-id", id)], b"");
    assert_eq!(ask("abc-1").header("x-request-id"), Some("abc-1"));
    let long = "x".repeat(200);
    for id in ["a b", long.as_str()] {
        assert!(ask(id).header("x-request-id").unwrap().starts_with("req_"), "{id}");
    }
}
