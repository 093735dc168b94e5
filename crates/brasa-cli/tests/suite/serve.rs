//! `brasa serve`: its options from flags, variables and a file; and the commands that ask a running server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::command::{scratch, stderr, stdout};

/// The command with variables.
fn brasa(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    command.env_remove("BRASA_API_KEY").envs(variables.iter().copied());
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// Standard error of a command that must fail with `code`.
fn fails(variables: &[(&str, &str)], arguments: &[&str], code: i32) -> String {
    let output = brasa(variables, arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?}");
    stderr(&output)
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.display().to_string()
}

#[test]
fn flags_win_over_variables_over_the_file_over_defaults() {
    // An address that others reach is refused by name before anything is loaded, so the message tells which one counts.
    let file =
        write(&scratch("precedence").join("brasa.toml"), "host = \"192.0.2.1\"\nport = 7\nquiet = true\n");
    let told = |variables: &[(&str, &str)], arguments: &[&str]| {
        let said = fails(variables, &[&["serve", "-m", "none.gguf"], arguments].concat(), 2);
        said.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(told(&[], &["--config", &file]), "192.0.2.1");
    assert_eq!(told(&[("BRASA_CONFIG", &file)], &[]), "192.0.2.1");
    let variable = [("BRASA_HOST", "192.0.2.2")];
    assert_eq!(told(&variable, &[]), "192.0.2.2");
    assert_eq!(told(&variable, &["--config", &file]), "192.0.2.2");
    assert_eq!(told(&variable, &["--config", &file, "--host", "192.0.2.3"]), "192.0.2.3");
    // A key makes the address fine; then the model is missing. Lists have commas in variables.
    for (variables, text) in [(vec![("BRASA_API_KEY", "a,b")], ""), (vec![], "api-key = [\"a\", \"b\"]\n")] {
        let file =
            write(&scratch("keys").join("brasa.toml"), &format!("{text}host = \"127.0.0.2\"\nport = 0\n"));
        let output = brasa(&variables, &["serve", "-m", "none.gguf", "--config", &file]);
        assert!(stdout(&output).starts_with("listening on http://127.0.0.2:"), "{}", stderr(&output));
        assert!(
            output.status.code() == Some(1) && stderr(&output).contains("none.gguf"),
            "{}",
            stderr(&output)
        );
    }
    // Without any of them, the default: the address of this machine alone.
    let output = brasa(&[], &["serve", "-m", "none.gguf", "--port", "0"]);
    assert!(stdout(&output).starts_with("listening on http://127.0.0.1:"), "{}", stderr(&output));
}

#[test]
fn wrong_options_are_named() {
    let folder = scratch("wrong_options");
    let with_file = |text: &str| {
        let file = write(&folder.join("brasa.toml"), text);
        fails(&[], &["serve", "--config", &file], 2)
    };
    for (text, named) in [
        ("prot = 80\n", &["brasa.toml: there is no option `prot`", " port, "][..]),
        ("config = \"x\"\n", &["there is no option `config`"]),
        ("[host]\nname = \"x\"\n", &["`host` has to be a text"]),
        ("port = \n", &["brasa.toml: TOML parse error at line 1"]),
        ("port = 70000\n", &["--port", "70000"]),
        ("port = \"many\"\n", &["--port", "many"]),
        ("parallel = 0\n", &["--parallel", "at least 1"]),
        ("max-body = 5000\n", &["--max-body", "at most 1024"]),
        ("no-slots = \"perhaps\"\n", &["`no-slots`", "expected true or false, found `perhaps`"]),
    ] {
        let said = with_file(text);
        assert!(named.iter().all(|part| said.contains(part)), "{text}: {said}");
    }
    let said = fails(&[("BRASA_PORT", "x")], &["serve"], 2);
    assert!(said.contains("--port") && said.contains('x'), "{said}");
    let said = fails(&[("BRASA_NO_UI", "2")], &["serve"], 2);
    assert!(said.contains("BRASA_NO_UI") && said.contains("found `2`"), "{said}");
    let said = fails(&[], &["serve", "--config", "nowhere.toml"], 1);
    assert!(said.contains("nowhere.toml"), "{said}");
    // Other commands know none of this.
    assert!(brasa(&[("BRASA_PORT", "x")], &["--version"]).status.success());
}

/// A server of the built-in model, ended with the test.
pub struct Served {
    child: Child,
    pub url: String,
}

impl Served {
    fn start(key: &str) -> Self {
        Self::start_with(&[("BRASA_API_KEY", key)], &[])
    }

    pub fn start_with(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
        command
            .env_remove("BRASA_API_KEY")
            .args(["serve", "--quiet", "-c", "256", "-t", "1", "--deterministic"])
            .args(arguments)
            .env("BRASA_PORT", "0")
            .envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        let served = Self { child, url };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !served.is_ready() {
            assert!(Instant::now() < deadline, "the server is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn is_ready(&self) -> bool {
        // A server that speaks TLS lets requests wait for the model.
        self.url.starts_with("https:") || self.get("/health", "").contains("200 OK")
    }

    /// The answer to a request with further lines of its head.
    pub fn get(&self, path: &str, lines: &str) -> String {
        ask(self.address(), &format!("GET {path}"), lines, "").unwrap()
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }
}

/// The answer to a request with further lines of its head.
fn ask(address: &str, request: &str, lines: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    let head = format!("{request} HTTP/1.1\r\nhost: {address}\r\n{lines}connection: close\r\n");
    write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_keys_of_a_file_are_needed_and_open_the_server() {
    let folder = scratch("key_file");
    let file = write(&folder.join("keys"), "first key\n\n  second-key \r\n");
    let served = Served::start_with(&[], &["--api-key-file", &file, "--api-key", "third"]);
    let status = |lines: &str| served.get("/v1/models", lines).split(' ').nth(1).unwrap().to_owned();
    assert_eq!(status(""), "401");
    for key in ["first key", "second-key", "third"] {
        assert_eq!(status(&format!("x-api-key: {key}\r\n")), "200", "{key}");
        assert_eq!(status(&format!("authorization: Bearer {key}\r\n")), "200", "{key}");
    }
    for key in ["first", "second", "key", "first key second-key", "keys", &file] {
        assert_eq!(status(&format!("x-api-key: {key}\r\n")), "401", "{key}");
    }
    drop(served);
    // A file that opens nothing is no reason to go without a key.
    let empty = write(&folder.join("empty"), " \n\n");
    let said = fails(&[], &["serve", "--api-key-file", &empty], 1);
    assert!(said.contains("empty: no key in it"), "{said}");
    let said = fails(&[], &["serve", "--api-key-file", "nowhere"], 1);
    assert!(said.contains("nowhere"), "{said}");
}

#[test]
fn a_server_that_is_killed_while_it_saves_leaves_a_whole_file() {
    let folder = scratch("killed_slots");
    let file = folder.join("text");
    let post = |address: &str, path: &str, body: &str| ask(address, &format!("POST {path}"), "", body);
    let number = |answer: &str, name: &str| {
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let value: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"));
        value[name].as_u64().unwrap_or_else(|| panic!("{answer}"))
    };
    for delay_ms in [2, 11] {
        let mut served = Served::start_with(&[], &["--slot-save-path", &folder.display().to_string()]);
        let address = served.address().to_owned();
        // A short text and a long one, side by side, so that each has a slot.
        let long = "ember ".repeat(60);
        let body = format!("{{\"prompt\": [\"ember\", {long:?}], \"n_predict\": 4, \"ignore_eos\": true}}");
        assert!(post(&address, "/completion", &body).unwrap().contains("200 OK"));
        let save = move |address: &str, slot: usize| {
            post(address, &format!("/slots/{slot}?action=save"), "{\"filename\": \"text\"}")
        };
        let lengths = [0, 1].map(|slot| number(&save(&address, slot).unwrap(), "n_saved"));
        assert_ne!(lengths[0], lengths[1]);
        let (told, saved) = std::sync::mpsc::channel();
        let saving = std::thread::spawn(move || {
            for slot in [0, 1].into_iter().cycle() {
                if save(&address, slot).is_ok_and(|answer| answer.contains("200 OK")) {
                    let _ = told.send(());
                } else {
                    return;
                }
            }
        });
        (0..3).for_each(|_| saved.recv().unwrap());
        std::thread::sleep(Duration::from_millis(delay_ms));
        // SIGKILL on Unix.
        served.child.kill().unwrap();
        saving.join().unwrap();
        drop(served);
        assert!(file.metadata().unwrap().len() > 0);
        let served = Served::start_with(&[], &["--slot-save-path", &folder.display().to_string()]);
        let answer = post(served.address(), "/slots/0?action=restore", "{\"filename\": \"text\"}").unwrap();
        assert!(lengths.contains(&number(&answer, "n_restored")), "{answer}");
    }
}

#[test]
fn a_running_server_answers_run_and_generate() {
    let served = Served::start("secret");
    let url = served.url.as_str();
    let key = [("BRASA_API_KEY", "secret")];
    let ask = |arguments: &[&str]| {
        let output = brasa(&key, &[arguments, &["--server", url]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    };
    for command in ["run", "generate"] {
        let question = [command, "-p", "What does \"ember\" mean?", "--temp", "0", "-n", "12"];
        let here = brasa(&[], &[&question[..], &["-c", "256", "-t", "1", "--deterministic"]].concat());
        assert_eq!(ask(&question), stdout(&here), "{command}");
        let object: Value = serde_json::from_str(&ask(&[&question[..], &["--json"]].concat())).unwrap();
        assert_eq!(object["text"].as_str().unwrap().trim_end(), stdout(&here).trim_end());
        assert_eq!(object["usage"]["completion_tokens"], 12);
        assert_eq!(object["finish_reason"], "length");
    }
    // Seeds, system prompts, ids and the other flags arrive.
    let sampled =
        ["run", "-p", "Define: house", "-s", "7", "--temp", "2", "--system-prompt", "Be brief.", "-n", "8"];
    let here = brasa(&[], &[&sampled[..], &["-c", "256", "-t", "1", "--deterministic"]].concat());
    assert_eq!(ask(&sampled), stdout(&here));
    let ids = [
        "generate", "--ids", "11,12,13", "--temp", "0", "-n", "4", "--stop", "zzz", "-l", "5-inf", "--top-k",
        "3",
    ];
    let here = brasa(&[], &[&ids[..], &["-c", "256", "-t", "1", "--deterministic"]].concat());
    assert_eq!(ask(&ids), stdout(&here));

    let wrong = |variables: &[(&str, &str)], arguments: &[&str], code| {
        fails(variables, &[&["run", "-p", "x", "--server", url], arguments].concat(), code)
    };
    let said = wrong(&[], &[], 1);
    assert!(said.contains("401") && said.contains("hint: BRASA_API_KEY holds the server's key"), "{said}");
    let said = wrong(&[("BRASA_API_KEY", "guess")], &[], 1);
    assert!(said.contains("401") && said.contains("another key"), "{said}");
    let said = wrong(&key, &["-l", "99999999+1"], 1);
    assert!(said.contains("400") && said.contains("99999999"), "{said}");
    let said = wrong(&key, &["-t", "2"], 2);
    assert!(said.contains("--threads") && said.contains("--server"), "{said}");
    let said = wrong(&key, &["--context-policy", "slide"], 2);
    assert!(said.contains("--context-policy"), "{said}");
    let long = "ember ".repeat(400);
    let said = fails(&key, &["generate", "-p", &long, "--server", url], 1);
    assert!(said.contains("400") && said.contains("256"), "{said}");
}

#[test]
fn run_trusts_a_server_over_tls_by_its_certificate() {
    let key = |name: &str| format!("{}/../brasa-tls/tests/keys/{name}", env!("CARGO_MANIFEST_DIR"));
    let (certificate, key) = (key("p256.pem"), key("p256.key.pem"));
    let file = write(
        &scratch("tls").join("brasa.toml"),
        &format!("ssl-cert-file = {certificate:?}\nssl-key-file = \"nowhere.pem\"\n"),
    );
    // The file names the certificate, the environment the key.
    let served = Served::start_with(&[("BRASA_SSL_KEY_FILE", &key)], &["--config", &file]);
    let port = served.url.strip_prefix("https://127.0.0.1:").unwrap();
    let run = ["run", "-p", "Define: house", "--temp", "0", "-n", "8"];
    let here = brasa(&[], &[&run[..], &["-c", "256", "-t", "1", "--deterministic"]].concat());
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{port}/");
        let there = brasa(&[("SSL_CERT_FILE", &certificate)], &[&run[..], &["--server", &url]].concat());
        assert_eq!(stdout(&there), stdout(&here), "{}", stderr(&there));
        // Nobody vouches for it elsewhere.
        let said = fails(&[("SSL_CERT_FILE", "")], &[&run[..], &["--server", &url]].concat(), 1);
        assert!(said.contains(&url) && said.to_lowercase().contains("certificate"), "{said}");
    }
    drop(served);
    for (flags, code, parts) in [
        (["--ssl-key-file", key.as_str()], 2, ["p256.key.pem", "--ssl-cert-file is missing"]),
        (["--ssl-cert-file", certificate.as_str()], 2, ["p256.pem", "--ssl-key-file is missing"]),
    ] {
        let said = fails(&[], &[&["serve"], &flags[..]].concat(), code);
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    }
    let said = fails(&[], &["serve", "--ssl-cert-file", &key, "--ssl-key-file", &key], 2);
    assert!(said.contains("p256.key.pem: no certificate in it"), "{said}");
}

#[test]
fn a_taken_port_is_named_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let said = fails(&[], &["serve", "--port", &port], 1);
    assert!(said.contains(&format!("127.0.0.1:{port}: ")), "{said}");
    assert!(said.contains("hint: another program listens there; --port names another port"), "{said}");
}

#[test]
fn servers_that_are_none_are_named() {
    let said = fails(&[], &["run", "-p", "x", "--server", "ftp://example.com"], 2);
    assert!(said.contains("expected http://HOST:PORT"), "{said}");
    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = fails(&[], &["run", "-p", "x", "--server", &format!("http://{closed}")], 1);
    assert!(said.contains(&closed.to_string()), "{said}");
    assert!(said.contains("hint: nothing listens at this address"), "{said}");
    let said = fails(&[], &["chat", "--server", "http://127.0.0.1:1"], 2);
    assert!(said.contains("not for a chat"), "{said}");
    // Answers that end early, are no events, or tell of an error.
    let event =
        |text: &str| format!("data: {{\"choices\": [{{\"delta\": {{\"content\": \"{text}\"}}}}]}}\n\n");
    for (answer, shown, said) in [
        (event("half"), "half", "the server broke off its answer"),
        (format!("{}data: {{\n\n", event("half")), "half", "an event that is no JSON"),
        (
            format!("{}data: {{\"error\": {{\"message\": \"too hot\"}}}}\n\n", event("half")),
            "half",
            "too hot",
        ),
        (format!(": sign of life\n\n{}data: [DONE]\n\n", event("whole")), "whole", ""),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while head.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            // The client's body is short enough to be in the buffers of the system.
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
            stream.write_all(format!("{head}{answer}").as_bytes()).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let output = brasa(&[], &["run", "-p", "x", "--server", &url]);
        thread.join().unwrap();
        assert!(stdout(&output).starts_with(shown), "{output:?}");
        assert!(stderr(&output).contains(said), "{output:?}");
        assert_eq!(output.status.success(), said.is_empty(), "{output:?}");
    }
}
