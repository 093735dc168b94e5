//! The words of the command, as snapshots: help, reports, refusals.
//!
//! Folders, numbers that depend on the processor, and reasons that the operating system gives are replaced. Values are
//! checked by the tests in `command.rs`.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::command::{model, models, stderr, stdout};

/// The command as at a terminal of 100 columns.
fn brasa(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    command.args(arguments).env("COLUMNS", "100").stdin(Stdio::null()).output().unwrap()
}

/// `text` with `models` for the folder of this repository, and `REASON` for what the system says.
fn portable(text: &str) -> String {
    let text = text.replace(&models().display().to_string(), "models");
    text.replace("No such file or directory (os error 2)", "REASON")
        .replace(&format!("brasa {}", env!("CARGO_PKG_VERSION")), "brasa VERSION")
}

/// `text` with `#` for every number that has a fraction.
fn rough(text: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_inclusive(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))) {
        let end = word.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-'))).unwrap_or(word.len());
        let (number, rest) = word.split_at(end);
        let is_fraction = number.contains('.') && number.parse::<f64>().is_ok();
        words.push(if is_fraction { format!("#{rest}") } else { word.to_owned() });
    }
    words.concat()
}

/// A JSON object with `#` for every number among its metrics; other text as it is.
fn unmeasured(text: &str) -> String {
    let Ok(mut object) = serde_json::from_str::<Value>(text) else { return text.to_owned() };
    if let Some(metrics) = object["metrics"].as_object_mut() {
        metrics.values_mut().filter(|value| value.is_number()).for_each(|value| *value = "#".into());
    }
    format!("{object:#}")
}

