//! The command as scripts use it: machine-readable output, exit codes, messages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub fn model(name: &str) -> String {
    models().join(name).display().to_string()
}

pub fn brasa(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brasa")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must succeed; returns the JSON that it prints.
pub fn json(arguments: &[&str]) -> Value {
    let output = brasa(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Runs a command that must fail with `code`; returns what it says.
pub fn fails(arguments: &[&str], code: i32) -> String {
    let output = brasa(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{arguments:?}: a failure prints nothing to standard output");
    stderr(&output)
}

pub fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

fn reference(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(models().join(name).join("reference.json")).unwrap())
        .unwrap()
}

fn joined(ids: &Value) -> String {
    ids.as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn tokenize_prints_ids_and_pieces() {
    let model = model("tiny-llama");
    for prompt in reference("tiny-llama")["prompts"].as_array().unwrap() {
        let text = prompt["text"].as_str().unwrap();
        let chat = prompt["kind"] == "chat";
        // A rendered chat names its special tokens, its BOS included; a plain text has none.
        let flags: &[&str] = if chat { &["--no-bos", "--parse-special"] } else { &[] };
        let arguments = [&["tokenize", "-m", &model, "-p", text, "--json"], flags].concat();
        let result = json(&arguments);
        assert_eq!(ids(&result["ids"]), ids(&prompt["input_ids"]), "{text:?}");
        assert_eq!(result["pieces"].as_array().unwrap().len(), ids(&result["ids"]).len());
    }
    let ids = json(&["tokenize", "-m", &model, "-p", "in the beginning", "--no-bos", "--json"]);
    let decoded = brasa(&["tokenize", "-m", &model, "--decode", &joined(&ids["ids"])]);
    assert_eq!(stdout(&decoded), "in the beginning\n");
}

#[test]
fn tokenize_reads_files_byte_for_byte() {
    let directory = scratch("tokenize");
    let path = directory.join("text");
    std::fs::write(&path, "a\r\n\nb \n").unwrap();
    let result =
        json(&["tokenize", "-m", &model("tiny-qwen2"), "-f", path.to_str().unwrap(), "--no-bos", "--json"]);
    let decoded =
        json(&["tokenize", "-m", &model("tiny-qwen2"), "--decode", &joined(&result["ids"]), "--json"]);
    assert_eq!(decoded["text"], "a\r\n\nb \n");
}

#[test]
fn generate_matches_the_reference() {
    let reference = reference("tiny-qwen2");
    let prompt = &reference["prompts"][0];
    let result = json(&[
        "generate",
        "-m",
        &model("tiny-qwen2"),
        "--ids",
        &joined(&prompt["input_ids"]),
        "-n",
        "16",
        "--temp",
        "0",
        "--ignore-eos",
        "--precision",
        "reference",
        "--json",
    ]);
    assert_eq!(ids(&result["prompt_ids"]), ids(&prompt["input_ids"]));
    assert_eq!(ids(&result["ids"]), ids(&prompt["greedy_ids"])[..16]);
    assert_eq!(result["finish_reason"], "length");
    for key in ["load_ms", "ttft_ms", "prefill_tps", "decode_tps", "peak_memory_bytes"] {
        assert!(result["metrics"][key].as_f64().unwrap() > 0.0, "{key}: {}", result["metrics"]);
    }
    assert_eq!(result["metrics"]["prompt_tokens"], prompt["input_ids"].as_array().unwrap().len());
    assert_eq!(result["metrics"]["generated_tokens"], 16);
}

#[test]
fn ids_leave_out_the_stopping_token() {
    let reference = reference("tiny-llama");
    let prompt = reference["prompts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|prompt| prompt["stops_after"].as_u64().is_some_and(|count| count > 3))
        .unwrap();
    let stops_after = prompt["stops_after"].as_u64().unwrap();
    let model = model("tiny-llama");
    let ids_text = joined(&prompt["input_ids"]);
    let result = json(&[
        "generate",
        "-m",
        &model,
        "--ids",
        &ids_text,
        "--temp",
        "0",
        "--precision",
        "reference",
        "--json",
    ]);
    assert_eq!(result["ids"].as_array().unwrap().len() as u64, stops_after);
    assert_eq!(result["finish_reason"], "stop");
    assert_eq!(result["text"], prompt["answer_text"]);
}

#[test]
fn logits_match_the_reference_and_are_saved_for_numpy() {
    let directory = scratch("logits");
    for name in ["tiny-llama", "tiny-gemma3"] {
        let reference = reference(name);
        let prompt = &reference["prompts"][1];
        let out = directory.join(name).with_extension("npy");
        let result = json(&[
            "logits",
            "-m",
            &model(name),
            "--ids",
            &joined(&prompt["input_ids"]),
            "--precision",
            "reference",
            "--out",
            out.to_str().unwrap(),
            "--json",
        ]);
        let nll = result["nll"].as_f64().unwrap();
        assert!((nll - prompt["mean_nll"].as_f64().unwrap()).abs() < 1e-3, "{name}: {nll}");
        for (found, expected) in
            result["top"].as_array().unwrap().iter().zip(prompt["top8"].as_array().unwrap())
        {
            assert_eq!(found["id"], expected[0], "{name}");
            let (found, expected) = (found["logit"].as_f64().unwrap(), expected[1].as_f64().unwrap());
            assert!((found - expected).abs() < 1e-3 * expected.abs().max(1.0), "{name}: {found} {expected}");
        }
        let bytes = std::fs::read(&out).unwrap();
        let rows = prompt["input_ids"].as_array().unwrap().len();
        assert_eq!(&bytes[..6], b"\x93NUMPY");
        let header = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        assert!(String::from_utf8_lossy(&bytes[10..header]).contains(&format!("({rows}, 4096)")));
        assert_eq!(bytes.len(), header + rows * 4096 * 4);
    }
}

#[test]
fn the_bundled_model_answers_without_being_asked() {
    let output = brasa(&["--temp", "0"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("> What does") && text.to_lowercase().contains("ember"), "{text}");
    assert!(text.lines().count() > 1, "{text}");
}

#[test]
fn run_answers_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["run", "--temp", "0", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"What does \"river\" mean?").unwrap();
    let output = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["finish_reason"], "stop");
    assert!(result["text"].as_str().unwrap().contains("river"), "{result}");
}

#[test]
fn one_seed_gives_one_text() {
    let run = |seed: &str| {
        let result = json(&[
            "run",
            "-p",
            "Define: house",
            "-s",
            seed,
            "--temp",
            "4",
            "--top-k",
            "0",
            "--top-p",
            "1",
            "--min-p",
            "0",
            "-n",
            "24",
            "--json",
        ]);
        result["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
}

#[test]
fn stop_strings_end_the_answer() {
    let whole = json(&["run", "-p", "Define: house", "--temp", "0", "--json"]);
    let whole = whole["text"].as_str().unwrap();
    let stop: String = whole.chars().skip(whole.len() / 2).take(3).collect();
    let stopped = json(&["run", "-p", "Define: house", "--temp", "0", "--stop", &stop, "--json"]);
    assert_eq!(stopped["text"].as_str().unwrap(), &whole[..whole.find(&stop).unwrap()]);
}

#[test]
fn a_full_context_is_an_error_after_the_text() {
    let output = brasa(&["generate", "-p", "the", "-c", "16", "--ignore-eos", "--temp", "0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!stdout(&output).is_empty());
    assert!(stderr(&output).contains("the context of 16 tokens is full"), "{}", stderr(&output));
    let message = fails(&["generate", "--ids", "1,".repeat(20).trim_end_matches(','), "-c", "16"], 1);
    assert!(message.contains("the prompt has 20 tokens, the context holds 16"), "{message}");
    let stopped =
        json(&["generate", "-p", "the", "-c", "16", "--ignore-eos", "--context-policy", "stop", "--json"]);
    assert_eq!(stopped["finish_reason"], "context_full");
}

#[test]
fn wrong_input_is_named() {
    let missing = fails(&["generate", "-m", "/nowhere/model.gguf", "-p", "x"], 1);
    assert!(missing.contains("/nowhere/model.gguf"), "{missing}");
    let id = fails(&["generate", "--ids", "1,99999999", "-n", "1"], 1);
    assert!(id.contains("99999999") && id.contains("8192"), "{id}");
    fails(&["generate", "--ids", "1,x", "-n", "1"], 2);
    fails(&["generate", "-p", "x", "--temp", "-1"], 2);
    fails(&["generate", "-p", "x", "--top-p", "1.5"], 2);
    fails(&["generate", "-p", "x", "--logit-bias", "seven"], 2);
    fails(&["generate", "-p", "x", "--no-such-flag"], 2);
    let device = fails(&["generate", "-p", "x", "--device", "abacus"], 1);
    assert!(device.contains("abacus") && device.contains("cpu"), "{device}");
    // Whatever this machine has, it has no such GPU, and the reason is said.
    let gpu = fails(&["generate", "-p", "x", "--device", "cuda:4000"], 1);
    assert!(gpu.contains("device cuda:4000 is unavailable: ") && gpu.contains("NVIDIA"), "{gpu}");
    let number = fails(&["generate", "-p", "x", "--device", "cuda:one"], 1);
    assert!(number.contains("expected cuda:N"), "{number}");
}

#[test]
fn broken_checkpoints_are_refused() {
    let directory = scratch("broken");
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let noise = fails(&["generate", "-m", &file("noise.gguf", b"this is no model"), "-p", "x"], 1);
    assert!(noise.contains("noise.gguf"), "{noise}");
    let whole = std::fs::read(models().join("lexicon-qwen3/lexicon-qwen3-Q6_K.gguf")).unwrap();
    let cut = fails(&["generate", "-m", &file("cut.gguf", &whole[..whole.len() / 2]), "-p", "x"], 1);
    assert!(cut.contains("cut.gguf"), "{cut}");

    // A checkpoint of an unknown architecture: refused by name, though its tokenizer still works.
    let unknown = directory.join("unknown");
    copy("tiny-qwen2", &unknown, |name, text| {
        if name == "config.json" { text.replace("\"qwen2\"", "\"mamba7\"") } else { text }
    });
    let path = unknown.display().to_string();
    let message = fails(&["generate", "-m", &path, "-p", "x"], 1);
    assert!(message.contains("mamba7"), "{message}");
    assert!(!ids(&json(&["tokenize", "-m", &path, "-p", "house", "--json"])["ids"]).is_empty());
    assert_eq!(json(&["inspect", &path, "--json"])["architecture"], "mamba7");

    // A key that nobody knows: a warning, and an error when strict.
    let odd = directory.join("odd");
    copy("tiny-qwen2", &odd, |name, text| {
        if name == "config.json" { text.replacen('{', "{\"frobnication\": 3, ", 1) } else { text }
    });
    let path = odd.display().to_string();
    let output = brasa(&["generate", "-m", &path, "-p", "x", "-n", "1"]);
    assert!(output.status.success() && stderr(&output).contains("frobnication"), "{}", stderr(&output));
    let message = fails(&["generate", "-m", &path, "-p", "x", "--strict"], 1);
    assert!(message.contains("frobnication"), "{message}");

    let silent = directory.join("silent");
    copy("tiny-qwen2", &silent, |_, text| text);
    for name in ["tokenizer.json", "vocab.json", "merges.txt"] {
        // Not every checkpoint has all of them.
        let _ = std::fs::remove_file(silent.join(name));
    }
    let path = silent.display().to_string();
    let message = fails(&["generate", "-m", &path, "-p", "x"], 1);
    assert!(message.contains("no tokenizer.json"), "{message}");
    // SentencePiece's own file, which is not text.
    std::fs::write(silent.join("tokenizer.model"), [0x0a, 0xff, 0xfe]).unwrap();
    for command in [["generate", "-m"], ["tokenize", "-m"]] {
        let message = fails(&[&command[..], &[&path, "-p", "x"]].concat(), 1);
        assert!(message.contains("tokenizer.model alone is not read"), "{message}");
    }
}

#[test]
fn unwritable_output_leaves_nothing_behind() {
    let directory = scratch("unwritable");
    let out = directory.join("no/such/folder/logits.npy");
    let message = fails(&["logits", "--ids", "1,2,3", "--out", out.to_str().unwrap()], 1);
    assert!(message.contains("logits.npy"), "{message}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn a_closed_pipe_ends_the_program_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["generate", "-p", "the", "-n", "500", "--ignore-eos"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_program_with_130() {
    use std::io::Read;
    let mut child = Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(["generate", "-p", "the", "--ignore-eos", "--context-policy", "slide"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn embed_prints_vectors_and_compares_texts() {
    let directory = scratch("embed");
    let path = directory.join("texts");
    std::fs::write(&path, "An ember glows.\n\nA river flows.\nAn ember glows.\n").unwrap();
    let path = path.to_str().unwrap();
    // Bits of bf16 products depend on which texts share a step.
    let one = json(&["embed", "-p", "An ember glows.", "--json", "--deterministic"]);
    assert_eq!(one["pooling"], "last");
    let result = json(&["embed", "-f", path, "--lines", "--similarity", "--json", "--deterministic"]);
    let embeddings = result["embeddings"].as_array().unwrap();
    assert_eq!(embeddings.len(), 3);
    assert_eq!(embeddings[0], embeddings[2]);
    assert_eq!(embeddings[0], one["embeddings"][0]);
    assert_ne!(embeddings[0], embeddings[1]);
    let vector: Vec<f64> =
        embeddings[0]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(vector.len(), 512);
    assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    let alike = |a: usize, b: usize| result["similarity"][a][b].as_f64().unwrap();
    assert!(alike(0, 2) > 0.9999 && alike(0, 1) < 0.999);
    assert_eq!(result["similarity"][0][1], result["similarity"][1][0]);
    let table = stdout(&brasa(&["embed", "-f", path, "--lines", "--similarity"]));
    assert_eq!(table.lines().count(), 3);
    assert!(table.lines().next().unwrap().ends_with("1.000  An ember glows."), "{table}");
    let mean = stdout(&brasa(&["embed", "-p", "An ember glows.", "--pooling", "mean", "--raw"]));
    assert_eq!(mean.split_whitespace().count(), 512);
    let length: f64 = mean.split_whitespace().map(|x| x.parse::<f64>().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() > 0.01);
    let tokens = json(&["embed", "-f", path, "--lines", "--pooling", "none", "--json", "--deterministic"]);
    for text in tokens["embeddings"].as_array().unwrap() {
        let states = text["embedding"].as_array().unwrap();
        assert_eq!(states.len() as u64, text["tokens"].as_u64().unwrap());
        assert!(states.iter().all(|state| state.as_array().unwrap().len() == 512));
    }
    // The last token's vector is what the text's own way of pooling takes.
    assert_eq!(
        tokens["embeddings"][0]["embedding"].as_array().unwrap().last(),
        Some(&embeddings[0]["embedding"])
    );
    fails(&["embed", "-f", path, "--lines", "--similarity", "--pooling", "none"], 2);
    fails(&["embed", "-p", "x", "--similarity"], 2);
    std::fs::write(path, "\n \n").unwrap();
    fails(&["embed", "-f", path, "--lines"], 2);
}

#[test]
fn perplexity_scores_the_second_half_of_every_window() {
    let directory = scratch("perplexity");
    let path = directory.join("text");
    std::fs::write(&path, "And the LORD spake unto Moses, saying, This is the law. ".repeat(40)).unwrap();
    let result = json(&["perplexity", "-f", path.to_str().unwrap(), "-c", "64", "--json"]);
    let windows = result["windows"].as_u64().unwrap();
    assert_eq!(windows, result["text_tokens"].as_u64().unwrap() / 64);
    assert_eq!(result["scored_tokens"], windows * 31);
    assert!(result["perplexity"].as_f64().unwrap() > 1.0);
    let short = fails(&["perplexity", "-f", path.to_str().unwrap(), "-c", "4096"], 1);
    assert!(short.contains("at least 8192"), "{short}");
}

#[test]
fn discover_lists_the_models_below_a_folder() {
    let found = json(&["discover", models().to_str().unwrap(), "--json"]);
    let named = |name: &str| {
        found
            .as_array()
            .unwrap()
            .iter()
            .find(|model| model["path"].as_str().unwrap().ends_with(name))
            .unwrap()
    };
    assert_eq!(named("tiny-gemma4")["architecture"], "gemma4_text");
    assert_eq!(named("lexicon-qwen3-Q6_K.gguf")["quantization"], "Q6_K");
    fails(&["discover", "/nowhere"], 1);
}

#[test]
fn help_version_doctor_and_completions_work() {
    assert!(stdout(&brasa(&["--version"])).starts_with("brasa "));
    assert!(stdout(&brasa(&["--help"])).contains("perplexity"));
    assert!(stdout(&brasa(&["completions", "bash"])).contains("_brasa"));
    let report = json(&["doctor", "--json"]);
    assert_eq!(report["healthy"], true);
    let backends = report["backends"].as_array().unwrap();
    let names: Vec<_> = backends.iter().map(|backend| backend["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["cuda", "metal", "cpu", "mlx_lm"]);
    assert!(backends[1]["available"] == false && backends[1]["reason"].as_str().unwrap().contains("Apple"));
    assert!(
        backends[2]["available"] == true && backends[2]["description"].as_str().unwrap().contains("threads")
    );
    let report = stdout(&brasa(&["doctor"]));
    assert!(report.contains("\ndevice cpu: ") && report.contains("\nbackend cpu: available\n"), "{report}");
    assert!(report.contains("\nbackend metal is not available: "), "{report}");
}

/// An empty folder for one test, gone when the machine cleans its temporary folder.
pub fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    // It may be left over from an earlier run.
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Copies a checkpoint, its JSON files edited.
pub fn copy(name: &str, to: &Path, edit: impl Fn(&str, String) -> String) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(models().join(name)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") => {
                std::fs::write(to.join(&name), edit(&name, std::fs::read_to_string(&path).unwrap())).unwrap();
            }
            Some("safetensors") => {
                std::fs::copy(&path, to.join(&name)).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn what_a_model_cannot_do_is_a_named_warning() {
    let run = |arguments: &[&str]| stderr(&brasa(&[&["run", "-p", "ember", "-n", "1"], arguments].concat()));
    assert_eq!(run(&["-c", "4097"]), "warning: -c 4097: the model was made for at most 4096 tokens\n");
    assert_eq!(run(&["-c", "4096"]), "");
    let no_switch = "warning: --reasoning: the model's chat template has no switch for thinking\n";
    assert_eq!(run(&["--reasoning", "on"]), no_switch);
    let switch = scratch("thinking").join("template.jinja");
    std::fs::write(&switch, "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}").unwrap();
    assert_eq!(run(&["--reasoning", "on", "--chat-template-file", switch.to_str().unwrap()]), "");
}

#[test]
fn the_last_of_repeated_flags_counts() {
    let result = json(&["generate", "-p", "ember", "-n", "7", "--json", "-n", "2", "-s", "-1"]);
    assert_eq!(result["ids"].as_array().unwrap().len(), 2);
}

#[test]
fn completions_know_values() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&brasa(&["completions", shell]));
        // clap's script for fish completes options alone.
        let types: &[&str] = if shell == "fish" { &[] } else { &["Q4_K_M", "IQ4_XS"] };
        for value in types.iter().copied().chain(["cuda", "avx512bf16", "i8mm", "llama-cpp", "q8_0", "slide"])
        {
            assert!(script.contains(value), "{shell}: {value}");
        }
    }
    let error = fails(&["bench", "--isa", "abacus", "-p", "1", "-n", "0"], 1);
    let script = stdout(&brasa(&["completions", "fish"]));
    let (_, known) = error.trim_end().split_once("expected one of ").unwrap();
    for name in known.split(", ").filter(|name| !name.ends_with("emulated")) {
        assert!(script.contains(name), "{name}: {error}");
    }
}
