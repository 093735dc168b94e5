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
fn examples(folder: &Path) -> String {
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
fn small<'a>(data: &'a str, out: &'a str) -> Vec<&'a str> {
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
    // A run that is there is not overwritten; gone on with, it is finished already.
    let refused = fails(&run, 1);
    assert!(
        refused.contains("adapter_config.json exists\nhint: ") && refused.contains("--resume"),
        "{refused}"
    );
    let before = std::fs::read(folder.join("out/adapter_model.safetensors")).unwrap();
    let again = brasa(&[&run[..], &["--resume"]].concat());
    assert!(
        again.status.success() && stderr(&again).contains("goes on after update 12"),
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
    for (form, file) in [("mlx", "adapters.safetensors"), ("gguf", "adapter.gguf")] {
        let out = folder.join(form);
        let run =
            [&small(&data, out.to_str().unwrap())[..], &["--form", form, "--method", "rslora"]].concat();
        let output = brasa(&run);
        assert!(output.status.success(), "{}", stderr(&output));
        let adapter = if form == "gguf" { out.join(file) } else { out.clone() };
        let answer =
            ["run", "-p", "Plural of cat?", "-n", "2", "--temp", "0", "--lora", adapter.to_str().unwrap()];
        let output = brasa(&answer);
        assert!(output.status.success() && out.join(file).exists(), "{}", stderr(&output));
    }
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
        told.contains("no linear layer is named `c_proj`\nhint: the layers are attn_q, q_proj, "),
        "{told}"
    );
    let told = fails(&["train", "--data", "nowhere", "--out", out], 1);
    assert!(told.contains("nowhere: no such file or folder\nhint: "), "{told}");
    for wrong in [&["--lr", "0"][..], &["--clip", "-1"], &["--momentum", "0.9"], &["--method", "dora"]] {
        let output = brasa(&[&["train", "--data", &data, "--out", out][..], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}", stderr(&output));
    }
    assert!(!folder.join("out").exists());
}
