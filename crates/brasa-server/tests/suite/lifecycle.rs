//! The end of a server.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use brasa::LoadOptions;
use brasa_server::{ModelData, ModelSource, Server, ServerError, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, Running, options, until};
use super::device::Device;

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
    let load = LoadOptions { max_sequences: Some(1), max_waiting: 1, ..options().load };
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
    let device = Device::new();
    let load = LoadOptions { max_sequences: Some(1), max_waiting: 1, ..device.options().load };
    let server = Running::start(ServerOptions { load, ..device.options() });
    // The first request runs for as long as all this takes.
    device.pace(Duration::from_millis(20));
    let body =
        json!({"prompt": "An ember is", "n_predict": 480, "ignore_eos": true, "stream": true}).to_string();
    let begin = || server.begin("POST", "/completion", &[], body.as_bytes());
    let told = |line: String| {
        until(&line, || server.get("/metrics").body.lines().any(|found| found == line));
    };
    let waits = |count: usize| told(format!("llamacpp:requests_deferred {count}"));
    let running = begin();
    // Until it runs, it waits itself.
    told("llamacpp:requests_processing 1".into());
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
fn a_fault_of_the_log_costs_its_line_alone() {
    let server = Running::start(options());
    let body = json!({"prompt": "An ember is", "n_predict": 4, "ignore_eos": true});
    let mut broken = body.clone();
    broken["break_the_log"] = true.into();
    assert_eq!(server.post("/completion", &broken).json(200)["tokens_predicted"], 4);
    assert_eq!(server.post("/completion", &body).json(200)["tokens_predicted"], 4);
    server.logged(|line| line["path"] == "/completion" && line["status"] == 200);
    server.stop();
}

#[test]
fn a_request_that_takes_too_long_is_ended() {
    let server = Running::start(ServerOptions { request_timeout: Duration::from_millis(1), ..options() });
    let body = json!({"prompt": "An ember is", "max_tokens": 400, "ignore_eos": true});
    assert_eq!(server.post("/v1/completions", &body).error(504).2, "timeout");
    server.stop();
}

#[test]
fn a_stream_that_takes_too_long_ends_with_an_error() {
    let device = Device::new();
    let timeout = Duration::from_secs(2);
    let server = Running::start(ServerOptions { request_timeout: timeout, ..device.options() });
    device.pace(Duration::from_millis(10));
    let body = json!({"prompt": "An ember is", "n_predict": 480, "ignore_eos": true, "stream": true});
    let answer = server.post("/completion", &body);
    let parts: Vec<&str> = answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let last: Value = serde_json::from_str(parts.last().unwrap()).unwrap();
    assert_eq!((answer.status, &last["error"]["code"]), (200, &json!("timeout")), "{last}");
    assert!(parts.len() > 1, "a part of the answer came in time");
    server.stop();
}

#[test]
fn a_server_that_loads_its_model_says_so() {
    let device = Device::new();
    device.hold_loading();
    let options = ServerOptions { api_keys: vec!["k".into()], ..device.options() };
    let server = Server::bind(options).unwrap();
    let (address, handle) = (server.address(), server.handle());
    let thread = Some(std::thread::spawn(move || server.run()));
    let server = Running { address, handle, log: Arc::default(), thread };
    device.until_held();
    // Its health needs no key.
    assert_eq!(server.get("/health").error(503).2, "loading_model");
    assert_eq!(server.get("/v1/health").error(503).0, "unavailable_error");
    let key = [("x-api-key", "k")];
    let list = server.send("GET", "/v1/models", &key, b"").json(200);
    assert_eq!(list["data"][0]["status"]["value"], "loading");
    // A request waits for the model.
    let body = json!({"prompt": "An ember is", "max_tokens": 2, "ignore_eos": true}).to_string();
    let waiting = server.begin("POST", "/v1/completions", &key, body.as_bytes());
    device.release();
    let mut bytes = Vec::new();
    { waiting }.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).json(200)["usage"]["completion_tokens"], 2);
    until("the server is ready", || server.get("/health").status == 200);
    server.stop();
}

