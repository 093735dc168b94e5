//! `brasa train` with the built-in model, which is quantised.

use std::path::Path;

use crate::command::{brasa, fails, scratch, stderr, stdout};

const ROWS: [(&str, &str); 6] = [
    ("cat", "cats"),
    ("box", "boxes"),
    ("lady", "ladies"),
    ("dog", "dogs"),
    ("city", "cities"),
    ("bus", "buses"),
];

/// A folder of examples.
pub fn examples(folder: &Path) -> String {
    let row = |(word, answer): &(&str, &str)| {
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"Plural of {word}?\"}}, \
             {{\"role\": \"assistant\", \"content\": \"{answer}\"}}]}}\n"
        )
    };
    let rows: Vec<String> = ROWS.iter().map(row).collect();
    std::fs::write(folder.join("train.jsonl"), rows.concat()).unwrap();
    for name in ["valid.jsonl", "test.jsonl"] {
        std::fs::write(folder.join(name), rows[..2].concat()).unwrap();
    }
    folder.to_str().unwrap().to_owned()
}

/// Arguments of a small run.
pub fn small<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
    let course = ["--steps", "12", "--batch-tokens", "160", "--evaluate-every", "4", "--lr", "1e-2"];
    let adapter = ["--rank", "2", "--targets", "q_proj,v_proj,o_proj,ffn_down", "--last-blocks", "3"];
    [&["train", "--data", data, "--out", out][..], &course, &adapter].concat()
}

