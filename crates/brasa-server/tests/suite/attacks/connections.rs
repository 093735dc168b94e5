//! Clients that are silent, slow, many, or gone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use brasa::LoadOptions;
use brasa_server::ServerOptions;
use serde_json::{Value, json};

use super::{KEY, PATIENCE, closed, strict, with_key};
use crate::client::{Answer, Running, options, until};
use crate::device::Device;

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

/// Lets this process have as many files open as the system allows; returns how many.
#[cfg(unix)]
fn allow_many_files() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    usize::try_from(hard).unwrap_or(usize::MAX)
}

/// Elsewhere nothing is known of a limit.
#[cfg(not(unix))]
fn allow_many_files() -> usize {
    usize::MAX
}

#[test]
fn thousands_of_idle_connections_hold_nobody_up() {
    // Both ends of each connection are files of this process, beside those of the other tests.
    let count = 2000.min((allow_many_files() - 600) / 2);
    if count < 2000 {
        println!("skipped: 2,000 idle connections: the system allows {count}");
    }
    let server = Running::start(ServerOptions { client_timeout: Duration::from_secs(3), ..options() });
    let connect = || TcpStream::connect(server.address).unwrap();
    let mut idle: Vec<TcpStream> = (0..count).map(|_| connect()).collect();
    // Some have begun a head, and some wait behind a whole request.
    for stream in idle.iter_mut().step_by(3) {
        stream.write_all(b"POST /v1/completions HTTP/1.1\r\n").unwrap();
    }
    for stream in idle.iter_mut().skip(1).step_by(3) {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }
    let body = json!({"prompt": "An ember is", "max_tokens": 4, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &body).json(200)["usage"]["completion_tokens"], 4);
    assert_eq!(server.get("/health").status, 200);
    for stream in idle {
        let (time, _) = closed(stream);
        assert!(time < Duration::from_secs(9), "{time:?}");
    }
    assert_eq!(server.get("/health").status, 200);
    server.stop();
}

#[test]
fn connections_beyond_the_most_wait_for_silent_ones_to_be_closed() {
    let server = Running::start(ServerOptions { max_connections: 3, client_timeout: PATIENCE, ..options() });
    let silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let began = Instant::now();
    assert_eq!(server.get("/health").status, 200);
    assert!(began.elapsed() < PATIENCE * 10, "{:?}", began.elapsed());
    drop(silent);
    server.stop();
}

#[test]
fn a_client_that_asks_and_never_reads_is_cut_off() {
    let path = "/assets/markdown-it.js";
    let size = strict().get(path).body.len();
    let mut stream = TcpStream::connect(strict().address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    let requests = (256 << 20) / size;
    for _ in 0..requests {
        // What is closed cannot be written to.
        if stream.write_all(request.as_bytes()).is_err() {
            break;
        }
    }
    std::thread::sleep(PATIENCE * 4);
    // What lay in the system's buffers is all that comes.
    let (_, bytes) = closed(stream);
    assert!(bytes.len() < requests * size / 2, "{} bytes of {requests} answers", bytes.len());
    assert_eq!(strict().get("/health").status, 200);
}

#[test]
fn a_client_that_goes_away_while_its_prompt_is_computed_ends_it_alone() {
    let device = Device::new();
    let load = LoadOptions { chunk: Some(16), ..device.options().load };
    let server = Running::start(ServerOptions { load, ..device.options() });
    for streams in [true, false] {
        let other = json!({"prompt": "An ember is", "n_predict": 300, "ignore_eos": true, "stream": true});
        let mut other = server.begin("POST", "/completion", &[], other.to_string().as_bytes());
        other.read_exact(&mut [0; 8]).unwrap();
        // The step in which the prompt begins beside the other's answer stands still.
        device.hold(2);
        let prompt = "ember ".repeat(240);
        let body = json!({"prompt": prompt, "n_predict": 100, "cache_prompt": false, "stream": streams});
        let id = if streams { "gone-streaming" } else { "gone-whole" };
        let headers = [("x-request-id", id)];
        let gone = server.begin("POST", "/completion", &headers, body.to_string().as_bytes());
        device.until_held();
        drop(gone);
        let line = server.logged(|line| line["id"] == id);
        assert_eq!(line["client_gone"], true, "{line}");
        assert_eq!(line["completion_tokens"].as_u64().unwrap_or(0), 0, "{line}");
        let before = device.rows();
        device.release();
        let mut bytes = Vec::new();
        other.read_to_end(&mut bytes).unwrap();
        let answer = Answer::parse(&[b"HTTP/1.1", &bytes[..]].concat());
        assert!(answer.body.contains("\"tokens_predicted\":300"), "{}", answer.body);
        // The other's rows, and a few chunks of 16 rows among the 240 of the prompt.
        let rows = device.rows() - before;
        assert!(rows < 300 + 100, "{rows} rows");
    }
    server.stop();
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
fn a_client_that_wants_no_body_has_not_gone_away() {
    for method in ["HEAD", "GET"] {
        let answer = strict().send(method, "/", &[("x-request-id", method)], b"");
        assert_eq!((answer.status, answer.body.is_empty()), (200, method == "HEAD"));
        let line = strict().logged(|line| line["id"] == method);
        assert_eq!(line["client_gone"], Value::Null, "{line}");
    }
}
