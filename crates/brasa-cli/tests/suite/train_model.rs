//! `brasa train --method full`: the model's own parameters are learned, and a model is written.

use std::collections::BTreeSet;
use std::path::Path;

use crate::command::{brasa, fails, model, scratch, stderr, stdout};
#[cfg(unix)]
use crate::train::killed_when;

/// A folder of examples.
fn examples(folder: &Path) -> String {
    let rows: Vec<String> = [("cat", "cats"), ("box", "boxes"), ("lady", "ladies"), ("dog", "dogs")]
        .iter()
        .map(|(word, answer)| {
            format!("{{\"prompt\": \"Plural of {word}?\", \"completion\": \"{answer}\"}}\n")
        })
        .collect();
    for name in ["train.jsonl", "test.jsonl"] {
        std::fs::write(folder.join(name), rows.concat()).unwrap();
    }
    folder.to_str().unwrap().to_owned()
}

/// Arguments of a run of the model `base`.
fn full<'a>(base: &'a str, data: &'a str, out: &'a Path) -> Vec<&'a str> {
    let out = out.to_str().unwrap();
    let run = ["train", base, "--data", data, "--out", out, "--fine-tune-type", "full", "--steps", "8"];
    [&run[..], &["--batch-tokens", "96", "--lr", "1e-3", "--save-every", "1", "--threads", "1"]].concat()
}

