//! From window to window, with texts that are made up.

use std::ops::Range;

use brasa_speech::{Criteria, Seeker, TranscribeOptions, WindowText};
use serde_json::Value;

use crate::golden::{VOCABULARY, assert_close, cases, ids};

fn options(recipe: &Value) -> TranscribeOptions {
    let mut options = TranscribeOptions::default();
    for (name, value) in recipe.as_object().unwrap() {
        match name.as_str() {
            "condition_on_previous_text" => options.condition_on_previous_text = value.as_bool().unwrap(),
            "initial_prompt" => options.initial_prompt = value.as_str().map(String::from),
            "carry_initial_prompt" => options.carry_initial_prompt = value.as_bool().unwrap(),
            "no_speech_threshold" => options.no_speech_threshold = value.as_f64(),
            "logprob_threshold" => options.logprob_threshold = value.as_f64(),
            // Read by `clips`.
            "clip_timestamps" => {}
            "compression_ratio_threshold" => options.compression_ratio_threshold = value.as_f64(),
            other => panic!("{other}"),
        }
    }
    options
}

/// The parts of the sound that are transcribed, in frames.
fn clips(recipe: &Value) -> Option<Vec<Range<usize>>> {
    let ends = recipe.get("clip_timestamps")?.as_array().unwrap();
    let frames = |end: &Value| (end.as_f64().unwrap() * 100.0).round() as usize;
    // The last part may go on to the end.
    Some(ends.chunks(2).map(|pair| frames(&pair[0])..pair.get(1).map_or(usize::MAX, frames)).collect())
}

fn text(call: &Value) -> WindowText {
    let number = |name: &str| call[name].as_f64().unwrap();
    let tokens = ids(&call["tokens"]);
    WindowText {
        // Log-probabilities that tell tokens apart.
        logprobs: tokens.iter().map(|&token| -(token as f32)).collect(),
        tokens,
        text: String::new(),
        avg_logprob: number("avg_logprob"),
        no_speech_prob: number("no_speech_prob"),
        temperature: number("temperature") as f32,
        compression_ratio: number("compression_ratio"),
    }
}

#[test]
fn whole_transcriptions() {
    let mut clipped = 0;
    for (number, case) in cases("windows").iter().enumerate() {
        let options = options(&case["recipe"]);
        let criteria = Criteria::of(&options);
        let frames = case["frames"].as_u64().unwrap() as usize;
        let mut seeker = Seeker::new(frames, &VOCABULARY, &options, 448).unwrap();
        if let Some(clips) = clips(&case["recipe"]) {
            seeker.keep_only(&clips);
            clipped += 1;
        }
        let mut calls = case["calls"].as_array().unwrap().iter();
        let mut found = Vec::new();
        while let Some(window) = seeker.window() {
            let context = seeker.context();
            let mut attempts = 0;
            let text = loop {
                let call = calls.next().unwrap_or_else(|| panic!("case {number}: too many windows"));
                // Longer contexts are cut by the search.
                assert_eq!(context, ids(&call["prompt"]), "case {number}, window at {}", window.seek);
                attempts += 1;
                let text = text(call);
                if attempts == 3 || !criteria.wants_another(&text) {
                    break text;
                }
            };
            let cut = seeker.cut(window, &text, &VOCABULARY).unwrap();
            found.extend(seeker.follow(window, cut, &text));
        }
        assert!(calls.next().is_none(), "case {number}: too few windows or attempts");
        let expected = case["segments"].as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "case {number}: segments");
        for (found, expected) in found.iter().zip(expected) {
            let label = format!("case {number}: {:?}", found.text);
            assert_eq!(Some(found.text.as_str()), expected["text"].as_str(), "{label}");
            assert_eq!(found.tokens, ids(&expected["tokens"]), "{label}");
            let of_tokens: Vec<f32> = found.tokens.iter().map(|&token| -(token as f32)).collect();
            assert_eq!(found.logprobs, of_tokens, "{label}");
            assert_eq!(Some(u64::from(found.seek)), expected["seek"].as_u64(), "{label}");
            assert_close(found.start_s, &expected["start"], 1e-9, &label);
            assert_close(found.end_s, &expected["end"], 1e-9, &label);
            assert_close(found.temperature, &expected["temperature"], 1e-6, &label);
        }
    }
    assert!(clipped > 5, "{clipped} sounds in parts");
}

#[test]
fn parts_of_no_length_are_left_out() {
    let mut seeker = Seeker::new(9000, &VOCABULARY, &TranscribeOptions::default(), 448).unwrap();
    seeker.keep_only(&[100..100, 8000..10_000, 9000..9500]);
    let window = seeker.window().unwrap();
    assert_eq!((window.seek, window.frames), (8000, 1000));
    seeker.keep_only(&[]);
    assert_eq!((seeker.window(), seeker.frames_done()), (None, 9000));
}

/// A window whose timestamps say that nothing has passed is not transcribed for ever.
#[test]
fn every_window_leads_on() {
    let begin = VOCABULARY.tokens().timestamp_begin;
    let mut seeker = Seeker::new(9000, &VOCABULARY, &TranscribeOptions::default(), 448).unwrap();
    let mut windows = 0;
    while let Some(window) = seeker.window() {
        let text = WindowText { tokens: vec![begin, begin, 400, begin], ..WindowText::default() };
        let cut = seeker.cut(window, &text, &VOCABULARY).unwrap();
        seeker.follow(window, cut, &text);
        windows += 1;
        assert!(windows <= 3, "stuck at {}", window.seek);
    }
    assert_eq!(windows, 3);
}
