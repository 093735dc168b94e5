//! Models by the name of their repository, from a stand-in for the hub. The `brasa-hub` crate tests what goes wrong there.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

use super::command::{model, scratch, stderr, stdout};

/// Serves the files of a folder as the repository `me/model`; returns the address.
fn serve(folder: &Path) -> String {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            files
                .push((path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()));
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that breaks off is no fault of the server.
            let _ = answer(&stream.unwrap(), &files);
        }
    });
    address
}

fn answer(mut stream: &TcpStream, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head)?;
    }
    let path = head.split(' ').nth(1).unwrap();
    let (status, body) = if path.starts_with("/api/models/me/model/") {
        let entry = |(name, content): &(String, Vec<u8>)| {
            let (size, hash) = (content.len(), Sha256::digest(content));
            let digit = |value: u8| char::from_digit(value.into(), 16).unwrap();
            let digits: String = hash.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect();
            format!(r#"{{"rfilename": "{name}", "lfs": {{"sha256": "{digits}", "size": {size}}}}}"#)
        };
        let entries: Vec<_> = files.iter().map(entry).collect();
        let text = format!(r#"{{"sha": "{}", "siblings": [{}]}}"#, "c".repeat(40), entries.join(", "));
        ("200 OK", text.into_bytes())
    } else {
        match files
            .iter()
            .find(|(name, _)| path.starts_with("/me/model/") && path.ends_with(&format!("/{name}")))
        {
            Some((_, content)) => ("200 OK", content.clone()),
            None => ("404 Not Found", Vec::new()),
        }
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)
}

/// The command with the hub at `address` and its cache in `cache`.
fn brasa(address: &str, cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    command
        .env("HF_ENDPOINT", address)
        .env("HF_HUB_CACHE", cache)
        .env_remove("HF_TOKEN")
        .env_remove("HF_HUB_OFFLINE");
    command.env("HF_TOKEN_PATH", cache.join("token"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_repository_is_a_model() {
    let address = serve(model("tiny-llama").as_ref());
    let cache = scratch("hub");
    let run = |arguments: &[&str]| brasa(&address, &cache, arguments);

    let pulled = run(&["pull", "me/model"]);
    assert!(pulled.status.success(), "{}", stderr(&pulled));
    let path = PathBuf::from(stdout(&pulled).trim());
    assert!(path.starts_with(&cache) && path.join("config.json").exists(), "{}", path.display());
    assert_eq!(stderr(&pulled), "", "no bar without a terminal");

    let question = ["-p", "In the beginning", "-n", "4", "--temp", "0", "--precision", "reference"];
    let expected = run(&[&["generate", "-m", &model("tiny-llama")], &question[..]].concat());
    assert!(expected.status.success() && stdout(&expected).len() > 4, "{}", stderr(&expected));
    // What was downloaded has a name without the hub's flag.
    for start in [
        &["generate", "-hf", "me/model"][..],
        &["generate", "--hf-repo=me/model", "--offline"],
        &["generate", "me/model"],
        &["generate", "Model"],
    ] {
        let answer = run(&[start, &question].concat());
        assert_eq!((stdout(&answer), stderr(&answer)), (stdout(&expected), String::new()), "{start:?}");
    }
    // What is not run is found by the same name, and without the hub.
    for start in [&["tokenize", "-p", "In the beginning"][..], &["inspect"]] {
        let expected = run(&[start, &["-m", path.to_str().unwrap()]].concat());
        assert!(expected.status.success(), "{}", stderr(&expected));
        let named = run(&[start, &["-hf", "me/model", "--offline"]].concat());
        assert_eq!((stdout(&named), stderr(&named)), (stdout(&expected), String::new()), "{start:?}");
    }
    let gone =
        brasa("http://127.0.0.1:1", &cache, &[&["generate", "-hf", "me/model"], &question[..]].concat());
    assert_eq!(stdout(&gone), stdout(&expected));
    assert!(stderr(&gone).contains("the files in the cache are used"), "{}", stderr(&gone));

    for (arguments, code, words) in [
        (&["pull", "you/model"][..], 1, "error: you/model: 404: there is no such repository"),
        (&["pull", "you/model", "--offline"], 1, "error: you/model: not in "),
        (&["-hf", "me/model:Q4_K_M", "-p", "x"], 1, "error: me/model: no GGUF file of type Q4_K_M"),
        (&["-hf", "model", "-p", "x"], 2, "error: model: no user, expected USER/REPO"),
        (&["-hf", "../model", "-p", "x"], 2, "error: ../model: no name of a repository"),
        (&["-hf", "a/b", "-m", "x", "-p", "x"], 2, "error: the argument '--hf-repo"),
        (&["-hff", "x.gguf", "-p", "x"], 2, "error: --hf-file names a file of a repository"),
        (&["-m", "you/model", "-p", "x"], 1, "hint: -hf you/model takes the repository"),
        (&["run", "you", "-p", "x"], 1, "hint: `brasa pull USER/you` downloads a repository"),
        (&["inspect", "-hf", "me/model:Q4_K_M"], 1, "error: me/model: no GGUF file of type Q4_K_M"),
        (&["inspect", "x", "-hf", "me/model"], 2, "error: the argument '[PATH]'"),
        (&["tokenize", "-hf", "you/model", "--offline", "-p", "x"], 1, "error: you/model: not in "),
        (&["tokenize", "-hff", "x.gguf", "-p", "x"], 2, "error: --hf-file names a file of a repository"),
        (&["inspect", "me/model:Q8_0"], 1, "`brasa pull me/model:Q8_0` only downloads it"),
        (&["tokenize", "-m", "you/model", "-p", "x"], 1, "hint: -hf you/model"),
        (&["-m", "me/model.gguf", "-p", "x"], 1, "error: me/model.gguf: "),
    ] {
        let output = run(arguments);
        let found = stderr(&output);
        assert!(found.contains(words), "{arguments:?}: {found}");
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(code), String::new()),
            "{arguments:?}: {found}"
        );
    }
}
