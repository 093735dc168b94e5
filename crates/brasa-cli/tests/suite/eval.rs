//! `brasa eval` and `brasa generate --probe`: what they print, in both forms.

use serde_json::Value;

use super::command::{brasa, fails, model, stderr, stdout};

const QUICK: [&str; 9] =
    ["eval", "-n", "6", "-r", "2", "-c", "512", "--deterministic", "--cache-prompt=In the beginning "];

#[test]
fn eval_reports_every_section_as_json() {
    let path = model("tiny-llama");
    let output = brasa(&[&QUICK[..], &[&path, "-p", "there was a word", "--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    for section in ["generation", "prompt_cache", "kv_restore", "state_bundle", "probes", "quality"] {
        assert_eq!(report[section]["attempted"], true, "{section}");
    }
    // The facts and figures that a row of `brasa bench` has too.
    let bench = brasa(&[
        "bench",
        "-m",
        &path,
        "-p",
        "4",
        "-n",
        "0",
        "-r",
        "1",
        "--probe-mib",
        "0",
        "-o",
        "json",
        "--deterministic",
    ]);
    let row = &serde_json::from_str::<Value>(&stdout(&bench)).unwrap()[0];
    for (name, value) in row.as_object().unwrap().iter().take_while(|(name, _)| *name != "n_prompt") {
        assert_eq!(&report[name], value, "{name}");
    }
    for (cell, n_prompt, n_gen) in
        [("prefill", &report["generation"]["prompt_tokens"], 0), ("decode", &0.into(), 6)]
    {
        let cell = &report["generation"][cell];
        assert_eq!((&cell["n_prompt"], &cell["n_gen"]), (n_prompt, &n_gen.into()));
        for name in ["avg_ts", "stddev_ts", "median_ts", "spread"] {
            assert!(cell[name].is_f64() && row[name].is_number(), "{name}");
        }
        assert_eq!(cell["samples_ts"].as_array().unwrap().len(), 2);
    }
    let cache = &report["prompt_cache"];
    assert_eq!((&cache["requests"], &cache["hits"], &cache["misses"]), (&1.into(), &1.into(), &0.into()));
    assert!((0.1..1.0).contains(&cache["hit_rate"].as_f64().unwrap()), "{cache}");
    assert_eq!(report["probes"]["events"]["entropy"], 6);
    let checks = report["quality"]["checks"].as_array().unwrap();
    assert!(checks.len() == 8 && checks.iter().all(|check| check["passed"] == true), "{checks:?}");
    assert_eq!(report["identity"]["architecture"], "llama");
}

/// The table with `#` for every figure, units and all, since sizes of times differ from machine to machine.
#[test]
fn eval_prints_a_table() {
    let path = model("tiny-llama");
    let output = brasa(&[&QUICK[..], &["-m", &path, "-p", "there was a word", "-t", "1"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output).replace(&path, "tiny-llama");
    let masked: Vec<String> = text
        .lines()
        .map(|line| {
            let words = line.split_whitespace().map(|word| {
                let number = word.trim_start_matches(['+', '-']);
                if number.parse::<f64>().is_ok() && number.contains('.') { "#" } else { word }
            });
            // Columns are as wide as their figures.
            words.collect::<Vec<_>>().join(" ").replace("KiB", "B").replace("MiB", "B").replace("GiB", "B")
        })
        .filter(|line| !line.starts_with("| --"))
        .collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("eval", masked.join("\n")));
}

#[test]
fn eval_refuses_nonsense_by_name() {
    for (arguments, code, named) in [
        (&["eval", "-n", "1"][..], 2, "--predict"),
        (&["eval", "-n", "-5"], 2, "--predict"),
        (&["eval", "-r", "0"], 2, "--runs"),
        (&["eval", "-p", "x", "-f", "y"], 2, "--file"),
        (&["eval", "x.gguf", "-m", "y.gguf"], 2, "--model"),
        (&["eval", "-p", ""], 1, "prompt is empty"),
        (&["eval", "no-such.gguf"], 1, "no-such.gguf"),
        (&["eval", "-c", "16", "-n", "64", "-p", "an ember"], 1, "context"),
    ] {
        let told = fails(arguments, code);
        assert!(told.contains(named), "{arguments:?}: {told}");
    }
}

#[test]
fn generate_prints_the_events_of_probes() {
    let path = model("tiny-llama");
    let plain = ["generate", "-m", &path, "-p", "In the beginning", "-n", "4", "--temp", "0"];
    let output = brasa(&[&plain[..], &["--probe", "token,entropy,residual", "--probe-layers", "1"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (answer, events) = lines.split_last().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["probe"] == kind).collect::<Vec<_>>();
    assert_eq!((of("token").len(), of("entropy").len()), (4, 4));
    let tokens = answer["prompt_ids"].as_array().unwrap().len() + 4;
    assert_eq!(of("residual").len(), tokens);
    assert!(of("residual").iter().all(|event| event["layer"] == 1));
    let text: String = of("token").iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(answer["text"], text);
    assert_eq!(text.trim_end(), stdout(&brasa(&plain)).trim_end());
    assert!(fails(&[&plain[..], &["--probe", "entrophy"]].concat(), 2).contains("entropy"));
    assert!(fails(&[&plain[..], &["--probe-layers", "1"]].concat(), 2).contains("--probe"));
    let beyond = brasa(&[&plain[..], &["--probe", "residual", "--probe-layers", "99"]].concat());
    assert_eq!(beyond.status.code(), Some(1));
    assert!(stderr(&beyond).contains("layer 99"), "{}", stderr(&beyond));
}

/// Ctrl-C ends a running evaluation with 130.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_evaluation() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["eval", "-v", "-n", "500", "-r", "100000", "-p", "an ember"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("loading: ")), "the model is loaded");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(130), String::new()));
    assert_eq!(lines.next(), None);
}
