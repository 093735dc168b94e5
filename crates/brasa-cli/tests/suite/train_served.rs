//! `brasa train --server`: what is learned goes straight into a running server.

use super::command::{brasa, fails, scratch, stderr, stdout};
use super::serve::Served;
use super::train::{examples, small};

#[test]
fn a_learned_adapter_goes_into_a_running_server() {
    let folder = scratch("train-served");
    let data = examples(&folder);
    let adapters = folder.join("adapters");
    std::fs::create_dir_all(&adapters).unwrap();
    let (out, adapters) = (adapters.join("plurals").display().to_string(), adapters.display().to_string());
    let served = Served::start_with(&[("BRASA_LORA_DIR", &adapters)], &[]);
    let url = &*served.url;
    let question = ["run", "-p", "Plural of cat?", "-n", "8", "--temp", "0"];
    let ask = |model: &[&str]| {
        let output = brasa(&[&question[..], &["--server", url], model].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let base = ask(&[]);
    let train = |more: &[&str]| {
        let output = brasa(&[&small(&data, &out)[..], &["--server", url], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let said = stdout(&output);
        let told = said.lines().last().unwrap();
        told.strip_prefix(&format!("{url}: serves it as ")).expect(told).to_owned()
    };
    let here = || {
        let output =
            brasa(&[&question[..], &["-c", "256", "-t", "1", "--deterministic", "--lora", &out]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let name = train(&[]);
    assert!(name.ends_with(":plurals"), "{name}");
    assert_eq!(ask(&["-m", &name]), here());
    assert_ne!(ask(&["-m", &name]), base);
    assert_eq!(ask(&[]), base, "whoever chooses none has the base");
    // Learned anew, under the same name and another one.
    for as_name in [&[][..], &["--serve-as", "other"]] {
        std::fs::remove_dir_all(&out).unwrap();
        let name = train(&[&["--seed", "5"], as_name].concat());
        assert_eq!(name.ends_with(":other"), !as_name.is_empty(), "{name}");
        assert_eq!(ask(&["-m", &name]), here());
    }
}

/// Each new best adapter is served while the run goes on; a server that refuses them is a warning, and fails at the end alone.
#[test]
fn the_best_adapter_so_far_is_served() {
    let folder = scratch("train-serve-best");
    let data = examples(&folder);
    let adapters = folder.join("adapters");
    std::fs::create_dir_all(&adapters).unwrap();
    let (out, adapters) = (adapters.join("best-of").display().to_string(), adapters.display().to_string());
    let run = small(&data, &out);
    let refusing = Served::start_with(&[], &[]);
    let output = brasa(&[&run[..], &["--server", &refusing.url, "--serve-best"]].concat());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let warnings = said.matches("warning: --serve-best: ").count();
    // Four evaluations; the first is before anything is learned.
    let best = said.matches(", the best so far").count();
    assert!(best >= 2 && warnings == best - 1 && said.contains("403"), "{said}");
    assert!(std::path::Path::new(&out).join("adapter_config.json").exists(), "the run goes to its end");
    std::fs::remove_dir_all(&out).unwrap();

    let served = Served::start_with(&[("BRASA_LORA_DIR", &adapters)], &[]);
    let output = brasa(&[&run[..], &["--server", &served.url, "--serve-best"]].concat());
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches(": serves it as ").count(), best - 1, "{said}");
    assert!(!said.contains("warning"), "{said}");
    let written = |folder: &str| {
        std::fs::read(std::path::Path::new(&out).join(folder).join("adapter_model.safetensors")).unwrap()
    };
    assert_eq!(written("best"), written(""), "the last best one is the one of the end");

    // No evaluation tells which is the best.
    std::fs::remove_file(folder.join("valid.jsonl")).unwrap();
    let out = folder.join("none").display().to_string();
    let said = fails(&[&small(&data, &out)[..], &["--server", &served.url, "--serve-best"]].concat(), 2);
    assert!(said.contains("--serve-best: there is no valid.jsonl"), "{said}");
}

#[test]
fn servers_that_take_no_adapter_are_named_and_the_adapter_stays() {
    let folder = scratch("train-refused");
    let data = examples(&folder);
    let out = folder.join("out").display().to_string();
    // A port that was free a moment ago: nothing is learned in vain.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = small(&data, &out);
    let said = fails(&[&run[..], &["--server", &format!("http://{closed}")]].concat(), 1);
    assert!(said.contains(&closed.to_string()) && !std::path::Path::new(&out).exists(), "{said}");
    let said = fails(&[&run[..], &["--server", "nowhere"]].concat(), 2);
    assert!(said.contains("expected http://HOST:PORT"), "{said}");
    for (more, part) in
        [(["--method", "full"], "--server"), (["--method", "dora"], "--server: requests cannot choose")]
    {
        let all = ["train", "--data", &data, "--out", &out, "--server", "http://127.0.0.1:1"];
        let said = fails(&[&all[..], &more].concat(), 2);
        assert!(said.contains(part), "{said}");
    }
    // A server that may load none, after the learning.
    let served = Served::start_with(&[], &[]);
    let output = brasa(&[&run[..], &["--server", &served.url]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("403") && said.contains("--lora-dir"), "{said}");
    assert!(said.contains("the adapter is written in") && said.contains(&out), "{said}");
    assert!(std::path::Path::new(&out).join("adapter_config.json").exists());
}
