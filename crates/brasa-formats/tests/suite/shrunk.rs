//! A mapped file that shrinks ends the process with a message. The test runs itself once more, as the process that dies.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use brasa_formats::{exit_on_shrunk_files, map_file};

use crate::scratch::Scratch;

/// The variable that tells the second process which file to shrink.
const FILE: &str = "BRASA_TEST_SHRUNK_FILE";
const CODE: i32 = 71;

/// Runs the test `name` of this program alone, with `FILE` set to `path`.
fn again(name: &str, path: &Path) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", name, "--nocapture"]).env(FILE, path).output().unwrap()
}

#[test]
fn a_file_that_shrinks_is_named() {
    if let Some(path) = std::env::var_os(FILE) {
        exit_on_shrunk_files(CODE);
        let path = Path::new(&path);
        // Maps that have gone leave free places in the table, and others stay in it.
        let other = map_file(Path::new("Cargo.toml")).unwrap();
        drop(map_file(path).unwrap());
        let bytes = map_file(path).unwrap();
        OpenOptions::new().write(true).open(path).unwrap().set_len(1 << 16).unwrap();
        assert_eq!(bytes[0], 7, "what is left can be read");
        let sum = bytes.iter().fold(0_u64, |sum, &byte| sum + u64::from(byte));
        panic!("read {sum} from behind the end, and {other:?}");
    }
    let scratch = Scratch::new("a_file_that_shrinks_is_named");
    let path = scratch.path("model.gguf");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    let output = again("shrunk::a_file_that_shrinks_is_named", &path);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(CODE), "{text}");
    assert!(text.contains("model.gguf: the file became shorter while it was in use\nhint: "), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// If bytes are written straight from a map, the system reports "Bad address" and raises no signal.
#[test]
fn a_file_that_shrinks_is_named_by_what_writes_its_bytes() {
    let scratch = Scratch::new("a_file_that_shrinks_is_named_by_what_writes_its_bytes");
    let path = scratch.path("model.gguf");
    fs::write(&path, vec![7; 4 << 20]).unwrap();
    let bytes = map_file(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 16).unwrap();
    let error = Scratch::output(scratch.path("copy")).write_all(&bytes).unwrap_err().to_string();
    assert!(error.contains("model.gguf: the file became shorter while it was in use\nhint: "), "{error}");
}

#[test]
fn another_bus_error_stays_one() {
    if let Some(path) = std::env::var_os(FILE) {
        exit_on_shrunk_files(CODE);
        let _bytes = map_file(Path::new(&path)).unwrap();
        // Rust's own handler takes the first for a fault that will come again, and stands back.
        let script = format!("kill -BUS {0} && sleep 0.1 && kill -BUS {0}", std::process::id());
        Command::new("sh").args(["-c", &script]).status().unwrap();
        panic!("two signals changed nothing");
    }
    let scratch = Scratch::new("another_bus_error_stays_one");
    let path = scratch.path("model.gguf");
    fs::write(&path, "x").unwrap();
    let output = again("shrunk::another_bus_error_stays_one", &path);
    assert_eq!(
        output.status.signal(),
        Some(if cfg!(target_os = "linux") { 7 } else { 10 }),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
