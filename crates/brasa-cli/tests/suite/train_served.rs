//! `brasa train --server`: what is learned goes straight into a running server.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::command::{brasa, fails, scratch, stderr, stdout};
use super::serve::Served;
use super::train::{examples, small};

#[test]
fn a_learned_adapter_goes_into_a_running_server() {
    let folder = scratch("train-served");
    let data = examples(&folder);
    let adapters = folder.join("adapters");
    std::fs::create_dir_all(&adapters).unwrap();
    let (out, adapters) = (adapters.join("plurals").display().to_string(), adapters.display().to_string());
    let served = Served::start_with(&[("BRASA_LORA_DIR", &adapters)], &[]);
    let url = &*served.url;
    let question = ["run", "-p", "Plural of cat?", "-n", "8", "--temp", "0"];
    let ask = |model: &[&str]| {
        let output = brasa(&[&question[..], &["--server", url], model].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let base = ask(&[]);
    let train = |more: &[&str]| {
        let output = brasa(&[&small(&data, &out)[..], &["--server", url], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let said = stdout(&output);
        let told = said.lines().last().unwrap();
        told.strip_prefix(&format!("{url}: serves it as ")).expect(told).to_owned()
    };
    let here = || {
        let output =
            brasa(&[&question[..], &["-c", "256", "-t", "1", "--deterministic", "--lora", &out]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let name = train(&[]);
    assert!(name.ends_with(":plurals"), "{name}");
    assert_eq!(ask(&["-m", &name]), here());
    assert_ne!(ask(&["-m", &name]), base);
    assert_eq!(ask(&[]), base, "whoever chooses none has the base");
    // Learned anew, under the same name and another one.
    for as_name in [&[][..], &["--serve-as", "other"]] {
        std::fs::remove_dir_all(&out).unwrap();
        let name = train(&[&["--seed", "5"], as_name].concat());
        assert_eq!(name.ends_with(":other"), !as_name.is_empty(), "{name}");
        assert_eq!(ask(&["-m", &name]), here());
    }
}

/// Each new best adapter is served while the run goes on; a server that refuses them is a warning, and fails at the end alone.
#[test]
fn the_best_adapter_so_far_is_served() {
    let folder = scratch("train-serve-best");
    let data = examples(&folder);
    let adapters = folder.join("adapters");
    std::fs::create_dir_all(&adapters).unwrap();
    let (out, adapters) = (adapters.join("best-of").display().to_string(), adapters.display().to_string());
    let run = small(&data, &out);
    let refusing = Served::start_with(&[], &[]);
    let output = brasa(&[&run[..], &["--server", &refusing.url, "--serve-best"]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let warnings = said.matches("warning: --serve-best: ").count();
    // Four evaluations; the first is before anything is learned.
    let best = said.matches(", the best so far").count();
    assert!(best >= 2 && warnings <= 1 && said.contains("403"), "{said}");
    assert!(std::path::Path::new(&out).join("adapter_config.json").exists(), "the run goes to its end");
    std::fs::remove_dir_all(&out).unwrap();

    let served = Served::start_with(&[("BRASA_LORA_DIR", &adapters)], &[]);
    let output = brasa(&[&run[..], &["--server", &served.url, "--serve-best"]].concat());
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    // Never more than there were; that each one which is loaded is told is shown beside a stand-in.
    assert!(said.matches(": serves it as ").count() < best, "{said}");
    assert!(!said.contains("warning"), "{said}");
    let written = |folder: &str| {
        std::fs::read(std::path::Path::new(&out).join(folder).join("adapter_model.safetensors")).unwrap()
    };
    assert_eq!(written("best"), written(""), "the last best one is the one of the end");

    // No evaluation tells which is the best.
    std::fs::remove_file(folder.join("valid.jsonl")).unwrap();
    let out = folder.join("none").display().to_string();
    let said = fails(&[&small(&data, &out)[..], &["--server", &served.url, "--serve-best"]].concat(), 2);
    assert!(said.contains("--serve-best: there is no valid.jsonl"), "{said}");
}

/// How a stand-in for a server answers when it is asked to load an adapter.
#[derive(Clone, Copy, PartialEq)]
enum Server {
    /// Answers the first request when the run has made its last update, and loads every adapter.
    Loads,
    /// Answers the first request when the run has made its last update, and refuses every adapter.
    Refuses,
    /// Never answers.
    Hangs,
}

/// An adapter of twelve updates, each with an evaluation, is learned beside a stand-in for a server. Returns what the command said and its status,
/// the paths that the server was asked to load, and whether the last update was made before the first answer.
fn learned_beside(server: Server, out: &Path, more: &[&str]) -> (String, Option<i32>, Vec<String>, bool) {
    let data = examples(out.parent().unwrap());
    let metrics = out.join("metrics.jsonl");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let (mut loaded, mut is_last_seen, mut open) = (Vec::new(), false, Vec::new());
        loop {
            let (mut stream, _) = listener.accept().unwrap();
            let request = read_request(&mut stream);
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            if head.starts_with("GET /done") {
                return (loaded, is_last_seen);
            }
            let (status, answer) = if head.starts_with("GET") {
                ("200 OK", "[]")
            } else {
                let body: serde_json::Value = serde_json::from_str(body).unwrap();
                loaded.push(body["lora_path"].as_str().unwrap().to_owned());
                if server == Server::Hangs {
                    open.push(stream);
                    continue;
                }
                // Long before this is over, updates that waited would have failed.
                for _ in 0..3000 {
                    let text = std::fs::read_to_string(&metrics).unwrap_or_default();
                    is_last_seen |= text.lines().any(|line| line.contains("\"update\":12,"));
                    if is_last_seen {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                match server {
                    Server::Loads => ("200 OK", "{\"model\": \"base:own\"}"),
                    _ => ("500 Internal Server Error", "{\"error\": {\"message\": \"not today\"}}"),
                }
            };
            let length = answer.len();
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}");
            stream.write_all(format!("{head}\r\nconnection: close\r\n\r\n{answer}").as_bytes()).unwrap();
        }
    });
    let mut run = small(&data, out.to_str().unwrap());
    let every = run.iter().position(|word| *word == "--evaluate-every").unwrap();
    run[every + 1] = "1";
    let output = brasa(&[&run[..], &["--server", &url, "--serve-best"], more].concat());
    let address = url.strip_prefix("http://").unwrap();
    TcpStream::connect(address).unwrap().write_all(b"GET /done HTTP/1.1\r\n\r\n").unwrap();
    let (loaded, is_last_seen) = thread.join().unwrap();
    (stderr(&output), output.status.code(), loaded, is_last_seen)
}

/// The run does not wait for a slow server, what waits gives way to what is newer, and the finished adapter comes last. Each one that is loaded is told; a refusal is told once.
#[test]
fn a_slow_server_holds_no_update() {
    let folder = scratch("train-serve-slow");
    for (server, name) in [(Server::Refuses, "refused"), (Server::Loads, "loaded")] {
        let (said, status, loaded, is_last_seen) = learned_beside(server, &folder.join(name), &[]);
        assert!(is_last_seen, "the first adapter was answered before the last update: {said}");
        let best = said.matches(", the best so far").count();
        // The first one, the newest one behind it, perhaps that of the last update, and the finished one.
        assert!(best >= 6 && (2..=4).contains(&loaded.len()), "{loaded:?}, {said}");
        let (last, others) = loaded.split_last().unwrap();
        assert!(last.ends_with(name), "{loaded:?}");
        assert!(others.iter().all(|path| path.ends_with(&format!("{name}/best"))), "{loaded:?}");
        let told = ["warning: --serve-best: ", "not today", ": serves it as base:own"];
        let told = told.map(|part| said.matches(part).count());
        // The finished one is told with the error of the end, or on standard output.
        match server {
            Server::Loads => assert_eq!((status, told), (Some(0), [0, 0, others.len()]), "{said}"),
            _ => assert_eq!((status, told), (Some(1), [1, 2, 0]), "{said}"),
        }
    }
}

/// A server that hangs holds the end of a run no longer than was allowed; both adapters stay.
#[test]
fn a_server_that_hangs_does_not_hold_the_end() {
    let out = scratch("train-serve-hangs").join("hangs");
    let start = Instant::now();
    let (said, status, loaded, _) = learned_beside(Server::Hangs, &out, &["--serve-within", "1"]);
    // Ten minutes an adapter was the time of all other answers of servers.
    assert!(start.elapsed() < Duration::from_mins(5), "{said}");
    assert_eq!(status, Some(1), "{said}");
    assert!(loaded.len() >= 2 && loaded[loaded.len() - 1].ends_with("/hangs"), "{loaded:?}");
    let late = "has not loaded the adapter in 1 s, the limit of --serve-within";
    assert_eq!([late, "warning: --serve-best: "].map(|part| said.matches(part).count()), [2, 1], "{said}");
    for folder in ["", "best"] {
        let folder = out.join(folder);
        assert!(said.contains(&format!("the adapter is written in {}", folder.display())), "{said}");
        assert!(folder.join("adapter_model.safetensors").exists());
    }
}

/// A request with its body.
fn read_request(stream: &mut TcpStream) -> String {
    let (mut request, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece).unwrap();
        request.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            if count == 0 || body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return String::from_utf8(request).unwrap();
            }
        }
        assert!(count > 0, "an unfinished request");
    }
}

#[test]
fn servers_that_take_no_adapter_are_named_and_the_adapter_stays() {
    let folder = scratch("train-refused");
    let data = examples(&folder);
    let out = folder.join("out").display().to_string();
    // A port that was free a moment ago: nothing is learned in vain.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = small(&data, &out);
    let said = fails(&[&run[..], &["--server", &format!("http://{closed}")]].concat(), 1);
    assert!(said.contains(&closed.to_string()) && !std::path::Path::new(&out).exists(), "{said}");
    let said = fails(&[&run[..], &["--server", "nowhere"]].concat(), 2);
    assert!(said.contains("expected http://HOST:PORT"), "{said}");
    for (more, part) in
        [(["--method", "full"], "--server"), (["--method", "dora"], "--server: requests cannot choose")]
    {
        let all = ["train", "--data", &data, "--out", &out, "--server", "http://127.0.0.1:1"];
        let said = fails(&[&all[..], &more].concat(), 2);
        assert!(said.contains(part), "{said}");
    }
    // A server that may load none, after the learning.
    let served = Served::start_with(&[], &[]);
    let output = brasa(&[&run[..], &["--server", &served.url]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("403") && said.contains("--lora-dir"), "{said}");
    assert!(said.contains("the adapter is written in") && said.contains(&out), "{said}");
    assert!(std::path::Path::new(&out).join("adapter_config.json").exists());
}
