//! The network that tells voices from other sounds, against Silero's own in ONNX Runtime, and its rules against theirs.

use std::ops::{ControlFlow, Range};

use brasa_audio::{
    Audio, Limits, LogMel, MelFilters, Recording, Sound, VoiceActivity, VoiceDetector, VoiceFollower,
    VoiceNetwork, VoiceSpans,
};
use serde_json::Value;

use crate::common::{noise, path};

fn golden() -> Value {
    serde_json::from_slice(&std::fs::read(path("golden/voice_activity.json")).unwrap()).unwrap()
}

fn signal(name: &str) -> Vec<f32> {
    match name {
        "noise" => noise(16_000),
        "silence" => vec![0.0; 5000],
        "sentences" => {
            let quiet = noise(8000).into_iter().map(|x| x * 0.01);
            let pause: Vec<f32> = vec![0.0; 24_000].into_iter().chain(quiet).collect();
            let held = |number| [signal(&format!("held-{number}.wav")), pause.clone()].concat();
            (1..=6).flat_map(held).collect()
        }
        wav => {
            let file = path("../../../models/tiny-whisper").join(wav);
            Audio::open(file, &Limits::default()).unwrap().into_samples()
        }
    }
}

fn rules(of: &Value) -> VoiceSpans {
    let number = |name: &str, usual: f64| of.get(name).map_or(usual, |value| value.as_f64().unwrap());
    let threshold = number("threshold", 0.5);
    VoiceSpans {
        threshold: threshold as f32,
        release: number("neg_threshold", threshold - 0.15) as f32,
        shortest_ms: number("min_speech_duration_ms", 250.0) as u32,
        shortest_pause_ms: number("min_silence_duration_ms", 100.0) as u32,
        pad_ms: number("speech_pad_ms", 30.0) as u32,
    }
}

fn spans(of: &Value) -> Vec<Range<usize>> {
    let end = |pair: &Value, at: usize| pair[at].as_u64().unwrap() as usize;
    of.as_array().unwrap().iter().map(|pair| end(pair, 0)..end(pair, 1)).collect()
}

#[test]
fn probabilities_and_spans_are_those_of_silero() {
    let golden = golden();
    let (mut worst, mut speech) = (0.0_f32, 0);
    for case in golden["cases"].as_array().unwrap() {
        let name = case["signal"].as_str().unwrap();
        let samples = signal(name);
        let (mut network, mut found) = (VoiceNetwork::new(), Vec::new());
        // Pieces of any length make the same steps.
        for piece in samples.chunks(7001) {
            network.push(piece, &mut found);
        }
        network.finish(&mut found);
        let expected: Vec<f32> =
            case["probabilities"].as_array().unwrap().iter().map(|p| p.as_f64().unwrap() as f32).collect();
        assert_eq!(found.len(), expected.len(), "{name}: steps");
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= 1e-4, "{name}, step {step}: {found}, expected {expected}");
            worst = worst.max((found - expected).abs());
        }
        speech += expected.iter().filter(|&&p| p > 0.5).count();
        for (rule, expected) in
            golden["rules"].as_array().unwrap().iter().zip(case["spans"].as_array().unwrap())
        {
            assert_eq!(rules(rule).spans(&found, samples.len()), spans(expected), "{name}, {rule}");
        }
        // One piece gives the same bits.
        let mut whole = Vec::new();
        network.push(&samples, &mut whole);
        network.finish(&mut whole);
        assert_eq!(whole, found, "{name}");
    }
    assert!(speech > 1000, "{speech} steps of speech");
    println!("worst distance {worst}");
}

#[test]
fn sounds_that_go_on_have_the_spans_of_whole_ones() {
    let samples = signal("sentences");
    let log_mel = LogMel::new(MelFilters::slaney(80).unwrap());
    let sound = Sound::from_samples(samples.clone());
    let recording = Recording::read(sound, &log_mel, &mut |_| ControlFlow::Continue(())).unwrap();
    for name in ["model", "energy", "off"] {
        let detector = VoiceDetector::named(name).unwrap();
        let whole = recording.speech(detector, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut follower = VoiceFollower::new(detector);
        for piece in samples.chunks(16_000) {
            follower.push(piece);
        }
        assert_eq!(follower.spans(), whole, "{name}");
        follower.forget(400_000);
        let late: Vec<_> = whole.into_iter().filter(|span| span.end >= 400_000).collect();
        assert_eq!(follower.spans(), late, "{name}");
    }
    assert_eq!(VoiceDetector::named("whatever"), None);
    let network = VoiceDetector::Network(VoiceSpans::default());
    let cancelled = recording.speech(network, &mut |_| ControlFlow::Break(()));
    assert!(cancelled.is_err());
}

#[test]
fn loud_noise_is_no_voice() {
    // A hum that is switched on and off: the energy rises, and nobody speaks.
    let hum = |n: usize| if n / 16_000 % 2 == 1 { 0.3 * (n as f32 * 0.04).sin() } else { 0.0 };
    let samples: Vec<f32> = (0..160_000).map(hum).collect();
    let mut network = VoiceFollower::new(VoiceDetector::named("model").unwrap());
    network.push(&samples);
    assert_eq!(network.spans(), []);
    let mut energy = VoiceFollower::new(VoiceDetector::Energy(VoiceActivity::default()));
    energy.push(&samples);
    assert_eq!(energy.spans().len(), 5);
}
