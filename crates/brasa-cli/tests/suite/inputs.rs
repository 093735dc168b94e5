//! Files that commands read: pipes and devices in place of models never hang, texts may come from anywhere but have an end.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{brasa, copy, fails, model, models, scratch, stderr, stdout};

#[test]
fn discover_lists_what_cannot_be_used() {
    let directory = scratch("unusable");
    std::fs::write(directory.join("broken.gguf"), "GGUF").unwrap();
    std::fs::create_dir(directory.join("folder.gguf")).unwrap();
    let output = brasa(&["discover", directory.to_str().unwrap()]);
    let text = stdout(&output);
    assert!(text.starts_with("gguf") && text.contains("broken.gguf\n    ("), "{text}");
    assert!(text.lines().skip(1).all(|line| line.starts_with("    ") && line.len() <= 100), "{text}");
    assert_eq!(text.matches("gguf  ").count(), 1, "{text}");
}

#[test]
fn discover_names_the_type_of_mlx_folders() {
    let text = stdout(&brasa(&["discover", models().to_str().unwrap()]));
    assert!(text.contains("MLX 4 bit/"), "{text}");
    assert!(!text.contains("U32"), "{text}");
}

/// Numbers that no memory holds and no sum takes.
#[test]
fn huge_numbers_are_refused_or_do_no_harm() {
    let most = usize::MAX.to_string();
    for (arguments, code, words) in [
        (&["bench", "-p", "99999999999", "-n", "0"][..], 2, "expected at most 1048576"),
        (&["bench", "-p", "0", "-n", "99999999999"], 2, "expected at most 1048576"),
        (&["bench", "-d", &most], 2, "expected at most 1048576"),
        (&["bench", "--probe-mib", &most], 2, "expected at most 1048576"),
        (&["run", "-p", "x", "-c", &most], 1, "at most 2147483647 are possible"),
        (&["run", "-p", "x", "-ub", &most], 1, "out of memory"),
    ] {
        let message = fails(arguments, code);
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
    let harmless = ["--keep", &most, "--context-policy", "slide", "--top-k", &most, "--repeat-last-n", &most];
    let output = brasa(&[&["run", "-p", "x", "-n", "1", "-t", "1"], &harmless[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let output = brasa(&["quantize", &model("tiny-llama"), "/dev/null", "F16", "-t", &most]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A folder is a model if it holds one: a GGUF file, parts of one, or safetensors.
#[cfg(unix)]
#[test]
fn a_folder_with_one_model_runs() {
    use std::os::unix::fs::symlink;
    let folder = scratch("one-model");
    let path = folder.to_str().unwrap();
    let gguf = models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf");
    symlink(&gguf, folder.join("model-Q6_K.gguf")).unwrap();
    // A projector of images is no model of its own.
    std::fs::write(folder.join("mmproj-model-f16.gguf"), "GGUF").unwrap();
    let answer = ["run", "-p", "Define: house", "-n", "2", "--temp", "0", "-t", "1", "-m", path];
    let output = brasa(&answer);
    assert!(output.status.success() && stdout(&output).starts_with("house"), "{}", stderr(&output));
    assert!(stdout(&brasa(&["inspect", path])).contains("GGUF v3, qwen3"));
    // Safetensors that are not named like weights are none.
    std::fs::write(folder.join("golden.safetensors"), "").unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    let output = brasa(&answer);
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
    assert_eq!(stdout(&brasa(&["discover", path])).matches("golden").count(), 0);
    std::fs::remove_file(folder.join("config.json")).unwrap();
    // Two models: none is guessed.
    symlink(&gguf, folder.join("other.gguf")).unwrap();
    let message = fails(&answer, 1);
    assert!(message.contains("2 GGUF files: model-Q6_K.gguf, other.gguf"), "{message}");
    assert!(message.contains("hint: name the file that you mean"), "{message}");
    // Safetensors go first, and it is said that something is left out.
    for entry in std::fs::read_dir(model("tiny-llama")).unwrap() {
        let entry = entry.unwrap();
        symlink(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let output = brasa(&answer);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("safetensors are used, not the GGUF file beside them"),
        "{}",
        stderr(&output)
    );
}

#[cfg(target_os = "linux")]
fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The output is a pipe, so the command waits in the middle of its work until somebody reads.
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_shrinks_is_named() {
    // Converted weights are read by the command, which gets a signal; others by the system, which returns an error.
    for mix in ["F32", "BF16"] {
        let directory = scratch(&format!("shrinks-{mix}"));
        copy("tiny-llama", &directory, |_, text| text);
        let pipe = directory.join("pipe");
        make_pipe(&pipe);
        let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
        command.args(["quantize".as_ref(), directory.as_os_str(), pipe.as_os_str(), mix.as_ref()]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        // Opening the pipe waits for its writer, which has opened the model before.
        let mut reader = std::fs::File::open(&pipe).unwrap();
        let weights = directory.join("model.safetensors");
        std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(1 << 16).unwrap();
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        let output = child.wait_with_output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{mix}: {message}");
        let expected = "model.safetensors: the file became shorter while it was in use\nhint: ";
        assert!(message.contains(expected), "{mix}: {message}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn pipes_and_devices_are_no_models() {
    let directory = scratch("pipes");
    let pipe = directory.join("pipe.gguf");
    make_pipe(&pipe);
    for path in [pipe.as_path(), Path::new("/dev/zero")] {
        let path = path.to_str().unwrap();
        let generate = ["generate", "-p", "x", "-m", path];
        let quantize = ["quantize", path, "/dev/null", "F16"];
        for command in [&generate[..], &["inspect", path], &quantize] {
            let message = fails(command, 1);
            assert!(message.contains("not a regular file"), "{command:?}: {message}");
        }
    }
    let text = stdout(&brasa(&["discover", directory.to_str().unwrap()]));
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains("pipe.gguf (not a regular file)"), "{text}");
    // In a checkpoint's folder, too.
    let folder = directory.join("folder");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(model("tiny-llama")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    for name in ["tokenizer.json", "config.json"] {
        let path = folder.join(name);
        let saved = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        make_pipe(&path);
        let message = fails(&["generate", "-p", "x", "-m", folder.to_str().unwrap()], 1);
        assert!(message.contains(name) && message.contains("not a regular file"), "{name}: {message}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, saved).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn texts_without_an_end_are_refused() {
    for command in [&["tokenize", "-f", "/dev/zero"][..], &["perplexity", "-f", "/dev/zero"]] {
        let message = fails(command, 1);
        assert!(message.contains("/dev/zero: larger than 64 MiB"), "{message}");
    }
    let zero = std::fs::File::open("/dev/zero").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_brasa")).arg("tokenize").stdin(zero).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("standard input: larger than 64 MiB"), "{}", stderr(&output));
}

#[test]
fn a_dash_is_standard_input() {
    use std::io::Write;
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["tokenize", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"of a dog").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(stdout(&output), stdout(&brasa(&["tokenize", "-p", "of a dog"])));
}
