//! Clients that mean harm: without a key, slow, silent, huge, from elsewhere.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use brasa_server::{Server, ServerError, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, Running, options, until};

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
fn silent_and_slow_connections_are_closed() {
    // One that sends nothing, one that stops in the head, one that sends a byte now and then, one that stops in the body.
    let silent = TcpStream::connect(strict().address).unwrap();
    let mut half = TcpStream::connect(strict().address).unwrap();
    half.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nx-").unwrap();
    let mut dripping = TcpStream::connect(strict().address).unwrap();
    let drip = std::thread::spawn(move || {
        let started = Instant::now();
        while dripping.write_all(b"G").is_ok() && started.elapsed() < Duration::from_secs(8) {
            std::thread::sleep(Duration::from_millis(50));
        }
        started.elapsed()
    });
    let mut body = TcpStream::connect(strict().address).unwrap();
    body.write_all(
        format!("POST /tokenize HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 90\r\n\r\n{{")
            .as_bytes(),
    )
    .unwrap();
    for stream in [silent, half] {
        let (time, _) = closed(stream);
        assert!(time < PATIENCE * 5, "{time:?}");
    }
    let (time, bytes) = closed(body);
    assert!(time < PATIENCE * 5, "{time:?}");
    assert_eq!(Answer::parse(&bytes).status, 408);
    assert!(drip.join().unwrap() < PATIENCE * 8);
    assert_eq!(strict().get("/health").status, 200);
}

#[test]
fn a_client_that_goes_away_ends_its_own_request_alone() {
    let long =
        json!({"prompt": "An ember is", "n_predict": 480, "ignore_eos": true, "stream": true}).to_string();
    let whole = json!({"prompt": "An ember is", "n_predict": 480, "ignore_eos": true}).to_string();
    let other = std::thread::spawn(|| {
        with_key("/completion", &json!({"prompt": "An ember is", "n_predict": 60, "ignore_eos": true}))
    });
    for (id, body) in [("gone-1", long), ("gone-2", whole)] {
        let headers = [("x-api-key", KEY), ("x-request-id", id)];
        let mut stream = strict().begin("POST", "/completion", &headers, body.as_bytes());
        if id == "gone-1" {
            let mut first = [0; 64];
            stream.read_exact(&mut first).unwrap();
        } else {
            until("the request runs", || running() > 0);
        }
        drop(stream);
        let line = strict().logged(|line| line["id"] == id);
        assert_eq!(line["client_gone"], true);
        assert!(line["completion_tokens"].as_u64().unwrap_or(0) < 480, "{line}");
    }
    assert_eq!(other.join().unwrap().json(200)["tokens_predicted"], 60);
    until("nothing runs", || running() == 0);
}

/// Requests that run on the strict server.
fn running() -> usize {
    let slots = strict().send("GET", "/slots", &[("x-api-key", KEY)], b"").json(200);
    slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
}

#[test]
fn a_stream_without_news_has_signs_of_life() {
    // The strict server gives one each millisecond, and a prompt takes longer.
    let body = json!({"prompt": "ember ".repeat(200), "n_predict": 1, "stream": true, "cache_prompt": false});
    let answer = with_key("/completion", &body);
    assert!(answer.body.contains("\"stop\":true"), "{}", answer.body);
    let others = answer.body.lines().filter(|line| !line.is_empty() && !line.starts_with("data: "));
    let others: Vec<&str> = others.collect();
    assert!(!others.is_empty() && others.iter().all(|line| *line == ": ping"), "{}", answer.body);
    let body = json!({"messages": [{"role": "user", "content": "ember ".repeat(200)}], "max_tokens": 1, "stream": true});
    let events = with_key("/v1/messages", &body).named_events();
    assert!(events.iter().filter(|(name, _)| name == "ping").count() > 1, "{events:?}");
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