/// Compares `text` with the snapshot of this name.
fn assert_words(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// Commands, what each prints, and how it ends.
fn transcript(commands: &[&[&str]]) -> String {
    let run = |arguments: &&[&str]| {
        let output = brasa(arguments);
        let shown: Vec<String> = arguments.iter().map(|argument| shortened(argument)).collect();
        let code = output.status.code().unwrap();
        format!("$ brasa {}\n{}{}[{code}]\n", shown.join(" "), stdout(&output), stderr(&output))
    };
    portable(&commands.iter().map(run).collect::<Vec<_>>().join("\n"))
}

/// A long argument by its beginning.
fn shortened(argument: &str) -> String {
    let longest = if argument.starts_with('/') { usize::MAX } else { 40 };
    if argument.len() > longest { format!("{}…", &argument[..longest]) } else { argument.to_owned() }
}

#[test]
fn help() {
    for command in [
        "run",
        "generate",
        "tokenize",
        "inspect",
        "discover",
        "perplexity",
        "logits",
        "transcribe",
        "quantize",
        "train",
        "bench",
        "eval",
        "doctor",
        "completions",
    ] {
        assert_words(&format!("help_{command}"), &stdout(&brasa(&[command, "--help"])));
    }
    let serve = stdout(&brasa(&["serve", "--help"]));
    // A line or two for each option: two screens for the server, and one for what requests have by default.
    assert!(serve.lines().count() <= 170, "{} lines\n{serve}", serve.lines().count());
    assert_words("help_serve", &serve);
    // The program's own help lists the commands, then the options of `run`.
    let text = stdout(&brasa(&["--help"]));
    assert_words("help", text.split("\nOptions:").next().unwrap());
}

#[test]
fn help_has_colours_for_those_who_ask() {
    for (arguments, variable, has_colours) in [
        (&["-h"][..], "", false),
        (&["-h"], "CLICOLOR_FORCE", true),
        (&["-h", "--color", "off"], "CLICOLOR_FORCE", false),
        (&["--color=always", "run", "-h"], "NO_COLOR", true),
        (&["doctor", "--no-color", "-h"], "CLICOLOR_FORCE", false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
        command.args(arguments).env_remove("NO_COLOR").stdin(Stdio::null());
        let output =
            if variable.is_empty() { &mut command } else { command.env(variable, "1") }.output().unwrap();
        assert_eq!(stdout(&output).contains('\x1b'), has_colours, "{arguments:?} {variable}");
    }
}

#[test]
fn short_help_fits_a_screen() {
    let commands = stdout(&brasa(&["--help"]));
    let commands = commands.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands =
        commands.take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().next().unwrap());
    let commands: Vec<Option<&str>> = [None].into_iter().chain(commands.map(Some)).collect();
    assert!(commands.len() > 12, "{commands:?}");
    for command in commands.iter().filter(|command| **command != Some("help")) {
        let arguments: Vec<&str> = command.iter().copied().chain(["-h"]).collect();
        let text = stdout(&brasa(&arguments));
        assert!(text.lines().count() <= 40, "{command:?}: {} lines\n{text}", text.lines().count());
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{command:?}:\n{text}");
        if let Some(command @ ("run" | "generate" | "bench")) = command {
            assert_words(&format!("short_help_{command}"), &text);
        }
    }
    assert_words("short_help", &stdout(&brasa(&["-h"])));
}

#[test]
fn wrong_usage() {
    assert_words(
        "wrong_usage",
        &transcript(&[
            &["frobnicate"],
            &["generate", "-p", "x", "--no-such-flag"],
            &["generate", "-p", "x", "--temperatur", "1"],
            &["generate", "-p", "x", "--precision", "half"],
            &["generate", "-p", "x", "-f", "text"],
            &["generate", "--ids", "1,x"],
            &["generate", "-p", "x", "--temp", "-1"],
            &["generate", "-p", "x", "--top-p", "1.5"],
            &["generate", "-p", "x", "--stop", ""],
            &["generate", "-p", "x", "--logit-bias", "seven"],
            &["generate", "-p", "x", "-n", "-2"],
            &["generate", "-p", "x", "-n", "3.7"],
            &["generate", "-p", "x", "--top-k", "-4"],
            &["generate", "-p", "x", "--repeat-last-n", "-7"],
            &["generate", "-p", "x", "--keep", "-1"],
            &["generate", "-p", "x", "-s", "-2"],
            &["generate", "-p", "x", "-ctk", "f16"],
            &["generate"],
            &["tokenize"],
            &["logits"],
            &["perplexity"],
            &["quantize", "in"],
            &["quantize", &model("tiny-llama"), "out.gguf", "Q9_K"],
            &["bench", "--svg", "profile.svg", "--startup"],
            &["completions", "klingon"],
        ]),
    );
}

#[test]
fn habits() {
    let llama = model("tiny-llama");
    let exact =
        ["-m", &llama, "-p", "In the beginning", "-n", "4", "--temp", "0", "--precision", "reference"];
    let accepted = ["-ngl", "99", "-fa", "-cnv", "-c", "0", "-s=-1", "--no-mmap", "--mlock", "-tb", "2"];
    let raw = ["-no-cnv", "--no-warmup", "--color", "off", "-np", "1"];
    assert_words(
        "habits",
        &transcript(&[
            &[&accepted[..], &exact].concat(),
            &[&exact[..], &raw].concat(),
            &["generate", "-m", &llama, "-p", "a\\nb", "-e", "-n", "1", "--temp=0", "-ngl=0"],
            &["-sm", "row", "-mm", "x.gguf"],
            &["-p", "x", "-md", "draft.gguf"],
            &["-m", &llama, "-p", "x", "-md", &model("tiny-qwen2")],
            &["serve", "-m", &llama, "-m", "other.gguf", "-md", "draft.gguf"],
            &["-p", "x", "-td", "4"],
            &["--grammar", "root ::= \"x\""],
            &["run", "--host", "0.0.0.0", "--port", "8080"],
            &["bench", "-pg", "512,128"],
            &["ps"],
            &["list"],
            &[&llama],
            &["-hx"],
            &["-ngl"],
        ]),
    );
}

#[test]
fn refusals() {
    let many = vec!["1"; 20].join(",");
    let text = models().join("LICENSE-wordnet.txt").display().to_string();
    let (missing, folder) = (model("no-such-model.gguf"), models().display().to_string());
    let text_file = model("README.md");
    let random = model("random/llama2");
    assert_words(
        "refusals",
        &transcript(&[
            &["generate", "--ids", &many, "-c", "16"],
            &["generate", "--ids", "1,2,3", "-c", "5", "--ignore-eos", "--temp", "0", "--json"],
            &["generate", "--ids", "1,99999999"],
            &["generate", "-p", "x", "--device", "abacus"],
            &["generate", "-p", "x", "--device", "cuda:one"],
            &["generate", "-m", &missing, "-p", "x"],
            &["generate", "-m", &folder, "-p", "x"],
            &["generate", "-m", &text_file, "-p", "x"],
            &["generate", "-m", &random, "-p", "x"],
            &["generate", "-p", "x", "--pre", "no-such"],
            &["run", "-p", "x", "--chat-template-file", &missing],
            &["tokenize", "-m", &random, "-p", "x"],
            &["tokenize", "--decode", "8192"],
            &["inspect", &missing],
            &["inspect", &text_file],
            &["perplexity", "-f", &text, "-c", "4000000"],
            &["perplexity", "-f", &missing],
            &["discover", "/nowhere"],
            &["quantize", &missing, "out.gguf", "Q8_0"],
            &["quantize", &random, &text_file, "Q8_0"],
        ]),
    );
}

#[test]
fn reports() {
    let (llama, random) = (model("tiny-llama"), model("random/llama2"));
    let gguf = model("random-gguf/phi3-longrope.gguf");
    for (name, arguments) in [
        ("inspect_folder", &["inspect", &llama][..]),
        ("inspect_bundled", &["inspect"]),
        ("inspect_gguf_tensors", &["inspect", &gguf, "--tensors"]),
        ("inspect_json", &["inspect", &random, "--json"]),
        ("discover", &["discover", &model("mlx")]),
        ("discover_json", &["discover", &model("random-mlx"), "--json"]),
        ("tokenize", &["tokenize", "-m", &llama, "-p", "In the beginning, ☃"]),
        ("tokenize_json", &["tokenize", "-m", &llama, "-p", "In the beginning", "--json"]),
        ("tokenize_decode", &["tokenize", "-m", &llama, "--decode", "40,75,4", "--json"]),
        ("quantize_list", &["quantize", "--list"]),
    ] {
        let output = brasa(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_words(name, &portable(&stdout(&output)));
    }
}

#[test]
fn results() {
    let llama = model("tiny-llama");
    let exact = ["-m", &llama, "-p", "In the beginning", "--precision", "reference"];
    for (name, arguments) in [
        ("logits", &["logits", "--top", "4"][..]),
        ("logits_json", &["logits", "--top", "2", "--json"]),
        ("generate", &["generate", "-n", "8", "--temp", "0"]),
        ("generate_json", &["generate", "-n", "8", "--temp", "0", "--json"]),
        ("run_json", &["run", "-n", "8", "--temp", "0", "--json"]),
    ] {
        let output = brasa(&[arguments, &exact].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert_words(name, &rough(&unmeasured(&portable(&stdout(&output)))));
    }
}
