//! `brasa inspect`: what is in a model, what it looks at, and what fits.

use serde_json::Value;

use crate::command::{brasa, fails, json, model, scratch, stderr, stdout};

#[test]
fn inspect_shows_what_attention_looks_at() {
    fn ask<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["inspect", "-m", model, "-p", "The river flows."], more].concat()
    }
    let directory = scratch("attention");
    let picture = directory.join("map.svg");
    let picture = picture.to_str().unwrap();
    let model = model("tiny-llama");
    let result = json(&ask(&model, &["--attention", "1:2,0", "--json", "--svg", picture]));
    let maps = result["attention"].as_array().unwrap();
    let places: Vec<_> = maps.iter().map(|map| (map["layer"].as_u64(), map["head"].as_u64())).collect();
    assert_eq!(places[0], (Some(1), Some(2)));
    assert_eq!(places[1..], [0, 1, 2, 3].map(|head| (Some(0), Some(head))));
    let tokens = result["ids"].as_array().unwrap().len();
    assert_eq!(result["pieces"].as_array().unwrap().len(), tokens);
    for (i, row) in maps[0]["weights"].as_array().unwrap().iter().enumerate() {
        let row: Vec<f64> = row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-5);
        assert!(row.len() == tokens && row[i + 1..].iter().all(|&weight| weight <= 0.0));
    }
    let svg = std::fs::read_to_string(picture).unwrap();
    assert_eq!(svg.matches("<title>").count(), 5 * tokens * (tokens + 1) / 2);
    assert!(fails(&ask(&model, &["--attention", "0", "--svg", picture]), 1).contains("--force"));
    let lines = stdout(&brasa(&ask(&model, &["--attention", "0:0"])));
    assert_eq!(lines.lines().count(), tokens + 1, "{lines}");
    assert!(lines.contains("entropy 0.00  100 %"), "{lines}");
    assert!(fails(&ask(&model, &["--attention", "99"]), 1).contains("layer 99"));
    assert!(fails(&ask(&model, &["--attention", "0:77"]), 1).contains("head 77"));
    fails(&ask(&model, &["--attention", "first"]), 2);
    fails(&["inspect", "-m", &model, "--attention", "0"], 2);
    let long = "river ".repeat(300);
    let refused =
        fails(&["inspect", "-m", &model, "-p", &long, "--attention", "0", "--svg", picture, "--force"], 1);
    assert!(refused.contains("at most 160"), "{refused}");
}

#[test]
fn inspect_shows_configuration_tensors_and_graph() {
    let result = json(&["inspect", &model("tiny-llama"), "--json"]);
    assert_eq!(result["metadata"]["num_hidden_layers"], 6);
    assert!(result["tensors"].as_array().unwrap().iter().any(|tensor| tensor["name"] == "lm_head.weight"));
    let graph = stdout(&brasa(&["inspect", &model("tiny-llama"), "--graph"]));
    assert!(graph.contains("attention") && graph.contains("linear"), "{graph}");
    let bundled = stdout(&brasa(&["inspect"]));
    assert!(bundled.contains("qwen3") && bundled.contains("Q6_K"), "{bundled}");
}