#[test]
fn an_adapter_is_learned_and_changes_answers() {
    let folder = scratch("train");
    let data = examples(&folder);
    let out = folder.join("out");
    let out = out.to_str().unwrap();
    let run = small(&data, out);
    let output = brasa(&run);
    let (text, told) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{told}");
    assert!(text.contains("the adapter after update ") && text.contains("test.jsonl: loss "), "{text}");
    assert!(told.contains("6 rows, 6 documents, ") && told.contains("⟦cats<|im_end|>⟧"), "{told}");
    assert!(told.contains("update 2/12: train loss ") && told.contains(" (mean of 2 updates), "), "{told}");
    assert!(told.contains("update 12: valid loss ") && told.contains("• loss, ○ evaluations"), "{told}");
    let metrics = std::fs::read_to_string(folder.join("out/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 12 + 4);
    let losses: Vec<&str> = metrics.lines().filter(|line| line.contains("valid_loss")).collect();
    let loss = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value["valid_loss"].as_f64().unwrap()
    };
    assert!(loss(losses[3]) < 0.5 * loss(losses[0]), "{metrics}");
    assert!(std::fs::read_to_string(folder.join("out/curves.svg")).unwrap().contains("<polyline"));
    let answer = |lora: &[&str]| {
        let output = brasa(&[&["run", "-p", "Plural of cat?", "-n", "8", "--temp", "0"][..], lora].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert_ne!(answer(&["--lora", out]), answer(&[]));
    let svg = folder.join("runs.svg");
    let compared = brasa(&["train", "--svg", svg.to_str().unwrap(), "--plot", out, out]);
    assert!(compared.status.success(), "{}", stderr(&compared));
    assert!(stdout(&compared).contains(": 12 updates, loss ") && stderr(&compared).contains(", + "));
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<polyline").count(), 4);
    assert!(fails(&["train", "--plot", &data], 1).contains("no metrics of a run\nhint: "));
    // A run that is there is not overwritten; gone on with, it is finished already.
    let refused = fails(&run, 1);
    assert!(
        refused.contains("adapter_config.json exists\nhint: ")
            && refused.contains("--resume")
            && refused.contains(&format!("(--from {out})")),
        "{refused}"
    );
    // The command that the run told goes on from its best adapter, in a folder of its own.
    let next = told.split("a run that begins with the adapter: brasa ").nth(1).expect("a command");
    let next: Vec<&str> = next.lines().next().unwrap().split(' ').collect();
    let output = brasa(&next);
    assert!(output.status.success() && stderr(&output).contains("are begun with"), "{}", stderr(&output));
    let began = std::fs::read_to_string(folder.join("out-2/metrics.jsonl")).unwrap();
    let began = loss(began.lines().next().unwrap());
    let best = losses.iter().map(|line| loss(line)).fold(f64::INFINITY, f64::min);
    assert!((began - best).abs() < 1e-4 * best, "{began}, expected {best}");
    let before = std::fs::read(folder.join("out/adapter_model.safetensors")).unwrap();
    let again = brasa(&[&run[..], &["--resume"]].concat());
    assert!(
        again.status.success() && stderr(&again).contains("goes on after update 12, which was the last"),
        "{}",
        stderr(&again)
    );
    assert_eq!(std::fs::read(folder.join("out/adapter_model.safetensors")).unwrap(), before);
    let other = fails(&[&run[..], &["--resume", "--clip", "2"]].concat(), 1);
    assert!(
        other.contains("checkpoint.brasa: longest gradient was Some(1.0), now it is Some(2.0)\n"),
        "{other}"
    );
}

#[test]
fn adapters_are_written_in_every_form() {
    let folder = scratch("train_forms");
    let data = examples(&folder);
    for (form, file, method) in [("mlx", "adapters.safetensors", "dora"), ("gguf", "adapter.gguf", "rslora")]
    {
        let out = folder.join(form);
        let noise = ["--dropout", "0.1", "--neftune", "5", "--rank-of", "ffn_down=3"];
        let run = [&small(&data, out.to_str().unwrap())[..], &["--form", form, "--method", method], &noise];
        let output = brasa(&run.concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let adapter = if form == "gguf" { out.join(file) } else { out.clone() };
        let answer =
            ["run", "-p", "Plural of cat?", "-n", "2", "--temp", "0", "--lora", adapter.to_str().unwrap()];
        let output = brasa(&answer);
        assert!(output.status.success() && out.join(file).exists(), "{}", stderr(&output));
    }
    // Requests of a server choose among adapters, and magnitudes cannot be chosen.
    let mlx = folder.join("mlx");
    let served = brasa(&["serve", "--port", "0", "--lora", mlx.to_str().unwrap()]);
    let refused = stderr(&served);
    assert_eq!(served.status.code(), Some(1), "{refused}");
    assert!(refused.contains("DoRA's magnitudes change whole rows of the model"), "{refused}");
    assert!(refused.contains("\nhint: merge the adapter"), "{refused}");
}

/// An adapter whose matrices are read as bfloat16 is written so, in half the bytes, and answers as one in f32 whose values are rounded.
#[test]
fn matrices_of_bfloat16_are_learned_and_written() {
    let folder = scratch("train_bfloat16");
    let data = examples(&folder);
    let run = |name: &str, more: &[&str]| {
        let out = folder.join(name);
        let output = brasa(&[&small(&data, out.to_str().unwrap())[..], more].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let bytes = std::fs::read(out.join("adapter_model.safetensors")).unwrap();
        let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let types: std::collections::BTreeSet<String> = header
            .as_object()
            .unwrap()
            .values()
            .filter_map(|tensor| Some(tensor.get("dtype")?.as_str()?.to_owned()))
            .collect();
        let answer = brasa(&["logits", "-p", "Plural of cat?", "--json", "--lora", out.to_str().unwrap()]);
        assert!(answer.status.success(), "{}", stderr(&answer));
        (types.into_iter().collect::<Vec<_>>(), bytes.len(), stdout(&answer))
    };
    let (plain, f32_bytes, _) = run("plain", &[]);
    let (rounded, bf16_bytes, answer) = run("rounded", &["--adapter-dtype", "bf16"]);
    let (masters, _, of_masters) = run("masters", &["--adapter-dtype", "bf16", "--save-dtype", "f32"]);
    assert_eq!((plain, rounded, masters), (vec!["F32".into()], vec!["BF16".into()], vec!["F32".into()]));
    assert!(bf16_bytes < f32_bytes * 6 / 10, "{bf16_bytes} of {f32_bytes}");
    assert_ne!(answer, of_masters, "what is learned is not what products read");
    // Another type is another run.
    let out = folder.join("rounded");
    let other = fails(&[&small(&data, out.to_str().unwrap())[..], &["--resume"]].concat(), 1);
    assert!(other.contains("type of the adapter's matrices was Bf16, now it is not set"), "{other}");
    let full = ["train", "--data", &data, "--out", "none", "--method", "full", "--adapter-dtype", "bf16"];
    assert!(fails(&full, 2).contains("--adapter-dtype: only of an adapter"));
}

/// Adapters of experts, in the forms that have a place for them, change answers as they are loaded.
#[test]
fn experts_are_learned_and_loaded() {
    let folder = scratch("train_experts");
    let data = examples(&folder);
    let base = crate::command::model("tiny-qwen3moe");
    for form in ["mlx", "gguf"] {
        let out = folder.join(form);
        let out = out.to_str().unwrap();
        let run =
            ["train", &base, "--data", &data, "--out", out, "--form", form, "--targets", "experts,o_proj"];
        let course =
            ["--steps", "6", "--batch-tokens", "160", "--lr", "1e-2", "--rank", "2", "--dropout", "0.1"];
        let output = brasa(&[&run[..], &course].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let adapter = if form == "gguf" { format!("{out}/adapter.gguf") } else { out.to_owned() };
        let learned = |more: &[&str]| {
            let measured =
                brasa(&[&["logits", "-m", &base, "-p", "Plural of cat?", "--json"][..], more].concat());
            assert!(measured.status.success(), "{}", stderr(&measured));
            stdout(&measured)
        };
        assert_ne!(learned(&["--lora", &adapter]), learned(&[]), "{form}");
    }
    let dora =
        ["--data", &data, "--out", "none", "--targets", "experts", "--method", "dora", "--form", "mlx"];
    let told = fails(&[&["train", &base][..], &dora].concat(), 1);
    let peft = fails(&["train", &base, "--data", &data, "--out", "none", "--targets", "experts"], 2);
    assert!(peft.contains("--form peft: PEFT has no form for a stack of experts"), "{peft}");
    assert!(told.contains("which are experts\nhint: learn experts without magnitudes"), "{told}");
}

/// Rows of the metrics without times.
fn timeless(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let row = |line: &str| {
        let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
        row.as_object_mut().unwrap().remove("seconds");
        row
    };
    text.lines().map(row).collect()
}

/// Arguments of a run of the smallest checkpoint, with everything that draws random numbers.
fn tiny(data: &str, out: &str) -> Vec<String> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny-llama");
    let course = ["--steps", "12", "--batch-tokens", "96", "--save-every", "1", "--evaluate-every", "5"];
    let adapter = ["--rank", "2", "--dropout", "0.1", "--neftune", "5", "--method", "dora", "--threads", "1"];
    let all = [&["train", model, "--data", data, "--out", out][..], &course, &adapter].concat();
    all.into_iter().map(String::from).collect()
}

/// Runs the command until it ends, or kills it when `stop` says so.
#[cfg(unix)]
pub fn killed_when(
    arguments: &[impl AsRef<std::ffi::OsStr>],
    stop: impl Fn() -> bool,
) -> std::process::ExitStatus {
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_brasa"))
        .args(arguments)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if stop() {
            process.kill().unwrap();
            return process.wait().unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A run that is killed again and again, at whatever it is doing, ends with the files of a run that was not, bit for bit.
#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_bit_for_bit() {
    use std::os::unix::process::ExitStatusExt;
    let folder = scratch("train_killed");
    let data = examples(&folder);
    let [whole, killed] = ["whole", "killed"].map(|name| folder.join(name));
    let run = tiny(&data, whole.to_str().unwrap());
    let output = brasa(&run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    let (metrics, checkpoint) = (killed.join("metrics.jsonl"), killed.join("checkpoint.brasa"));
    let lines = || std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    let mut kills = 0;
    for wanted in [1, 4, 8, usize::MAX] {
        let mut run = tiny(&data, killed.to_str().unwrap());
        run.extend(checkpoint.exists().then(|| "--resume".into()));
        let status = killed_when(&run, || lines() >= wanted);
        kills += usize::from(status.signal() == Some(9));
        // What is there is either whole or not there: an adapter exists only at the end.
        assert_eq!(killed.join("adapter_config.json").exists(), status.success());
    }
    assert!(kills >= 2, "killed {kills} times");
    for name in ["adapter_model.safetensors", "adapter_config.json", "checkpoint.brasa"] {
        let [a, b] = [&whole, &killed].map(|folder| std::fs::read(folder.join(name)).unwrap());
        assert!(a == b, "{name} differs");
    }
    assert_eq!(timeless(&whole), timeless(&killed));
}

/// A file that cannot grow, as on a full disk, ends a run with an error; nothing is left that would load, and the same command works later.
#[cfg(unix)]
#[test]
fn a_full_disk_ends_a_run_with_an_error_and_leaves_nothing_half() {
    let folder = scratch("train_full");
    let data = examples(&folder);
    let out = folder.join("out");
    let run = tiny(&data, out.to_str().unwrap());
    // Files of at most 16 or 32 KiB, as the shell counts; the signal that says so is passed over.
    let limited = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_brasa")])
        .args(&run)
        .output()
        .unwrap();
    let told = stderr(&limited);
    assert_eq!(limited.status.code(), Some(1), "{told}");
    assert!(told.contains("checkpoint.brasa: File too large"), "{told}");
    let mut left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["metrics.jsonl"], "{told}");
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    let under = file.join("out");
    let told = fails(&tiny(&data, under.to_str().unwrap()).iter().map(String::as_str).collect::<Vec<_>>(), 1);
    assert!(told.contains("Not a directory"), "{told}");
    let output = brasa(&run.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn mistakes_are_named_with_their_flags() {
    let folder = scratch("train_mistakes");
    let data = examples(&folder);
    let out = folder.join("out");
    let out = out.to_str().unwrap();
    let bad = folder.join("bad.jsonl");
    std::fs::write(&bad, "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n").unwrap();
    let bad = bad.to_str().unwrap();
    let told = fails(&["train", "--data", bad, "--out", out], 1);
    assert!(told.contains("bad.jsonl:2: no example in the fields `txt`\nhint: "), "{told}");
    let told = fails(&["train", "--data", &data, "--out", out, "--batch-tokens", "8"], 1);
    assert!(told.contains("train.jsonl:1: ") && told.contains("(--batch-tokens, --long)"), "{told}");
    let told = fails(&["train", "--data", &data, "--out", out, "--targets", "c_proj"], 1);
    assert!(
        told.contains("no linear layer is named `c_proj`\nhint: the linear layers are attn_q, q_proj, "),
        "{told}"
    );
    let told = fails(&["train", "--data", "nowhere", "--out", out], 1);
    assert!(told.contains("nowhere: no such file or folder\nhint: "), "{told}");
    for wrong in [
        &["--lr", "0"][..],
        &["--clip", "-1"],
        &["--momentum", "0.9"],
        &["--dropout", "1"],
        &["--method", "dora", "--form", "gguf"],
    ] {
        let output = brasa(&[&["train", "--data", &data, "--out", out][..], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    assert!(!folder.join("out").exists());
}

#[test]
fn a_preference_is_learned_and_told() {
    let folder = scratch("train-preference");
    let row = |(word, answer): &(&str, &str)| {
        format!("{{\"prompt\": \"Plural of {word}?\", \"chosen\": \"{answer}\", \"rejected\": \"{word}\"}}\n")
    };
    let rows: Vec<String> = ROWS.iter().map(row).collect();
    for (name, rows) in [("train.jsonl", &rows[..]), ("valid.jsonl", &rows[..2]), ("test.jsonl", &rows[..2])]
    {
        std::fs::write(folder.join(name), rows.concat()).unwrap();
    }
    let (data, out) = (folder.to_str().unwrap().to_owned(), folder.join("out"));
    let run = small(&data, out.to_str().unwrap());
    let short: Vec<&str> = run.iter().map(|&word| if word == "12" { "6" } else { word }).collect();
    let dpo = [&short[..], &["--loss", "dpo", "--beta", "0.3"]].concat();
    let output = brasa(&dpo);
    let (text, told) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("⟦cats<|im_end|>⟧") && told.contains("its rejected answer, what is learned"),
        "{told}"
    );
    assert!(
        told.contains("6 rows, 12 documents") && told.contains("0.0 % of the pairs preferred as wanted"),
        "{told}"
    );
    assert!(
        text.contains("test.jsonl: loss ") && text.contains("100.0 % of the pairs preferred as wanted"),
        "{text}"
    );
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().all(|line| line.contains("\"preferred\":")), "{metrics}");
    let other = folder.join("other");
    let other = small(&data, other.to_str().unwrap());
    let refused = |more: &[&str], status| fails(&[&other[..], more].concat(), status);
    assert!(
        refused(&[], 1).contains("train.jsonl:1: `chosen` and `rejected`\nhint: ")
            && refused(&[], 1).contains("(--loss dpo)")
    );
    assert!(refused(&["--beta", "1"], 2).contains("--beta: only --loss dpo has one"));
    assert!(refused(&["--loss", "dpo", "--beta", "0"], 2).contains("--beta 0: must be more than 0"));
    assert!(refused(&["--loss", "dpo", "--dropout", "0.1"], 2).contains("--dropout: not beside --loss dpo"));
}

/// A golden run of MLX-LM's trainer (tools/golden/models/mlx_training.py): its configuration and rows in a folder, and its tokens and rates.
fn golden_of_mlx(name: &str, folder: &Path) -> (String, serde_json::Value) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let path = format!("{root}/crates/brasa-train/tests/golden/mlx/{name}.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for file in ["train", "valid"] {
        let rows = golden[file].as_array().unwrap();
        let lines: Vec<String> = rows.iter().map(serde_json::Value::to_string).collect();
        let lines = lines.join("\n");
        if !rows.is_empty() {
            std::fs::write(folder.join(format!("{file}.jsonl")), lines).unwrap();
        }
    }
    let mut config = golden["config"].clone();
    config["model"] = format!("{root}/{}", config["model"].as_str().unwrap()).into();
    config["data"] = folder.to_str().unwrap().into();
    config["adapter_path"] = folder.join("out").to_str().unwrap().into();
    let path = folder.join("lora.yaml");
    // JSON is YAML; one line is in its own style.
    let yaml = config.to_string();
    let yaml = yaml.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
    let yaml: String = yaml.replacen(",\"", ", \"", 1);
    std::fs::write(&path, format!("# as mlx_lm.lora reads it\n{{\"train\": yes, \"test\": ~, {yaml}}}\n"))
        .unwrap();
    (path.to_str().unwrap().to_owned(), golden)
}

#[test]
fn a_configuration_of_mlx_lm_makes_its_run() {
    for (name, written) in [
        ("adam", "adapters.safetensors"),
        ("adamw", "adapters.safetensors"),
        ("full", "model/model.safetensors"),
    ] {
        let folder = scratch(&format!("train-mlx-{name}"));
        let (config, golden) = golden_of_mlx(name, &folder);
        let output = brasa(&["train", "-c", &config, "--loss", "mlx", "--threads", "1"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(folder.join("out").join(written).exists());
        let rows = timeless(&folder.join("out"));
        let updates: Vec<&serde_json::Value> = rows.iter().filter(|row| row["loss"].is_number()).collect();
        let numbers = |key: &str| -> Vec<f64> {
            golden[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let (tokens, rates) = (numbers("tokens"), numbers("rates"));
        let each = tokens.len() / updates.len();
        for (update, (tokens, rates)) in
            updates.iter().zip(tokens.chunks_exact(each).zip(rates.chunks_exact(each)))
        {
            assert_eq!(update["tokens"].as_f64(), Some(tokens.iter().sum()), "{name}: {update}");
            let error = update["learning_rate"].as_f64().unwrap() - rates[each - 1];
            assert!(error.abs() < 1e-5 * rates[each - 1], "{name}: {update}");
        }
        let evaluated = rows.iter().filter(|row| row["valid_loss"].is_number()).count();
        assert_eq!(evaluated, golden["valid_losses"].as_array().unwrap().len(), "{name}");
    }
}

/// A run whose configuration names an adapter begins with its values, and those alone: not with the optimizer's.
#[test]
fn a_run_begins_with_the_values_of_an_adapter() {
    let folder = scratch("train-from");
    let data = examples(&folder);
    let [first, second] = ["first", "second"].map(|name| folder.join(name));
    let cache = folder.join("cache");
    let cache = cache.to_str().unwrap();
    let layers = ["--rank", "2", "--targets", "q_proj,ffn_down", "--threads", "1", "--token-cache", cache];
    let run = |model: &str, out: &Path, more: &[&str]| {
        let base = crate::command::model(model);
        let out = out.to_str().unwrap().to_owned();
        let course =
            ["train", &base, "--data", &data, "--out", &out, "--form", "mlx", "--batch-tokens", "160"];
        brasa(&[&course[..], &layers, more].concat())
    };
    let output = run("tiny-llama", &first, &["--steps", "6", "--lr", "1e-2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let adapter = first.join("adapters.safetensors");
    let config = folder.join("lora.yaml");
    std::fs::write(&config, format!("num_layers: -1\nresume_adapter_file: {}\n", adapter.display())).unwrap();
    let config = config.to_str().unwrap();
    let still = ["--steps", "1", "--lr", "1e-12", "--evaluate-every", "1", "-c", config];
    let output = run("tiny-llama", &second, &still);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("first/adapters.safetensors are begun with"), "{}", stderr(&output));
    // The adapter of the best evaluation is written.
    let least = |folder: &Path| {
        let rows = timeless(folder);
        rows.iter().filter_map(|row| row["valid_loss"].as_f64()).fold(f64::INFINITY, f64::min)
    };
    // MLX-LM's scale is 20, the first run's is α/r = 2: values are the same, and a file of another scale says so.
    let [old, new] =
        [&first, &second].map(|folder| std::fs::read(folder.join("adapters.safetensors")).unwrap());
    assert_eq!(old.len(), new.len());
    let header = 8 + u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let floats = |bytes: &[u8]| -> Vec<f32> {
        let bytes = bytes[header..].chunks_exact(4);
        bytes.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let (old, new) = (floats(&old), floats(&new));
    assert!(old.iter().zip(&new).all(|(old, new)| (old - new).abs() < 1e-8) && old.iter().any(|x| *x != 0.0));
    let same = folder.join("same");
    let output =
        run("tiny-llama", &same, &["--steps", "1", "--lr", "1e-12", "--from", first.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("train.jsonl: 6 rows")
            && stderr(&output).contains("(token ids of an earlier run)")
    );
    assert!((least(&same) - least(&first)).abs() < 1e-6, "{} and {}", least(&same), least(&first));
    let other = folder.join("other");
    let from = |more: &[&str]| {
        let from = ["--steps", "1", "--from", first.to_str().unwrap()];
        stderr(&run("tiny-llama", &other, &[&from[..], more].concat()))
    };
    assert!(from(&["--rank-of", "q_proj=3"]).contains("rank 2, expected 3\nhint: "));
    assert!(from(&["--method", "dora"]).contains("without DoRA's magnitudes\nhint: "));
    // The last of two options counts.
    assert!(from(&["--last-blocks", "1"]).contains("this layer is not learned\nhint: "));
}

#[test]
fn what_a_configuration_asks_for_in_vain_is_named() {
    let folder = scratch("train-mlx-refused");
    let (config, _) = golden_of_mlx("adam", &folder);
    let refused = |text: &str| {
        std::fs::write(&config, text).unwrap();
        fails(&["train", "-c", &config], 2)
    };
    for (text, told) in [
        ("rank: 8", "lora.yaml: there is no key `rank`; there are model, train, "),
        ("lora_parameters: {rank: 8}", "`lora_parameters` without `scale`"),
        ("lora_parameters: {rank: 8, alpha: 16}", "`lora_parameters.alpha`: MLX-LM knows `scale`"),
        ("optimizer: lion", "`optimizer: lion`: there are adam, adamw, sgd, muon and adafactor"),
        ("optimizer: adafactor\noptimizer_config: {adafactor: {decay_rate: 1}}", "adafactor.decay_rate: 1"),
        ("optimizer_config: {adam: {amsgrad: true}}", "no key `optimizer_config.adam.amsgrad`"),
        ("report_to: wandb", "`report_to` is not followed"),
        ("train: false", "`train: false`: `brasa train` trains"),
        ("batch_size: many", "`batch_size: \"many\"`: expected a whole number"),
        ("lr_schedule: {name: warm, arguments: [1]}", "lr_schedule: "),
        ("a: [1", "lora.yaml: "),
        ("seed: 1", "no examples: name them by --data"),
    ] {
        let found = refused(text);
        assert!(found.contains(told), "{text}: {found}");
    }
}
