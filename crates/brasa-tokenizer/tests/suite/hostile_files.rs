//! `tokenizer.json` files that once made a crate panic, take all memory or never end: each is refused, or its texts are.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use brasa_tokenizer::{AddSpecial, HfFiles, ParseSpecial, Tokenizer};

/// Texts that reach every pattern in the files.
fn texts() -> [String; 4] {
    ["a".repeat(64), "xa".repeat(3_000), "ab b a\u{301} é".to_owned(), String::new()]
}

/// The first error that a file gives; nothing if it is read.
fn outcome(file: &str) -> String {
    let tokenizer = match Tokenizer::from_json(&HfFiles { tokenizer: file, ..HfFiles::default() }) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return error.to_string(),
    };
    let mut first = String::new();
    for text in texts() {
        match tokenizer.encode(&text, AddSpecial::AsModel, ParseSpecial::Yes) {
            Ok(ids) => {
                tokenizer.decode(&ids, false).expect("ids of its own");
            }
            Err(error) if first.is_empty() => first = error.to_string(),
            Err(_) => {}
        }
    }
    first
}

#[test]
fn hostile_files_are_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let expected = std::fs::read_to_string(folder.join("expected.txt")).expect("expected");
    let mut expected: BTreeMap<String, String> = serde_json::from_str(&expected).expect("json");
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder.join("files")).expect("folder") {
        let path = entry.expect("entry").path();
        let name = path.file_stem().expect("name").to_string_lossy().into_owned();
        let file = std::fs::read_to_string(&path).expect("file");
        let start = Instant::now();
        let found = outcome(&file);
        let took = start.elapsed();
        let expected = expected.remove(&name).expect("an entry in expected.txt");
        if !found.contains(&expected) || expected.is_empty() != found.is_empty() {
            wrong.push(format!("{name}: expected {expected:?}, found {found:?}"));
        }
        assert!(took < Duration::from_secs(10), "{name} took {took:?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(expected.is_empty(), "no file: {expected:?}");
}