#[test]
fn inspect_tells_what_fits() {
    let fit = |more: &[&'static str]| [&["inspect", "--fit", "--device", "cpu"], more].concat();
    let keys = &json(&["inspect", "--json"])["metadata"];
    let key = |name: &str| keys[format!("qwen3.{name}")].as_u64().unwrap();
    let elements = 2 * key("block_count") * key("attention.head_count_kv") * key("attention.key_length");
    let found = json(&fit(&["-c", "4096", "--json"]));
    assert_eq!(found["cache_type"], "f16");
    assert_eq!((&found["model_context"], &found["warning"]), (&4096.into(), &Value::Null));
    assert_eq!(found["cache_bytes"].as_u64().unwrap(), 4096 * 2 * elements);
    assert_eq!(found["cache_types"][0]["bytes"].as_u64().unwrap(), 4096 * 4 * elements);
    let (weights, file) = (found["weight_bytes"].as_u64().unwrap(), json(&["inspect", "--json"]));
    let file = file["size_bytes"].as_u64().unwrap();
    assert!(weights <= file && file - weights < 1 << 20, "{weights} bytes of weights, {file} of the file");
    let types: Vec<_> =
        found["weights_as"].as_array().unwrap().iter().map(|format| &format["type"]).collect();
    assert_eq!(types, ["Q5_K", "Q4_K", "Q3_K"], "of a file in Q6_K");
    // Linux tells what memory there is.
    if cfg!(target_os = "linux") {
        assert_eq!(found["fits"], true);
        assert!(stdout(&brasa(&fit(&[]))).contains("together: it fits\n"));
        let long = stdout(&brasa(&fit(&["-c", "2000000000", "--cache-type", "f32"])));
        assert!(long.contains("\nwarning: the model was made for texts of 4096 tokens"), "{long}");
        assert!(long.contains("together: it does not fit\n") && long.contains("\nhint: `-c "), "{long}");
        assert!(long.lines().all(|line| line.chars().count() <= 100), "{long}");
    }
    fails(&["inspect", "--device", "cpu"], 2);
    fails(&["inspect", "--fit", "--device", "nothing"], 1);
    fails(&["inspect", "--fit", "--graph"], 2);
}

/// A GGUF file that does not say how text is cut: every command says so, `--strict` refuses it, and `--pre` is the remedy.
#[test]
fn a_file_without_a_pre_tokenizer_is_told() {
    let directory = scratch("without-pre");
    let (whole, silent, named) =
        (directory.join("whole.gguf"), directory.join("silent.gguf"), directory.join("named.gguf"));
    let [whole, silent, named] = [whole, silent, named].map(|path| path.display().to_string());
    assert!(brasa(&["quantize", &model("tiny-qwen2"), &whole, "F16"]).status.success());
    let mut bytes = std::fs::read(&whole).unwrap();
    let key = b"tokenizer.ggml.pre";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    bytes[at + key.len() - 1] = b'x';
    std::fs::write(&silent, bytes).unwrap();

    let warning = "warning: tokenizer.ggml.pre: not in the file; text is cut by the rule `default`";
    let remedy = "hint: `--pre NAME` names the rule";
    let converted = directory.join("converted.gguf").display().to_string();
    for command in [
        &["generate", "-m", &silent, "-p", "x", "-n", "1"][..],
        &["tokenize", "-m", &silent, "-p", "x"],
        &["quantize", &silent, &converted, "Q8_0"],
    ] {
        let told = stderr(&brasa(command));
        assert!(told.contains(warning) && told.contains(remedy), "{command:?}: {told}");
    }
    let message = fails(&["generate", "-m", &silent, "-p", "x", "--strict"], 1);
    assert!(message.contains("tokenizer.ggml.pre: not in the file") && message.contains(remedy), "{message}");
    let found = json(&["inspect", &silent, "--json"]);
    assert!(
        found["warnings"][0].as_str().unwrap().starts_with("tokenizer.ggml.pre: not in the file"),
        "{found}"
    );
    assert!(found["hints"][0].as_str().unwrap().starts_with("`--pre NAME`"), "{found}");
    assert!(!found["warnings"].to_string().contains("hint"), "{found}");

    let ids = |path: &str, more: &[&str]| {
        let command = [&["tokenize", "-m", path, "-p", "12345 abc\n\nx", "--json"], more].concat();
        let output = brasa(&command);
        assert_eq!(stderr(&output), "", "{command:?}");
        stdout(&output)
    };
    let expected = ids(&whole, &[]);
    assert_eq!(ids(&silent, &["--pre", "qwen2"]), expected);
    let output = brasa(&["quantize", &silent, &named, "F16", "--pre", "qwen2"]);
    assert!(output.status.success() && !stderr(&output).contains("pre:"), "{}", stderr(&output));
    assert_eq!(ids(&named, &[]), expected);
}
