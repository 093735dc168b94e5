#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use super::llama_bench::LLAMA_BENCH;
use super::llama_cpp::LLAMA_CPP;
use super::llama_others::{LLAMA_EMBEDDING, LLAMA_PERPLEXITY};
use super::llama_server::LLAMA_SERVER;
use super::mlx_convert::MLX_CONVERT;
use super::others::{COMMANDS, MLX_LM, MLX_SERVER};
use super::own::Options;
use super::row::{Outcome, Row, Value};
use super::trainers::TRAINERS;
use super::whisper_cpp::WHISPER_CPP;
use super::{Translated, rows, translate};
use crate::args::Arguments;
use crate::failure::Failure;

/// Spellings that mean something else here than elsewhere: command, spelling, our option. A reader of the page is told.
const COLLISIONS: &[(&str, &str, &str)] = &[];

fn translated(words: &[&str]) -> Result<Translated, Failure> {
    translate(std::iter::once("brasa").chain(words.iter().copied()).map(OsString::from))
}

fn arguments(words: &[&str]) -> Vec<String> {
    let translated = translated(words).unwrap();
    translated.arguments[1..].iter().map(|word| word.to_str().unwrap().to_owned()).collect()
}

fn refused(words: &[&str]) -> String {
    match translated(words).unwrap_err() {
        Failure::Usage(message) => message,
        failure => panic!("{words:?}: {failure}"),
    }
}

/// A value of this name that our options accept.
fn sample(name: &str) -> &'static str {
    match name {
        "N" | "K" | "S" | "MIB" => "4",
        "LETTERS" => "kpmt",
        "WAY" => "mean",
        "SCHEDULE" => "linear",
        "TEMPLATE" => "chatml",
        "LEVEL" => "low",
        "JSON" | "SCHEMA" => "{}",
        "T" | "P" | "F" | "X" => "0.5",
        "TYPE" => "f16",
        "ID±BIAS" => "7-1",
        "NAME" => "cpu",
        "FORMAT" => "md",
        "on|off" => "on",
        _ => "text",
    }
}

/// Checks one spelling with one value.
fn check(command: &str, spelling: &str, row: &Row, value: &str, outcome: &Outcome) {
    let has_value = !value.is_empty();
    let mut words = vec![command, spelling];
    words.extend(has_value.then_some(value));
    if matches!(row.value, Value::Two(..)) {
        words.push(value);
    }
    let shown = words.join(" ");
    let plain = vec![command.to_owned()];
    match outcome {
        Outcome::Answered(answer) => {
            let message = refused(&words);
            assert!(message.starts_with(spelling) && message.ends_with(answer), "{shown}: {message}");
        }
        Outcome::True(_) | Outcome::Noted(_) | Outcome::SingleTurn(_) => {
            assert_eq!(arguments(&words), plain, "{shown}");
            let notes = translated(&words).unwrap().notes;
            let with_prompt = translated(&[&words[..], &["--prompt", "x"]].concat()).unwrap().notes;
            let expected = match outcome {
                Outcome::Noted(note) => [Some(*note); 2],
                Outcome::SingleTurn(note) => [Some(*note), None],
                _ => [None; 2],
            };
            for (found, expected) in [notes, with_prompt].iter().zip(expected) {
                assert_eq!(found.len(), usize::from(expected.is_some()), "{shown}: {found:?}");
                let fits = |note: &String| {
                    note.starts_with(spelling) && expected.is_some_and(|text| note.ends_with(text))
                };
                assert!(found.iter().all(fits), "{shown}: {found:?}");
            }
        }
        Outcome::Command(other, _) => {
            assert_eq!(arguments(&words), [*other], "{shown}");
            assert!(translated(&words).unwrap().notes.is_empty(), "{shown}");
        }
        Outcome::Ours(long) => {
            let mut expected = vec![(*long).to_owned()];
            expected.extend(has_value.then(|| value.to_owned()));
            // The version is the program's, whatever the command.
            let command = usize::from(*long != "--version");
            assert_eq!(arguments(&words)[command..], expected, "{shown}");
            assert!(is_parsed(&expected), "{shown}: no command takes {expected:?}");
        }
        Outcome::Becomes(expected) => {
            let expected: Vec<String> = expected.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(arguments(&words)[1..], expected, "{shown}");
            assert!(is_parsed(&expected), "{shown}: no command takes {expected:?}");
        }
        Outcome::Made(read, _) => match read(value) {
            Ok(expected) => {
                assert_eq!(arguments(&words)[1..], expected, "{shown}");
                assert!(is_parsed(&expected), "{shown}: no command takes {expected:?}");
            }
            Err(wrong) => assert!(refused(&words).ends_with(&wrong), "{shown}"),
        },
        Outcome::Cases(..) => panic!("{shown}: cases within cases"),
    }
    if has_value && !matches!(row.value, Value::Two(..)) {
        let joined = format!("{spelling}={value}");
        let (one, two) = (translated(&[command, &joined]), translated(&words));
        match (one, two) {
            (Ok(one), Ok(two)) => {
                assert_eq!((one.arguments, one.notes), (two.arguments, two.notes), "{joined}");
            }
            (Err(one), Err(two)) => assert_eq!(one.to_string(), two.to_string(), "{joined}"),
            _ => panic!("{joined}: another outcome than {shown}"),
        }
    }
}

