//! Memory and time that bodies may take, one alone and all together.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use brasa::LoadOptions;
use brasa_server::ServerOptions;
use serde_json::json;

use super::client::{Answer, Running, options, server, until};
use super::device::Device;

/// Begins a request whose body of `length` bytes is sent but for its last ones.
fn hold_back(server: &Running, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head =
        format!("POST /tokenize HTTP/1.1\r\nhost: {}\r\ncontent-length: {length}\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![b' '; length - 10]).unwrap();
    stream
}

#[test]
fn all_bodies_together_are_bounded() {
    let server = Running::start(ServerOptions { max_request_memory_bytes: 2 << 20, ..options() });
    let long = json!({"content": "ember ".repeat(100_000)});
    server.post("/tokenize", &long).json(200);
    // A body that comes while the first request's memory is still being freed is refused itself, and sent again.
    let (mut held, mut refused) = (None, None);
    until("the memory is taken", || {
        held = Some(hold_back(&server, 1_600_000));
        (0..20).any(|_| {
            (0..3).all(|_| {
                let answer = server.post("/tokenize", &long);
                let is_refused = answer.status == 503;
                refused = Some(answer);
                is_refused
            })
        })
    });
    let refused = refused.unwrap();
    assert_eq!(refused.error(503).2, "out_of_request_memory");
    assert!(refused.header("retry-after").is_some());
    // Short requests are served all the same.
    server.post("/tokenize", &json!({"content": "ember ".repeat(5000)})).json(200);
    assert_eq!(server.get("/health").status, 200);
    drop(held);
    until("the memory is free", || server.post("/tokenize", &long).status == 200);
    server.stop();
}

#[test]
fn a_body_that_would_grow_too_much_is_refused() {
    // Some kinds of values take fifty times as much as their text.
    for (item, count, status) in
        [(r#"{"a":1}"#, 400_000, 413), ("[1]", 900_000, 413), ("1", 100_000, 200), (r#"{"a":{}}"#, 1000, 200)]
    {
        let items = vec![item; count].join(",");
        let body = format!(r#"{{"content":"a","nothing":[{items}]}}"#);
        let answer = server().send("POST", "/tokenize", &[], body.as_bytes());
        assert_eq!(answer.status, status, "{item}: {}", answer.body);
        if status == 413 {
            assert_eq!(answer.error(413).2, "request_too_large");
        }
    }
    let nested = format!("{{\"content\":\"a\",\"nothing\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server().send("POST", "/tokenize", &[], nested.as_bytes()).error(400).2, "invalid_json");
}

#[test]
fn what_a_request_no_longer_needs_is_not_kept_while_it_runs() {
    let device = Device::new();
    let load = LoadOptions { max_sequences: Some(1), ..device.options().load };
    let server =
        Running::start(ServerOptions { load, max_request_memory_bytes: 4 << 20, ..device.options() });
    device.hold(1);
    let body = json!({"prompt": "An ember is", "n_predict": 2, "ignore_eos": true, "nothing": "x".repeat(1_500_000)});
    let mut running = server.begin("POST", "/completion", &[], body.to_string().as_bytes());
    device.until_held();
    let other = json!({"content": "x".repeat(1_500_000)});
    until("the memory is free", || server.post("/tokenize", &other).status == 200);
    device.release();
    let mut bytes = Vec::new();
    running.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).json(200)["tokens_predicted"], 2);
    server.stop();
}

#[test]
fn a_body_that_drips_has_a_deadline() {
    let patience = Duration::from_millis(400);
    let server = Running::start(ServerOptions { client_timeout: patience, ..options() });
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let head =
        format!("POST /tokenize HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000000\r\n\r\n", server.address);
    stream.write_all(head.as_bytes()).unwrap();
    // A kilobyte now and then is too slow, though the client is never silent for long.
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    for _ in 0..100 {
        let _ = stream.write_all(&[b' '; 1024]);
        if let Ok(count) = stream.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
            break;
        }
    }
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.read_to_end(&mut bytes);
    assert_eq!(Answer::parse(&bytes).error(408).2, "request_timeout");
    server.stop();
}

#[test]
fn texts_of_a_form_are_bounded_apart_from_its_file() {
    let boundary = "b0";
    let part = |name: &str, text: &str| {
        format!("--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let kind = format!("multipart/form-data; boundary={boundary}");
    for (name, text) in [("prompt".to_owned(), "x".repeat(2 << 20)), ("n".repeat(2 << 20), "x".into())] {
        let form = format!("{}--{boundary}--\r\n", part(&name, &text));
        let headers = [("content-type", kind.as_str())];
        let answer = server().send("POST", "/v1/audio/transcriptions", &headers, form.as_bytes());
        assert!([400, 413].contains(&answer.status), "{}", answer.body);
    }
}
