//! The threads on which requests are worked on.

use std::time::Duration;

use brasa_server::ServerOptions;
use serde_json::json;

use super::client::{Running, options};

/// The niceness of this process's threads of a name.
#[cfg(target_os = "linux")]
fn niceness(name: &str) -> Vec<i32> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    // A thread that has ended in the meantime has no files.
    let read = |path: std::path::PathBuf| {
        let is_it = std::fs::read_to_string(path.join("comm")).ok()?.trim() == name;
        let stat = std::fs::read_to_string(path.join("stat")).ok().filter(|_| is_it)?;
        // The nineteenth field; the second is the name in brackets.
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(16)?.parse().ok()
    };
    threads.filter_map(read).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn long_work_is_nicer_than_answering() {
    let server = Running::start(options());
    let text = "a word of many, ".repeat(10_000);
    server.post("/tokenize", &json!({"content": text})).json(200);
    let grammar = json!({"prompt": "a", "n_predict": 1, "grammar": "root ::= \"a\" | \"long\""});
    server.post("/completion", &grammar).json(200);
    let answering = niceness("brasa-http").into_iter().max().unwrap();
    for name in ["brasa-behind", "brasa-grammar"] {
        let nice = niceness(name);
        assert!(!nice.is_empty(), "no thread is named {name}");
        assert!(nice.iter().all(|&nice| nice > answering), "{name}: {nice:?}, answering: {answering}");
    }
    server.stop();
}

/// A grammar whose client has gone keeps no place from the next one, which would wait for longer than its time.
#[test]
fn a_grammar_whose_client_has_gone_is_given_up() {
    let server = Running::start(ServerOptions { request_timeout: Duration::from_secs(8), ..options() });
    let grammar = |text: &str| json!({"prompt": "a", "n_predict": 1, "grammar": text}).to_string();
    // The first grammar of a model takes longer.
    server.send("POST", "/completion", &[], grammar("root ::= \"a\"").as_bytes()).json(200);
    let slow = |at: usize| {
        let rules =
            (0..3000).map(|rule| format!("r{rule} ::= [a-z]* \"{at} {rule}\" [a-z]* | r{}\n", rule + 1));
        grammar(&format!("root ::= r0\n{}r3000 ::= \"q\"", rules.collect::<String>()))
    };
    let places = std::thread::available_parallelism().map_or(2, usize::from).max(4);
    let slow = (0..places).map(|at| server.begin("POST", "/completion", &[], slow(at).as_bytes()));
    let slow: Vec<_> = slow.collect();
    // They have begun by then; else the test shows less.
    std::thread::sleep(Duration::from_millis(500));
    drop(slow);
    server.send("POST", "/completion", &[], grammar("root ::= \"b\"").as_bytes()).json(200);
    server.stop();
}
