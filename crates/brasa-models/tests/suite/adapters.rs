//! Adapters of PEFT, MLX-LM and llama.cpp's converter on the random checkpoints (`tools/golden/models/adapters.py`).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brasa_formats::{AdapterFile, AdapterForm, Existing};
use brasa_golden::{Golden, Runner, folder, load_strictly};
use brasa_graph::pass::{DenseChange, add_low_rank, row_norms};
use brasa_graph::testing::{Tolerance, compare};
use brasa_models::{AdaptableLayer, Adapter, Model};

const REFERENCE: Tolerance = Tolerance(1e-4);

fn adapters(name: &str) -> PathBuf {
    folder("random-adapters").join(name)
}

fn base(path: &str) -> Model {
    load_strictly(&folder(path), None)
}

fn adapter(path: &Path, model: &Model) -> Adapter {
    let file = AdapterFile::open(path).unwrap_or_else(|e| panic!("{e}"));
    Adapter::new(file, model).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn logits(model: &Model, adapter: Option<&Adapter>, ids: &[u32]) -> Vec<f32> {
    let mut model = model.clone();
    if let Some(adapter) = adapter {
        let low_ranks = adapter.low_ranks(&model, 1.0).unwrap();
        model.graph = add_low_rank(&model.graph, &low_ranks).unwrap();
    }
    Runner::new(model).logits(ids).concat()
}

/// The adapter at `form` of the folder `name` changes the base's logits to the golden ones; so do those that are written of it, in
/// every form that can say it, read again on the base and on `others`, the same model in other containers.
fn check(name: &str, form: &str, oracle: &str, others: &[&str]) {
    let golden = Golden::read(&adapters(name).join("golden.safetensors"));
    let (ids, expected) = (golden.ids("ids"), golden.floats(oracle));
    let model = base(&format!("random/{name}"));
    let plain = logits(&model, None, &ids);
    assert!(compare(&plain, &expected).relative_l2 > 1e-2, "{name}: the adapter does something");

    let read = adapter(&adapters(name).join(form), &model);
    let comparison = compare(&logits(&model, Some(&read), &ids), &expected);
    println!("{name} {form}: {comparison}");
    assert!(comparison.within(REFERENCE), "{name} {form}: {comparison}");

    // A folder that vanishes, or the one that `check` of the script shall read.
    let scratch = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("BRASA_KEEP_ADAPTERS").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or(scratch.path()).join(format!("{name}-from-{oracle}"));
    for written in [AdapterForm::Peft, AdapterForm::Mlx, AdapterForm::Gguf] {
        let has_experts = read.pairs.iter().any(|pair| pair.experts().is_some());
        let has_magnitudes = read.pairs.iter().any(|pair| pair.magnitude.is_some());
        let end = match written {
            AdapterForm::Peft => "peft",
            AdapterForm::Mlx => "mlx",
            AdapterForm::Gguf => "adapter.gguf",
        };
        let path = folder.join(format!("{}{end}", if form == "adapter.gguf" { "gguf-to-" } else { "" }));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let result = read.file(&model, written).unwrap().write(&path, Existing::Replace);
        if written == AdapterForm::Peft && has_experts {
            assert!(result.unwrap_err().to_string().contains("PEFT has no form for a stack of experts"));
            continue;
        }
        if written == AdapterForm::Gguf && has_magnitudes {
            assert!(result.unwrap_err().to_string().contains("GGUF has no place for DoRA's magnitudes"));
            continue;
        }
        result.unwrap();
        for base_path in [&[&*format!("random/{name}")], others].concat() {
            let model = base(base_path);
            let again = adapter(&path, &model);
            let comparison = compare(&logits(&model, Some(&again), &ids), &expected);
            println!("{name} {form} written as {end} on {base_path}: {comparison}");
            assert!(comparison.within(REFERENCE), "{name} {form} {end} {base_path}: {comparison}");
        }
    }
}

#[test]
fn a_peft_adapter_of_all_layers_and_the_head() {
    check("llama31", "peft", "peft", &["random-gguf/llama31.gguf"]);
}

#[test]
fn llama_cpps_form_of_it() {
    check("llama31", "adapter.gguf", "peft", &["random-gguf/llama31.gguf"]);
    // The other way round: read on the GGUF base alone.
    let golden = Golden::read(&adapters("llama31").join("golden.safetensors"));
    let model = base("random-gguf/llama31.gguf");
    let read = adapter(&adapters("llama31").join("adapter.gguf"), &model);
    let comparison = compare(&logits(&model, Some(&read), &golden.ids("ids")), &golden.floats("peft"));
    assert!(comparison.within(REFERENCE), "{comparison}");
}

#[test]
fn patterns_and_roots_of_ranks_on_stacked_projections() {
    check("phi3", "peft", "peft", &[]);
}

#[test]
fn halves_in_some_layers() {
    check("gemma2", "peft", "peft", &["random-gguf/gemma2.gguf"]);
}

#[test]
fn magnitudes_of_rows() {
    check("gemma3", "peft", "peft", &[]);
}

/// Magnitudes that are the norms of the changed rows change nothing, in whatever order the base has its rows.
#[test]
fn magnitudes_have_the_order_of_rows() {
    let stored = base("random/llama31");
    let mut read = adapter(&adapters("llama31").join("peft"), &stored);
    let floats = |tensor: &brasa_formats::Tensor| {
        let mut floats = vec![0.0; tensor.rows() * tensor.row_len()];
        tensor.decode_rows(0..tensor.rows(), &mut floats).unwrap();
        floats
    };
    let low_ranks = read.low_ranks(&stored, 1.0).unwrap();
    for (pair, low_rank) in read.pairs.iter_mut().zip(low_ranks) {
        let (a, b) = (floats(&pair.a), floats(&pair.b));
        let change = DenseChange { a: &a, b: &b, scale: pair.scale };
        let norms = row_norms(stored.graph.weight(low_rank.weight), low_rank.rows, Some(change)).unwrap();
        pair.magnitude = Some(brasa_formats::Tensor::of_floats("m", vec![norms.len()], &norms));
    }
    for path in ["random/llama31", "random-gguf/llama31.gguf"] {
        let model = base(path);
        for low_rank in read.low_ranks(&model, 1.0).unwrap() {
            let gain = floats(&low_rank.gain.unwrap().parts[0].tensor);
            assert!(gain.iter().all(|gain| (gain - 1.0).abs() < 2e-2), "{path}: {gain:?}");
        }
    }
    let scaled = read.low_ranks(&stored, 0.5).unwrap_err().to_string();
    assert!(scaled.contains("scale 0.5 of an adapter with DoRA's magnitudes, expected 1"), "{scaled}");
}

#[test]
fn mlx_adapters() {
    check("llama31", "mlx", "mlx", &["random-gguf/llama31.gguf"]);
    check("mistral", "mlx", "mlx", &[]);
}

#[test]
fn mlx_adapters_of_experts_and_routers() {
    check("mixtral", "mlx", "mlx", &["random-gguf/mixtral.gguf"]);
    check("qwen3moe", "mlx", "mlx", &["random-gguf/qwen3moe.gguf"]);
}

/// Stored layers cover each other's rows never, and every linear layer of the graph once.
#[test]
fn stored_layers_are_the_rows_of_all_linear_weights() {
    for path in [
        "random/llama31",
        "random/phi3",
        "random/qwen3moe",
        "random/gemma4",
        "random-gguf/phi3-longrope.gguf",
    ] {
        let model = base(path);
        let layers = AdaptableLayer::of(&model);
        for (id, weight) in model.graph.weights().iter().enumerate() {
            let own = layers.iter().filter(|layer| layer.weight.0 as usize == id);
            let rows: usize = own.map(|layer| layer.rows.len() * layer.experts.unwrap_or(1)).sum();
            let is_linear = weight.shape.len() > 1 && !weight.name.contains("token_embd");
            assert_eq!(rows, if is_linear { weight.rows() } else { 0 }, "{path}: {}", weight.name);
        }
    }
    let names =
        |path| AdaptableLayer::of(&base(path)).into_iter().map(|layer| layer.name).collect::<Vec<_>>();
    assert_eq!(names("random/phi3")[..2], ["layers.0.attn_qkv", "layers.0.attn_output"]);
    assert_eq!(names("random/llama31")[..3], ["layers.0.attn_q", "layers.0.attn_k", "layers.0.attn_v"]);
}

/// Matrices in the order of the graph's rows become the same adapter, whatever the order is.
#[test]
fn pairs_of_a_graphs_rows_have_the_canonical_order() {
    for path in ["random/llama31", "random-gguf/llama31.gguf"] {
        let model = base(path);
        let read = adapter(&adapters("llama31").join("peft"), &model);
        let low_ranks = read.low_ranks(&model, 1.0).unwrap();
        for (pair, low_rank) in read.pairs.iter().zip(&low_ranks) {
            let layers = AdaptableLayer::of(&model);
            let layer = layers.iter().find(|layer| layer.name == pair.name).unwrap();
            let [a, b] = [&low_rank.a, &low_rank.b].map(|weight| weight.parts[0].tensor.clone());
            let again = layer.pair(a, b, pair.scale, pair.magnitude.clone());
            let floats = |tensor: &brasa_formats::Tensor| {
                let mut floats = vec![0.0; tensor.rows() * tensor.row_len()];
                tensor.decode_rows(0..tensor.rows(), &mut floats).unwrap();
                floats
            };
            assert_eq!(floats(&again.b), floats(&pair.b), "{path}: {}", pair.name);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refuse = |path: &Path, base_path: &str| {
        let model = base(base_path);
        Adapter::new(AdapterFile::open(path).unwrap(), &model)
            .and_then(|adapter| adapter.low_ranks(&model, 1.0).map(drop))
            .unwrap_err()
            .to_string()
    };
    let hint = "hint: an adapter fits the model that it was trained on, and no other";
    let mut head = AdapterFile::open(adapters("llama31").join("peft")).unwrap();
    head.pairs.retain(|pair| pair.name == "lm_head");
    assert_eq!(
        Adapter::new(head, &base("random/llama32-tied")).unwrap_err().to_string(),
        format!("adapter: output: the head is the embedding table, and cannot be adapted alone\n{hint}")
    );
    assert_eq!(
        refuse(&adapters("llama31").join("mlx"), "random/qwen2"),
        format!(
            "adapter: layers.0.attn_k: a pair for a layer of [32, 32], but the base has [16, 32]\n{hint}"
        )
    );
    assert_eq!(
        refuse(&adapters("llama31").join("mlx"), "random/phi3"),
        format!(
            "adapter: layers.0.attn_output: a pair for a layer of [32, 64], but the base has [32, 32]\n{hint}"
        )
    );
    assert_eq!(
        refuse(&adapters("llama31").join("adapter.gguf"), "random/qwen3"),
        format!("adapter: general.architecture: found llama, expected qwen3, the base's\n{hint}")
    );
}

/// Mutated files that are adapters still are taken or refused, and what is taken can be added to the graph.
#[test]
fn fuzz_adapters_over_a_model() {
    for (name, file) in [("adapter", "adapter.gguf"), ("adapter_peft", "peft/adapter_model.safetensors")] {
        let (model, path) = (base("random/llama31"), adapters("llama31").join(file));
        let config = path.parent().unwrap().join("adapter_config.json");
        let config = std::fs::read(config).unwrap_or_default();
        let fuzzer = brasa_fuzz::Fuzzer::new(name).runs(2_000).seed(std::fs::read(&path).unwrap());
        let file = path.file_name().unwrap().to_str().unwrap();
        fuzzer.words(["blk.0.", "layers.1.", ".q_proj.", "attn_qkv", "ffn_up"]).run(|data| {
            let mut files = BTreeMap::from([(file.to_owned(), data.to_vec().into())]);
            if !config.is_empty() {
                files.insert("adapter_config.json".into(), config.clone().into());
            }
            let Ok(file) = AdapterFile::from_files(files) else { return "no adapter".into() };
            match Adapter::new(file, &model).and_then(|adapter| adapter.low_ranks(&model, 1.0)) {
                Ok(low_ranks) => {
                    add_low_rank(&model.graph, &low_ranks).unwrap();
                    format!("{} pairs", low_ranks.len().min(3))
                }
                Err(error) => error.to_string(),
            }
        });
    }
}