/// True if the parser of one of the commands takes these words.
fn is_parsed(words: &[String]) -> bool {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let start = |command: &str| -> Vec<String> {
        match command {
            "" => vec!["brasa".to_owned()],
            "perplexity" => ["brasa", "perplexity", "-f", "text"].map(String::from).to_vec(),
            "train" => ["brasa", "train", "--data", "text"].map(String::from).to_vec(),
            command => vec!["brasa".to_owned(), command.to_owned()],
        }
    };
    ["", "run", "generate", "bench", "perplexity", "transcribe", "serve", "embed", "train"].iter().any(
        |command| match Arguments::try_parse_from([start(command), words.to_vec()].concat()) {
            Ok(_) => true,
            Err(error) => {
                matches!(error.kind(), DisplayHelp | DisplayVersion)
                    && error.kind() != DisplayHelpOnMissingArgumentOrSubcommand
            }
        },
    )
}

#[test]
fn every_spelling_has_its_outcome() {
    for (command, table) in [
        ("run", LLAMA_CPP),
        ("run", MLX_LM),
        ("serve", LLAMA_SERVER),
        ("serve", MLX_SERVER),
        ("embed", LLAMA_EMBEDDING),
        ("perplexity", LLAMA_PERPLEXITY),
        ("bench", LLAMA_BENCH),
        ("quantize", MLX_CONVERT),
        ("transcribe", WHISPER_CPP),
        ("train", TRAINERS),
    ] {
        for row in table {
            let usual = match row.value {
                Value::None => "",
                Value::One(name) | Value::Many(name) | Value::Two(name, _) => sample(name),
                Value::Maybe(words) => words[0],
            };
            for spelling in row.spellings() {
                if let Outcome::Cases(cases, other) = &row.outcome {
                    for (value, outcome) in cases
                        .iter()
                        .flat_map(|(values, outcome)| values.iter().map(move |value| (value, outcome)))
                    {
                        check(command, spelling, row, value, outcome);
                    }
                    // A usual value may be one of the cases; 7 and `other` are none.
                    let mut rest = match row.value {
                        Value::Maybe(words) => words.to_vec(),
                        _ => vec![usual, "7", "other"],
                    };
                    rest.retain(|value| std::ptr::eq(row.outcome.for_value(value), *other));
                    check(command, spelling, row, rest.first().unwrap(), other);
                } else {
                    check(command, spelling, row, usual, &row.outcome);
                }
                if matches!(row.value, Value::Maybe(_)) {
                    check(command, spelling, row, "", row.outcome.for_value(""));
                }
            }
        }
    }
}

#[test]
fn spellings_are_unique_and_well_formed() {
    for table in [
        LLAMA_CPP,
        MLX_LM,
        LLAMA_BENCH,
        LLAMA_SERVER,
        LLAMA_EMBEDDING,
        LLAMA_PERPLEXITY,
        MLX_SERVER,
        MLX_CONVERT,
        WHISPER_CPP,
        TRAINERS,
    ] {
        let mut seen = BTreeSet::new();
        for spelling in table.iter().flat_map(Row::spellings) {
            assert!(seen.insert(spelling), "{spelling} has two rows");
            assert!(spelling.starts_with('-') && !spelling.contains(['=', '_']), "{spelling}");
        }
    }
    let llama: BTreeSet<_> = LLAMA_CPP.iter().flat_map(Row::spellings).collect();
    for spelling in MLX_LM.iter().flat_map(Row::spellings) {
        assert!(!llama.contains(spelling), "{spelling} is llama.cpp's too");
    }
}

