//! The trained Whisper against transformers, and configurations of published ones (`tools/golden/models/tiny_whisper.py`).

use brasa_formats::Checkpoint;
use brasa_golden::{Golden, SpeechRunner, folder, load_speech_strictly};
use brasa_graph::testing::{Tolerance, compare};
use brasa_models::{
    LoadOptions, ModelKind, Source, SpeechSpec, build_speech, load, load_speech, read_speech_spec,
};
use serde_json::{Map, Value, json};

/// The bound of reference precision.
const REFERENCE: Tolerance = Tolerance(1e-4);
/// Frames of a window.
const FRAMES: usize = 3000;
/// Mel bins of a frame.
const BINS: usize = 80;
/// Nothing unknown is passed over.
const STRICT: LoadOptions = LoadOptions { context_length: None, strict: true };

fn check(name: &str, runner: &mut SpeechRunner, window: u64) {
    let golden = Golden::read(&folder("tiny-whisper").join("golden.safetensors"));
    let mut mel = golden.floats(&format!("{name}.mel"));
    // Silence follows the sound.
    let silence = mel[mel.len() - BINS..].to_vec();
    assert!(
        silence.iter().all(|value| value.to_bits() == silence[0].to_bits()),
        "{name}: longer than its golden frames"
    );
    mel.extend(silence.iter().cycle().take(FRAMES * BINS - mel.len()));

    let encoded: Vec<Vec<f32>> = runner.encode(window, mel).into_iter().step_by(25).collect();
    let comparison = compare(&encoded.concat(), &golden.floats(&format!("{name}.encoder")));
    println!("{name}, encoder: {comparison}");
    assert!(comparison.within(REFERENCE), "{name}, encoder: {comparison}");

    let ids = golden.ids(&format!("{name}.ids"));
    // In two steps: a prompt, and the rest behind it.
    let mut logits = runner.logits(window, &ids[..3]);
    logits.extend(runner.logits(window, &ids[3..]));
    let columns = golden.ids("columns");
    let kept = |row: &Vec<f32>| columns.iter().map(|&column| row[column as usize]).collect::<Vec<_>>();
    let found: Vec<Vec<f32>> = logits.iter().map(kept).collect();
    let comparison = compare(&found.concat(), &golden.floats(&format!("{name}.logits")));
    println!("{name}, logits: {comparison}");
    assert!(comparison.within(REFERENCE), "{name}, logits: {comparison}");

    let sums: Vec<f32> = logits.iter().map(|row| log_sum_exp(row)).collect();
    let comparison = compare(&sums, &golden.floats(&format!("{name}.logsumexp")));
    assert!(comparison.within(REFERENCE), "{name}, whole rows: {comparison}");
}

fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - largest).exp()).sum();
    largest + sum.ln() as f32
}

#[test]
fn tiny_whisper() {
    let model = load_speech_strictly(&folder("tiny-whisper"));
    assert_eq!((model.spec.encoder.layers, model.spec.decoder.layers), (3, 2));
    assert_eq!(model.info.context_length, Some(448));
    let mut runner = SpeechRunner::new(&model);
    // Windows of one pool do not touch each other.
    for (window, name) in ["held-1", "held-4"].into_iter().enumerate() {
        check(name, &mut runner, window as u64);
    }
}

/// A random Whisper in every container that is no conversion of ours, against transformers and the Whisper of MLX's examples
/// (`tools/golden/models/random_speech.py`).
#[test]
fn random_whispers_in_every_container() {
    for name in ["hugging-face", "mlx", "mlx-npz", "mlx-4bit"] {
        let path = folder("random-speech").join(name);
        let model = load_speech_strictly(&path);
        let golden = Golden::read(&path.join("golden.safetensors"));
        let mut runner = SpeechRunner::new(&model);
        let encoded = runner.encode(0, golden.floats("mel")).concat();
        let comparison = compare(&encoded, &golden.floats("encoder"));
        println!("{name}, encoder: {comparison}");
        assert!(comparison.within(REFERENCE), "{name}, encoder: {comparison}");
        let ids = golden.ids("ids");
        let mut logits = runner.logits(0, &ids[..5]);
        logits.extend(runner.logits(0, &ids[5..]));
        let comparison = compare(&logits.concat(), &golden.floats("logits"));
        println!("{name}, logits: {comparison}");
        assert!(comparison.within(REFERENCE), "{name}, logits: {comparison}");
    }
}

/// A model of speech is told by its configuration, and cannot be loaded as a model of text.
#[test]
fn kinds() {
    let checkpoint = Checkpoint::open(folder("tiny-whisper")).unwrap();
    let source = Source::of(&checkpoint).unwrap();
    assert_eq!(ModelKind::of(&source), ModelKind::Speech);
    let error = load(&checkpoint, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("whisper is a model of speech"), "{error}");

    let checkpoint = Checkpoint::open(folder("random/llama2")).unwrap();
    assert_eq!(ModelKind::of(&Source::of(&checkpoint).unwrap()), ModelKind::Text);
    let error = load_speech(&checkpoint, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("llama is a model of text") && error.contains("whisper"), "{error}");
}

