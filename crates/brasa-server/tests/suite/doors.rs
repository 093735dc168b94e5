//! The doors in front of all handlers: names of the server, unread bodies, and the log.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brasa_server::{Server, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, Running, options, server, until};

/// Sends bytes as they are, and reads the answer to its end.
fn raw(server: &Running, bytes: &[u8]) -> Answer {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Answer::parse(&answer)
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Asks for the models under the name `host`, as a page of this name would.
fn ask(server: &Running, host: &str, target: &str) -> Answer {
    let head = format!(
        "GET {target} HTTP/1.1\r\nhost: {host}\r\norigin: http://{host}\r\nconnection: close\r\n\r\n"
    );
    raw(server, head.as_bytes())
}

#[test]
fn pages_whose_name_was_rebound_are_refused() {
    let port = server().address.port();
    for host in ["127.0.0.1", "localhost", "127.0.0.7", "[::1]", "LocalHost", "me.localhost", "localhost."] {
        for host in [host.to_owned(), format!("{host}:{port}"), format!("{host}:1")] {
            assert_eq!(ask(server(), &host, "/v1/models").status, 200, "{host}");
        }
    }
    for host in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "10.0.0.7",
        "[2001:db8::1]",
        "box",
        "127.0.0.1@evil.example",
        "",
        "a b",
    ] {
        for host in [host.to_owned(), format!("{host}:{port}")] {
            for path in ["/v1/models", "/", "/health", "/slots"] {
                assert_eq!(ask(server(), &host, path).error(403).2, "host_not_allowed", "{host:?} {path}");
            }
        }
    }
    // A request may name its host in its target too.
    let own = format!("127.0.0.1:{port}");
    assert_eq!(ask(server(), &own, &format!("http://evil.example:{port}/v1/models")).status, 403);
    assert_eq!(ask(server(), &own, &format!("http://{own}/v1/models")).status, 200);
    let both =
        format!("GET /v1/models HTTP/1.1\r\nhost: {own}\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert!([400, 403].contains(&raw(server(), both.as_bytes()).status));
    // A file's page is of no server, whatever it calls itself.
    let file = format!(
        "GET /v1/models HTTP/1.1\r\nhost: {own}\r\norigin: file://{own}\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(raw(server(), file.as_bytes()).error(403).2, "origin_not_allowed");
    // Programs of old name no host.
    assert_eq!(raw(server(), b"GET /v1/models HTTP/1.0\r\n\r\n").status, 200);
}

#[test]
fn names_are_allowed_one_by_one_and_all_behind_a_key() {
    let named = Running::start(ServerOptions { allowed_hosts: vec!["Box.Example".into()], ..options() });
    assert_eq!(ask(&named, "box.example:81", "/v1/models").status, 200);
    assert_eq!(ask(&named, "other.example", "/v1/models").status, 403);
    named.stop();
    let any = Running::start(ServerOptions { allowed_hosts: vec!["*".into()], ..options() });
    assert_eq!(ask(&any, "other.example", "/v1/models").status, 200);
    any.stop();
    let keyed = Running::start(ServerOptions { api_keys: vec!["k".into()], ..options() });
    assert_eq!(ask(&keyed, "other.example", "/v1/models").status, 401);
    assert_eq!(ask(&keyed, "other.example", "/health").status, 200);
    keyed.stop();
    let host = [0, 0, 0, 0].into();
    let mut public = Running::start(ServerOptions { host, allow_public_without_key: true, ..options() });
    public.address.set_ip([127, 0, 0, 1].into());
    for (host, status) in
        [("10.0.0.7:80", 200), ("box", 200), ("box.local", 200), ("[fe80::1]", 200), ("evil.example", 403)]
    {
        assert_eq!(ask(&public, host, "/v1/models").status, status, "{host}");
    }
    public.stop();
}

/// Reads one answer of a connection that goes on: its head and its body.
fn read_one(stream: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, String::from_utf8(body).ok()?))
}