#[test]
fn no_spelling_has_another_meaning_here() {
    let root = Arguments::command();
    let names: Vec<_> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut collisions = Vec::new();
    for command in [None].into_iter().chain(names.iter().map(|name| Some(name.as_str()))) {
        let own = Options::of(&root, command);
        let rows = rows(command, &own);
        for (spelling, long) in own.spellings(&root) {
            let Some(row) = rows.get(spelling.as_str()) else { continue };
            let outcome = match &row.outcome {
                // A list for our option.
                Outcome::Made(..) => continue,
                Outcome::Cases(_, other) => other,
                outcome => outcome,
            };
            if !matches!(outcome, Outcome::Ours(ours) if *ours == long) {
                collisions.push((command.unwrap_or("run").to_owned(), spelling, long));
            }
        }
    }
    let known: Vec<_> =
        COLLISIONS.iter().map(|&(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())).collect();
    assert_eq!(collisions, known);
}

#[test]
fn answers_name_what_there_is() {
    let root = Arguments::command();
    let options: BTreeSet<String> = root
        .get_subcommands()
        .flat_map(|command| Options::of(&root, Some(command.get_name())).spellings(&root))
        .flat_map(|(spelling, _)| [spelling])
        .chain(["-ctk", "-ctv", "-ub", "-hf"].map(String::from))
        .collect();
    let mut texts = Vec::new();
    let tables = [
        LLAMA_CPP,
        LLAMA_BENCH,
        LLAMA_SERVER,
        LLAMA_EMBEDDING,
        LLAMA_PERPLEXITY,
        MLX_LM,
        MLX_SERVER,
        MLX_CONVERT,
        WHISPER_CPP,
        TRAINERS,
    ];
    for row in tables.into_iter().flatten() {
        collect(&row.outcome, &mut texts);
    }
    texts.extend(COMMANDS.iter().map(|(_, text)| *text));
    for text in texts {
        for code in text.split('`').skip(1).step_by(2) {
            let mut words = code.split_whitespace();
            match words.next() {
                Some("brasa") => {
                    let command = words.next().unwrap();
                    assert!(Options::is_command(&root, command), "{text}");
                }
                Some(option) if option.starts_with('-') => assert!(options.contains(option), "{text}"),
                _ => {}
            }
        }
        assert!(text.chars().count() <= 120, "a line is 120 characters long at most: {text}");
    }
}

/// The texts of an outcome.
fn collect(outcome: &'static Outcome, texts: &mut Vec<&'static str>) {
    match outcome {
        Outcome::True(text)
        | Outcome::Noted(text)
        | Outcome::SingleTurn(text)
        | Outcome::Command(_, text)
        | Outcome::Answered(text) => texts.push(text),
        Outcome::Cases(cases, other) => {
            cases.iter().for_each(|(_, outcome)| collect(outcome, texts));
            collect(other, texts);
        }
        Outcome::Ours(_) | Outcome::Becomes(_) | Outcome::Made(..) => {}
    }
}

#[test]
fn values_are_no_options() {
    assert_eq!(
        arguments(&["generate", "-p", "-ngl", "-n", "4"]),
        ["generate", "--prompt=-ngl", "--predict", "4"]
    );
    assert_eq!(arguments(&["-p", "-- a list\n-cnv", "-cnv"]), ["chat", "--prompt=-- a list\n-cnv"]);
    assert_eq!(arguments(&["-vp", "-fa"]), ["-v", "--prompt=-fa"]);
    assert_eq!(arguments(&["--stop", "-hf", "-st", "--top_k", "4"]), ["--stop=-hf", "--top-k", "4"]);
    assert_eq!(arguments(&["inspect", "--", "-ngl", "-hf"]), ["inspect", "--", "-ngl", "-hf"]);
    assert_eq!(arguments(&["-p", "text", "-"]), ["--prompt", "text", "-"]);
    assert_eq!(arguments(&["-n5", "-ptext"]), ["-n5", "-ptext"]);
    assert_eq!(
        arguments(&["bench", "-p", "64,128", "-r", "2"]),
        ["bench", "--n-prompt", "64,128", "--repetitions", "2"]
    );
}