#[test]
fn health_tells_of_an_engine_that_stands_still() {
    let device = Device::new();
    let engine_silence = Duration::from_millis(240);
    let server = Running::start(ServerOptions { engine_silence, ..device.options() });
    // An idle engine is silent too.
    std::thread::sleep(engine_silence * 2);
    assert_eq!(server.get("/health").status, 200);
    device.hold(1);
    let body = json!({"prompt": "An ember is", "n_predict": 2, "ignore_eos": true}).to_string();
    let mut running = server.begin("POST", "/completion", &[], body.as_bytes());
    device.until_held();
    until("the engine has stalled", || server.get("/health").status == 503);
    assert_eq!(server.get("/health").error(503).2, "engine_stalled");
    assert_eq!(server.get("/v1/health").error(503).0, "unavailable_error");
    device.release();
    let mut bytes = Vec::new();
    running.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).json(200)["tokens_predicted"], 2);
    until("the engine goes on", || server.get("/health").status == 200);
    server.stop();
}

#[test]
fn a_server_without_a_free_slot_says_so() {
    let device = Device::new();
    let load = LoadOptions { max_sequences: Some(1), ..device.options().load };
    let server = Running::start(ServerOptions { load, ..device.options() });
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    device.hold(1);
    let body = json!({"prompt": "An ember is", "n_predict": 2, "ignore_eos": true}).to_string();
    let mut running = server.begin("POST", "/completion", &[], body.as_bytes());
    device.until_held();
    assert_eq!(server.get("/slots?fail_on_no_slot=1").error(503).2, "no_slot_available");
    assert_eq!(server.get("/slots").json(200)[0]["is_processing"], true);
    device.release();
    let mut bytes = Vec::new();
    running.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).json(200)["tokens_predicted"], 2);
    until("the slot is free", || server.get("/slots?fail_on_no_slot=1").status == 200);
    server.stop();
}

#[test]
fn a_server_that_is_asked_to_end_does_not_wait_for_long_answers() {
    let device = Device::new();
    let shutdown_timeout = Duration::from_millis(50);
    let server = Running::start(ServerOptions { shutdown_timeout, ..device.options() });
    device.hold(2);
    let body = json!({"prompt": "An ember is", "n_predict": 400, "ignore_eos": true});
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let mut stream = server.begin("POST", "/completion", &[], streamed.to_string().as_bytes());
    stream.read_exact(&mut [0; 8]).unwrap();
    let whole = server.begin("POST", "/completion", &[], body.to_string().as_bytes());
    device.until_held();
    // The device stands still, so that neither can finish.
    server.stop();
    device.release();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let streamed = Answer::parse(&[b"HTTP/1.1", &bytes[..]].concat());
    assert!(streamed.body.contains("shutting_down"), "{}", streamed.body);
    let mut bytes = Vec::new();
    let mut whole = whole;
    whole.read_to_end(&mut bytes).unwrap();
    assert_eq!(Answer::parse(&bytes).error(503).2, "shutting_down");
}

#[test]
fn a_stream_whose_reader_is_slow_ends_in_time() {
    let device = Device::new();
    let timeout = Duration::from_millis(1500);
    let load = LoadOptions { context: Some(4096), max_sequences: Some(4), ..device.options().load };
    let server = Running::start(ServerOptions { request_timeout: timeout, load, ..device.options() });
    // Texts that are far ahead of a reader who takes nothing wait for him.
    let body = json!({"prompt": ["a", "b", "c", "d"], "n_predict": 4000, "ignore_eos": true, "stream": true, "n_probs": 20});
    let stream = server.begin("POST", "/completion", &[], body.to_string().as_bytes());
    let busy = || {
        let slots = server.get("/slots").json(200);
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    };
    until("it runs", || busy() > 0);
    until("it has ended", || busy() == 0);
    drop(stream);
    server.stop();
}
