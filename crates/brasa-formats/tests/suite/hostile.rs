//! Every hostile file is refused, with the message in its snapshot; none panics (tools/golden/hostile.py makes them).

use std::fmt::Write;
use std::fs;

use brasa_formats::{Checkpoint, Inspection};

use crate::scratch::Scratch;

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

/// An index may name the wrong file for a tensor, or a tensor that no file has: that is no error as long as the tensor is not
/// needed.
#[test]
fn indexes_that_are_wrong_about_tensors() {
    let shard = |name: &str| {
        let header = format!(r#"{{"{name}": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}}}"#);
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()
    };
    let open = |map: &str| {
        let index = format!(r#"{{"weight_map": {map}}}"#).into_bytes();
        let files = [
            ("config.json", br#"{"model_type": "llama"}"#.to_vec()),
            ("a.safetensors", shard("v")),
            ("b.safetensors", shard("w")),
            ("model.safetensors.index.json", index),
        ];
        let files = files.map(|(name, bytes)| (name.to_owned(), bytes.into()));
        Checkpoint::from_files(files.into()).unwrap()
    };
    let elsewhere = open(r#"{"v": "b.safetensors", "w": "a.safetensors"}"#);
    assert_eq!((elsewhere.tensors().len(), elsewhere.absent_tensors().len()), (2, 0));
    let absent = open(r#"{"v": "a.safetensors", "w": "b.safetensors", "x": "b.safetensors"}"#);
    let [tensor] = absent.absent_tensors() else { panic!("{:?}", absent.absent_tensors()) };
    assert_eq!((tensor.name.as_str(), tensor.file.ends_with("b.safetensors")), ("x", true));
}

/// Links that lead to themselves, in place of every file of a checkpoint.
#[cfg(unix)]
#[test]
fn loops_of_links() {
    use std::os::unix::fs::symlink;

    let scratch = Scratch::new("loops_of_links");
    let safetensors = fs::read("tests/golden/containers/plain/model.safetensors").unwrap();
    for name in ["model.gguf", "model.safetensors", "config.json", "model.safetensors.index.json"] {
        let folder = scratch.path(name);
        fs::create_dir(&folder).unwrap();
        if name != "model.gguf" {
            fs::write(folder.join("config.json"), "{}").unwrap();
            fs::write(folder.join("model.safetensors"), &safetensors).unwrap();
        }
        let link = folder.join(name);
        let _ = fs::remove_file(&link);
        symlink(&link, &link).unwrap();
        let error = Checkpoint::open(&folder).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains("symbolic link"), "{name}: {error}");
    }
    let folder = scratch.path("folder");
    symlink(&folder, &folder).unwrap();
    let error = Checkpoint::open(&folder).unwrap_err().to_string();
    assert!(error.contains("symbolic link"), "{error}");
}

/// A name that promises a hundred thousand parts is believed as far as there are files.
#[test]
fn the_first_of_99999_parts() {
    let scratch = Scratch::new("the_first_of_99999_parts");
    let path = scratch.path("m-00001-of-99999.gguf");
    fs::copy("tests/hostile/directories/split-part-missing/m-00001-of-00002.gguf", &path).unwrap();
    let inspection = Inspection::open(&path).unwrap();
    let problems: Vec<_> = inspection.problems().iter().map(ToString::to_string).collect();
    assert!(problems[0].contains("split.count: found 2, expected 99999"), "{problems:?}");
    assert!(
        problems.iter().any(|problem| problem.contains("part 2 of 99999 cannot be read")),
        "{problems:?}"
    );
    assert!(problems.len() < 5, "{problems:?}");
}