/// Transformers' parser takes lists as words behind each other.
#[test]
fn lists_of_names_end_at_options_and_files() {
    let targets = |words: &[&str]| arguments(&[&["train", "--lora_target_modules"][..], words].concat());
    assert_eq!(
        targets(&["q_proj", "v_proj", "--data", "d"]),
        ["train", "--targets", "q_proj,v_proj", "--data", "d"]
    );
    assert_eq!(targets(&["q_proj", "some/model"]), ["train", "--targets", "q_proj", "some/model"]);
    assert_eq!(targets(&["all-linear"]), ["train", "--targets", "all"]);
    assert!(
        refused(&["train", "--lora_target_modules"]).contains("needs a value: --lora-target-modules NAMES")
    );
}

#[test]
fn options_that_are_none_are_refused() {
    for word in ["-hx", "-Vx", "-xyz", "-vhx"] {
        assert!(refused(&[word]).starts_with(&format!("unexpected argument '{word}'")), "{word}");
    }
    assert_eq!(refused(&["-ngl"]), "-ngl needs a value: -ngl N");
    assert_eq!(
        refused(&["--control-vector-layer-range", "1"]).split(':').next().unwrap(),
        "--control-vector-layer-range is not supported"
    );
    assert!(refused(&["list"]).contains("brasa discover"));
    assert!(refused(&["models/model.gguf"]).contains("-m models/model.gguf"));
}

#[test]
fn the_first_word_names_the_model() {
    assert_eq!(arguments(&["run", "m", "-p", "x"]), ["run", "--prompt", "x", "--model", "m"]);
    assert_eq!(arguments(&["run", "-p", "x", "m", "-n4"]), ["run", "--prompt", "x", "-n4", "--model", "m"]);
    assert_eq!(
        arguments(&["serve", "a", "--port", "1", "b"]),
        ["serve", "--port", "1", "--model", "a", "--model", "b"]
    );
    assert_eq!(
        arguments(&["bench", "user/repo", "-p", "8"]),
        ["bench", "--n-prompt", "8", "--model", "user/repo"]
    );
    assert_eq!(arguments(&["embed", "m", "-p", "x", "y"]), ["embed", "--prompt", "x", "y", "--model", "m"]);
    assert_eq!(arguments(&["rerank", "-q", "x", "doc"]), ["rerank", "-q", "x", "doc"]);
    for words in
        [&["run", "-m", "a", "b"][..], &["run", "b", "-vma"], &["generate", "-hf", "u/r", "b", "-p", "x"]]
    {
        assert!(refused(words).starts_with("b: an option names the model already"), "{words:?}");
    }
}

#[test]
fn conversation_switches_name_the_command() {
    assert_eq!(arguments(&["-no-cnv", "-p", "x"]), ["generate", "--prompt", "x"]);
    assert_eq!(arguments(&["run", "-p", "x", "-no-cnv"]), ["generate", "--prompt", "x"]);
    assert_eq!(arguments(&["run", "-p", "x", "-cnv"]), ["chat", "--prompt", "x"]);
    assert_eq!(arguments(&["-cnv", "-p", "x", "-st"]), ["--prompt", "x"]);
    assert_eq!(arguments(&["perplexity", "-f", "x", "-no-cnv"]), ["perplexity", "--file", "x"]);
}

/// Every spelling of llama-server's help, with a value if it takes one.
const SERVER_HELP: &str = include_str!("llama_server_help.txt");

#[test]
fn every_spelling_of_the_servers_help_has_an_answer_of_a_server() {
    let (mut count, mut wrong) = (0, Vec::new());
    for line in SERVER_HELP.lines() {
        let (spellings, values) = line.split_once(" | ").unwrap_or((line, ""));
        for spelling in spellings.split(' ') {
            count += 1;
            let mut words = vec!["serve", spelling];
            words.extend(values.split(' ').filter(|value| !value.is_empty()));
            match translated(&words) {
                Ok(found) => {
                    let parsed = Arguments::try_parse_from(&found.arguments);
                    // Help and version are errors of the parser that end well.
                    if let Some(error) = parsed.err().filter(|error| error.exit_code() != 0) {
                        wrong.push(format!(
                            "{}: {}",
                            words.join(" "),
                            error.to_string().lines().next().unwrap()
                        ));
                    }
                }
                Err(failure) => {
                    let message = failure.to_string();
                    // What serves instead, and not that a server would know it.
                    if message.contains("option of a server") || message.contains("unexpected argument") {
                        wrong.push(format!("{}: {message}", words.join(" ")));
                    }
                }
            }
        }
    }
    assert!(count > 400, "{count} spellings");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
