//! Features against those of transformers.

use brasa_audio::{Audio, AudioError, Limits, LogMel, MelFilters, WINDOW_FRAMES};
use serde_json::Value;

use crate::common::{noise, path};

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

fn signal(name: &str) -> Vec<f32> {
    let wave = |at: fn(f64) -> f64| (0..8000).map(|n| at(f64::from(n) / 16_000.0) as f32).collect();
    match name {
        "noise" => noise(8000),
        "quiet_noise" => noise(8000).iter().map(|x| x * 1e-4).collect(),
        "chirp" => wave(|t| (std::f64::consts::TAU * (50.0 * t + 3950.0 * t * t)).sin()),
        "tone" => wave(|t| 0.5 * (std::f64::consts::TAU * 1000.0 * t).sin()),
        "clipped" => wave(|t| (3.0 * (std::f64::consts::TAU * 440.0 * t).sin()).clamp(-1.0, 1.0)),
        "silence" => vec![0.0; 8000],
        "impulse" => (0..8000).map(|n| f32::from(u8::from(n == 4321))).collect(),
        "constant" => vec![0.25; 8000],
        "short" => noise(150),
        "longer_than_a_window" => noise(481_000).iter().map(|x| x * 0.1).collect(),
        wav => Audio::open(path("golden").join(wav), &Limits::default()).unwrap().into_samples(),
    }
}

#[test]
fn features_are_those_of_transformers() {
    let golden = std::fs::read(path("golden/log_mel.bin")).unwrap();
    let golden: Vec<f32> = golden.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let (mut cases, mut worst) = (0, (0.0, String::new()));
    for case in json("golden/log_mel.json").as_array().unwrap() {
        let (name, bins) = (case["signal"].as_str().unwrap(), case["bins"].as_u64().unwrap() as usize);
        let features = LogMel::new(MelFilters::slaney(bins).unwrap()).window(&signal(name)).unwrap();
        assert_eq!((features.frames(), features.bins()), (WINDOW_FRAMES, bins));
        let expected = &golden[case["offset_bytes"].as_u64().unwrap() as usize / 4..];
        for (frame, expected) in case["frames"].as_array().unwrap().iter().zip(expected.chunks_exact(bins)) {
            let frame = frame.as_u64().unwrap() as usize;
            for (bin, (found, expected)) in features.values()[frame * bins..].iter().zip(expected).enumerate()
            {
                let off = (found - expected).abs();
                let place =
                    format!("{name}, frame {frame}, bin {bin} of {bins}: {found}, expected {expected}");
                assert!(off <= 1e-4, "{place}");
                if off > worst.0 {
                    worst = (off, place);
                }
            }
        }
        cases += 1;
    }
    println!("worst of {cases}: {:e}, {}", worst.0, worst.1);
    assert_eq!(cases, 28);
}

#[test]
fn filters_are_those_of_transformers() {
    for (golden, bins) in json("golden/mel_filters.json").as_array().unwrap().iter().zip([80, 128]) {
        let mut expected = vec![0.0; bins * 201];
        for (row, filter) in expected.chunks_exact_mut(201).zip(golden.as_array().unwrap()) {
            let first = filter[0].as_u64().unwrap() as usize;
            for (to, weight) in row[first..].iter_mut().zip(filter[1].as_array().unwrap()) {
                *to = weight.as_f64().unwrap() as f32;
            }
        }
        let filters = MelFilters::slaney(bins).unwrap();
        for (at, (found, expected)) in filters.to_matrix().iter().zip(&expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-8,
                "filter {}, bin {}: {found}, expected {expected}",
                at / 201,
                at % 201
            );
        }
        // A model's file carries the same matrix.
        assert_eq!(MelFilters::from_matrix(bins, &filters.to_matrix()).unwrap(), filters);
    }
}

