//! Recommended sampling: read from either container, the same after conversion, refused by name where out of range.

use brasa_formats::gguf::Metadata;
use brasa_models::RecommendedSampling;

fn config(text: &str) -> RecommendedSampling {
    RecommendedSampling::from_generation_config(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn settings_survive_gguf() {
    for text in [
        "{}",
        r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.05}"#,
        r#"{"do_sample": true, "temperature": 1.0, "top_k": 64}"#,
        r#"{"do_sample": false, "max_new_tokens": 256}"#,
        r#"{"top_k": -1, "top_p": null}"#,
    ] {
        let read = config(text);
        let mut metadata = Metadata::new();
        read.write_gguf(&mut metadata);
        assert_eq!(RecommendedSampling::from_gguf(&metadata), Ok(read), "{text}");
    }
}

#[test]
fn every_setting_is_read() {
    let read = config(
        r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05, "typical_p": 0.9,
            "num_beams": 1}"#,
    );
    assert_eq!((read.temperature, read.top_k, read.top_p), (Some(0.6), Some(20), Some(0.95)));
    assert_eq!((read.min_p, read.repeat_penalty), (Some(0.01), Some(1.05)));
    assert_eq!(read.passed_over, ["generation_config.json: typical_p = 0.9"]);
}

/// transformers takes the likeliest token, and GGUF says so by a temperature of 0.
#[test]
fn no_sampling_is_a_temperature_of_zero() {
    assert_eq!(config(r#"{"do_sample": false}"#).temperature, Some(0.0));
    assert_eq!(config(r#"{"do_sample": false, "temperature": 0.7}"#).temperature, Some(0.0));
    assert_eq!(config(r#"{"do_sample": true}"#).temperature, None);
}

#[test]
fn bad_values_are_named() {
    for (text, expected) in [
        (
            r#"{"temperature": -0.5}"#,
            "generation_config.json: temperature: found -0.5, expected 0 (greedy) or more",
        ),
        (r#"{"temperature": "hot"}"#, "temperature: found \"hot\", expected a finite number"),
        (r#"{"temperature": 1e300}"#, "temperature: found 1e+300, expected a finite number"),
        (r#"{"top_p": -0.5}"#, "top_p: found -0.5, expected 0 (the likeliest token) to 1"),
        (r#"{"top_p": 1.5}"#, "top_p: found 1.5, expected"),
        (r#"{"min_p": 2}"#, "min_p: found 2, expected 0 (off) to 1"),
        (r#"{"repetition_penalty": 0}"#, "repetition_penalty: found 0, expected more than 0"),
        (r#"{"top_k": 2.5}"#, "top_k: found 2.5, expected a whole number"),
        (r#"{"top_k": -2}"#, "top_k: found -2, expected a whole number"),
        (r#"{"do_sample": 1}"#, "do_sample: found 1, expected true or false"),
        ("[]", "generation_config.json: invalid type"),
        ("{", "generation_config.json: EOF"),
    ] {
        let error = RecommendedSampling::from_generation_config(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    for (key, value, expected) in [
        ("temp", -1.0, "general.sampling.temp: found -1.0, expected 0 (greedy) or more"),
        ("top_p", f32::NAN, "general.sampling.top_p: found \"NaN\", expected a finite number"),
        ("penalty_repeat", 0.0, "general.sampling.penalty_repeat: found 0.0, expected more than 0"),
    ] {
        let mut metadata = Metadata::new();
        metadata.insert(format!("general.sampling.{key}"), value);
        let error = RecommendedSampling::from_gguf(&metadata).expect_err(key).to_string();
        assert!(error.contains(expected), "{key}: {error}");
    }
}

#[test]
fn settings_of_other_samplers_are_listed() {
    let mut metadata = Metadata::new();
    metadata.insert("general.sampling.mirostat", 2);
    metadata.insert("general.sampling.top_k", 40);
    let read = RecommendedSampling::from_gguf(&metadata).expect("a recommendation");
    assert_eq!(read.top_k, Some(40));
    assert_eq!(read.passed_over, ["general.sampling.mirostat = 2"]);
}
