//! Signals that come at odd moments.

#![cfg(unix)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::command::scratch;

#[test]
fn ctrl_c_between_loading_and_answering_ends_the_command() {
    let pipe = scratch("ctrl_c").join("schema.json");
    if !Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        println!("skipped: Ctrl-C behind loading: no mkfifo");
        return;
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["run", "-p", "What does ember mean?", "-n", "4", "-jf"])
        .arg(&pipe)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Opening waits until the command reads its schema, which it does behind loading.
    let schema = std::fs::File::options().write(true).open(&pipe).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("the command goes on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(schema);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(130), &b""[..]));
}