fn succeeds(arguments: &[&str]) -> (String, String) {
    let output = brasa(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    (stdout(&output), stderr(&output))
}

fn answer(model: &str) -> String {
    succeeds(&["run", "-m", model, "-p", "Plural of lady?", "-n", "6", "--temp", "0"]).0
}

fn names(folder: impl AsRef<Path>) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_model_is_learned_written_and_run() {
    let folder = scratch("train_model");
    let data = examples(&folder);
    let (base, out) = (model("tiny-llama"), folder.join("out"));
    let run = full(&base, &data, &out);
    let (text, told) = succeeds(&run);
    assert!(told.contains("the model's own ") && told.contains(" parameters, 8 updates of up to "), "{told}");
    assert!(told.contains("memory: ") && told.contains(" of the optimizer) beside the device"), "{told}");
    assert!(text.contains("out/model: the model after update 8"), "{text}");
    let loss: f64 =
        text.split("test.jsonl: loss ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(loss < 0.5, "{text}");
    let written = out.join("model");
    let [mut of_base, of_written] = [names(&base), names(&written)];
    of_base.remove("reference_logits.npz");
    assert_eq!(of_written, of_base);
    for name in of_written.iter().filter(|name| *name != "model.safetensors") {
        let [a, b] = [Path::new(&base), &written].map(|folder| std::fs::read(folder.join(name)).unwrap());
        assert!(a == b, "{name}");
    }
    let [old, new] = [Path::new(&base), &written].map(|folder| {
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        (bytes[..header].to_vec(), bytes.len(), bytes)
    });
    assert!((&old.0, old.1) == (&new.0, new.1) && old.2 != new.2, "the same tensors with other numbers");
    let written = written.to_str().unwrap();
    assert_ne!(answer(&base), answer(written));
    assert!(answer(written).starts_with("ladies"), "{}", answer(written));
    // What is there is not overwritten, but by a run that goes on.
    assert!(fails(&run, 1).contains("out/model exists\nhint: "));
    succeeds(&[&run[..], &["--resume"]].concat());
    assert_eq!(std::fs::read(out.join("model/model.safetensors")).unwrap(), new.2);
}

#[test]
fn a_gguf_of_floats_becomes_a_gguf_of_floats() {
    let folder = scratch("train_model_gguf");
    let data = examples(&folder);
    let base = folder.join("base.gguf");
    let base = base.to_str().unwrap();
    succeeds(&["quantize", &model("tiny-qwen2"), base, "BF16"]);
    let out = folder.join("out");
    let sharded = [&full(base, &data, &out)[..], &["--max-shard-size", "1MB"]].concat();
    assert!(fails(&sharded, 2).contains("--max-shard-size: a GGUF file is written whole"));
    let (text, _) = succeeds(&[&full(base, &data, &out)[..], &["--last-blocks", "2"]].concat());
    assert!(text.contains("out/model.gguf: the model after update 8"), "{text}");
    let written = out.join("model.gguf");
    let written = written.to_str().unwrap();
    let sizes = [base, written].map(|path| std::fs::metadata(path).unwrap().len());
    assert_eq!(sizes[0], sizes[1]);
    assert_ne!(answer(base), answer(written));
}

/// The names of tensors in a file of safetensors, and their bytes.
fn tensors(path: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, values) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let own = |(name, entry): (String, serde_json::Value)| {
        let [start, end] = [0, 1].map(|at| entry["data_offsets"][at].as_u64().unwrap() as usize);
        (name, values[start..end].to_vec())
    };
    header.into_iter().filter(|(name, _)| name != "__metadata__").map(own).collect()
}

/// Targets are learned, and nothing else: all other tensors keep the bits of the base's file. A run does not go on with other targets.
#[test]
fn targets_are_learned_and_all_else_keeps_its_bits() {
    let folder = scratch("train_model_targets");
    let data = examples(&folder);
    let (base, out) = (model("tiny-llama"), folder.join("out"));
    let run = full(&base, &data, &out);
    let targets = ["--targets", "v_proj,/mlp.up_proj$/,model.embed_tokens"];
    let (_, told) = succeeds(&[&run[..], &targets].concat());
    let [old, new] =
        [Path::new(&base), &out.join("model")].map(|path| tensors(&path.join("model.safetensors")));
    let is_target = |name: &str| {
        name.ends_with(".v_proj.weight")
            || name.ends_with(".mlp.up_proj.weight")
            || name == "model.embed_tokens.weight"
    };
    let mut learned_bytes = 0;
    for (name, bytes) in &old {
        assert_eq!(bytes != &new[name], is_target(name), "{name}");
        learned_bytes += if is_target(name) { bytes.len() } else { 0 };
    }
    // Numbers of tiny-llama are BF16 or F32.
    let count: usize =
        told.split("the model's own ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!([2, 4].iter().any(|width| width * count == learned_bytes), "{count} of {learned_bytes} bytes");
    let others = ["--targets", "q_proj,/mlp.up_proj$/,model.embed_tokens", "--resume"];
    assert!(fails(&[&run[..], &others].concat(), 1).contains("parameters"), "another run");
    succeeds(&[&run[..], &targets, &["--resume"]].concat());
    assert_eq!(tensors(&out.join("model/model.safetensors")), new);
}

/// Norms, which are floats, are learned beside quantised matrices, whose bytes stay.
#[test]
fn floats_of_a_quantised_model_are_learned() {
    let folder = scratch("train_model_quantised");
    let data = examples(&folder);
    let base = folder.join("base.gguf");
    let base = base.to_str().unwrap();
    succeeds(&["quantize", &model("tiny-qwen2"), base, "Q8_0"]);
    let out = folder.join("out");
    let (_, told) = succeeds(&[&full(base, &data, &out)[..], &["--targets", "/norm/"]].concat());
    let count = told.split("the model's own ").nth(1).unwrap().split(' ').next().unwrap();
    let count: usize = count.parse().unwrap();
    let [old, new] = [Path::new(base), &out.join("model.gguf")].map(|path| std::fs::read(path).unwrap());
    assert_eq!(old.len(), new.len());
    let changed_bytes = old.iter().zip(&new).filter(|(old, new)| old != new).count();
    assert!((count..=4 * count).contains(&changed_bytes), "{changed_bytes} bytes of {count} numbers");
}

#[test]
fn what_cannot_be_learned_whole_is_named() {
    let folder = scratch("train_model_refused");
    let data = examples(&folder);
    let out = folder.join("out");
    let quantised = ["train", "--data", &data, "--out", out.to_str().unwrap(), "--method", "full"];
    let told = fails(&quantised, 1);
    assert!(
        told.contains(" is stored as Q")
            && told.contains("\nhint: train an adapter, or convert the model to BF16 first"),
        "{told}"
    );
    let base = model("tiny-qwen2");
    let run = full(&base, &data, &out);
    let refused = |more: &[&str], status| fails(&[&run[..], more].concat(), status);
    assert!(refused(&["--targets", "c_proj"], 1).contains("no parameter is named `c_proj`\nhint: "));
    assert!(refused(&["--loss", "dpo"], 2).contains("--loss dpo: only of an adapter"));
    assert!(refused(&["--dropout", "0.1"], 2).contains("--dropout: only of an adapter"));
    assert!(refused(&["--last-blocks", "99"], 1).contains("the last 99 blocks, the model has "));
}

/// A run that is killed again and again ends with the model and the checkpoint of a run that was not, bit for bit; the folder of the model is there whole or not at all.
#[cfg(unix)]
#[test]
fn a_model_whose_run_is_killed_is_the_same() {
    let folder = scratch("train_model_killed");
    let data = examples(&folder);
    let base = model("tiny-qwen2");
    let [whole, killed] = ["whole", "killed"].map(|name| folder.join(name));
    succeeds(&full(&base, &data, &whole));
    let metrics = killed.join("metrics.jsonl");
    let lines = || std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    for wanted in [2, 5, usize::MAX] {
        let mut run = full(&base, &data, &killed);
        run.extend(killed.join("checkpoint.brasa").exists().then_some("--resume"));
        let status = killed_when(&run, || lines() >= wanted);
        assert_eq!(
            (killed.join("model").exists(), wanted == usize::MAX),
            (status.success(), status.success())
        );
    }
    for name in ["model/model.safetensors", "checkpoint.brasa"] {
        let [a, b] = [&whole, &killed].map(|folder| std::fs::read(folder.join(name)).unwrap());
        assert!(a == b, "{name} differs");
    }
}

/// A disk that is full while the model is written ends the run with an error; no model is left, and the command works later with `--resume`.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_model() {
    let folder = scratch("train_model_disk");
    let data = examples(&folder);
    let base = model("tiny-qwen2");
    let out = folder.join("out");
    let run = [&full(&base, &data, &out)[..], &["--last-blocks", "1"]].concat();
    // Files of at most 3 MiB, as the shell counts (1 KiB or 512 bytes): enough for the checkpoint of one block, not for the model.
    let limited = std::process::Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 3000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_brasa")])
        .args(&run)
        .output()
        .unwrap();
    let told = stderr(&limited);
    assert_eq!(limited.status.code(), Some(1), "{told}");
    assert!(told.contains("model.safetensors: File too large"), "{told}");
    assert_eq!(names(&out).iter().filter(|name| name.contains("model")).count(), 0, "{:?}", names(&out));
    succeeds(&[&run[..], &["--resume"]].concat());
    assert!(out.join("model/config.json").exists());
}

/// A stored head that is a copy of the embeddings, which readers may take for a head of its own, changes with them.
#[test]
fn a_copy_of_tied_embeddings_changes_with_them() {
    let folder = scratch("train_model_tied");
    let data = examples(&folder);
    let base = folder.join("base");
    crate::command::copy("tiny-gemma3", &base, |_, text| text);
    let parts = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        let (length, rest) = bytes.split_at(8);
        let (header, values) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let header: serde_json::Value = serde_json::from_slice(header).unwrap();
        (header, values.to_vec())
    };
    let of = |(header, values): &(serde_json::Value, Vec<u8>), name: &str| {
        let [start, end] = [0, 1].map(|at| header[name]["data_offsets"][at].as_u64().unwrap() as usize);
        values[start..end].to_vec()
    };
    let weights = base.join("model.safetensors");
    let mut stored = parts(&weights);
    let table = of(&stored, "model.embed_tokens.weight");
    let mut entry = stored.0["model.embed_tokens.weight"].clone();
    entry["data_offsets"] = serde_json::json!([stored.1.len(), stored.1.len() + table.len()]);
    stored.0["lm_head.weight"] = entry;
    stored.1.extend(&table);
    let header = stored.0.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &stored.1].concat();
    std::fs::write(&weights, bytes).unwrap();
    let out = folder.join("out");
    let run = full(base.to_str().unwrap(), &data, &out);
    succeeds(&run.iter().map(|&word| if word == "8" { "2" } else { word }).collect::<Vec<_>>());
    let written = parts(&out.join("model/model.safetensors"));
    let [head, new] = ["lm_head.weight", "model.embed_tokens.weight"].map(|name| of(&written, name));
    assert!(head == new && new != table);
}