#[test]
fn filters_that_make_no_sense_are_refused() {
    let problem = |result: Result<MelFilters, AudioError>| result.unwrap_err().to_string();
    assert_eq!(
        problem(MelFilters::slaney(0)),
        "mel filters: 0 mel bins, expected 1 to 1024 (Whisper has 80 or 128)"
    );
    assert_eq!(
        problem(MelFilters::from_matrix(2, &[0.0; 3])),
        "mel filters: 3 weights, expected 402 (2 × 201)"
    );
    let mut weights = [0.0; 402];
    weights[203] = f32::NAN;
    assert_eq!(problem(MelFilters::from_matrix(2, &weights)), "mel filters: filter 1, bin 2: weight NaN");
    // Filters that are all zeros hear nothing.
    let deaf = LogMel::new(MelFilters::from_matrix(2, &[0.0; 402]).unwrap());
    assert!(deaf.window(&noise(2000)).unwrap().values().iter().all(|&value| (value + 1.5).abs() < 1e-6));
}

#[test]
fn a_long_signal_is_cut_into_windows() {
    let samples = noise(500_000);
    let log_mel = LogMel::new(MelFilters::slaney(80).unwrap());
    let whole = log_mel.features(&samples).unwrap();
    assert_eq!(whole.frames(), 3125);
    // Where neither edge is near, a window of the features equals the features of the window. Noise has no quiet frames.
    let window = log_mel.window(&samples[100 * 160..]).unwrap();
    assert_eq!(whole.window(100).values()[2 * 80..2990 * 80], window.values()[2 * 80..2990 * 80]);
    // Behind the last frame there are zeros, not silence.
    let last = whole.window(3000);
    assert_eq!(last.values()[..125 * 80], whole.values()[3000 * 80..]);
    assert!(last.values()[125 * 80..].iter().all(|&value| value == 0.0));
    assert!(whole.window(usize::MAX).values().iter().all(|&value| value == 0.0));
    // Both layouts hold the same values.
    let transposed = whole.transposed();
    assert_eq!(transposed[7 * 3125 + 1234].to_bits(), whole.values()[1234 * 80 + 7].to_bits());
}

#[test]
fn lanes_do_not_matter() {
    // Frame t is computed in lane t mod 8; a signal of period 10 ms gives every lane the same frame.
    let samples: Vec<f32> = noise(160).into_iter().cycle().take(16_000).collect();
    let features = LogMel::new(MelFilters::slaney(80).unwrap()).window(&samples).unwrap();
    let frames: Vec<&[f32]> = features.values().chunks_exact(80).collect();
    assert!(frames[3..98].iter().all(|frame| *frame == frames[2]));
}

#[test]
fn nothing_gives_silence_and_no_frames() {
    let log_mel = LogMel::new(MelFilters::slaney(80).unwrap());
    assert!(log_mel.window(&[]).unwrap().values().iter().all(|&value| (value + 1.5).abs() < 1e-6));
    assert_eq!(log_mel.features(&[1.0; 159]).unwrap().frames(), 0);
    assert_eq!(log_mel.features(&[1.0; 160]).unwrap().frames(), 1);
    let error = log_mel.window(&[0.0, f32::INFINITY]).unwrap_err().to_string();
    assert_eq!(error, "sample 1 is inf, expected a number within ±1000000000");
}

#[test]
fn threads_change_no_bit() {
    // Up to lengths whose frames fill no block of the last thread.
    for seconds in [0.0, 0.5, 19.99, 20.0, 30.0, 47.123] {
        let count = (seconds * 16_000.0) as usize;
        let samples: Vec<f32> =
            (0..count).map(|n| (n as f32 * 0.37).sin() * (n as f32 * 1e-3).cos()).collect();
        let alone = LogMel::new(MelFilters::slaney(80).unwrap());
        for threads in [0, 2, 3, 8] {
            let together = alone.clone().with_threads(threads);
            assert_eq!(
                alone.features(&samples).unwrap(),
                together.features(&samples).unwrap(),
                "{seconds} s"
            );
            assert_eq!(alone.window(&samples).unwrap(), together.window(&samples).unwrap(), "{seconds} s");
        }
    }
}