fn spec(config: &Value) -> SpeechSpec {
    let source = Source::hugging_face(config.to_string().as_bytes(), []).expect("a configuration");
    let (spec, warnings) = read_speech_spec(&source, &STRICT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(warnings, Vec::<String>::new());
    spec
}

/// Configuration keys that published models have in common.
fn published(changes: &Value) -> Value {
    let mut config = json!({
        "activation_dropout": 0.0, "activation_function": "gelu", "apply_spec_augment": false,
        "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
        "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "classifier_proj_size": 256, "d_model": 384,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layerdrop": 0.0, "decoder_layers": 4,
        "decoder_start_token_id": 50258, "dropout": 0.0, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
        "encoder_layerdrop": 0.0, "encoder_layers": 4, "eos_token_id": 50257,
        "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "init_std": 0.02, "is_encoder_decoder": true,
        "mask_feature_length": 10, "mask_feature_min_masks": 0, "mask_feature_prob": 0.0, "mask_time_length": 10,
        "mask_time_min_masks": 2, "mask_time_prob": 0.05, "max_length": 448, "max_source_positions": 1500,
        "max_target_positions": 448, "median_filter_width": 7, "model_type": "whisper", "num_hidden_layers": 4,
        "num_mel_bins": 80, "pad_token_id": 50257, "scale_embedding": false, "suppress_tokens": [1, 2, 7],
        "torch_dtype": "float32", "transformers_version": "4.27.0.dev0", "use_cache": true,
        "use_weighted_layer_sum": false, "vocab_size": 51865
    });
    for (key, value) in changes.as_object().expect("changes") {
        config[key] = value.clone();
    }
    config
}

#[test]
fn published_configurations() {
    let tiny = spec(&published(&json!({})));
    assert_eq!((tiny.hidden_size, tiny.head_dim(), tiny.window_frames()), (384, 64, 3000));
    assert_eq!((tiny.decoder.positions, tiny.decoder.ffn_width), (448, 1536));

    let wide = json!({
        "d_model": 1280, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "decoder_layers": 32,
        "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32, "num_hidden_layers": 32,
        "num_mel_bins": 128, "vocab_size": 51866, "torch_dtype": "float16", "forced_decoder_ids": null
    });
    let large_v3 = spec(&published(&wide));
    assert_eq!((large_v3.num_mel_bins, large_v3.vocab_size, large_v3.head_dim()), (128, 51866, 64));

    // Turbo and the distilled models have fewer layers of the decoder.
    for (layers, others) in [(4, json!({})), (2, json!({"forced_decoder_ids": null}))] {
        let mut config = published(&wide);
        config["decoder_layers"] = json!(layers);
        for (key, value) in others.as_object().expect("changes") {
            config[key] = value.clone();
        }
        let spec = spec(&config);
        assert_eq!((spec.encoder.layers, spec.decoder.layers), (32, layers));
    }

    // English alone.
    let english =
        json!({"vocab_size": 51864, "bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 50256});
    assert_eq!(spec(&published(&english)).vocab_size, 51864);
}

/// The error of loading tiny-whisper with some keys changed, or without some tensors.
fn refused(changes: &Value, without: &str) -> String {
    let path = folder("tiny-whisper");
    let config = std::fs::read(path.join("config.json")).expect("config.json");
    let mut config: Map<String, Value> = serde_json::from_slice(&config).expect("an object");
    for (key, value) in changes.as_object().expect("changes") {
        config.insert(key.clone(), value.clone());
    }
    let checkpoint = Checkpoint::open(&path).expect("a checkpoint");
    let tensors = checkpoint.tensors().iter().filter(|tensor| without.is_empty() || tensor.name != without);
    let source = Source::hugging_face(Value::from(config).to_string().as_bytes(), tensors.cloned());
    match build_speech(&source.expect("a named architecture"), &STRICT) {
        Err(error) => error.to_string(),
        Ok(model) => panic!("{changes} without {without:?}: {:?}", model.spec),
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (changes, message) in [
        (json!({"d_model": 0}), "d_model: found 0, expected a whole number from 1"),
        (json!({"d_model": null}), "configuration key d_model is missing"),
        (json!({"decoder_layers": 1e12}), "decoder_layers: found 1000000000000.0, expected"),
        (json!({"decoder_attention_heads": 5}), "5 heads of the decoder for a width of 192"),
        (json!({"encoder_attention_heads": 7}), "7 heads of the encoder for a width of 192"),
        (json!({"activation_function": "relu6"}), "activation_function: found \"relu6\", expected gelu"),
        (json!({"is_encoder_decoder": false}), "is_encoder_decoder is false"),
        (json!({"tie_word_embeddings": false}), "tie_word_embeddings is false"),
        (json!({"max_source_positions": 1_u64 << 40}), "max_source_positions: found"),
        (
            json!({"vocab_size": 51866}),
            "model.decoder.embed_tokens.weight: shape [51865, 192], expected [51866, 192]",
        ),
        (
            json!({"num_mel_bins": 128}),
            "model.encoder.conv1.weight: shape [192, 80, 3], expected [192, 128, 3]",
        ),
        (json!({"encoder_layers": 4}), "encoder.layers.3.self_attn_layer_norm.weight"),
        (json!({"encoder_layers": 2}), "has no place in a whisper model"),
        (json!({"mel_scale": "htk"}), "mel_scale"),
    ] {
        let error = refused(&changes, "");
        assert!(error.contains(message), "{changes}: {error}");
    }
    let error = refused(&json!({}), "model.decoder.layers.1.encoder_attn.v_proj.weight");
    assert!(error.contains("tensor model.decoder.layers.1.encoder_attn.v_proj.weight or "), "{error}");
}
