//! Tests that no command runs: those in the sources of a library whose harness is off.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn libraries_without_a_harness_have_no_tests_within() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let (mut without, mut dead) = (0, Vec::new());
    for folder in fs::read_dir(crates).unwrap().flatten().map(|entry| entry.path()) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if !manifest.lines().any(|line| line == "test = false") {
            continue;
        }
        without += 1;
        let mut files = Vec::new();
        sources(&folder.join("src"), &mut files);
        dead.extend(
            files.into_iter().filter(|file| fs::read_to_string(file).unwrap().contains("#[cfg(test)]")),
        );
    }
    assert!(without > 3, "libraries without a harness were found");
    assert_eq!(dead, Vec::<PathBuf>::new());
}
