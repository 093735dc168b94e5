//! The library guide shows code that runs: every block of it is in an example.

use std::fs;
use std::path::Path;

/// `text` without the spaces in front of its lines.
fn flat(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim_start(), "\n"]).collect()
}

#[test]
fn every_block_of_code_is_in_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(root.join("../../docs/library.md")).unwrap();
    let examples: Vec<(String, String)> = fs::read_dir(root.join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap())
        })
        .collect();
    let blocks: Vec<&str> =
        guide.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 10);
    for block in blocks {
        let is_shown = examples.iter().any(|(_, code)| flat(code).contains(&flat(block)));
        assert!(is_shown, "no example has this code of docs/library.md:\n{block}");
    }
    for (name, _) in &examples {
        assert!(guide.contains(&format!("| `{name}` |")), "docs/library.md does not list the example {name}");
    }
}
