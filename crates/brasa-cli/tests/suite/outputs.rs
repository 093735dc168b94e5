//! Files that commands write: never over another file unasked, never half, never in place of a device.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{brasa, fails, model, scratch, stderr};

const LOGITS: [&str; 4] = ["logits", "--ids", "1,2,3", "--out"];
const PROFILE: [&str; 12] =
    ["bench", "-p", "4", "-n", "0", "-r", "1", "--probe-mib", "0", "--profile", "-t", "1"];

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn existing_files_need_force() {
    let directory = scratch("existing");
    let out = directory.join("out");
    let path = out.to_str().unwrap();
    let input = model("tiny-llama");
    let quantize = ["quantize", &input, path, "Q8_0"];
    let chart = [&PROFILE[..], &["--svg", path]].concat();
    for command in [&[&LOGITS[..], &[path]].concat(), &quantize[..], &chart] {
        std::fs::write(&out, "precious").unwrap();
        let output = brasa(command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("out exists\nhint: --force replaces it"), "{}", stderr(&output));
        assert_eq!(std::fs::read(&out).unwrap(), b"precious");
        let output = brasa(&[command, &["--force"]].concat());
        assert!(output.status.success(), "{command:?}: {}", stderr(&output));
        assert!(std::fs::metadata(&out).unwrap().len() > 100);
        assert_eq!(names(&directory), ["out"]);
    }
}

/// A command that fails while it works leaves no file; an output that cannot be written is refused before any work.
#[test]
fn failures_leave_no_file() {
    let directory = scratch("failures");
    let out = directory.join("out");
    let path = out.to_str().unwrap();
    let message = fails(&["logits", "--ids", "1,99999999", "--out", path], 1);
    assert!(message.contains("99999999 is outside the vocabulary"), "{message}");
    assert!(names(&directory).is_empty());
    std::fs::write(&out, "precious").unwrap();
    for command in [
        &["quantize", "/no/such/model", path, "Q8_0"][..],
        &["logits", "-m", "/no/such/model", "-p", "x", "--out", path],
        &["bench", "-m", "/no/such/model", "--svg", path],
    ] {
        assert!(fails(command, 1).contains("out exists\nhint: --force"), "{command:?}");
    }
}

/// A terminal may be closed while its program still has something to say.
#[cfg(target_os = "linux")]
#[test]
fn messages_that_nobody_can_read_are_no_fault() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    let status = command.args(["inspect", "/no/such/model"]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn devices_stay_devices() {
    use std::os::unix::fs::FileTypeExt;
    let message = fails(&[&LOGITS[..], &["/dev/full"]].concat(), 1);
    assert!(message.contains("/dev/full: No space left on device"), "{message}");
    let input = model("tiny-llama");
    let message = fails(&["quantize", &input, "/dev/full", "Q8_0", "--force"], 1);
    assert!(message.contains("/dev/full: No space left on device"), "{message}");
    assert!(brasa(&["quantize", &input, "/dev/null", "Q8_0"]).status.success());
    for device in ["/dev/full", "/dev/null"] {
        assert!(std::fs::metadata(device).unwrap().file_type().is_char_device(), "{device}");
    }
}

#[cfg(unix)]
#[test]
fn a_killed_run_leaves_no_partial_file() {
    let directory = scratch("killed");
    let out = directory.join("out.gguf");
    let input = model("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    let mut killed = 0;
    for (trial, signal) in ["-TERM", "-HUP", "-INT"].iter().cycle().take(30).enumerate() {
        let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
            .args(["quantize", &input, out.to_str().unwrap(), "F32", "--force", "-t", "1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while names(&directory).iter().all(|name| !name.ends_with(".partial")) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        let _ =
            Command::new("kill").args([*signal, &child.id().to_string()[..]]).stderr(Stdio::null()).status();
        killed += usize::from(child.wait().unwrap().code() == Some(130));
        let left = names(&directory);
        assert!(left.iter().all(|name| name == "out.gguf"), "trial {trial}, {signal}: {left:?}");
        if killed >= 3 {
            return;
        }
    }
    panic!("{killed} of 30 runs were killed before they ended");
}

/// A prompt in a file is not computed again, changes no answer, and is refused by another model.
#[test]
fn a_prompt_is_kept_in_a_file() {
    let directory = scratch("prompt-cache");
    let file = directory.join("prompt.session");
    let path = file.to_str().unwrap();
    let prompt = "ember: a small piece of coal that glows in a dying fire. ember, noun: ";
    let run = |more: &[&str]| {
        let plain = ["generate", "-p", prompt, "-n", "6", "--temp", "0.8", "-s", "7", "--ignore-eos", "-v"];
        // Bits of bf16 products depend on how a prompt is cut, and what is cached cuts it.
        let output = brasa(&[&plain, &["--deterministic"][..], more].concat());
        assert!(output.status.success(), "{more:?}: {}", stderr(&output));
        let note = stderr(&output);
        let cached = note.split_once(" cached)").unwrap().0.rsplit_once('(').unwrap().1.parse().unwrap();
        (output.stdout, cached, std::fs::read(&file).unwrap_or_default())
    };
    let (text, cached, _): (_, usize, _) = run(&[]);
    assert_eq!(cached, 0);
    let first = run(&["--prompt-cache", path]);
    assert_eq!((&first.0, first.1), (&text, 0));
    assert!(!first.2.is_empty());
    let second = run(&["--prompt-cache", path]);
    assert_eq!((&second.0, &second.2), (&text, &first.2));
    assert!(second.1 > 10, "{} cached", second.1);
    let read_only = run(&["--prompt-cache", path, "--prompt-cache-all", "--prompt-cache-ro"]);
    assert_eq!((&read_only.0, &read_only.2), (&text, &first.2));
    let all = run(&["--prompt-cache", path, "--prompt-cache-all"]);
    assert_eq!(all.0, text);
    assert_ne!(all.2, first.2, "the answer is in the file too");

    let message = fails(&["generate", "-m", &model("tiny-llama"), "-p", "x", "--prompt-cache", path], 1);
    assert!(message.contains("prompt.session: the session was saved with another architecture"), "{message}");
    std::fs::write(&file, "precious").unwrap();
    assert!(fails(&["generate", "-p", "x", "--prompt-cache", path], 1).contains("is cut off"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let chat = directory.join("chat.session");
    let ask =
        ["chat", "-p", "What does \"ember\" mean?", "-n", "3", "--prompt-cache", chat.to_str().unwrap()];
    let output = brasa(&ask);
    assert!(output.status.success() && chat.exists(), "{}", stderr(&output));
    assert_eq!(names(&directory), ["chat.session", "prompt.session"]);
}
