//! The end of a server.

use std::io::Read;
use std::time::Duration;

use brasa::LoadOptions;
use brasa_server::{ModelData, ModelSource, Server, ServerError, ServerOptions};
use serde_json::json;

use super::client::{Answer, Running, options, until};

#[test]
fn running_requests_finish_and_new_ones_are_refused() {
    let server = Running::start(options());
    let body = json!({"prompt": "An ember is", "n_predict": 120, "ignore_eos": true, "temperature": 0, "stream": true});
    let mut running = server.begin("POST", "/completion", &[], body.to_string().as_bytes());
    let mut bytes = vec![0; 16];
    running.read_exact(&mut bytes).unwrap();
    server.handle.shut_down();
    until("new requests are refused", || server.get("/v1/models").status == 503);
    assert_eq!(server.get("/health").error(503).2, "shutting_down");
    running.read_to_end(&mut bytes).unwrap();
    let answer = Answer::parse(&bytes);
    assert!(answer.body.contains("\"tokens_predicted\":120"), "{}", answer.body);
    server.stop();
}

#[test]
fn a_server_that_waits_ends_at_once() {
    let server = Running::start(options());
    // An idle connection is no request.
    let idle = std::net::TcpStream::connect(server.address).unwrap();
    let started = std::time::Instant::now();
    server.stop();
    assert!(started.elapsed() < Duration::from_secs(10));
    drop(idle);
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server() {
    let missing = ModelSource { id: "none".into(), data: ModelData::Path("/nowhere/none.gguf".into()) };
    let server = Server::bind(ServerOptions { models: vec![missing], ..options() }).unwrap();
    assert!(matches!(server.run(), Err(ServerError::Model { .. })));
    assert!(matches!(
        Server::bind(ServerOptions { models: vec![], ..options() }),
        Err(ServerError::Options(_))
    ));
}

#[test]
fn a_full_queue_is_told_at_once() {
    let load = LoadOptions { max_sequences: 1, max_waiting: 1, ..options().load };
    let server = Running::start(ServerOptions { load, ..options() });
    let body = json!({"prompt": "An ember is", "n": 8, "max_tokens": 100, "ignore_eos": true});
    let refused = server.post("/v1/completions", &body);
    assert_eq!(refused.error(503).2, "queue_full");
    assert!(refused.header("retry-after").is_some());
    // The choices that had begun are cancelled.
    until("nothing runs", || {
        server.get("/slots").json(200).as_array().unwrap().iter().all(|slot| slot["is_processing"] == false)
    });
    server.stop();
}

#[test]
fn a_request_that_leaves_the_queue_frees_its_place() {
    let load = LoadOptions { max_sequences: 1, max_waiting: 1, ..options().load };
    let server = Running::start(ServerOptions { load, ..options() });
    let body =
        json!({"prompt": "An ember is", "n_predict": 480, "ignore_eos": true, "stream": true}).to_string();
    let begin = || server.begin("POST", "/completion", &[], body.as_bytes());
    let waits = |count: usize| {
        let line = format!("llamacpp:requests_deferred {count}");
        until(&line, || server.get("/metrics").body.lines().any(|found| found == line));
    };
    let mut running = begin();
    running.read_exact(&mut [0; 16]).unwrap();
    for _ in 0..2 {
        let waiting = begin();
        waits(1);
        assert_eq!(server.send("POST", "/completion", &[], body.as_bytes()).error(503).2, "queue_full");
        drop(waiting);
        waits(0);
    }
    drop(running);
    server.stop();
}

#[test]
fn a_fault_in_a_handler_ends_its_own_request_alone() {
    let server = Running::start(options());
    let body = json!({"prompt": "An ember is", "n_predict": 4, "ignore_eos": true});
    let mut broken = body.clone();
    broken["break_the_handler"] = true.into();
    let (kind, _, code) = server.post("/completion", &broken).error(500);
    assert_eq!((kind.as_str(), code.as_str()), ("server_error", "internal_error"));
    assert_eq!(server.post("/completion", &body).json(200)["tokens_predicted"], 4);
    server.get("/health").json(200);
    server.stop();
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let server = Running::start(ServerOptions { request_timeout: Duration::from_millis(1), ..options() });
    let body = json!({"prompt": "An ember is", "max_tokens": 400, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &body).error(504).2, "timeout");
    server.stop();
}
