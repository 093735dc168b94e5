//! The figures of `brasa bench` follow from its samples and probes, in every format.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{brasa, fails, json, scratch, stdout};

fn bench(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brasa"));
    let output = command.arg("bench").args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn rows(arguments: &[&str]) -> Vec<Value> {
    let rows = bench(&[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&rows).unwrap()
}

fn figure(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

fn figures(row: &Value, name: &str) -> Vec<f64> {
    row[name].as_array().unwrap().iter().map(|figure| figure.as_f64().unwrap()).collect()
}

fn assert_near(found: f64, expected: f64, part: f64, what: &str) {
    assert!((found - expected).abs() <= part * expected.abs(), "{what}: {found}, expected {expected}");
}

/// Tokens of one sample of a cell.
fn tokens(row: &Value) -> f64 {
    figure(row, "n_prompt") + figure(row, "n_gen") * figure(row, "n_pl")
}

/// Everything that can be computed again from the samples of a cell with two samples, and from all probes of its run.
fn check_rates(row: &Value, rows: &[Value]) {
    let (samples, times) = (figures(row, "samples_ts"), figures(row, "samples_ns"));
    assert_eq!((samples.len(), times.len()), (2, 2), "{row}");
    for (rate, time) in samples.iter().zip(&times) {
        assert_near(*rate, tokens(row) * 1e9 / time, 1e-6, "tokens a second of a sample");
    }
    let (least, most) = (samples[0].min(samples[1]), samples[0].max(samples[1]));
    let middle = f64::midpoint(least, most);
    assert_near(figure(row, "avg_ts"), middle, 1e-9, "mean");
    assert_near(figure(row, "median_ts"), middle, 1e-9, "median");
    assert_near(figure(row, "stddev_ts"), (most - least) / 2.0_f64.sqrt(), 1e-6, "standard deviation");
    assert_near(figure(row, "spread"), (most - least) / middle, 1e-6, "spread");

    let repetitions_per_second = middle / tokens(row);
    for (total, rate, share, ceiling) in [
        ("read_bytes", "bytes_per_second", "read_share", "read_ceiling"),
        ("operations", "operations_per_second", "matrix_share", "matrix_ceiling"),
    ] {
        assert_near(figure(row, rate), figure(row, total) * repetitions_per_second, 1e-9, rate);
        assert_near(figure(row, share), figure(row, rate) / figure(row, ceiling), 1e-9, share);
    }
    let best = rows.iter().flat_map(|row| figures(row, "probes_read")).fold(0.0, f64::max);
    assert_near(figure(row, "read_ceiling"), best, 1e-9, "the best read probe of the run");
    let same_arithmetic = rows.iter().filter(|other| other["arithmetic"] == row["arithmetic"]);
    let best = same_arithmetic.flat_map(|row| figures(row, "probes_matrix")).fold(0.0, f64::max);
    assert_near(figure(row, "matrix_ceiling"), best, 1e-9, "the best matrix probe of the arithmetic");
}

/// A token multiplies with every weight once, and attends to every position up to its own. Of a prompt, only the last token goes
/// through what follows the last layer's attention.
fn check_operations(row: &Value) {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/lexicon-qwen3/config.json");
    let config: Value = serde_json::from_str(&std::fs::read_to_string(config).unwrap()).unwrap();
    let of = |name: &str| config[name].as_u64().unwrap();
    let (hidden, heads_width) = (of("hidden_size"), of("num_attention_heads") * of("head_dim"));
    let qkv = hidden * (heads_width + 2 * of("num_key_value_heads") * of("head_dim"));
    let behind_attention = heads_width * hidden + 3 * hidden * of("intermediate_size");
    let layers = of("num_hidden_layers") * (qkv + behind_attention);
    let head = of("vocab_size") * hidden;
    let [prompt, generated, depth] = ["n_prompt", "n_gen", "n_depth"].map(|name| row[name].as_u64().unwrap());
    let weights = match prompt {
        0 => generated * (layers + head),
        _ => prompt * (layers - behind_attention) + behind_attention + head,
    };
    let positions: u64 = (depth..depth + prompt + generated).map(|position| position + 1).sum();
    let attention = 2 * heads_width * positions * of("num_hidden_layers");
    assert_eq!(row["operations"], 2 * (weights + attention), "multiplications and additions of {row}");
}

#[test]
fn bench_prints_its_table_in_three_formats() {
    let flags = ["-p", "8", "-n", "4", "-d", "0,16", "-r", "2", "--probe-mib", "1"];
    let rows = rows(&flags);
    let cells = rows.iter().map(|row| ["n_prompt", "n_gen", "n_depth"].map(|name| figure(row, name)));
    assert_eq!(
        cells.collect::<Vec<_>>(),
        [[8.0, 0.0, 0.0], [0.0, 4.0, 0.0], [8.0, 0.0, 16.0], [0.0, 4.0, 16.0]]
    );
    for row in &rows {
        check_rates(row, &rows);
        check_operations(row);
    }
    // A deeper context is read and multiplied too, and that is all that differs.
    for (shallow, deep) in [(0, 2), (1, 3)] {
        for total in ["read_bytes", "operations"] {
            assert!(figure(&rows[deep], total) > figure(&rows[shallow], total), "{total}: {rows:#?}");
        }
    }

    let text = bench(&flags);
    let heading = text.lines().next().unwrap();
    assert!(
        heading.starts_with("qwen3 Q6_K (lexicon-qwen3 (bundled)): 17.67 MiB, 22.55 M parameters, cpu, "),
        "{text}"
    );
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip(2)
        .inspect(|line| assert!(!line.starts_with('|') || line.chars().count() <= 100, "{line}"))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(table[0], ["test", "t/s", "median", "spread", "GB/s", "of read", "GFLOP/s", "of peak"]);
    let tests: Vec<&str> = table[2..].iter().map(|row| row[0]).collect();
    assert_eq!(tests, ["pp8", "tg4", "pp8 @ d16", "tg4 @ d16"]);
    for row in &table[2..] {
        let (mean, deviation) = row[1].split_once(" ± ").unwrap();
        let [mean, deviation, median, gigabytes, gigaflops]: [f64; 5] =
            [mean, deviation, row[2], row[4], row[6]].map(|figure| figure.parse().unwrap());
        // Of two samples the mean is the median, up to the two decimals that are shown.
        assert!(mean > 0.0 && (mean - median).abs() < 0.011 && deviation >= 0.0, "{row:?}");
        let tokens = if row[0].starts_with("pp8") { 8.0 } else { 4.0 };
        let same_test = rows.iter().find(|json| {
            (figure(json, "n_prompt") > 0.0) == row[0].starts_with("pp8")
                && (figure(json, "n_depth") > 0.0) == row[0].ends_with("d16")
        });
        let json = same_test.unwrap();
        // As far as the decimals go that are shown.
        let shown = |total: &str| figure(json, total) * median / tokens / 1e9;
        let (bytes, operations) = (shown("read_bytes"), shown("operations"));
        assert!((gigabytes - bytes).abs() <= 0.0051 + 0.01 * bytes, "{row:?}: {bytes} GB/s");
        assert!((gigaflops - operations).abs() <= 0.051 + 0.01 * operations, "{row:?}: {operations} GFLOP/s");
    }

    let csv = bench(&[&flags[..], &["-o", "csv"]].concat());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 5, "{csv}");
    let names: Vec<&str> = lines[0].split(',').collect();
    let column = |name: &str| names.iter().position(|other| other.trim_matches('"') == name);
    // Fields before the numbers may contain commas, so columns are counted from the end.
    for name in ["n_prompt", "n_gen", "n_depth", "n_pl", "avg_ts", "median_ts", "read_bytes", "operations"] {
        let from_end = names.len() - column(name).unwrap_or_else(|| panic!("{name} in {}", lines[0]));
        for (line, json) in lines[1..].iter().zip(&rows) {
            let value: f64 = line.rsplit(',').nth(from_end - 1).unwrap().trim_matches('"').parse().unwrap();
            if name.ends_with("_ts") {
                assert!(value > 0.0, "{name}: {line}");
            } else {
                assert_near(value, figure(json, name), 0.0, name);
            }
        }
    }
}

#[test]
fn bench_measures_sequences_instruction_sets_and_cache_types() {
    let flags = ["-p", "0", "-n", "3", "-npl", "1,3", "-d", "5", "-r", "2", "--probe-mib", "1", "-t", "1"];
    let kv = ["-ctk", "f16,q8_0", "-ctv", "f16,q8_0", "--isa", "scalar", "-o", "json"];
    let rows = json(&[&["bench"], &flags[..], &kv[..]].concat());
    let rows = rows.as_array().unwrap();
    let cells: Vec<(u64, &str)> =
        rows.iter().map(|row| (row["n_pl"].as_u64().unwrap(), row["type_k"].as_str().unwrap())).collect();
    assert_eq!(cells, [(1, "f16"), (3, "f16"), (1, "q8_0"), (3, "q8_0")]);
    for row in rows {
        assert_eq!(row["isa"], "scalar");
        assert_eq!(row["probes_read"].as_array().unwrap().len(), 3, "before, between and after two samples");
        assert!(row["read_share"].as_f64().unwrap() > 0.0 && row["matrix_share"].as_f64().unwrap() > 0.0);
    }
    let figure = |row: usize, name: &str| rows[row][name].as_u64().unwrap();
    // Three steps read all stored weights (this model's embedding table is its last weight too) and the cache.
    let weights = figure(0, "model_size");
    assert!(figure(0, "read_bytes") > 3 * (weights - weights / 100), "{}", rows[0]);
    assert!(figure(0, "read_bytes") < 3 * (weights + weights / 20), "{}", rows[0]);
    // Sequences share the weights, and each has its own cache; q8_0 takes about half of f16.
    let cache = |row: usize, row_alone: usize| figure(row, "read_bytes") - figure(row_alone, "read_bytes");
    assert!(cache(1, 0) > 0 && cache(3, 2) < cache(1, 0) * 2 / 3);
    assert_eq!(figure(1, "operations"), 3 * figure(0, "operations"));

    let refused = fails(&["bench", "--isa", "mmx", "-p", "1", "-n", "0"], 1);
    assert!(refused.contains("mmx") && refused.contains("scalar"), "{refused}");
    fails(&["bench", "-ctk", "f16,q8_0", "-ctv", "f16"], 2);
    fails(&["generate", "-p", "x", "-ctk", "f16,q8_0", "-ctv", "f16,q8_0"], 2);
}

#[test]
fn bench_profiles_as_table_and_chart() {
    let directory = scratch("profile");
    let chart = directory.join("profile.svg");
    let flags = ["bench", "-p", "8", "-n", "0", "-r", "1", "--probe-mib", "0", "--profile", "-t", "1"];
    let output = brasa(&[&flags[..], &["--svg", chart.to_str().unwrap()]].concat());
    let text = stdout(&output);
    assert!(text.contains("prefill of 8 tokens") && text.contains("decode at depth 0"), "{text}");
    assert!(text.contains("| kind of operation") && text.contains("| operation"), "{text}");
    let svg = std::fs::read_to_string(&chart).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.matches("<rect").count() > 8,
        "{svg}"
    );
    // Standard output stays JSON.
    assert!(json(&[&flags[..], &["-o", "json"]].concat())[0]["read_share"].is_null());
}

#[test]
fn bench_measures_startup_from_outside() {
    let result = json(&["bench", "--startup", "-r", "2", "-o", "json", "-t", "1"]);
    assert_eq!(result["prompt_tokens"], 16);
    assert_eq!(result["first_byte_ms"]["samples"].as_array().unwrap().len(), 2);
    let parts: Vec<f64> =
        ["open_ms", "tokenizer_ms", "graph_ms", "weights_ms", "compile_ms", "load_ms", "first_byte_ms"]
            .map(|part| result[part]["median"].as_f64().unwrap())
            .into();
    assert!(parts.iter().all(|&part| part >= 0.0), "{result}");
    let [open, tokenizer, graph, weights, compile, load, first_byte] = parts[..] else { panic!("{result}") };
    assert!(open + graph + weights + compile <= load + 0.5 && tokenizer <= load + 0.5, "{result}");
    assert!(load < first_byte, "{result}");
}
