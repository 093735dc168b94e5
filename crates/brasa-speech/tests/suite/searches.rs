//! Greedy search, beams and draws.

use std::ops::ControlFlow;
use std::sync::Arc;

use brasa_audio::{LogMel, MelFilters};
use brasa_graph::device::DeviceError;
use brasa_speech::{
    Procedure, Recogniser, Rules, SpeechError, Timestamps, TranscribeOptions, Transcription, WindowId,
    WindowTask, WindowText, advance_together, run_tasks,
};
use serde_json::Value;

use crate::golden::{VOCABULARY, assert_close, cases, ids};
use crate::stub::Synthetic;

const START: [u32; 3] = [50_258, 50_259, 50_359];

/// Options of one attempt.
fn once(temperature: f32) -> TranscribeOptions {
    TranscribeOptions {
        temperatures: vec![temperature],
        beam_size: 1,
        max_tokens: Some(60),
        ..Default::default()
    }
}

fn procedure(options: TranscribeOptions) -> Arc<Procedure> {
    let rules = Rules::new(VOCABULARY.tokens(), &options);
    Arc::new(Procedure { options, vocabulary: VOCABULARY.clone(), rules, text_context: 448 })
}

fn search(options: TranscribeOptions, seed: u64, previous: &[u32]) -> (WindowText, Synthetic) {
    let sot = if previous.is_empty() { 0 } else { 1 + previous.len().min(223) };
    let mut recogniser = Synthetic::default();
    recogniser.sot = sot;
    let mut tasks = [WindowTask::new(procedure(options), WindowId(seed), previous, &START, 0)];
    run_tasks(&mut tasks, &mut recogniser, &mut || ControlFlow::Continue(())).unwrap();
    let [task] = tasks;
    assert!(recogniser.texts.is_empty(), "texts that nobody ended");
    (task.into_text().unwrap(), recogniser)
}

fn options(recipe: &Value) -> TranscribeOptions {
    let mut options = once(0.0);
    for (name, value) in recipe.as_object().unwrap() {
        let number = value.as_f64();
        match name.as_str() {
            "beam_size" => options.beam_size = number.unwrap() as usize,
            "patience" => options.patience = number.unwrap() as f32,
            "length_penalty" => options.length_penalty = Some(number.unwrap() as f32),
            "sample_len" => options.max_tokens = Some(number.unwrap() as usize),
            "without_timestamps" => options.timestamps = Timestamps::None,
            "max_initial_timestamp" => options.max_initial_timestamp_s = None,
            "suppress_blank" => options.suppress_blank = false,
            "suppress_tokens" => options.suppress_tokens = Some(vec![300, 301, 302]),
            "prompt" => {}
            other => panic!("{other}"),
        }
    }
    options
}

#[test]
fn greedy_and_beams() {
    for case in cases("searches") {
        let (seed, recipe) = (case["seed"].as_u64().unwrap(), &case["recipe"]);
        let previous = recipe.get("prompt").map(ids).unwrap_or_default();
        let (found, _) = search(options(recipe), seed, &previous);
        let label = format!("seed {seed}, {recipe}");
        assert_eq!(found.tokens, ids(&case["tokens"]), "{label}");
        // Names of special tokens, which only random logits bring into a text, are no part of ours.
        let expected = case["text"]
            .as_str()
            .unwrap()
            .split("<|")
            .map(|part| part.split_once("|>").map_or(part, |(_, text)| text));
        assert_eq!(found.text, expected.collect::<String>().trim(), "{label}");
        assert_close(found.avg_logprob, &case["avg_logprob"], 1e-4, &label);
        assert_close(found.no_speech_prob, &case["no_speech_prob"], 1e-7, &label);
        if !case["text"].as_str().unwrap().contains("<|") {
            // Random bytes do not compress, and compressors differ in how they say so.
            assert_close(found.compression_ratio, &case["compression_ratio"], 0.03, &label);
        }
    }
}

/// A text that is cut one token later is longer by that token's log-probability, greedily and in a search.
#[test]
fn tokens_have_their_own_log_probabilities() {
    for beam_size in [1, 3] {
        let cut =
            |most| search(TranscribeOptions { beam_size, max_tokens: Some(most), ..once(0.0) }, 4, &[]).0;
        let sum = |text: &WindowText| text.avg_logprob * (text.tokens.len() + 1) as f64;
        let whole = cut(12);
        assert!(whole.tokens.len() == 12 && whole.logprobs.len() == 12, "{whole:?}");
        let summed: f32 = whole.logprobs.iter().sum();
        assert!((f64::from(summed) - sum(&whole)).abs() < 1e-4, "{summed}, {whole:?}");
        let shorter = cut(11);
        if beam_size == 1 {
            let last = f64::from(whole.logprobs[11]);
            assert!((sum(&whole) - sum(&shorter) - last).abs() < 1e-4, "{last}, {shorter:?}");
        }
    }
}