/// Keep-alive clients send their next request without looking; it must not be lost in silence.
#[test]
fn an_answer_before_the_body_is_read_leaves_the_connection_usable_or_says_that_it_closes() {
    let server = Running::start(ServerOptions { max_body_bytes: 100_000, ..options() });
    let (small, large) = (br#"{"a":1}"#.to_vec(), vec![b' '; 90_000]);
    let huge = vec![b' '; 3_000_000];
    let evil = "origin: http://evil.example\r\n";
    for (method, path, headers, body, status) in [
        ("POST", "/nope", "", &small, 404),
        ("POST", "/nope", "", &large, 404),
        ("POST", "/nope", "", &huge, 404),
        ("DELETE", "/completion", "", &small, 405),
        ("DELETE", "/completion", "", &large, 405),
        ("POST", "/props", "", &small, 501),
        ("POST", "/props", "", &large, 501),
        ("POST", "/slots/0?action=erase", "", &small, 501),
        ("POST", "/completion", evil, &small, 403),
        ("POST", "/completion", evil, &large, 403),
        ("GET", "/health", "", &small, 200),
        ("GET", "/health", "", &large, 200),
        ("POST", "/completion", "", &small, 400),
        ("POST", "/completion", "", &huge, 413),
    ] {
        for chunked in [false, true] {
            let mut stream = connect(&server);
            let length = if chunked {
                "transfer-encoding: chunked".to_owned()
            } else {
                format!("content-length: {}", body.len())
            };
            let host = server.address;
            let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}{length}\r\n\r\n");
            let mut bytes = head.into_bytes();
            if chunked {
                bytes.extend(format!("{:x}\r\n", body.len()).into_bytes());
            }
            bytes.extend(body);
            bytes.extend(if chunked { &b"\r\n0\r\n\r\n"[..] } else { b"" });
            bytes.extend(format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n").into_bytes());
            let case = format!("{method} {path} {} chunked {chunked}", body.len());
            // The answer comes whole, however much is sent behind it.
            stream.write_all(&bytes).unwrap_or_else(|error| panic!("{case}: {error}"));
            let mut stream = BufReader::new(stream);
            let (head, _) = read_one(&mut stream).unwrap_or_else(|| panic!("{case}: no answer"));
            assert!(head.starts_with(&format!("http/1.1 {status} ")), "{case}: {head}");
            let closes = head.contains("\r\nconnection: close\r\n");
            let next = read_one(&mut stream);
            assert_eq!(closes, next.is_none(), "{case}: {head}");
            assert!(!closes || body.len() > 64 << 10, "{case}: {head}");
        }
    }
    server.stop();
}

#[test]
fn a_client_that_waits_for_leave_to_send_its_body_is_told_that_the_connection_closes() {
    let mut stream = connect(server());
    let host = server().address;
    let head =
        format!("POST /nope HTTP/1.1\r\nhost: {host}\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (head, _) = read_one(&mut BufReader::new(stream)).unwrap();
    assert!(head.starts_with("http/1.1 404 ") && head.contains("connection: close"), "{head}");
}

#[test]
fn a_log_that_nobody_reads_holds_nobody_up() {
    const REQUESTS: usize = 4200;
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let (open, gate) = channel::<()>();
    let (gate, written) = (Mutex::new(gate), Arc::clone(&lines));
    let log = Arc::new(move |line: &str| {
        // Stands still until the test lets go, as a write to a full pipe does.
        let _ = gate.lock().unwrap().recv();
        written.lock().unwrap().push(line.to_owned());
    });
    let server = Server::bind(ServerOptions { log, ..options() }).unwrap();
    let (address, handle) = (server.address(), server.handle());
    let thread = std::thread::spawn(move || server.run());
    until("the server is ready", || handle.is_ready());
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n");
        writer.write_all(request.repeat(REQUESTS).as_bytes()).unwrap();
    });
    let mut stream = BufReader::new(stream);
    for at in 0..REQUESTS {
        assert!(read_one(&mut stream).is_some(), "request {at}");
    }
    writing.join().unwrap();
    let mut stream = stream.into_inner();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let (_, metrics) = read_one(&mut BufReader::new(stream)).unwrap();
    let dropped = metrics.lines().find_map(|line| line.strip_prefix("brasa:log_lines_dropped_total "));
    assert!(dropped.unwrap().parse::<usize>().unwrap() > 0, "{dropped:?}");
    // The reader goes on, and is told what it has missed.
    drop(open);
    let told = |lines: &[String]| {
        lines.iter().any(|line| {
            serde_json::from_str::<Value>(line).unwrap()["log_lines_dropped"]
                .as_u64()
                .is_some_and(|count| count > 0)
        })
    };
    until("the loss is told", || told(&lines.lock().unwrap()));
    handle.shut_down();
    thread.join().unwrap().unwrap();
}

#[test]
fn an_answer_without_a_body_has_reached_its_client() {
    let server =
        Running::start(ServerOptions { cors_origins: vec!["http://mine.example".into()], ..options() });
    let page = server.get("/");
    let tag = page.header("etag").unwrap().to_owned();
    let same = [("if-none-match", tag.as_str()), ("x-request-id", "same")];
    assert_eq!(server.send("GET", "/", &same, b"").status, 304);
    let asks = [
        ("origin", "http://mine.example"),
        ("access-control-request-method", "POST"),
        ("x-request-id", "asks"),
    ];
    assert_eq!(server.send("OPTIONS", "/v1/chat/completions", &asks, b"").status, 204);
    for id in ["same", "asks"] {
        let line = server.logged(|line| line["id"] == id);
        assert_eq!(line["client_gone"], Value::Null, "{line}");
    }
    server.stop();
}

#[test]
fn biased_texts_count_by_their_tokens() {
    let with = |bias: Value| {
        server().post("/completion", &json!({"prompt": "a", "n_predict": 1, "logit_bias": bias}))
    };
    with(json!([[" fire", 1.0], [5, false]])).json(200);
    let words = " fire and ice, 77 times".repeat(1500);
    let halves = json!([[words, 1.0], [words, 1.0]]);
    for bias in
        [json!([[words, 1.0]]), json!({ words.clone(): 1.0 }), halves, json!([[words.repeat(40), 1.0]])]
    {
        assert_eq!(with(bias).error(400).1.as_deref(), Some("logit_bias"));
    }
}
