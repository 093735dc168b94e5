//! Every hostile file is refused, with the message in its snapshot; none panics (tools/golden/hostile.py makes them).

use std::fmt::Write;
use std::fs;

use brasa_formats::{Checkpoint, Inspection};

/// Opens everything in a folder, and lists the messages.
///
/// Paths are relative to the crate, where tests run.
fn refusals(folder: &str) -> String {
    let folder = format!("tests/hostile/{folder}");
    let entries = fs::read_dir(&folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.retain(|name| name != "config.json");

    let mut report = String::new();
    for name in names {
        let path = format!("{folder}/{name}");
        let error = Checkpoint::open(&path).expect_err(&path).to_string();
        assert!(!error.contains(|c: char| c.is_control() && c != '\n'), "{error:?}");
        let message = error.replace(&format!("{folder}/"), "");
        // An inspection says the same, or says it among its problems.
        match Inspection::open(&path) {
            Ok(inspection) => assert_eq!(inspection.problems()[0].to_string(), error),
            Err(refusal) => assert_eq!(refusal.to_string(), error),
        }
        writeln!(report, "[{name}]\n{message}\n").unwrap();
    }
    report
}

#[test]
fn hostile_gguf() {
    insta::assert_snapshot!(refusals("gguf"));
}

#[test]
fn hostile_safetensors() {
    insta::assert_snapshot!(refusals("safetensors"));
}

#[test]
fn hostile_directories() {
    insta::assert_snapshot!(refusals("directories"));
}

#[test]
fn foreign_files() {
    insta::assert_snapshot!(refusals("foreign"));
}