/// Beams append one row each; a prompt is computed once for all of them and all attempts.
#[test]
fn rows_are_shared() {
    let options = TranscribeOptions { beam_size: 4, temperatures: vec![0.0, 0.2, 0.4], ..once(0.0) };
    let (text, recogniser) = search(options, 3, &[700; 100]);
    // Synthetic texts are unlikely, so every temperature is tried.
    assert!((text.temperature - 0.4).abs() < 1e-6, "{}", text.temperature);
    let prompt = 101 + START.len();
    let most = prompt + 61 * (4 + 5 + 5);
    assert!(recogniser.rows > prompt && recogniser.rows <= most, "{} rows", recogniser.rows);
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let options = |seed, best_of| TranscribeOptions { seed, best_of, ..once(0.8) };
    let one = search(options(5, 1), 1, &[]).0;
    assert_eq!(search(options(5, 1), 1, &[]).0, one);
    assert_ne!(search(options(6, 1), 1, &[]).0.tokens, one.tokens);
    // The first of several draws is the single one, and the best is at least as likely.
    let best = search(options(5, 5), 1, &[]).0;
    let score =
        |text: &WindowText| text.avg_logprob * (text.tokens.len() + 1) as f64 / text.tokens.len() as f64;
    assert!(score(&best) >= score(&one), "{} against {}", score(&best), score(&one));
    assert_ne!(search(once(0.0), 1, &[]).0.tokens, one.tokens, "a draw is not the likeliest text");
}

/// A cold draw is the likeliest text.
#[test]
fn a_low_temperature_draws_the_likeliest() {
    let (cold, _) = search(TranscribeOptions { best_of: 2, ..once(1e-9) }, 2, &[]);
    assert_eq!(cold.tokens, search(once(0.0), 2, &[]).0.tokens);
}

/// Windows together find what each finds alone, in fewer steps.
#[test]
fn windows_share_steps() {
    let options = TranscribeOptions { beam_size: 3, temperatures: vec![0.0, 0.3], best_of: 2, ..once(0.0) };
    let procedure = procedure(options.clone());
    let mut recogniser = Synthetic::default();
    let task = |seed| WindowTask::new(Arc::clone(&procedure), WindowId(seed), &[], &START, 0);
    let mut tasks: Vec<WindowTask> = (0..9).map(task).collect();
    run_tasks(&mut tasks, &mut recogniser, &mut || ControlFlow::Continue(())).unwrap();
    assert!(recogniser.texts.is_empty());
    let mut steps = 0;
    for (seed, task) in (0..).zip(tasks) {
        let (alone, one) = search(options.clone(), seed, &[]);
        assert_eq!(task.into_text().unwrap(), alone, "window {seed}");
        steps += one.steps;
    }
    assert!(recogniser.steps * 2 < steps, "{} steps together, {steps} alone", recogniser.steps);
}

#[test]
fn a_cancelled_search_ends_its_texts() {
    let mut recogniser = Synthetic::default();
    let options = TranscribeOptions { beam_size: 3, ..once(0.0) };
    let mut tasks = [WindowTask::new(procedure(options), WindowId(4), &[], &START, 0)];
    let mut left = 5;
    let result = run_tasks(&mut tasks, &mut recogniser, &mut || {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(SpeechError::Device(DeviceError::Cancelled))), "{result:?}");
    assert!(recogniser.texts.is_empty());
}

#[test]
fn options_that_make_no_sense() {
    let default = TranscribeOptions::default;
    for (options, message) in [
        (TranscribeOptions { temperatures: vec![], ..default() }, "no temperature"),
        (TranscribeOptions { temperatures: vec![f32::NAN], ..default() }, "temperature NaN"),
        (TranscribeOptions { beam_size: 0, ..default() }, "beam size 0"),
        (TranscribeOptions { best_of: 33, ..default() }, "best of 33"),
        (TranscribeOptions { patience: 0.0, ..default() }, "patience 0"),
        (TranscribeOptions { length_penalty: Some(2.0), ..default() }, "length penalty 2"),
        (TranscribeOptions { max_tokens: Some(0), ..default() }, "at most 0 tokens"),
        (TranscribeOptions { logit_bias: [(1, f32::INFINITY)].into(), ..default() }, "bias of inf"),
    ] {
        let error = options.check().unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    default().check().unwrap();
}

/// Transcriptions go on together, each to its own end, and their texts share steps.
#[test]
fn transcriptions_share_steps() {
    let mut recogniser = Synthetic::default();
    let log_mel = LogMel::new(MelFilters::slaney(80).unwrap());
    let sound = |seconds: usize| {
        let options = TranscribeOptions {
            language: Some("en".into()),
            condition_on_previous_text: false,
            no_speech_threshold: None,
            ..once(0.0)
        };
        let samples = vec![0.1; 16_000 * seconds];
        let features = log_mel.features(&samples).unwrap();
        Transcription::new(&recogniser.shape(), &VOCABULARY, features, options).unwrap()
    };
    let mut sounds = [sound(40), sound(5), sound(20)];
    let mut ends = [0; 3];
    for round in 1.. {
        let mut all: Vec<&mut Transcription> = sounds.iter_mut().collect();
        let found = advance_together(&mut all, &mut recogniser, &mut || ControlFlow::Continue(())).unwrap();
        for (end, found) in ends.iter_mut().zip(&found) {
            if found.is_none() && *end == 0 {
                *end = round;
            }
        }
        if found.iter().all(Option::is_none) {
            break;
        }
    }
    assert!(ends[1] <= ends[0] && ends[2] <= ends[0], "{ends:?}");
    assert!(sounds.iter().all(|sound| sound.progress().0 == sound.progress().1));
    assert!(
        recogniser.rows > recogniser.steps * 3 / 2,
        "{} rows in {} steps",
        recogniser.rows,
        recogniser.steps
    );
    assert!(recogniser.texts.is_empty(), "texts that nobody ended");
}
