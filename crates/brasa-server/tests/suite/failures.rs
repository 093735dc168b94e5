//! An engine that fails in the middle of answers: every request hears of it, and the server goes on.

use std::io::Read;
use std::net::TcpStream;

use brasa::LoadOptions;
use brasa_graph::device::LostPart;
use brasa_server::{ModelData, ModelSource, ServerError, ServerOptions};
use serde_json::{Value, json};

use super::client::{Answer, MODEL, Running, models, until};
use super::device::{Device, Fault};

/// Waits for the rest of an answer.
fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Answer::parse(&bytes)
}

/// The last event of a stream, which must not say that the answer is whole.
fn last(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(!answer.body.contains("[DONE]"), "{}", answer.body);
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn every_request_hears_of_an_engine_that_fails() {
    // A step that fails once, for a reason that names no request, is run again for each: nobody hears of it.
    for (fault, status, code) in
        [(Fault::Once, 200, ""), (Fault::ForGood, 503, "device_lost"), (Fault::Panic, 503, "engine_closed")]
    {
        let device = Device::new();
        let load = LoadOptions { max_sequences: Some(6), ..device.options().load };
        let server = Running::start(ServerOptions { load, ..device.options() });
        let whole = json!({"prompt": "An ember is", "n_predict": 40, "ignore_eos": true, "temperature": 0});
        let expected = server.post("/completion", &whole).json(200)["content"].clone();
        let rest = json!({"max_tokens": 400, "ignore_eos": true, "stream": true});
        let with = |mut body: Value| {
            body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            body.to_string()
        };
        let messages = json!([{"role": "user", "content": "ember"}]);
        let streams = [
            ("/v1/chat/completions", with(json!({"messages": messages}))),
            ("/v1/completions", with(json!({"prompt": "An ember is"}))),
            ("/completion", with(json!({"prompt": "An ember is"}))),
            ("/v1/messages", with(json!({"messages": messages}))),
            ("/v1/responses", with(json!({"input": "ember", "max_output_tokens": 400}))),
        ];
        // All places are taken by answers that have begun when the step fails.
        device.hold(6);
        let mut begun: Vec<TcpStream> = Vec::new();
        for (path, body) in &streams {
            let mut stream = server.begin("POST", path, &[], body.as_bytes());
            stream.read_exact(&mut [0; 8]).unwrap();
            begun.push(stream);
        }
        // One that runs and is wanted whole, and two that wait.
        let unstreamed: Vec<TcpStream> = (0..3)
            .map(|_| {
                let body = json!({"prompt": "An ember is", "n_predict": 400, "ignore_eos": true}).to_string();
                server.begin("POST", "/completion", &[], body.as_bytes())
            })
            .collect();
        device.until_held();
        device.fail(fault);
        device.release();
        // The heads have been read in part, so answers are parsed without them.
        let bodies: Vec<String> = begun
            .into_iter()
            .map(|mut stream| {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                Answer::parse(&[b"HTTP/1.1", &bytes[..]].concat())
            })
            .zip(&streams)
            .map(|(answer, (path, _))| {
                if fault == Fault::Once {
                    assert!(
                        answer.status == 200 && !answer.body.contains("device_error"),
                        "{path}: {}",
                        answer.body
                    );
                    return answer.body;
                }
                let event = last(&answer);
                let error =
                    if *path == "/v1/responses" { &event["response"]["error"] } else { &event["error"] };
                assert_eq!(error["code"], code, "{path} {fault:?}: {event}");
                answer.body
            })
            .collect();
        let ends = [bodies[3].contains("event: error\n"), bodies[4].contains("event: response.failed\n")];
        assert_eq!(ends, [fault != Fault::Once; 2], "{fault:?}");
        // Those who had waited fail too where the engine is gone, or come to the next one.
        let mut answered = 0;
        for stream in unstreamed {
            let answer = read(stream);
            if answer.status == 200 {
                assert_eq!(answer.json(200)["tokens_predicted"], 400);
                answered += 1;
            } else {
                assert_eq!(answer.error(status).2, code, "{fault:?}");
                assert_eq!(answer.header("retry-after").is_some(), status == 503);
            }
        }
        assert!(
            if fault == Fault::Once { answered == 3 } else { answered <= 2 },
            "{fault:?}: {answered} answers"
        );
        // The server goes on by itself, with a new engine if the old one is gone.
        until("the server is well", || server.get("/health").status == 200);
        let again = server.post("/completion", &whole).json(200);
        assert_eq!(again["content"], expected, "{fault:?}");
        let programs = if fault == Fault::Once { 1 } else { 2 };
        assert_eq!(device.programs(), programs, "{fault:?}");
        let errors = server.log.lock().unwrap().iter().filter(|line| line.contains("\"error\"")).count();
        assert!(fault == Fault::Once || errors >= 6, "{fault:?}: {errors} errors are in the log");
        server.stop();
    }
}

#[test]
fn a_model_that_is_lost_for_good_is_told_as_the_servers_health() {
    let source = models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let path = std::env::temp_dir().join(format!("brasa-lost-{}.gguf", std::process::id()));
    std::fs::copy(&source, &path).unwrap();
    let device = Device::new();
    let model = ModelSource { id: MODEL.into(), data: ModelData::Path(path.clone()) };
    let server = Running::start(ServerOptions { models: vec![model], ..device.options() });
    let body = json!({"prompt": "An ember is", "max_tokens": 4, "ignore_eos": true});
    server.post("/v1/completions", &body).json(200);
    assert_eq!(server.get("/health").status, 200);
    std::fs::remove_file(&path).unwrap();
    device.fail(Fault::ForGood);
    assert_eq!(server.post("/v1/completions", &body).error(503).2, "device_lost");
    until("the loss is told", || server.get("/health").status == 503);
    // While the model loads again, the server is in health.
    until("loading has failed", || {
        let health = server.get("/health");
        health.status == 503 && health.error(503).2 == "model_not_loaded"
    });
    assert_eq!(server.post("/v1/completions", &body).error(500).2, "model_not_loaded");
    // A model that comes back is served again.
    std::fs::copy(&source, &path).unwrap();
    server.post("/v1/completions", &body).json(200);
    assert_eq!(server.get("/health").status, 200);
    server.stop();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_text_that_is_scored_while_the_device_fails_has_an_error_and_a_successor() {
    let device = Device::new();
    let server = Running::start(device.options());
    let body = json!({"prompt": "An ember is", "max_tokens": 0, "echo": true, "logprobs": 1});
    let expected = server.post("/v1/completions", &body).json(200)["choices"].clone();
    device.fail(Fault::ForGood);
    assert_eq!(server.post("/v1/completions", &body).error(503).2, "device_lost");
    assert_eq!(server.post("/v1/completions", &body).json(200)["choices"], expected);
    server.stop();
}

#[test]
fn a_server_whose_last_device_is_lost_for_the_process_ends_and_says_so() {
    // A device may come back, unless it is gone for the process.
    for (what, attempts) in [(LostPart::Context, 4), (LostPart::Device, 1)] {
        let device = Device::new();
        let mut server = Running::start(device.options());
        let body = json!({"prompt": "An ember is", "max_tokens": 4, "ignore_eos": true});
        server.post("/v1/completions", &body).json(200);
        device.refuse_loading(what);
        device.fail(Fault::ForGood);
        assert_eq!(server.post("/v1/completions", &body).error(503).2, "device_lost");
        // A supervisor starts another process, for which the driver may have the device again.
        match server.thread.take().unwrap().join().unwrap() {
            Err(ServerError::DeviceLost(reason)) => {
                assert!(reason.contains("it was told to fail"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(device.refusals(), attempts, "{what:?}");
    }
}

#[test]
fn models_of_other_devices_go_on() {
    let device = Device::new();
    let source = |id: &str| {
        let path = models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
        ModelSource { id: id.into(), data: ModelData::Path(path) }
    };
    let server =
        Running::start(ServerOptions { models: vec![source("lost"), source("well")], ..device.options() });
    let ask = |model: &str| {
        server.post(
            "/v1/completions",
            &json!({"model": model, "prompt": "x", "max_tokens": 2, "ignore_eos": true}),
        )
    };
    ask("well").json(200);
    device.refuse_loading(LostPart::Context);
    device.fail(Fault::ForGood);
    assert_eq!(ask("lost").error(503).2, "device_lost");
    // The one that is lost is told with its reason for as long as it stays away; the other one answers.
    for _ in 0..3 {
        until("the loss is told", || {
            let health = server.get("/health");
            health.status == 503 && health.body.contains("it was told to fail")
        });
        ask("well").json(200);
        assert_eq!(ask("lost").status, 503);
    }
    server.stop();
}