#[test]
fn a_model_is_written_in_shards_of_a_size() {
    let folder = scratch("train_model_shards");
    let data = examples(&folder);
    let (base, out) = (model("tiny-llama"), folder.join("out"));
    let run = full(&base, &data, &out);
    succeeds(&run);
    let whole = out.join("model");
    let kept = folder.join("kept");
    std::fs::rename(&whole, &kept).unwrap();
    succeeds(&[&run[..], &["--resume", "--max-shard-size", "1MB"]].concat());
    let written = names(&whole);
    let shards: Vec<_> = written.iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert!(shards.len() > 2, "{written:?}");
    assert!(written.contains("model.safetensors.index.json") && written.contains("tokenizer.json"));
    for (at, name) in shards.iter().enumerate() {
        assert_eq!(**name, format!("model-{:05}-of-{:05}.safetensors", at + 1, shards.len()));
    }
    let logits = |model: &Path, name: &str| {
        let (model, out) = (model.to_str().unwrap(), folder.join(name));
        succeeds(&["logits", "-m", model, "--ids", "1,17,300", "--out", out.to_str().unwrap()]);
        std::fs::read(out).unwrap()
    };
    assert!(logits(&whole, "a.npy") == logits(&kept, "b.npy"), "the shards hold other values");
    for size in ["0", "-1", "-5GB", "large", "5G"] {
        let told = fails(&[&run[..], &["--resume", "--max-shard-size", size]].concat(), 2);
        assert!(told.contains("expected bytes, at least 1: 5GB, 500MB"), "{size}: {told}");
    }
    let adapter = ["train", &base, "--data", &data, "--max-shard-size", "1MB"];
    assert!(fails(&adapter, 2).contains("--max-shard-size: only --method full writes a model"));
}
